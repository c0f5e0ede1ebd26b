"""Raw-socket tests of the client protocol: what goes over the wire, byte for byte."""

from __future__ import annotations

import pytest

from broker.config.options import Limits
from tests.support.server import EMPTY_CONNECT, RawClient, run, running, until


def test_info_names_the_server_and_the_client() -> None:
    async def test() -> None:
        async with running(server_name="one") as server:
            client = await RawClient.open(server)
            info = client.info
            assert info["server_name"] == "one"
            assert len(info["server_id"]) == 56
            assert info["server_id"].startswith("N")
            assert info["proto"] == 1
            assert info["host"] == "127.0.0.1"
            assert info["port"] == server.port
            assert info["headers"] is True
            assert info["max_payload"] == 1048576
            assert info["client_ip"] == "127.0.0.1"
            assert info["client_id"] > 0
            for absent in ("auth_required", "tls_required", "connect_urls", "jetstream", "ldm"):
                assert absent not in info
            client.close()

    run(test())


def test_first_pong_brings_connect_info_in_the_same_write() -> None:
    async def test() -> None:
        async with running() as server:
            client = await RawClient.open(server)
            client.send(b"PING\r\n")
            data = await client.reader.read(65536)
            assert data.startswith(b"PONG\r\nINFO ")
            assert b'"connect_info":true' in data
            assert b'"remote_account":"$G"' in data
            client.send(b"PING\r\n")
            assert await client.reader.read(65536) == b"PONG\r\n"
            client.close()

    run(test())


def test_messages_keep_single_blanks_and_order_before_the_pong() -> None:
    async def test() -> None:
        async with running() as server:
            client = await RawClient.open(server)
            client.send(b"SUB foo  1\r\nSUB foo.* q 2\r\n")
            client.send(b"PUB foo  5\r\nhello\r\npub\tfoo inbox\t2\r\nhi\r\nPUB foo.x 0\r\n\r\n")
            got = await client.flush()
            assert (
                got == b"MSG foo 1 5\r\nhello\r\nMSG foo 1 inbox 2\r\nhi\r\nMSG foo.x 2 0\r\n\r\n"
            )
            client.close()

    run(test())


def test_verbose_and_pedantic_are_the_defaults_before_connect() -> None:
    async def test() -> None:
        async with running() as server:
            client = await RawClient.open(server, connect=None)
            client.send(
                b"SUB foo 1\r\nPUB foo 2\r\nok\r\nPUB foo.* 0\r\n\r\nUNSUB 9\r\nSUB foo 1\r\n"
            )
            got = await client.flush()
            assert got == (
                b"+OK\r\n+OK\r\nMSG foo 1 2\r\nok\r\n"
                b"-ERR 'Invalid Publish Subject'\r\n+OK\r\n+OK\r\n+OK\r\n"
            )
            client.close()

    run(test())


def test_headers_are_stripped_for_clients_without_them() -> None:
    async def test() -> None:
        async with running() as server:
            with_headers = await RawClient.open(server)
            without = await RawClient.open(server, connect=b'CONNECT {"verbose":false}\r\n')
            for client in (with_headers, without):
                client.send(b"SUB foo 7\r\n")
                await client.flush()
            block = b"NATS/1.0\r\nA: b\r\n\r\n"
            size = len(block)
            with_headers.send(b"HPUB foo r %d %d\r\n%bxy\r\n" % (size, size + 2, block))
            got = await with_headers.flush()
            assert got == b"HMSG foo 7 r %d %d\r\n%bxy\r\n" % (size, size + 2, block)
            assert await without.flush() == b"MSG foo 7 r 2\r\nxy\r\n"
            assert server.connections.traffic().in_bytes == size + 2
            assert server.connections.traffic().out_bytes == size + 4
            with_headers.close()
            without.close()

    run(test())


def test_headers_from_a_client_that_did_not_offer_them_close_it() -> None:
    async def test() -> None:
        async with running() as server:
            client = await RawClient.open(server, connect=b'CONNECT {"verbose":false}\r\n')
            client.send(b"HPUB foo 12 12\r\nNATS/1.0\r\n\r\n\r\n")
            assert await client.end() == b""

    run(test())


def test_no_responders_go_to_the_requester_only() -> None:
    async def test() -> None:
        async with running() as server:
            asker = await RawClient.open(
                server,
                connect=b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\n',
            )
            asker.send(b"SUB inbox.* 1\r\nPUB nobody inbox.1 2\r\nhi\r\n")
            status = b"NATS/1.0 503\r\nNats-Subject: nobody\r\n\r\n"
            assert len(status) == 32 + len("nobody")
            got = await asker.flush()
            assert got == b"HMSG inbox.1 1 38 38\r\n" + status + b"\r\n"
            quiet = await RawClient.open(server)
            quiet.send(b"SUB inbox.* 1\r\nPUB nobody inbox.1 2\r\nhi\r\n")
            assert await quiet.flush() == b""
            asker.close()
            quiet.close()

    run(test())


def test_no_responders_without_headers_is_refused() -> None:
    async def test() -> None:
        async with running() as server:
            client = await RawClient.open(
                server, connect=b'CONNECT {"verbose":false,"no_responders":true}\r\n'
            )
            assert await client.end() == b"-ERR 'no responders requires headers support'\r\n"

    run(test())


def test_no_echo_skips_own_subscriptions_and_own_queue_members() -> None:
    async def test() -> None:
        async with running() as server:
            mute = await RawClient.open(
                server, connect=b'CONNECT {"verbose":false,"echo":false}\r\n'
            )
            other = await RawClient.open(server)
            mute.send(b"SUB foo 1\r\nSUB foo q 2\r\n")
            other.send(b"SUB foo q 9\r\n")
            await other.flush()
            await mute.flush()
            mute.send(b"PUB foo 1\r\nx\r\n" * 20)
            assert await mute.flush() == b""
            assert await other.flush() == b"MSG foo 9 1\r\nx\r\n" * 20
            mute.close()
            other.close()

    run(test())


def test_unsub_max_counts_from_the_start_and_may_be_raised() -> None:
    async def test() -> None:
        async with running() as server:
            client = await RawClient.open(server)
            client.send(b"SUB foo 1\r\nPUB foo 0\r\n\r\nUNSUB 1 3\r\n" + b"PUB foo 0\r\n\r\n" * 5)
            assert await client.flush() == b"MSG foo 1 0\r\n\r\n" * 3
            client.send(b"SUB foo 2\r\nPUB foo 0\r\n\r\nUNSUB 2 2\r\nUNSUB 2 4\r\n")
            client.send(b"PUB foo 0\r\n\r\n" * 6)
            assert await client.flush() == b"MSG foo 2 0\r\n\r\n" * 4
            client.send(b"SUB foo 3\r\nPUB foo 0\r\n\r\nUNSUB 3 1\r\nPUB foo 0\r\n\r\n")
            assert await client.flush() == b"MSG foo 3 0\r\n\r\n"
            assert not server.connections[client.info["client_id"]].subs
            client.close()

    run(test())


def test_no_responders_after_an_auto_unsubscribe_within_a_run() -> None:
    async def test() -> None:
        async with running() as server:
            asker = await RawClient.open(
                server,
                connect=b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\n',
            )
            taker = await RawClient.open(server)
            taker.send(b"SUB work 5\r\nUNSUB 5 1\r\n")
            await taker.flush()
            asker.send(b"SUB r 1\r\nPUB work r 0\r\n\r\nPUB work r 0\r\n\r\n")
            got = await asker.flush()
            assert got.count(b"503") == 1
            assert await taker.flush() == b"MSG work 5 r 0\r\n\r\n"
            asker.close()
            taker.close()

    run(test())


def test_queue_members_of_all_patterns_form_one_pool() -> None:
    async def test() -> None:
        async with running() as server:
            client = await RawClient.open(server)
            client.send(b"SUB foo.* q 1\r\nSUB foo.bar q 2\r\nSUB foo.> other 3\r\n")
            client.send(b"PUB foo.bar 1\r\nx\r\n" * 40)
            got = await client.flush()
            assert got.count(b"MSG foo.bar 3 ") == 40
            ones, twos = got.count(b"MSG foo.bar 1 "), got.count(b"MSG foo.bar 2 ")
            assert ones + twos == 40
            assert ones
            assert twos
            client.close()

    run(test())


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"GARBAGE\r\n", b"-ERR 'Unknown Protocol Operation'\r\n"),
        (b"MSG foo 1 0\r\n\r\n", b"-ERR 'Unknown Protocol Operation'\r\n"),
        (b"PUB foo 1048577\r\n", b"-ERR 'Maximum Payload Violation'\r\n"),
        (b"PUB " + b"a" * 5000 + b" 0\r\n", b"-ERR 'maximum control line exceeded'\r\n"),
        (b"PUB foo\r\n", b""),
        (b"PUB foo abc\r\n", b""),
        (b"PUB foo 9999999999\r\n", b""),
        (b"PUB foo 1\r\nxyz", b"-ERR 'Unknown Protocol Operation'\r\n"),
        (b"HPUB foo 9 5\r\n", b""),
        (b"SUB foo\r\n", b""),
        (b"UNSUB 1 2 3\r\n", b""),
        (b"-ERR 'you'\r\n", b""),
        (b"CONNECT {\r\n", b""),
        (b"CONNECT []\r\n", b""),
        (b'CONNECT {"protocol":7,"verbose":false}\r\n', b"-ERR 'invalid client protocol'\r\n"),
        (b'CONNECT {"account":"A"}\r\n', b"-ERR 'Authorization Violation'\r\n"),
        (b"\x00\xff\xfe", b"-ERR 'Unknown Protocol Operation'\r\n"),
        (b"GET / HTTP/1.1\r\n\r\n", b"-ERR 'Unknown Protocol Operation'\r\n"),
    ],
)
def test_bad_input_closes_only_its_own_connection(sent: bytes, answer: bytes) -> None:
    async def test() -> None:
        async with running() as server:
            witness = await RawClient.open(server)
            await witness.flush()
            client = await RawClient.open(server)
            client.send(sent)
            assert await client.end() == answer
            assert await witness.flush() == b""
            await until(lambda: len(server.connections) == 1)
            witness.close()

    run(test())


def test_operations_before_a_violation_are_carried_out() -> None:
    async def test() -> None:
        async with running() as server:
            witness = await RawClient.open(server)
            witness.send(b"SUB foo 1\r\n")
            await witness.flush()
            client = await RawClient.open(server)
            client.send(b"PUB foo 2\r\nhi\r\nNONSENSE\r\n")
            assert await client.end() == b"-ERR 'Unknown Protocol Operation'\r\n"
            assert await witness.flush() == b"MSG foo 1 2\r\nhi\r\n"
            witness.close()

    run(test())


@pytest.mark.parametrize("subject", [b"foo.", b".foo", b"foo..bar", b"foo.>.bar", b">.x"])
def test_invalid_subscription_is_refused_and_the_connection_stays(subject: bytes) -> None:
    async def test() -> None:
        async with running() as server:
            client = await RawClient.open(server)
            client.send(b"SUB " + subject + b" 1\r\n")
            assert await client.flush() == b"-ERR 'Invalid Subject'\r\n"
            client.send(b"PUB .foo 0\r\n\r\nPUB foo..bar 0\r\n\r\n")
            assert await client.flush() == b""
            client.close()

    run(test())


def test_limits_of_subscriptions_and_connections() -> None:
    async def test() -> None:
        limits = Limits(max_subscriptions=1, max_connections=1)
        async with running(limits=limits) as server:
            client = await RawClient.open(server)
            client.send(b"SUB a 1\r\nSUB b 2\r\n")
            assert await client.flush() == b"-ERR 'maximum subscriptions exceeded'\r\n"
            second = await RawClient.open(server, connect=None)
            assert await second.end() == b"-ERR 'maximum connections exceeded'\r\n"
            client.close()
            await until(lambda: not server.connections)
            third = await RawClient.open(server)
            await third.flush()
            third.close()

    run(test())


def test_second_connect_drops_subscriptions() -> None:
    async def test() -> None:
        async with running() as server:
            client = await RawClient.open(server)
            client.send(b"SUB foo 1\r\n" + EMPTY_CONNECT + b"PUB foo 0\r\n\r\n")
            assert await client.flush() == b""
            client.close()

    run(test())


def test_a_published_wildcard_is_a_literal_token() -> None:
    async def test() -> None:
        async with running() as server:
            client = await RawClient.open(server)
            client.send(b"SUB foo.* 1\r\nSUB foo.bar 2\r\nPUB foo.* 0\r\n\r\n")
            assert await client.flush() == b"MSG foo.* 1 0\r\n\r\n"
            client.close()

    run(test())


def test_reserved_subjects_are_refused_and_the_rest_is_delivered() -> None:
    async def test() -> None:
        async with running() as server:
            client = await RawClient.open(server)
            client.send(b"SUB > 1\r\n")
            client.send(
                b"PUB a _INBOX.x 0\r\n\r\nPUB a $JS.ACK.s.c 0\r\n\r\nPUB a _INBOX.y 0\r\n\r\n"
                b"PUB a _R_.z 0\r\n\r\nPUB _GR_.q 0\r\n\r\nPUB $NRG.q 0\r\n\r\nPUB b 0\r\n\r\n"
            )
            got = await client.flush()
            errors = [line for line in got.split(b"\r\n") if line.startswith(b"-ERR")]
            assert errors == [
                b"-ERR 'Permissions Violation for Publish with Reply of \"$JS.ACK.s.c\"'",
                b"-ERR 'Permissions Violation for Publish with Reply of \"_R_.z\"'",
                b"-ERR 'Permissions Violation for Publish to \"_GR_.q\"'",
                b"-ERR 'Permissions Violation for Publish to \"$NRG.q\"'",
            ]
            messages = [line for line in got.split(b"\r\n") if line.startswith(b"MSG")]
            assert messages == [b"MSG a 1 _INBOX.x 0", b"MSG a 1 _INBOX.y 0", b"MSG b 1 0"]
            client.close()

    run(test())
