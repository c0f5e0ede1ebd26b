"""Messages of an origin: exact and in order, or OriginLost."""

from __future__ import annotations

import random

import pytest

from broker.cluster.origins.origin_connection import HEARTBEAT_S, OriginLost
from tests.support.cluster_fakes import run, turns
from tests.support.origin_rig import HEARTBEAT, TIME, Peer, consuming, until_closed


@pytest.mark.parametrize("seed", range(4))
def test_messages_are_exact_however_the_bytes_are_split(seed: int) -> None:
    headers = b"NATS/1.0\r\nX-a:  two  \r\nx-A: \r\nX-a: again\r\n\r\n"
    bodies = [b"", b"\r\n", b"MSG a 1 0\r\n\r\n", bytes(range(256)), b"p" * 70_000]

    async def script(peer: Peer) -> None:
        dice = random.Random(seed)
        data = b"".join(
            peer.stored(10 * i, delivery=i, data=body, headers=headers if i % 2 else b"")
            + (b"PING\r\n" if i == 2 else b"")
            for i, body in enumerate(bodies, 1)
        )
        while data:
            size = dice.choice((1, 2, 3, 50, 4000, 40_000))
            peer.send(data[:size])
            await peer.writer.drain()
            await turns(dice.randrange(3))
            data = data[size:]
        await until_closed(peer)

    async def test() -> None:
        async with consuming(script) as origin:
            for i, body in enumerate(bodies, 1):
                message = await origin.next()
                assert message.data == body
                assert message.headers == (headers if i % 2 else b"")
                assert (message.subject, message.seq) == (b"s.%d" % (10 * i), 10 * i)
                assert message.time_ns == TIME + 10 * i  # to the nanosecond

    run(test())


@pytest.mark.parametrize(
    "reply",
    [
        b"$JS.ACK.S.c.1.5.1.%d.9",
        b"$JS.ACK._.ACCHASH.S.c.1.5.1.%d.9",
        b"$JS.ACK.hub.ACCHASH.S.c.1.5.1.%d.9.random",
    ],
)
def test_both_forms_of_ack_replies_are_read(reply: bytes) -> None:
    async def script(peer: Peer) -> None:
        peer.send(b"MSG s 1 %b 1\r\nx\r\n" % (reply % TIME))
        await until_closed(peer)

    async def test() -> None:
        async with consuming(script) as origin:
            message = await origin.next()
            assert (message.seq, message.time_ns, message.pending) == (5, TIME, 9)

    run(test())


def test_flow_control_is_answered_between_messages() -> None:
    heard: list[bytes] = []

    async def script(peer: Peer) -> None:
        peer.send(peer.stored(1, delivery=1))
        peer.send(peer.status(b"NATS/1.0 100 FlowControl Request\r\n\r\n", b"$JS.FC.S.c.x"))
        stalled = b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 1\r\n"
        peer.send(peer.status(stalled + b"Nats-Consumer-Stalled: $JS.FC.S.c.y\r\n\r\n"))
        peer.send(peer.status(HEARTBEAT % 1) + b"PING\r\n")
        for _ in range(5):
            heard.append(await peer.line())
        peer.send(peer.stored(2, delivery=2))
        await until_closed(peer)

    async def test() -> None:
        async with consuming(script) as origin:
            assert [(await origin.next()).seq for _ in range(2)] == [1, 2]
        assert heard == [b"PUB $JS.FC.S.c.x 0", b"", b"PUB $JS.FC.S.c.y 0", b"", b"PONG"]

    run(test())


def test_a_batch_does_not_wait_behind_a_heartbeat() -> None:
    async def script(peer: Peer) -> None:
        whole = b"".join(peer.stored(i, delivery=i) for i in (1, 2))
        half = peer.stored(3, delivery=3, data=b"p" * 100)
        peer.send(whole + peer.status(HEARTBEAT % 2) + half[:60])
        assert await peer.line() == b"PING"
        peer.send(half[60:])
        await until_closed(peer)

    async def test() -> None:
        async with consuming(script) as origin:
            await origin.next()
            assert origin.buffered()
            await origin.next()
            assert not origin.buffered()  # only a heartbeat and half a message are buffered
            origin.writer.write(b"PING\r\n")
            assert (await origin.next()).seq == 3
            assert not origin.buffered()

    run(test())


def test_an_incomplete_message_is_not_waited_for() -> None:
    async def script(peer: Peer) -> None:
        half = peer.stored(2, delivery=2, data=b"p" * 100)
        peer.send(peer.stored(1, delivery=1) + half[:60])
        assert await peer.line() == b"PING"
        peer.send(half[60:])
        await until_closed(peer)

    async def test() -> None:
        async with consuming(script) as origin:
            await origin.next()
            while len(origin.waiting.received) - origin.waiting.at < 60:
                origin.waiting.pull()
                await turns()
            assert not origin.buffered()
            origin.writer.write(b"PING\r\n")
            assert (await origin.next()).seq == 2

    run(test())


def test_a_message_longer_than_its_size_is_refused() -> None:
    async def script(peer: Peer) -> None:
        peer.send(peer.stored(1, delivery=1, data=b"xyz").replace(b" 3\r\n", b" 2\r\n"))
        await until_closed(peer)

    async def test() -> None:
        async with consuming(script) as origin:
            with pytest.raises(OriginLost, match="longer than"):
                await origin.next()

    run(test())


@pytest.mark.parametrize("delivery", [1, 3])
def test_a_gap_in_deliveries_raises_origin_lost(delivery: int) -> None:
    async def script(peer: Peer) -> None:
        peer.send(peer.stored(1, delivery=1) + peer.stored(2, delivery=delivery))
        await until_closed(peer)

    async def test() -> None:
        async with consuming(script) as origin:
            await origin.next()
            with pytest.raises(OriginLost, match=f"expected delivery 2, got {delivery}"):
                await origin.next()

    run(test())


def test_a_heartbeat_that_reveals_a_gap_raises_origin_lost() -> None:
    async def script(peer: Peer) -> None:
        peer.send(peer.stored(1, delivery=1) + peer.status(HEARTBEAT % 2))
        await until_closed(peer)

    async def test() -> None:
        async with consuming(script) as origin:
            await origin.next()
            with pytest.raises(OriginLost, match="delivered up to 2, received 1"):
                await origin.next()

    run(test())


def test_silence_times_out() -> None:
    async def test() -> None:
        async with consuming(until_closed) as origin:
            assert origin.patience_s == 3 * HEARTBEAT_S
            origin.patience_s = 0.005
            with pytest.raises(TimeoutError):
                await origin.next()

    run(test())


@pytest.mark.parametrize(
    "sent",
    [
        b"MSG\r\n",
        b"MSG s 1 x\r\n",
        b"MSG s 1 -5\r\n",
        b"MSG s 1 r r 0\r\n\r\n",
        b"MSG s 1 99999999999999\r\n",
        b"MSG s 1 1\r\nxyz\r\n",
        b"HMSG s 1 5\r\n",
        b"HMSG s 1 9 5\r\n",
        b"HMSG s 1 -1 5\r\n12345\r\n",
        b"MSG s 1 $JS.ACK.S.c.1.x.1.1.0 0\r\n\r\n",
        b"MSG s 1 $JS.ACK.S 0\r\n\r\n",
        b"HMSG s 1 38 38\r\nNATS/1.0 100\r\nNats-Last-Consumer: x\r\n\r\n",
        b"-ERR 'Slow Consumer'\r\n",
        b"MSG s 1 10\r\nhalf",
        b"",
    ],
)
def test_any_garbage_raises_origin_lost(sent: bytes) -> None:
    async def script(peer: Peer) -> None:
        peer.send(sent)

    async def test() -> None:
        async with consuming(script) as origin:
            await turns()
            origin.buffered()  # never raises
            with pytest.raises(OriginLost):
                await origin.next()

    run(test())
