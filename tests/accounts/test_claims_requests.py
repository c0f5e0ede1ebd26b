"""Account JWTs are pushed to running servers: `resolver { type: full }`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from broker.config.account_directory import AccountDirectory, stored_accounts
from broker.config.load import BadSettings, load, parse_flags
from broker.config.trusted_accounts import trusted_accounts
from broker.credentials import jwt
from broker.credentials.nkeys import KeyKind
from broker.main import Broker
from broker.server.process.reload import NotReloadable, merge
from broker.server.process.tasks import Tasks
from tests.accounts.test_operator_mode import (
    ACCOUNT,
    FREE,
    OPEN,
    OPERATOR,
    OTHER,
    STRANGER,
    USER,
    account,
    operator,
    user,
)
from tests.support.clients import open_client
from tests.support.keys import Key, token
from tests.support.server import PATIENCE, run, until

SYSTEM, SYSTEM_USER = Key(KeyKind.ACCOUNT), Key(KeyKind.USER)
CREDS = "-----BEGIN NATS USER JWT-----\n{}\n\n-----BEGIN USER NKEY SEED-----\n{}\n"


def dated(key: Key, iat: int, signer: Key = OPERATOR, **limits: int) -> str:
    claims = {"limits": {**OPEN, **limits}}
    return token(signer, "account", key.public, name="acme", iat=iat, nats=claims)


def deleting(*keys: Key, signer: Key = OPERATOR) -> str:
    claims = {"accounts": [key.public for key in keys]}
    return token(signer, "generic", signer.public, nats=claims)


class Pushing:
    """A server with a FULL resolver, and a client of its system account."""

    def __init__(self, path: Path, settings: str) -> None:
        self.path = path
        self.directory = AccountDirectory(str(path / "jwt"))
        self.broker: Broker
        self.system: Any
        (path / "server.conf").write_text(
            f'listen: "127.0.0.1:-1"\noperator: {operator(system_account=SYSTEM.public)}\n'
            f'resolver {{ type: full, dir: "{path}/jwt", {settings} }}\n'
            f"resolver_preload {{ {SYSTEM.public}: {account(SYSTEM)} }}\n"
        )
        for name, signed, key in (
            ("system", token(SYSTEM, "user", SYSTEM_USER.public, nats=FREE), SYSTEM_USER),
            ("user", user(), USER),
        ):
            (path / f"{name}.creds").write_text(CREDS.format(signed, key.seed))

    def options(self) -> Any:
        return load(parse_flags(["-c", str(self.path / "server.conf")])).options

    def reload(self) -> None:
        try:
            self.broker.reconfigure(merge(self.broker.server.options, self.options()))
        except BadSettings as bad:
            raise ValueError(str(bad)) from bad

    async def client(self, name: str) -> Any:
        url = f"nats://127.0.0.1:{self.broker.server.port}"
        creds = str(self.path / f"{name}.creds")
        return await open_client(url, user_credentials=creds, allow_reconnect=False)

    async def ask(self, subject: str, payload: str = "") -> Any:
        answer = await self.system.request(f"$SYS.REQ.{subject}", payload.encode(), PATIENCE)
        return msgspec.json.decode(answer.data)

    async def push(self, text: str) -> Any:
        return await self.ask("CLAIMS.UPDATE", text)

    async def reason(self, text: str) -> str:
        prefix = "jwt update resulted in error - "
        return str((await self.push(text))["error"]["description"]).removeprefix(prefix)


@asynccontextmanager
async def pushing(path: Path, settings: str = "") -> AsyncIterator[Pushing]:
    found = Pushing(path, settings)
    async with Tasks() as tasks:
        found.broker = Broker(found.options(), tasks, found.reload)
        try:
            await found.broker.start()
            found.system = await found.client("system")
            try:
                yield found
            finally:
                await found.system.close()
        finally:
            await found.broker.stop()


def test_a_pushed_account_can_be_used_at_once_and_after_a_restart(tmp_path: Path) -> None:
    async def test() -> None:
        async with pushing(tmp_path) as server:
            assert (await server.ask("CLAIMS.LIST"))["data"] == [SYSTEM.public]
            text = dated(ACCOUNT, 100)
            done = (await server.push(text))["data"]
            assert done == {"account": ACCOUNT.public, "code": 200, "message": "jwt updated"}
            client = await server.client("user")
            await client.close()
            found = await server.system.request(
                f"$SYS.REQ.ACCOUNT.{ACCOUNT.public}.CLAIMS.LOOKUP", b"", PATIENCE
            )
            assert found.data.decode() == text
        async with pushing(tmp_path) as server:
            assert set((await server.ask("CLAIMS.LIST"))["data"]) == {SYSTEM.public, ACCOUNT.public}
            client = await server.client("user")
            await client.close()

    run(test())


def test_new_limits_hold_for_the_next_client(tmp_path: Path) -> None:
    async def test() -> None:
        async with pushing(tmp_path) as server:
            await server.push(dated(ACCOUNT, 100))
            client = await server.client("user")
            try:
                await server.ask(
                    f"ACCOUNT.{ACCOUNT.public}.CLAIMS.UPDATE", dated(ACCOUNT, 101, conn=7)
                )
                options = server.broker.server.accounts[ACCOUNT.public].options
                assert options.max_connections == 7
                await client.flush()
            finally:
                await client.close()

    run(test())


def test_what_cannot_be_pushed(tmp_path: Path) -> None:
    both = {**OPEN, "disk_storage": 5, "tiered_limits": {"R1": {}}}
    tiered = token(OPERATOR, "account", OTHER.public, nats={"limits": both})

    async def test() -> None:
        async with pushing(tmp_path, "limit: 2") as server:
            text = dated(ACCOUNT, 100)
            await server.push(text)
            assert await server.reason("garbage") == "expected 3 chunks"
            assert await server.reason(user()) == "not account claim"
            assert await server.reason(dated(ACCOUNT, 99)) == "older than the stored one"
            by_stranger = dated(ACCOUNT, 101, signer=STRANGER)
            assert await server.reason(by_stranger) == "not signed by a trusted operator"
            assert "mutually exclusive" in await server.reason(tiered)
            full = await server.reason(dated(OTHER, 100))
            assert full == "the limit of 2 accounts is reached"
            wrong = await server.ask(f"ACCOUNT.{OTHER.public}.CLAIMS.UPDATE", text)
            assert wrong["error"]["description"].endswith("subject does not match jwt content")
            assert server.directory.text(ACCOUNT.public) == text
            assert len(server.directory.names()) == 2

    run(test())


def test_a_deleted_account_is_gone_with_its_clients(tmp_path: Path) -> None:
    async def test() -> None:
        async with pushing(tmp_path, "allow_delete: true") as server:
            await server.push(dated(ACCOUNT, 100))
            client = await server.client("user")
            try:
                refused = await server.ask("CLAIMS.DELETE", deleting(ACCOUNT, signer=STRANGER))
                assert refused["error"]["description"].endswith("not trusted")
                refused = await server.ask("CLAIMS.DELETE", deleting(SYSTEM))
                assert "system account" in refused["error"]["description"]
                await client.flush()
                done = await server.ask("CLAIMS.DELETE", deleting(ACCOUNT))
                assert done["data"]["message"] == "deleted 1 accounts"
                await until(lambda: client.is_closed)
            finally:
                await client.close()
            assert (await server.ask("CLAIMS.LIST"))["data"] == [SYSTEM.public]

    run(test())


def test_a_deletion_names_accounts_not_paths(tmp_path: Path) -> None:
    directory = AccountDirectory(str(tmp_path / "jwt"))
    directory.save(ACCOUNT.public, "text")
    (tmp_path / "other.jwt").write_text("kept")
    assert not directory.delete("../other")
    assert (tmp_path / "other.jwt").exists()
    assert directory.delete(ACCOUNT.public)


def test_a_reload_verifies_only_what_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise every push would verify all accounts, on every server."""
    directory = AccountDirectory(str(tmp_path))
    keys = [Key(KeyKind.ACCOUNT) for _ in range(5)]
    for key in keys:
        directory.save(key.public, dated(key, 100))
    verified: list[str] = []
    decode = jwt.decode

    def counted(text: str) -> jwt.Token:
        verified.append(text)
        return decode(text)

    monkeypatch.setattr(jwt, "decode", counted)
    operators = [jwt.decode(operator())]
    verified.clear()
    found, _ = stored_accounts(str(tmp_path))
    assert len(verified) == 5
    before = trusted_accounts(operators, found).accounts
    directory.save(keys[0].public, dated(keys[0], 101, conn=7))
    again, _ = stored_accounts(str(tmp_path))
    assert len(verified) == 6
    after = trusted_accounts(operators, again).accounts
    same = [one is other for one, other in zip(before, after, strict=True)]
    assert same.count(False) == 1
    assert {one.max_connections for one in after} == {-1, 7}
    directory.delete(keys[1].public)
    (tmp_path / f"{keys[2].public}.jwt").write_text("damaged")
    left, problems = stored_accounts(str(tmp_path))
    assert (len(left), len(problems)) == (3, 1)


def test_deleting_must_be_allowed(tmp_path: Path) -> None:
    async def test() -> None:
        async with pushing(tmp_path) as server:
            await server.push(dated(ACCOUNT, 100))
            refused = await server.ask("CLAIMS.DELETE", deleting(ACCOUNT))
            assert refused["error"]["description"].endswith("not enabled (allow_delete)")
            assert server.directory.text(ACCOUNT.public)

    run(test())


def test_servers_tell_each_other_what_one_of_them_missed(tmp_path: Path) -> None:
    async def test() -> None:
        async with pushing(tmp_path, "interval: 20ms, allow_delete: true") as server:
            asked = await server.system.subscribe("$SYS.REQ.CLAIMS.PACK")
            comparing = await asked.next_msg(timeout=PATIENCE)
            await asked.unsubscribe()
            missed = dated(ACCOUNT, 100)
            for line in (f"{ACCOUNT.public}|{missed}", f"{OTHER.public}|damaged", ""):
                await server.system.publish(comparing.reply, line.encode())
            await until(lambda: server.broker.server.accounts.is_configured(ACCOUNT.public))
            assert server.directory.text(ACCOUNT.public) == missed

            inbox = server.system.new_inbox()
            packed = await server.system.subscribe(inbox)
            await server.system.publish("$SYS.REQ.CLAIMS.PACK", b"another digest", reply=inbox)
            lines = [(await packed.next_msg(timeout=PATIENCE)).data.decode() for _ in range(3)]
            assert {line.partition("|")[0] for line in lines} == {
                SYSTEM.public, ACCOUNT.public, "",
            }  # fmt: skip

            await server.ask("CLAIMS.DELETE", deleting(ACCOUNT))
            for line in (f"{ACCOUNT.public}|{missed}", ""):  # of a server that was away
                await server.system.publish(comparing.reply, line.encode())
            await server.system.flush()
            assert not server.directory.text(ACCOUNT.public)

    run(test())


def test_a_reload_cannot_switch_to_another_kind_of_resolver(tmp_path: Path) -> None:
    full = Pushing(tmp_path, "").options()
    memory = replace(full, resolver=None)
    assert merge(full, full) == full
    for before, after in ((full, memory), (memory, full)):
        with pytest.raises(NotReloadable, match="resolver"):
            merge(before, after)


def test_damaged_files_are_left_out(tmp_path: Path) -> None:
    server = Pushing(tmp_path, "")
    server.directory.save(ACCOUNT.public, "damaged")
    server.directory.save(OTHER.public, dated(ACCOUNT, 1))
    loaded = load(parse_flags(["-c", str(tmp_path / "server.conf")]))
    assert [one.name for one in loaded.options.accounts] == [SYSTEM.public]
    assert len([text for text in loaded.warnings if text.startswith("Account [")]) == 2


@pytest.mark.parametrize(
    ("block", "text"),
    [
        ("{ type: full }", "dir has no value"),
        ("{ type: full, dir: x, what: 1 }", 'not supported: "what"'),
    ],
)
def test_bad_resolvers(tmp_path: Path, block: str, text: str) -> None:
    path = tmp_path / "server.conf"
    path.write_text(f"operator: {operator()}\nresolver: {block}\n")
    with pytest.raises(BadSettings, match=text):
        load(parse_flags(["-c", str(path)]))
