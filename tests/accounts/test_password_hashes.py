"""bcrypt: off the event loop, addresses in turn, and not again at a reload."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any

import bcrypt
import pytest
from msgspec.structs import replace

from broker.accounts.authentication import Authenticator
from broker.accounts.identity import Credentials
from broker.config.options import Authorization, User
from broker.server import server as server_module
from broker.server.password_checks import PRIORITY, PasswordChecks
from tests.support.server import RawClient, run, running, until

HASH = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()
OTHER_HASH = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()
CONNECT = b'CONNECT {"user":"u","pass":"secret"}\r\n'


def hashed(text: str) -> Authorization:
    return Authorization(users=(User("u", text),))


def test_addresses_take_turns_and_closed_connections_none() -> None:
    async def test() -> None:
        checks: PasswordChecks[str] = PasswordChecks()
        order: list[str] = []
        go = threading.Event()

        def work(name: str) -> str:
            go.wait(10)
            order.append(name)
            return name

        async def ask(address: str, name: str, *, wanted: bool = True) -> str | None:
            return await checks.check(address, lambda: work(name), wanted=lambda: wanted)

        async with asyncio.TaskGroup() as group:
            flood = [group.create_task(ask("a", f"a{at}", wanted=at < 3)) for at in range(9)]
            await asyncio.sleep(0)
            other = group.create_task(ask("b", "b"))
            await asyncio.sleep(0)
            go.set()
        assert other.result() == "b"
        assert order == ["a0", "a1", "b", "a2"]
        assert [task.result() for task in flood[3:]] == [None] * 6

    run(test())


def test_a_check_has_low_priority_and_its_error_reaches_the_login() -> None:
    async def test() -> None:
        checks: PasswordChecks[int] = PasswordChecks()

        def priority() -> int:
            return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

        usual = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        found = await checks.check("a", priority, wanted=lambda: True)
        assert found == max(PRIORITY, usual) or found == PRIORITY
        with pytest.raises(ZeroDivisionError):
            await checks.check("a", lambda: 1 // 0, wanted=lambda: True)
        assert await checks.check("a", lambda: 7, wanted=lambda: True) == 7

    run(test())


def test_an_unknown_user_takes_as_long_as_a_known_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the time of a refusal tells which users there are."""
    computed: list[bytes] = []
    check = bcrypt.checkpw

    def counted(password: bytes, hashed: bytes) -> bool:
        computed.append(hashed)
        return check(password, hashed)

    monkeypatch.setattr(bcrypt, "checkpw", counted)
    users = (User("plain", "secret"), User("u", HASH))
    authenticator = Authenticator(Authorization(users=users))
    for user, password, slow, found in (
        ("u", "wrong", True, False),
        ("nobody", "wrong", True, False),
        ("nobody", "secret", True, False),  # although that hash is of this password
        ("u", "secret", True, True),
        ("", "", False, False),
        ("plain", "secret", False, True),
    ):
        computed.clear()
        given = Credentials(user=user, password=password)
        assert authenticator.slow(given) is slow, user
        assert (authenticator.identify(given) is not None) is found, user
        assert len(computed) == slow, user
    without = Authenticator(Authorization(users=users[:1]))
    assert not without.slow(Credentials(user="nobody", password="x"))


def test_a_reload_computes_no_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[Any] = []
    check = bcrypt.checkpw
    monkeypatch.setattr(
        bcrypt,
        "checkpw",
        lambda *given: computed.append(threading.current_thread()) or check(*given),
    )

    async def test() -> None:
        async with running(authorization=hashed(HASH)) as server:
            client = await RawClient.open(server, connect=CONNECT)
            await client.flush()
            assert len(computed) == 1
            assert computed[0] is not threading.current_thread()
            server.reconfigure(replace(server.options))
            await client.flush()
            assert len(computed) == 1
            # another hash, even of the same password: the client has to come back
            server.reconfigure(replace(server.options, authorization=hashed(OTHER_HASH)))
            await until(lambda: not server.connections)
            assert len(computed) == 1
            again = await RawClient.open(server, connect=CONNECT)
            await again.flush()
            assert len(computed) == 2
            again.close()
            client.close()

    run(test())


def test_a_wrong_password_is_refused_after_a_right_one() -> None:
    async def test() -> None:
        async with running(authorization=hashed(HASH)) as server:
            client = await RawClient.open(server, connect=CONNECT)
            await client.flush()
            client.send(CONNECT.replace(b"secret", b"wrong"))
            assert b"Authorization Violation" in await client.line()
            client.close()

    run(test())


def test_a_reload_looks_at_many_clients_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "CLIENTS_AT_ONCE", 3)

    async def test() -> None:
        async with running(authorization=hashed(HASH)) as server:
            clients = [await RawClient.open(server, connect=CONNECT) for _ in range(10)]
            for client in clients:
                await client.flush()
            server.reconfigure(replace(server.options, authorization=hashed(OTHER_HASH)))
            assert sum(one.closed for one in server.connections.values()) <= 3
            assert len(server.connections) >= 7
            await until(lambda: not server.connections)
            for client in clients:
                client.close()

    run(test())
