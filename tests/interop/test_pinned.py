"""Pinned clients over the wire: ids, statuses, the API, advisories."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.local import LocalCluster
from tests.support.clusters import connect, run
from tests.support.interop import Body, api, check

CONFIG = {
    "durable_name": "C", "ack_policy": "explicit", "priority_policy": "pinned_client",
    "priority_groups": ["g"], "priority_timeout": 1_000_000_000,
}  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    place: Path = tmp_path_factory.mktemp("pinned")
    with LocalCluster(place, size=1, name="pin") as running:
        yield running


async def pull(client: Any, inbox: str, **body: object) -> None:
    request = {"batch": 5, "expires": 30_000_000_000, "group": "g", **body}
    subject = "$JS.API.CONSUMER.MSG.NEXT.P.C"
    await client.publish(subject, json.dumps(request).encode(), reply=inbox)


async def event(subscription: Any) -> Body:
    body: Body = json.loads((await subscription.next_msg(timeout=10)).data)
    check(body)
    return body


async def pins(client: Any) -> Body:
    info = await api(client, "CONSUMER.INFO.P.C")
    check(info)
    (group,) = info["priority_groups"]
    assert group["group"] == "g"
    state: Body = group
    return state


def test_one_client_is_served_until_it_is_unpinned_or_silent(server: LocalCluster) -> None:
    async def work() -> None:
        client = await connect(*server.nodes)
        await api(client, "STREAM.CREATE.P", {"name": "P", "subjects": ["p"]})
        made = await api(
            client, "CONSUMER.DURABLE.CREATE.P.C", {"stream_name": "P", "config": CONFIG}
        )
        check(made)
        pinned = await client.subscribe("$JS.EVENT.ADVISORY.CONSUMER.PINNED.P.C")
        unpinned = await client.subscribe("$JS.EVENT.ADVISORY.CONSUMER.UNPINNED.P.C")
        first, second, third = [await client.subscribe(f"in.{n}") for n in (1, 2, 3)]
        await pull(client, "in.1")
        await pull(client, "in.2")
        assert "pinned_client_id" not in await pins(client)
        publish = client.jetstream().publish
        await publish("p", b"1", headers={"Own": "header"})
        got = await first.next_msg(timeout=10)
        pin = got.headers["Nats-Pin-Id"]
        assert (got.data, got.headers["Own"]) == (b"1", "header")
        assert (await event(pinned))["pinned_id"] == pin
        state = await pins(client)
        assert state["pinned_client_id"] == pin
        assert not state["pinned_ts"].startswith("0001")
        await pull(client, "in.3", id="another")
        refused = await third.next_msg(timeout=10)
        assert refused.headers == {"Status": "423", "Description": "Nats-Pin-Id mismatch"}
        answer = await api(client, "CONSUMER.UNPIN.P.C", {"group": "g"})
        check(answer)
        assert list(answer) == ["type"]
        assert (await event(unpinned))["reason"] == "admin"
        await publish("p", b"2")
        ended = await first.next_msg(timeout=10)
        assert ended.headers["Status"] == "423"
        assert ended.headers["Description"] == "Nats-Wrong-Pin-Id"
        assert ended.headers["Nats-Pending-Messages"] == "4"
        got = await second.next_msg(timeout=10)
        assert got.data == b"2"
        assert got.headers["Nats-Pin-Id"] not in ("", pin)
        assert (await event(unpinned))["reason"] == "timeout"
        assert "pinned_client_id" not in await pins(client)
        await client.close()

    run(work)


def test_bad_unpin_requests_are_refused(server: LocalCluster) -> None:
    async def work() -> None:
        client = await connect(*server.nodes)
        await api(client, "STREAM.CREATE.Q", {"name": "Q", "subjects": ["q"]})
        config = CONFIG | {"durable_name": "D"}
        await api(client, "CONSUMER.DURABLE.CREATE.Q.D", {"stream_name": "Q", "config": config})
        for subject, body, err_code in (
            ("Q.D", {"group": "other"}, 10160),
            ("Q.D", {}, 10025),
            ("Q.D", {"group": "no good name"}, 10162),
            ("Q.N", {"group": "g"}, 10014),
            ("N.D", {"group": "g"}, 10059),
        ):
            answer = await api(client, f"CONSUMER.UNPIN.{subject}", body)
            check(answer)
            assert answer["error"]["err_code"] == err_code
        await client.close()

    run(work)
