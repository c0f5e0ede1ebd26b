"""Documents are made, encoded and sent in parts: no question holds the event loop, no reader
memory."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.monitor import http_connections, http_server
from broker.monitor.documents.json_text import MEMBERS, json_text
from broker.monitor.http_connections import MonitorDoor, SendBudget
from broker.server.server import Server
from broker.subjects import STEP_ITEMS, Steps, finish
from tests.monitor.documents.test_http import HTTP, document, http_port
from tests.support.server import PATIENCE, RawClient, broker_of, run, running, until

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=40) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=120,
)


def count(steps: Steps[Any]) -> int:
    return sum(1 for _ in steps)


@given(document=st.dictionaries(st.text(max_size=3), VALUES))
def test_text_in_parts_is_the_text_in_one_go(document: dict[str, Any]) -> None:
    whole = msgspec.json.encode(document)
    assert finish(json_text(document)) == whole
    assert finish(json_text(document, indent=2)) == msgspec.json.format(whole, indent=2)


def test_a_long_list_is_encoded_in_steps() -> None:
    streams = [{"name": str(at), "consumers": [{"name": "c"}] * 3} for at in range(1000)]
    found = {"account_details": [{"stream_detail": streams}]}
    assert count(json_text(found, indent=2)) >= 1000 // MEMBERS


async def subscribed(server: Server, subjects: int) -> RawClient:
    client = await RawClient.open(server)
    client.send(b"".join(b"SUB a.%d %d\r\n" % (at, at) for at in range(subjects)))
    await client.flush()
    return client


def test_connections_and_subscriptions_are_walked_in_steps() -> None:
    async def test() -> None:
        async with running(http=HTTP) as server:
            client = await subscribed(server, 2000)
            make = broker_of(server).monitor.documents.by_name
            for name, query in (
                ("connz", {"subs": "1"}),
                ("connz", {"subs": "detail", "sort": "subs"}),
                ("connz", {"filter_subject": "nothing.here"}),
                ("subsz", {"subs": "1", "limit": "4000"}),
                ("subsz", {"test": "nothing.here"}),
            ):
                steps = count(make[name](query))
                assert steps >= 2000 // STEP_ITEMS, (name, query)
            client.close()

    run(test())


def test_a_connection_that_closes_between_two_steps_is_no_error() -> None:
    async def test() -> None:
        async with running(http=HTTP) as server:
            clients = [await subscribed(server, 100) for _ in range(3)]
            steps = broker_of(server).monitor.documents.by_name["connz"]({"subs": "detail"})
            next(steps)
            for client in clients:
                client.close()
            await until(lambda: not server.connections)
            assert finish(steps)["total"] == 3

    run(test())


class FakeConnection:
    def __init__(self) -> None:
        self.transport: Any = object()

    def force_close(self) -> None:
        self.transport = None


def test_strangers_cannot_take_all_connections_of_the_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connections, "CONNECTIONS_MAX", 4)

    async def test() -> None:
        door = MonitorDoor()
        opened = [door.entered(FakeConnection()) for _ in range(10)]
        assert [one.transport is None for one in opened] == [True] * 6 + [False] * 4
        for one in opened:
            one.force_close()
        door.entered(FakeConnection())
        assert len(door) == 1

    run(test())


def test_who_does_not_finish_a_request_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connections, "ASKED_WITHIN_SECONDS", 0.05)

    async def test() -> None:
        async with running(http=HTTP) as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", http_port(server))
            writer.write(b"GET /varz HTTP/1.1\r\nX: ")
            async with asyncio.timeout(PATIENCE):
                with contextlib.suppress(ConnectionResetError):
                    assert await reader.read() == b""
            writer.close()

    run(test())


def test_who_does_not_read_a_long_document_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connections, "SENT_WITHIN_SECONDS", 0.2)
    monkeypatch.setattr(http_server, "UNSENT_MAX", 1)  # one at a time

    async def test() -> None:
        async with running(http=HTTP) as server:
            clients = [await subscribed(server, 16_000) for _ in range(2)]
            long = "/connz?subs=detail"
            expected = len((await document(server, long))["connections"])
            _, writer = await asyncio.open_connection("127.0.0.1", http_port(server), limit=1)
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            for _ in range(20):
                writer.write(f"GET {long} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            found = await document(server, long)  # waits for what the silent one is sent
            assert len(found["connections"]) == expected
            http = broker_of(server).monitor.http
            assert http is not None
            door = http._door
            await until(lambda: all(one.transport is None for one in door._open))
            writer.transport.abort()
            for client in clients:
                client.close()

    run(test())


def test_bytes_that_are_being_sent_are_bounded() -> None:
    async def test() -> None:
        budget, order = SendBudget(10), []
        go = asyncio.Event()

        async def send(name: str, size: int) -> None:
            async with budget.taken(size):
                order.append(name)
                await go.wait()

        async with asyncio.TaskGroup() as group:
            for name, size in (("first", 6), ("second", 6), ("alone", 99)):
                group.create_task(send(name, size))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert order == ["first"]
            go.set()
        assert sorted(order) == ["alone", "first", "second"]

    run(test())
