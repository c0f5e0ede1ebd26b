"""Ours as leaf node of a hub: dialing, refusals, what crosses. The hub is another server of ours,
or a raw socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from broker.config.options import (
    AccountOptions,
    Authorization,
    LeafNodeOptions,
    LeafRemote,
    Logging,
    Permissions,
    SubjectRules,
    TlsOptions,
    User,
)
from broker.server.leaf import dialed_leaf
from broker.server.server import Server
from broker.subjects import Sink, SinkKind, Subscription
from tests.support.server import RawClient, run, running, until

PORT = LeafNodeOptions(host="127.0.0.1", port=-1)
CERTS = Path(__file__).resolve().parents[2] / "support" / "certs"
SERVER_TLS = TlsOptions(
    cert_file=str(CERTS / "server-cert.pem"), key_file=str(CERTS / "server-key.pem")
)


def remote_of(port: int, *, user: str = "", **settings: Any) -> LeafNodeOptions:
    remote = LeafRemote((f"nats://{user}127.0.0.1:{port}",), **settings)
    return LeafNodeOptions(remotes=(remote,), reconnect_ns=20_000_000)


async def subscribed(server: Server, *subjects: bytes, user: bytes = b"") -> RawClient:
    connect = b'CONNECT {"verbose":false,"pedantic":false,"headers":true%b}\r\n' % user
    client = await RawClient.open(server, connect=connect)
    for number, subject in enumerate(subjects, 1):
        client.send(b"SUB %b %d\r\n" % (subject, number))
    assert await client.flush() == b""
    return client


async def heard(server: Server, subject: bytes, account: str = "$G") -> None:
    await until(lambda: server.router.has_interest(server.account(account), subject))


def test_a_message_crosses_two_servers_and_reaches_each_once() -> None:
    """hub <- middle <- end: interest and messages cross both connections."""

    async def work() -> None:
        async with running(leafnodes=PORT, server_name="H") as hub:
            middle_options = LeafNodeOptions(
                host="127.0.0.1", port=-1, remotes=remote_of(hub.leaf_port).remotes
            )
            async with (
                running(leafnodes=middle_options, server_name="M") as middle,
                running(leafnodes=remote_of(middle.leaf_port), server_name="E") as end,
            ):
                clients = {name: await subscribed(server, b"foo") for name, server in (
                    ("H", hub), ("M", middle), ("E", end),
                )}  # fmt: skip
                await until(lambda: (len(middle.leafs), len(end.leafs)) == (2, 1))
                for server in (hub, middle, end):
                    links = 2 if server is middle else 1
                    await until(lambda s=server, n=links: len(_plain(s, b"foo")) == n + 1)
                for name, client in clients.items():
                    client.send(b"PUB foo 1\r\n" + name.encode() + b"\r\n")
                for client in clients.values():
                    got = b""
                    while got.count(b"MSG") < 3:
                        got += await client.flush()
                    assert sorted(got.split(b"\r\n")[1::2]) == [b"E", b"H", b"M"]
                for client in clients.values():
                    assert await client.flush() == b""
                clients["E"].send(b"SUB deep 2\r\n")
                clients["H"].send(b"SUB high 2\r\n")
                await heard(hub, b"deep")
                await heard(end, b"high")
                for client in clients.values():
                    client.close()

    run(work())


def _plain(server: Server, subject: bytes) -> list[Any]:
    return server.account("$G").subs.match(subject).plain


def test_it_connects_again_and_subscriptions_come_back() -> None:
    async def work() -> None:
        async with running(leafnodes=PORT) as hub:
            port = hub.leaf_port
            async with running(leafnodes=remote_of(port)) as server:
                client = await subscribed(server, b"foo")
                await heard(hub, b"foo")
                [connection] = hub.leafs.connections()
                connection.socket.abort()
                await until(lambda: len(hub.leafs) == 1 and hub.leafs.connections() != [connection])
                await heard(hub, b"foo")
                client.close()

    run(work())


def test_what_is_denied_does_not_cross() -> None:
    async def work() -> None:
        async with running(leafnodes=PORT) as hub:
            options = remote_of(hub.leaf_port, deny_imports=(b"in.x",), deny_exports=(b"out.x",))
            async with running(leafnodes=options) as server:
                above = await subscribed(hub, b"out.*", b"ready")
                below = await subscribed(server, b"in.*", b"ready")
                await heard(server, b"ready")
                await heard(hub, b"in.y")
                await heard(server, b"out.y")
                below.send(b"PUB out.x 1\r\na\r\nPUB out.y 1\r\nb\r\n")
                above.send(b"PUB in.x 1\r\na\r\nPUB in.y 1\r\nb\r\n")
                await below.exactly(b"MSG in.y 1 1\r\nb\r\n")
                await above.exactly(b"MSG out.y 1 1\r\nb\r\n")
                above.close()
                below.close()

    run(work())


def test_permissions_of_the_hub_hold_here() -> None:
    rules = Permissions(SubjectRules(allow=(b"up.>",)), SubjectRules(allow=(b"down.>",)))
    users = (User("u", "p", permissions=rules), User("all", "p"))

    async def work() -> None:
        async with (
            running(leafnodes=PORT, authorization=Authorization(users=users)) as hub,
            running(leafnodes=remote_of(hub.leaf_port, user="u:p@")) as server,
        ):
            above = await subscribed(hub, b">", user=b',"user":"all","pass":"p"')
            below = await subscribed(server, b"down.a", b"other")
            await heard(hub, b"down.a")
            await heard(server, b"up.a")
            below.send(b"PUB other.b 1\r\na\r\nPUB up.b 1\r\nb\r\n")
            await above.exactly(b"MSG up.b 1 1\r\nb\r\n")
            assert len(hub.leafs) == 1, "nothing was sent that is not permitted"
            assert len(_plain(hub, b"other")) == 1, "the client, not the leaf node"
            above.close()
            below.close()

    run(work())


def test_accounts_on_both_sides() -> None:
    auth = Authorization(users=(User("l", "p", account="A"),))
    hub_options = LeafNodeOptions(host="127.0.0.1", port=-1, authorization=auth)
    ours = Authorization(users=(User("b", "p", account="B"), User("g", "p")), no_auth_user="g")

    async def work() -> None:
        async with running(leafnodes=hub_options, accounts=(AccountOptions("A"),)) as hub:
            options = remote_of(hub.leaf_port, user="l:p@", account="B")
            settings = {"accounts": (AccountOptions("B"),), "authorization": ours}
            async with running(leafnodes=options, **settings) as server:
                below = await subscribed(server, b"foo", user=b',"user":"b","pass":"p"')
                other = await subscribed(server, b"bar")
                await heard(hub, b"foo", "A")
                assert not hub.router.has_interest(hub.account("A"), b"bar")
                below.close()
                other.close()

    run(work())


@asynccontextmanager
async def raw_hub(*answers: bytes, **told: Any) -> AsyncIterator[tuple[int, list[bytes]]]:
    """Accepts connections, sends what it is given, and keeps the first line it gets from each."""
    connects: list[bytes] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        info = {"server_name": "H", "client_id": 1, "leafnode_urls": [], "info_on_connect": True,
                "headers": True, "nonce": "n"}  # fmt: skip
        shown = {key: value for key, value in (info | told).items() if value is not None}
        writer.write(b"INFO " + json.dumps(shown).encode() + b"\r\n")
        connects.append(await reader.readline())
        for answer in answers:
            writer.write(answer)
        await reader.read()
        writer.close()

    listener = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield listener.sockets[0].getsockname()[1], connects
    finally:
        listener.close()


@pytest.mark.parametrize(
    "answer",
    [
        b"-ERR 'Loop detected for leafnode account=\"$G\". Delaying'\r\n",
        b"-ERR 'remote leafnode has same cluster name'\r\n",
        b"-ERR 'Permissions Violation for Publish to \"a\"'\r\n",
    ],
)
def test_after_a_refusal_it_waits(answer: bytes) -> None:
    async def work() -> None:
        async with (
            raw_hub(answer) as (port, connects),
            running(leafnodes=remote_of(port)) as server,
        ):
            assert server.leaf_listener is not None
            [hub] = server.leaf_listener.remotes
            await until(lambda: hub.last_pause_s == dialed_leaf.LOOP_PAUSE_S)
            assert len(connects) == 1

    run(work())


def test_without_a_reason_it_tries_again_soon() -> None:
    async def work() -> None:
        async with (
            raw_hub(b"-ERR 'Authorization Violation'\r\n") as (port, connects),
            running(leafnodes=remote_of(port)),
        ):
            await until(lambda: len(connects) >= 3)
            said = json.loads(connects[0].removeprefix(b"CONNECT "))
            assert said["remote_account"] == "$G"
            assert said["compress_mode"] == "not supported"  # the hub offered none

    run(work())


def test_a_client_port_is_no_leaf_node_port() -> None:
    async def work() -> None:
        async with (
            raw_hub(leafnode_urls=None) as (port, connects),
            running(leafnodes=remote_of(port)),
        ):
            await until(lambda: len(connects) >= 2)
            assert set(connects) == {b""}, "no credentials are sent there"

    run(work())


def test_a_hub_does_not_hear_of_another_hub() -> None:
    async def work() -> None:
        async with (
            running(leafnodes=PORT, server_name="one") as one,
            running(leafnodes=PORT, server_name="two") as two,
        ):
            remotes = remote_of(one.leaf_port).remotes + remote_of(two.leaf_port).remotes
            async with running(leafnodes=LeafNodeOptions(remotes=remotes)) as server:
                await until(lambda: len(server.leafs) == 2)
                above = await subscribed(one, b"foo")
                await heard(server, b"foo")
                below = await subscribed(server, b"fence")
                await heard(two, b"fence")
                assert not two.router.has_interest(two.account("$G"), b"foo")
                above.close()
                below.close()

    run(work())


def test_a_certificate_that_nobody_signed_is_refused() -> None:
    hub_options = LeafNodeOptions(host="127.0.0.1", port=-1, tls=SERVER_TLS)

    async def work() -> None:
        async with running(leafnodes=hub_options) as hub:
            async with running(leafnodes=remote_of(hub.leaf_port)) as server:
                assert server.leaf_listener is not None
                [remote] = server.leaf_listener.remotes
                await until(lambda: remote.attempts >= 2)
                assert (len(server.leafs), len(hub.leafs)) == (0, 0)
            trusting = TlsOptions(ca_file=str(CERTS / "ca.pem"))
            async with running(leafnodes=remote_of(hub.leaf_port, tls=trusting)) as server:
                await until(lambda: (len(server.leafs), len(hub.leafs)) == (1, 1))

    run(work())


@pytest.mark.parametrize("every", [1, 2, 60])
def test_failed_attempts_are_reported_as_often_as_configured(
    every: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        logging = Logging(connect_error_reports=every, reconnect_error_reports=1000)
        nobody = remote_of(1)
        async with running(leafnodes=nobody, logging=logging) as server:
            assert server.leaf_listener is not None
            [remote] = server.leaf_listener.remotes
            await until(lambda: remote.attempts >= 5)
        found = [one for one in caplog.messages if "Error trying to connect as leafnode" in one]
        assert len(found) == -(-remote.attempts // every)

    run(work())


def test_a_loop_of_servers_is_found() -> None:
    """H is the hub of S and X, and S of X."""

    async def work() -> None:
        async with running(leafnodes=PORT, server_name="H") as hub:
            back = LeafNodeOptions(host="127.0.0.1", port=-1,
                                   remotes=remote_of(hub.leaf_port).remotes)  # fmt: skip
            async with running(leafnodes=back, server_name="S") as server:
                await until(lambda: len(hub.leafs) == 1)
                third = remote_of(server.leaf_port)
                hubs = LeafNodeOptions(
                    host="127.0.0.1", port=-1,
                    remotes=(*third.remotes, *remote_of(hub.leaf_port).remotes),
                )  # fmt: skip
                async with running(leafnodes=hubs, server_name="X") as both:
                    assert both.leaf_listener is not None
                    assert server.leaf_listener is not None
                    remotes = (*both.leaf_listener.remotes, *server.leaf_listener.remotes)
                    await until(lambda: any(one.last_pause_s for one in remotes))

    run(work())


class Stored:
    """A sink of the cluster as a whole, such as a stream."""

    kind = SinkKind.STREAM

    def __init__(self) -> None:
        self.rows = 0

    def deliver(self, *_: object) -> bool:
        self.rows += 1
        return True

    def deliver_run(
        self, _sub: Subscription, _run: object, start: int, stop: int, _by: Any
    ) -> bool:
        self.rows += stop - start
        return True


def test_only_a_node_that_speaks_tells_of_streams_and_takes_messages_for_them() -> None:
    async def work() -> None:
        async with (
            running(leafnodes=PORT) as hub,
            running(leafnodes=remote_of(hub.leaf_port)) as server,
        ):
            await until(lambda: len(server.leafs) == 1)
            [connection] = server.leafs.connections()
            account, stored = server.account("$G"), Stored()
            first = Subscription(cast(Sink, stored), account, b"orders.a")
            account.subs.insert(first)
            await heard(hub, b"orders.a")
            connection.speak(on=False)
            await unheard(hub, b"orders.a")
            account.subs.insert(Subscription(cast(Sink, stored), account, b"orders.b"))
            client = await subscribed(server, b"orders.>")  # the hub sends everything
            await heard(hub, b"orders.b")
            publisher = await subscribed(hub)
            publisher.send(b"PUB orders.a 1\r\nx\r\nPUB orders.b 1\r\nx\r\n")
            got = b""
            while got.count(b"MSG") < 2:
                got += await client.flush()
            assert stored.rows == 0
            connection.speak(on=True)
            await until(lambda: len(_plain(hub, b"orders.b")) == 1)
            publisher.send(b"PUB orders.b 1\r\nx\r\n")
            await until(lambda: stored.rows == 1)
            client.send(b"UNSUB 1\r\n")
            account.subs.remove(first)
            await unheard(hub, b"orders.a")
            assert hub.router.has_interest(hub.account("$G"), b"orders.b")
            for one in (client, publisher):
                one.close()

    run(work())


async def unheard(server: Server, subject: bytes) -> None:
    await until(lambda: not server.router.has_interest(server.account("$G"), subject))
