"""Connecting to the origin of a mirror and creating a consumer there."""

from __future__ import annotations

from typing import Any

import pytest

from broker.cluster.origins import origin_connection as module
from broker.cluster.origins.origin_connection import (
    OriginConnection,
    OriginLost,
    OriginRefused,
)
from broker.cluster.origins.origin_login import OriginAddress
from tests.support.cluster_fakes import run
from tests.support.origin_rig import HEARTBEAT, INFO, Peer, connected, scripted, until_closed

# -- connecting ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("login", "fields", "expected"),
    [
        ("", {}, {}),
        ("u:p@", {}, {"user": "u", "pass": "p"}),
        ("u%40x:p%3Aw@", {}, {"user": "u@x", "pass": "p:w"}),
        ("secret@", {}, {"auth_token": "secret"}),
        ("u:p@", {"user": "v", "password": "q"}, {"user": "v", "pass": "q"}),
        ("u:p@", {"token": "t"}, {"auth_token": "t"}),
    ],
)
def test_credentials(login: str, fields: dict[str, Any], expected: dict[str, str]) -> None:
    seen: dict[str, Any] = {}

    async def script(peer: Peer) -> None:
        await peer.greet()
        seen.update(peer.connect)

    async def test() -> None:
        async with scripted(script) as address:
            url = address.urls[0].replace("//", f"//{login}")
            async with connected(OriginAddress((url,), **fields)):
                pass
        told = {key: seen[key] for key in ("user", "pass", "auth_token") if key in seen}
        assert told == expected
        assert seen["headers"]
        assert seen["no_responders"]
        assert not seen["verbose"]

    run(test())


def test_operations_during_the_greeting() -> None:
    answered: list[bytes] = []

    async def script(peer: Peer) -> None:
        peer.send(INFO)
        await peer.line()
        await peer.line()
        peer.send(b"+OK\r\n" + INFO + b"PING\r\n")
        answered.append(await peer.line())
        peer.send(b"PONG\r\n")
        await until_closed(peer)

    async def test() -> None:
        async with scripted(script) as address, connected(address):
            assert answered == [b"PONG"]

    run(test())


@pytest.mark.parametrize(
    ("greeting", "reason"),
    [
        (b"", "closed the connection"),
        (b"INFO {\r\n", "truncated"),
        (b"INFO []\r\n", "Expected `object`"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "not a NATS server"),
        (b"\xff\xfe\r\n", "not a NATS server"),
        (INFO + b"-ERR 'Authorization Violation'\r\n", "Authorization Violation"),
        (b"x" * (module.READ_LIMIT * 2 + 2), "line too long"),
    ],
    ids=["nothing", "cut JSON", "other JSON", "http", "bytes", "refused", "endless"],
)
def test_a_bad_greeting_raises_origin_lost_with_a_reason(greeting: bytes, reason: str) -> None:
    async def script(peer: Peer) -> None:
        peer.send(greeting)
        if greeting:
            await until_closed(peer)

    async def test() -> None:
        async with scripted(script) as address:
            with pytest.raises(OriginLost, match=reason) as lost:
                await OriginConnection.connect(address)
            assert str(lost.value).startswith("127.0.0.1:")

    run(test())


def test_addresses_are_tried_in_turn_and_passwords_not_shown() -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()

    async def test() -> None:
        async with scripted(script) as address:
            urls = ("nats://u:secret@127.0.0.1:1", "nats://127.0.0.1:99999", *address.urls)
            async with connected(OriginAddress(urls)):
                pass
            with pytest.raises(OriginLost, match=r"^127.0.0.1:1: ") as lost:
                await OriginConnection.connect(OriginAddress(urls[:1]))
            assert "secret" not in str(lost.value)
        with pytest.raises(OriginLost, match="no url"):
            await OriginConnection.connect(OriginAddress(()))

    run(test())


def test_a_silent_server_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CONNECT_WITHIN_S", 0.01)

    async def test() -> None:
        async with scripted(until_closed) as address:
            with pytest.raises(OriginLost, match="TimeoutError"):
                await OriginConnection.connect(address)

    run(test())


# -- the consumer ----------------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", ["", "s.>"])
def test_the_consumer_that_is_created(wanted: str) -> None:
    asked: list[tuple[bytes, dict[str, Any]]] = []

    async def script(peer: Peer) -> None:
        await peer.greet()
        asked.append(await peer.asked())
        peer.answer()
        await until_closed(peer)

    async def test() -> None:
        async with scripted(script) as address:
            hub = OriginAddress(address.urls, api="$JS.hub.API")
            async with connected(hub) as origin:
                await origin.consume("S", start=17, filters=(wanted,) if wanted else ())
        [(subject, body)] = asked
        assert subject == b"$JS.hub.API.CONSUMER.CREATE.S"
        assert body["stream_name"] == "S"
        config = body["config"]
        assert (config["deliver_policy"], config["opt_start_seq"]) == ("by_start_sequence", 17)
        assert config["ack_policy"] == "none"
        assert config.get("filter_subject", "") == wanted
        assert config["idle_heartbeat"] == 2_000_000_000
        assert config["flow_control"]

    run(test())


@pytest.mark.parametrize(
    ("answer", "kind", "reason"),
    [
        (b'{"error":{"code":404,"description":"stream not found"}}', OriginRefused, "stream not"),
        (b'{"error":{}}', OriginRefused, "refused"),
        (b"not json", OriginLost, "answered"),
        (b"[1]", OriginLost, "answered"),
        (b'{"error":"what"}', OriginLost, "answered"),
    ],
)
def test_refusals_and_malformed_answers(answer: bytes, kind: type[Exception], reason: str) -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        await peer.asked()
        peer.answer(answer)

    async def test() -> None:
        async with scripted(script) as address, connected(address) as origin:
            with pytest.raises(kind, match=reason):
                await origin.consume("S", start=1)

    run(test())


def test_no_responders_is_a_refusal() -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        await peer.asked()
        peer.send(b"HMSG %b.r 2 16 16\r\nNATS/1.0 503\r\n\r\n\r\n" % peer.inbox)

    async def test() -> None:
        async with scripted(script) as address, connected(address) as origin:
            with pytest.raises(OriginRefused, match="503"):
                await origin.consume("S", start=1)

    run(test())


def test_messages_may_arrive_before_the_answer() -> None:
    """The order of the answer and the first deliveries is not specified."""

    async def script(peer: Peer) -> None:
        await peer.greet()
        await peer.asked()
        for i in (1, 2):
            peer.send(peer.stored(i, delivery=i))
        peer.send(peer.status(HEARTBEAT % 2))
        peer.answer()
        peer.send(peer.stored(3, delivery=3))
        await until_closed(peer)

    async def test() -> None:
        async with scripted(script) as address, connected(address) as origin:
            await origin.consume("S", start=1)
            assert origin.buffered()
            found = [(await origin.next()).seq for _ in range(2)]
            assert not origin.buffered()  # a heartbeat is next
            assert [*found, (await origin.next()).seq] == [1, 2, 3]

    run(test())
