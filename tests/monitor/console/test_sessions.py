"""The session of the console: who may open one, and what it may request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, ClientWebSocketResponse, WSMsgType, WSServerHandshakeError

from broker.config.options import (
    AccountOptions,
    Authorization,
    ConsoleOptions,
    JetStreamOptions,
    Permissions,
    SubjectRules,
    User,
)
from broker.monitor.console import routes, sessions
from broker.monitor.console.allowed import CHANGING, READING, may_request
from broker.monitor.console.nodes import nodes
from broker.monitor.console.relay import ConsoleProfile, ConsoleRelay
from broker.server.server import Server
from tests.monitor.documents.test_http import HTTP, http_port
from tests.support.server import RawClient, run, running, until

USERS = (
    User("ann", "secret"),
    User("bob", "secret", Permissions(publish=SubjectRules(deny=(b"$JS.API.STREAM.NAMES",)))),
)


class Console:
    """A page that has opened its session."""

    def __init__(self, socket: ClientWebSocketResponse) -> None:
        self.socket = socket
        self._last = 0

    async def frame(self) -> dict[str, Any]:
        message = await self.socket.receive(timeout=10)
        assert message.type is WSMsgType.BINARY, message
        found = json.loads(message.data)
        assert isinstance(found, dict)
        return found

    async def sign_in(self, **login: str) -> dict[str, Any]:
        await self.socket.send_str(json.dumps({"login": login}))
        return await self.frame()

    async def request(self, subject: str, payload: str = "") -> dict[str, Any]:
        self._last += 1
        asked = {"id": self._last, "subject": subject, "payload": payload}
        await self.socket.send_str(json.dumps(asked))
        found = await self.frame()
        assert found.pop("id") == self._last
        return found


@asynccontextmanager
async def session(server: Server, origin: str = "", host: str = "") -> AsyncIterator[Console]:
    where = f"127.0.0.1:{http_port(server)}"
    headers = {"Origin": origin or f"http://{where}"} | ({"Host": host} if host else {})
    async with (
        ClientSession() as client,
        client.ws_connect(f"http://{where}/console/session", headers=headers) as socket,
    ):
        yield Console(socket)


@asynccontextmanager
async def node(tmp_path: Path, **settings: Any) -> AsyncIterator[Server]:
    jetstream = JetStreamOptions(store_dir=str(tmp_path))
    async with running(http=HTTP, jetstream=jetstream, **settings) as server:
        yield server


def test_without_authorization_the_page_signs_in_by_itself(tmp_path: Path) -> None:
    async def test() -> None:
        async with node(tmp_path, server_name="n") as server, session(server) as console:
            hello = await console.frame()
            assert (hello["server"], hello["auth_required"], hello["admin"]) == ("n", False, False)
            assert await console.sign_in() == {"signed_in": True}
            found = json.loads((await console.request("$JS.API.STREAM.NAMES"))["answer"])
            assert found["streams"] in ([], None)

    run(test())


def test_where_clients_need_no_login_the_page_needs_none_either(tmp_path: Path) -> None:
    """The cluster of `jetraft up`: the only users are those of the system account."""

    async def test() -> None:
        for authorization in (
            Authorization(users=USERS, no_auth_user="ann"),
            Authorization(users=USERS, open_to_all=True),
        ):
            async with (
                node(tmp_path, authorization=authorization) as server,
                session(server) as console,
            ):
                assert not (await console.frame())["auth_required"]
                assert await console.sign_in() == {"signed_in": True}
                assert "answer" in await console.request("$JS.API.STREAM.NAMES")

    run(test())


def test_users_sign_in_with_their_own_rights(tmp_path: Path) -> None:
    async def test() -> None:
        async with node(tmp_path, authorization=Authorization(users=USERS)) as server:
            async with session(server) as console:
                assert (await console.frame())["auth_required"]
                refused = await console.sign_in(user="ann", **{"pass": "wrong"})
                assert "Authorization Violation" in refused["refused"]
            async with session(server) as console:
                await console.frame()
                assert await console.sign_in(user="bob", **{"pass": "secret"}) == {
                    "signed_in": True
                }
                answer = await console.request("$JS.API.STREAM.NAMES")
                assert "Permissions Violation" in answer["error"]
                assert "answer" in await console.request("$JS.API.INFO")

    run(test())


def test_it_only_looks_unless_administration_is_on(tmp_path: Path) -> None:
    async def test() -> None:
        config = json.dumps({"name": "S", "subjects": ["s"]})
        async with node(tmp_path / "a") as server, session(server) as console:
            await console.frame()
            await console.sign_in()
            for subject in ("$JS.API.STREAM.PURGE.S", "$JS.API.STREAM.CREATE.S", "s"):
                assert "may only look" in (await console.request(subject, config))["error"]
        options = ConsoleOptions(admin=True)
        async with node(tmp_path / "b", console=options) as server, session(server) as console:
            assert (await console.frame())["admin"]
            await console.sign_in()
            answer = json.loads((await console.request("$JS.API.STREAM.PURGE.S"))["answer"])
            assert answer["error"]["err_code"] == 10059  # there is no such stream
            assert "may only look" in (await console.request("$JS.API.STREAM.CREATE.S"))["error"]

    run(test())


def test_a_page_of_another_site_is_refused(tmp_path: Path) -> None:
    async def test() -> None:
        async with node(tmp_path) as server:
            here = f"127.0.0.1:{http_port(server)}"
            for origin in ("http://example.com", "null", "http://[", f"file://{here}", here):
                with pytest.raises(WSServerHandshakeError) as refused:
                    async with session(server, origin=origin):
                        pytest.fail("another site signed in")
                assert refused.value.status == 403, origin

    run(test())


def test_without_users_a_name_of_the_internet_is_refused(tmp_path: Path) -> None:
    """Its owner can let it mean an address of this server, and his page is then of this origin."""

    async def test() -> None:
        async with node(tmp_path / "a") as server:
            for host in ("evil.example", "evil.example:8222", "127.0.0.1.evil.example"):
                with pytest.raises(WSServerHandshakeError) as refused:
                    async with session(server, origin=f"http://{host}", host=host):
                        pytest.fail("another site signed in")
                assert refused.value.status == 403, host
            for host in (
                "localhost:1",
                "n-0",
                "n.default.svc",
                "n.ns.svc.cluster.local",
                "[::1]:1",
            ):
                async with session(server, origin=f"http://{host}", host=host) as console:
                    assert "nonce" in await console.frame()
        host = "nats.example"
        async with (
            node(tmp_path / "b", authorization=Authorization(users=USERS)) as server,
            session(server, origin=f"http://{host}", host=host) as console,
        ):
            assert "nonce" in await console.frame()

    run(test())


def test_who_never_signs_in_keeps_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "SESSIONS_MAX", 2)

    async def test() -> None:
        async with node(tmp_path) as server, AsyncExitStack() as pages:

            async def page() -> Console:
                console = await pages.enter_async_context(session(server))
                await console.frame()
                return console

            silent = [await page() for _ in range(2)]
            for _ in range(2):
                assert await (await page()).sign_in() == {"signed_in": True}
            assert (await silent[0].socket.receive(timeout=10)).type is WSMsgType.CLOSED
            assert "open already" in (await (await page()).sign_in())["refused"]

    run(test())


def test_one_account_does_not_take_all_sessions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "ACCOUNT_SESSIONS_MAX", 1)
    users = (User("ann", "secret", account="A"), User("bob", "secret", account="B"))
    accounts = (AccountOptions("A"), AccountOptions("B"))

    async def test() -> None:
        settings = {"authorization": Authorization(users=users), "accounts": accounts}
        async with node(tmp_path, **settings) as server:

            async def signed_in(console: Console, user: str) -> dict[str, Any]:
                await console.frame()
                return await console.sign_in(user=user, **{"pass": "secret"})

            for _ in range(2):
                await until(lambda: not server.connections)  # the first ones have gone
                async with session(server) as one, session(server) as two, session(server) as three:
                    assert await signed_in(one, "ann") == {"signed_in": True}
                    assert "of this account" in (await signed_in(two, "ann"))["refused"]
                    assert await signed_in(three, "bob") == {"signed_in": True}

    run(test())


def test_a_page_that_does_not_take_its_answers_gets_no_more(tmp_path: Path) -> None:
    async def test() -> None:
        async with node(tmp_path) as server:
            one = await RawClient.open(server)
            config = json.dumps({"name": "S", "subjects": ["s"]}).encode()
            for subject, body in ((b"$JS.API.STREAM.CREATE.S", config), (b"s", bytes(300_000))):
                one.send(b"SUB in 1\r\nPUB %b in %d\r\n%b\r\n" % (subject, len(body), body))
                while not (await one.line()).startswith(b"MSG in "):
                    pass
            one.close()
            await until(lambda: not server.connections)
            relay = ConsoleRelay(ConsoleProfile(server.clients), ("127.0.0.1", 0))
            await relay.info()
            await relay.sign_in({})
            (page,) = server.connections.values()
            taken, release = 0, asyncio.Event()

            async def request() -> None:
                nonlocal taken
                async with relay.request("$JS.API.STREAM.MSG.GET.S", b'{"seq":1}') as answer:
                    assert len(answer) > 300_000
                    taken += 1
                    await release.wait()

            async with asyncio.TaskGroup() as tasks:
                receiving = tasks.create_task(relay.receive())
                asked = [tasks.create_task(request()) for _ in range(4)]
                await until(lambda: page.client.out_msgs >= 4)
                for _ in range(100):
                    await asyncio.sleep(0)
                assert taken == 1
                release.set()
                await asyncio.gather(*asked)
                receiving.cancel()
            relay.close()

    run(test())


def test_what_others_send_to_its_inbox_does_not_end_a_session(tmp_path: Path) -> None:
    async def test() -> None:
        async with node(tmp_path) as server, session(server) as console:
            one = await RawClient.open(server)
            one.send(b"SUB $JS.API.STREAM.NAMES 1\r\n")
            await one.flush()
            await console.frame()
            await console.sign_in()
            assert "answer" in await console.request("$JS.API.STREAM.NAMES")
            while not (line := await one.line()).startswith(b"MSG "):
                assert line
            inbox = line.split()[3].rpartition(b".")[0]
            one.send(b"PUB %b.x 0\r\n\r\nPUB %b.99 0\r\n\r\n" % (inbox, inbox))
            await one.flush()
            one.close()
            assert "answer" in await console.request("$JS.API.INFO")

    run(test())


def test_many_requests_for_the_nodes_ask_the_cluster_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0

    async def counted(observed: Any) -> Any:
        nonlocal asked
        asked += 1
        return await nodes(observed)

    monkeypatch.setattr(routes, "nodes", counted)
    monkeypatch.setattr(routes, "FRESH_S", 3600.0)

    async def test() -> None:
        async with node(tmp_path) as server, ClientSession() as client:
            url = f"http://127.0.0.1:{http_port(server)}/console/nodes"

            async def get() -> None:
                async with client.get(url) as answer:
                    assert len((await answer.json())["servers"]) == 1

            async with asyncio.TaskGroup() as tasks:
                for _ in range(20):
                    tasks.create_task(get())

    run(test())
    assert asked == 1


def test_a_closed_page_leaves_nothing_behind(tmp_path: Path) -> None:
    async def test() -> None:
        async with node(tmp_path) as server:
            async with session(server) as console:
                await console.frame()
                await console.sign_in()
                assert len(server.connections) == 1
                await console.socket.send_str("not JSON")
                assert (await console.socket.receive(timeout=10)).type is WSMsgType.CLOSE
            await until(lambda: not server.connections)

    run(test())


@pytest.mark.parametrize("subject", [*READING, *CHANGING])
def test_every_subject_of_the_tables_can_be_requested(subject: str) -> None:
    literal = subject.replace("*", "X")
    assert may_request(literal, admin=True)
    assert may_request(literal, admin=False) == (subject in READING)


@pytest.mark.parametrize(
    "subject",
    ["", ">", "$JS.API.>", "$JS.API.STREAM.INFO.*", "$JS.API.STREAM.INFO.a b", "a\r\nPUB x 0"],
)
def test_subjects_that_are_no_request_are_refused(subject: str) -> None:
    assert not may_request(subject, admin=True)
