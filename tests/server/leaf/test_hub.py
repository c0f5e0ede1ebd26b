"""Leaf nodes of ours: who may connect, what they are told of, which messages go where."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from broker.compression.s2_stream import S2Reader, S2Writer
from broker.config.options import (
    AccountOptions,
    Authorization,
    LeafNodeOptions,
    Limits,
    Permissions,
    SubjectRules,
    User,
)
from broker.server.server import Server
from tests.support.leaf_peer import RawLeaf
from tests.support.server import PATIENCE, RawClient, run, running, until

PORT = LeafNodeOptions(host="127.0.0.1", port=-1)


async def subscribed(server: Server, *lines: bytes) -> RawClient:
    client = await RawClient.open(server)
    for number, line in enumerate(lines, 1):
        client.send(b"SUB " + line + b" %d\r\n" % number)
    assert await client.flush() == b""
    return client


def test_interest_is_told_once_and_withdrawn_with_the_last_subscriber() -> None:
    async def work() -> None:
        async with running(leafnodes=PORT) as server:
            first = await subscribed(server, b"foo", b"foo q")
            leaf = await RawLeaf.join(server)
            assert leaf.told[b"foo"] == b""
            assert leaf.told[b"foo q"] == b"1"
            second = await subscribed(server, b"foo", b"foo q", b"bar")
            await leaf.until_told(b"bar")
            assert leaf.told[b"foo q"] == b"2"
            first.close()
            while leaf.told[b"foo q"] != b"1":
                await leaf.settled()
            assert b"foo" in leaf.told
            second.close()
            for key in (b"foo", b"foo q", b"bar"):
                await leaf.until_untold(key)
            assert not [key for key in leaf.told if key.startswith(b"$JS.API")]
            leaf.close()

    run(work())


def test_messages_for_a_leaf_node_cross_once_and_name_the_queue_groups() -> None:
    async def work() -> None:
        async with running(leafnodes=PORT) as server:
            leaf = await RawLeaf.join(server)
            leaf.send(b"LS+ foo\r\nLS+ *\r\nLS+ foo q1 1\r\nLS+ foo q2 3\r\nLS+ bar\r\n")
            await leaf.settled()
            client = await RawClient.open(server)
            client.send(b"PUB foo 1\r\na\r\nPUB foo r 1\r\nb\r\nPUB bar r 1\r\nc\r\n")
            client.send(b"HPUB bar 12 13\r\nNATS/1.0\r\n\r\nd\r\n")
            await client.flush()
            await leaf.gets(
                b"LMSG foo | q1 q2 1\r\na\r\nLMSG foo + r q1 q2 1\r\nb\r\nLMSG bar r 1\r\nc\r\n"
                b"HMSG bar 12 13\r\nNATS/1.0\r\n\r\nd\r\n"
            )
            leaf.send(b"LS- foo\r\nLS- *\r\nLS- foo q1\r\nLS- foo q2\r\n")
            await leaf.settled()
            client.send(b"PUB foo 1\r\ne\r\n")
            await client.flush()
            assert await leaf.settled() == []
            client.close()
            leaf.close()

    run(work())


def test_a_group_with_members_here_is_served_here() -> None:
    async def work() -> None:
        async with running(leafnodes=PORT) as server:
            client = await subscribed(server, b"foo q")
            leaf = await RawLeaf.join(server)
            leaf.send(b"LS+ foo q 5\r\n")
            await leaf.settled()
            client.send(b"PUB foo 1\r\na\r\n" * 20)
            assert (await client.flush()).count(b"MSG foo 1 1") == 20
            assert await leaf.settled() == []
            client.send(b"UNSUB 1\r\nPUB foo 1\r\nb\r\n")
            await client.flush()
            await leaf.gets(b"LMSG foo | q 1\r\nb\r\n")
            client.close()
            leaf.close()

    run(work())


def test_messages_of_a_leaf_node_go_to_plain_subscribers_and_the_named_groups() -> None:
    async def work() -> None:
        async with running(leafnodes=PORT) as server:
            client = await subscribed(server, b"foo", b"foo q1", b"foo q2")
            leaf = await RawLeaf.join(server, cluster="")
            leaf.send(b"LS+ foo\r\nLMSG foo 1\r\na\r\nLMSG foo | q1 1\r\nb\r\n")
            leaf.send(b"LMSG foo + r q1 q2 1\r\nc\r\n")
            assert await leaf.settled() + await leaf.settled() == [], "nothing comes back"
            assert await client.flush() == (
                b"MSG foo 1 1\r\na\r\n"
                b"MSG foo 1 1\r\nb\r\nMSG foo 2 1\r\nb\r\n"
                b"MSG foo 1 r 1\r\nc\r\nMSG foo 2 r 1\r\nc\r\nMSG foo 3 r 1\r\nc\r\n"
            )
            client.close()
            leaf.close()

    run(work())


def test_leaf_nodes_of_one_cluster_neither_hear_of_each_other_nor_get_each_others_messages() -> (
    None
):
    async def work() -> None:
        async with running(leafnodes=PORT) as server:
            one = await RawLeaf.join(server, "one", cluster="C")
            two = await RawLeaf.join(server, "two", cluster="C")
            other = await RawLeaf.join(server, "other", cluster="D")
            for leaf in (one, two, other):
                leaf.send(b"LS+ foo\r\n")
                await leaf.settled()
            await other.until_told(b"foo")
            await one.until_told(b"foo")  # because of D
            one.send(b"LMSG foo 1\r\na\r\n")
            await one.settled()
            await other.gets(b"LMSG foo 1\r\na\r\n")
            assert await two.settled() == []
            other.send(b"LS- foo\r\n")
            await other.settled()
            await one.until_untold(b"foo")
            await two.until_untold(b"foo")
            for leaf in (one, two, other):
                leaf.close()

    run(work())


def test_a_loop_is_refused() -> None:
    async def work() -> None:
        async with running(leafnodes=PORT) as server:
            leaf = await RawLeaf.join(server)
            [loop] = [key for key in leaf.told if key.startswith(b"$LDS.")]
            leaf.send(b"LS+ " + loop + b"\r\n")
            assert await leaf.end() == (
                b'-ERR \'Loop detected for leafnode account="$G". '
                b"Delaying attempt to reconnect for 30s'\r\n"
            )
            assert len(server.leafs) == 0

    run(work())


def test_a_server_that_connects_again_replaces_its_older_connection() -> None:
    async def work() -> None:
        async with running(leafnodes=PORT) as server:
            old = await RawLeaf.join(server, "L")
            old.send(b"LS+ foo\r\n")
            await old.settled()
            new = await RawLeaf.join(server, "L")
            assert await old.end() == b"-ERR 'Duplicate Remote LeafNode Connection'\r\n"
            assert len(server.leafs) == 1
            client = await RawClient.open(server)
            client.send(b"PUB foo 1\r\na\r\n")
            await client.flush()
            assert await new.settled() == []
            client.close()
            new.close()

    run(work())


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ({"lang": "go"}, b"attempted to connect to leaf node port"),
        ({"cluster": "a b"}, b"cluster name cannot contain spaces"),
        ({"gateway": "G"}, b'Rejecting connection from gateway "G" on the leafnode port'),
        (
            {"version": "2.9.9"},
            b'connection rejected since minimum version required is "2.10.0"',
        ),
    ],
)
def test_who_is_refused(said: dict[str, Any], answer: bytes) -> None:
    async def work() -> None:
        options = LeafNodeOptions(host="127.0.0.1", port=-1, min_version="2.10.0")
        async with running(leafnodes=options) as server:
            leaf = await RawLeaf.dial(server, **said)
            assert await leaf.end() == b"-ERR '" + answer + b"'\r\n"

    run(work())


def test_messages_before_connect_are_refused() -> None:
    async def work() -> None:
        async with running(leafnodes=PORT) as server:
            assert server.leaf_listener is not None
            for line in (b"LS+ foo\r\n", b"LMSG foo 1\r\na\r\n"):
                streams = await asyncio.open_connection("127.0.0.1", server.leaf_listener.port)
                leaf = RawLeaf(*streams)
                await leaf.read_info()
                leaf.send(line)
                assert await leaf.end() == b"-ERR 'Authorization Violation'\r\n"

    run(work())


def test_users_of_the_leaf_node_port_are_bound_to_accounts() -> None:
    users = (User("a", "s1", account="A"), User("b", "s2", account="B"))
    options = LeafNodeOptions(host="127.0.0.1", port=-1, authorization=Authorization(users=users))
    settings = {
        "accounts": (AccountOptions("A"), AccountOptions("B")),
        "authorization": Authorization(users=(User("u", "p", account="A"),)),
    }

    async def work() -> None:
        async with running(leafnodes=options, **settings) as server:
            for said in ({"user": "a", "pass": "s2"}, {"user": "u", "pass": "p"}, {}):
                refused = await RawLeaf.dial(server, **said)
                assert await refused.end() == b"-ERR 'Authorization Violation'\r\n"
            in_a = await RawLeaf.join(server, "one", user="a", **{"pass": "s1"})
            in_b = await RawLeaf.join(server, "two", user="b", **{"pass": "s2"})
            assert in_a.info["remote_account"] == "A"
            assert in_b.info["remote_account"] == "B"
            connect = b'CONNECT {"user":"u","pass":"p","verbose":false}\r\nSUB foo 1\r\n'
            client = await RawClient.open(server, connect=connect)
            await client.flush()
            await in_a.until_told(b"foo")
            await in_b.settled()
            assert b"foo" not in in_b.told
            in_b.send(b"LMSG foo 1\r\nb\r\n")
            await in_b.settled()
            in_a.send(b"LMSG foo 1\r\na\r\n")
            await in_a.settled()
            assert await client.flush() == b"MSG foo 1 1\r\na\r\n"
            for one in (client, in_a, in_b):
                one.close()

    run(work())


def restricted() -> dict[str, Any]:
    rules = Permissions(
        publish=SubjectRules(allow=(b"up.>",)), subscribe=SubjectRules(allow=(b"down.>",))
    )
    return {"authorization": Authorization(users=(User("u", "p", permissions=rules),))}


def test_permissions_are_told_and_enforced() -> None:
    async def work() -> None:
        async with running(leafnodes=PORT, **restricted()) as server:
            connect = b'CONNECT {"user":"u","pass":"p","verbose":false,"pedantic":false}\r\n'
            said = {"user": "u", "pass": "p"}
            leaf = await RawLeaf.join(server, **said)
            assert leaf.info["export"] == {"allow": ["up.>"]}
            assert leaf.info["import"] == {"allow": ["down.>"]}
            client = await RawClient.open(server, connect=connect + b"SUB down.x 1\r\n")
            await client.flush()
            leaf.send(b"LS+ up.x\r\n")
            text = b"-ERR 'Permissions Violation for Subscription to \"up.x\"'\r\n"
            assert (await leaf.end()).endswith(text)
            leaf = await RawLeaf.join(server, **said)
            assert b"down.x" not in leaf.told, "it could not publish there"
            leaf.send(b"LMSG other 1\r\nx\r\n")
            text = b"-ERR 'Permissions Violation for Publish to \"other\"'\r\n"
            assert (await leaf.end()).endswith(text)
            leaf = await RawLeaf.join(server, **said)
            leaf.send(b"LS+ >\r\n")
            await leaf.settled()
            client.send(b"PUB up.y 1\r\na\r\n")
            await client.flush()
            assert await leaf.settled() == [], "within its pattern, but not permitted"
            client.close()
            leaf.close()

    run(work())


def test_what_the_leaf_node_does_not_want_is_not_sent() -> None:
    async def work() -> None:
        async with running(leafnodes=PORT) as server:
            leaf = await RawLeaf.join(server, deny_pub=["a.secret"])
            leaf.send(b"LS+ >\r\n")
            await leaf.settled()
            client = await RawClient.open(server)
            for subject in (b"a.secret", b"$JS.API.INFO", b"$KV.b.k", b"$OBJ.b.k", b"a.open"):
                client.send(b"PUB " + subject + b" 1\r\nx\r\n")
            await client.flush()
            await leaf.gets(b"LMSG a.open 1\r\nx\r\n")
            client.close()
            leaf.close()

    run(work())


def test_a_leaf_node_that_does_not_read_is_closed() -> None:
    async def work() -> None:
        limits = Limits(max_pending=1 << 20, max_payload=1 << 19)
        async with running(leafnodes=PORT, limits=limits) as server:
            leaf = await RawLeaf.join(server)
            leaf.send(b"LS+ foo\r\n")
            await leaf.settled()
            client = await RawClient.open(server)
            message = b"PUB foo 400000\r\n" + b"x" * 400_000 + b"\r\n"
            for _ in range(60):
                client.send(message)
                await client.writer.drain()
                if len(server.leafs) == 0:
                    break
            await until(lambda: len(server.leafs) == 0)
            await client.flush()
            client.close()
            leaf.close()

    run(work())


@pytest.mark.parametrize("line", [b"PUB foo 1\r\na\r\n", b"LS+ a b\r\n", b"LMSG foo x\r\n"])
def test_other_lines_end_the_connection(line: bytes) -> None:
    async def work() -> None:
        async with running(leafnodes=PORT) as server:
            leaf = await RawLeaf.join(server)
            leaf.send(line)
            await leaf.end()
            await until(lambda: len(server.leafs) == 0)

    run(work())


def test_leaf_nodes_are_told_where_the_other_nodes_of_the_cluster_are() -> None:
    async def work() -> None:
        async with running(leafnodes=PORT) as server:
            leaf = await RawLeaf.join(server)
            own = f"127.0.0.1:{server.leaf_port}"
            assert leaf.info["leafnode_urls"] == [own]
            server.set_leaf_urls(["h:1", own, "h:2"])
            server.set_leaf_urls(["h:1", own, "h:2"])  # nothing new
            [line] = await leaf.settled()
            told = json.loads(line.removeprefix(b"INFO "))
            assert told["leafnode_urls"] == [own, "h:1", "h:2"]
            assert "nonce" not in told
            assert server.leaf_urls() == [own]
            server.urls.withdrawn = True
            assert server.leaf_urls() == []
            leaf.close()

    run(work())


async def compressed(server: Server) -> tuple[RawLeaf, S2Writer, S2Reader]:
    """A leaf node that has asked for compression, and not logged in."""
    leaf = RawLeaf(*await asyncio.open_connection("127.0.0.1", server.leaf_port, limit=2**24))
    info = await leaf.read_info()
    assert info["compression"] == "s2_auto"
    leaf.send(b'INFO {"compression":"s2_fast"}\r\n')
    reader = S2Reader()
    assert b'"compression":"s2_auto"' in await unpacked(leaf, reader, b"\r\n")
    return leaf, S2Writer(packed=True), reader


async def unpacked(leaf: RawLeaf, reader: S2Reader, until_text: bytes) -> bytes:
    got = b""
    async with asyncio.timeout(PATIENCE):
        while until_text not in got:
            reader.feed(await leaf.reader.read(2**16))
            while reader.more:
                got += reader.read()
    return got


def test_a_compressed_leaf_node_logs_in() -> None:
    async def work() -> None:
        async with running(leafnodes=PORT) as server:
            leaf, writer, reader = await compressed(server)
            connect = b'CONNECT {"name":"L","cluster":"L","remote_account":"$G"}\r\nPING\r\n'
            leaf.send(writer.write(connect))
            assert b'"connect_info":true' in await unpacked(leaf, reader, b"PONG")
            leaf.close()

    run(work())


@pytest.mark.parametrize("sent", [b"PING\r\n", b"\x00" * 64, bytes(range(256))])
def test_what_is_not_compressed_then_ends_the_connection(sent: bytes) -> None:
    async def work() -> None:
        async with running(leafnodes=PORT) as server:
            leaf, _, _ = await compressed(server)
            leaf.send(sent)
            async with asyncio.timeout(PATIENCE):
                while await leaf.reader.read(2**16):
                    pass
            assert len(server.leafs) == 0
            leaf.close()

    run(work())


def test_few_bytes_that_stand_for_many_do_not_hold_others_up() -> None:
    """A stream of chunks that each unpack to a megabyte of PINGs, from a peer that has not logged
    in: unpacking waits while its answers are not read, and others are served meanwhile."""

    async def work() -> None:
        async with running(leafnodes=PORT) as server:
            leaf, writer, _ = await compressed(server)
            megabyte = b"PING\r\n" * (2**20 // 6)
            sent = writer.write(megabyte)
            assert len(sent) < len(megabyte) / 15
            leaf.send(sent * 64)
            client = await RawClient.open(server)
            for _ in range(20):
                assert await client.flush() == b""
            client.close()
            leaf.close()

    run(work())


def test_lines_are_long_only_after_the_leaf_node_was_admitted() -> None:
    """Before that anybody could have the server hold a megabyte for each connection."""

    async def work() -> None:
        async with running(leafnodes=PORT) as server:
            leaf = await RawLeaf.join(server)
            leaf.send(b"LMSG " + b"a" * 100_000 + b" 1\r\nx\r\n")
            assert await leaf.settled() == []
            leaf.close()
            stranger = RawLeaf(*await asyncio.open_connection("127.0.0.1", server.leaf_port))
            await stranger.read_info()
            stranger.send(b"CONNECT " + b"x" * 100_000)
            assert b"maximum control line" in await stranger.line()
            stranger.close()

    run(work())
