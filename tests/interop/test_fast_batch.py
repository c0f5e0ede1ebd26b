"""Fast batches: the answers of nats-server, word for word, on one node and on three."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from broker.local import LocalCluster
from tests.support.clusters import connect, eventually, leader_of, run
from tests.support.interop import api

START, APPEND, COMMIT, END, PING = range(5)
# batch, flow, gap, sequence, operation, headers
Step = tuple[str, str, str, str, str, dict[str, str]]


def step(
    seq: object,
    op: object,
    *,
    batch: str = "b",
    flow: object = 2,
    gap: str = "fail",
    **headers: str,
) -> Step:
    return (
        batch,
        str(flow),
        gap,
        str(seq),
        str(op),
        {k.replace("_", "-"): v for k, v in headers.items()},
    )


def appended(first: int, last: int, **named: Any) -> list[Step]:
    return [step(seq, APPEND, **named) for seq in range(first, last + 1)]


SCRIPTS: dict[str, list[Step]] = {
    "whole": [step(1, START), *appended(2, 6), step(7, COMMIT)],
    "ended without a message": [step(1, START), *appended(2, 3), step(4, END)],
    "one message": [step(1, COMMIT)],
    "gap that fails": [step(1, START), step(2, APPEND), step(5, APPEND), step(6, APPEND)],
    "gap that is fine": [
        step(1, START, gap="ok"), step(4, APPEND, gap="ok"), step(9, COMMIT, gap="ok"),
    ],
    "backwards": [step(1, START), *appended(2, 3), step(2, APPEND), step(4, APPEND)],
    "backwards where gaps are fine": [
        step(1, START, gap="ok"), step(2, APPEND, gap="ok"), step(2, APPEND, gap="ok"),
    ],
    "pings": [
        step(1, START), step(1, PING), step(2, APPEND), step(2, PING), step(3, PING),
    ],
    "pings where gaps are fine": [
        step(1, START, gap="ok"), step(5, PING, gap="ok"), step(6, APPEND, gap="ok"),
        step(7, END, gap="ok"),
    ],
    "ping first": [step(1, PING)],
    "ping of nobody": [step(3, PING)],
    "unknown": [step(2, APPEND), step(2, COMMIT), step(7, END)],
    "error first": [step(1, START, Nats_Expected_Last_Sequence="77"), step(2, APPEND)],
    "error first where gaps are fine": [
        step(1, START, gap="ok", Nats_Expected_Last_Sequence="77"), step(2, APPEND, gap="ok"),
        step(3, COMMIT, gap="ok"),
    ],
    "error later": [
        step(1, START), step(2, APPEND, Nats_Expected_Stream="other"), step(3, APPEND),
    ],
    "error later where gaps are fine": [
        step(1, START, gap="ok"), step(2, APPEND, gap="ok", Nats_Expected_Stream="other"),
        step(3, APPEND, gap="ok"), step(4, COMMIT, gap="ok", Nats_TTL="1s"),
    ],
    "duplicates": [
        step(1, START, Nats_Msg_Id="1"), step(2, APPEND, Nats_Msg_Id="1"),
        step(3, APPEND, Nats_Msg_Id="2"), step(4, COMMIT, Nats_Msg_Id="2"),
    ],
    "a duplicate alone": [
        step(1, COMMIT, Nats_Msg_Id="1"), step(1, COMMIT, batch="c", Nats_Msg_Id="1"),
    ],
    "level": [
        step(1, START, Nats_Required_Api_Level="1"),
        step(2, APPEND, Nats_Required_Api_Level="99"), step(3, APPEND),
    ],
    "flow": [step(1, START, flow=0), *appended(2, 24, flow=0), step(25, COMMIT, flow=0)],
    "too much flow": [step(1, START, flow=70000), step(2, COMMIT)],
    "two at a time": [
        step(1, START), step(1, START, batch="c", flow=8), *appended(2, 5, batch="c", flow=8),
        *appended(2, 5), *appended(6, 12, batch="c", flow=8), step(13, COMMIT, batch="c"),
        *appended(6, 9), step(10, COMMIT),
    ],
    "malformed": [
        step(1, 5), step(1, -1), step("x", START), step(0, START), step(2, START), step(1, APPEND),
        step(1, END), step(1, START, gap="maybe"), step("", ""), step(2**64 - 1, APPEND),
        step(1, START, batch="i" * 65), step(1, COMMIT, batch="i" * 64, flow="x"),
    ],
}  # fmt: skip


async def answers_to(client: Any, name: str, steps: Sequence[Step]) -> list[tuple[int, Any]]:
    """All answers to a publisher: (index of the step, body)."""
    inbox = client.new_inbox()
    heard = await client.subscribe(f"{inbox}.>")
    found = []
    for index, (batch, flow, gap, seq, op, headers) in enumerate(steps):
        reply = f"{inbox}.{batch}.{flow}.{gap}.{seq}.{op}.$FI"
        await client.publish(f"{name}.x", b"body", reply=reply, headers=headers or None)
        # An ordinary publish after it: its answer shows that all answers to the step have arrived.
        await client.publish(f"{name}.x", b"behind", reply=f"{inbox}.behind")
        while (message := await heard.next_msg(timeout=20)).subject != f"{inbox}.behind":
            assert message.subject == reply
            found.append((index, json.loads(message.data)))
        found.append((index, json.loads(message.data)))
    await heard.unsubscribe()
    return found


async def one(client: Any, steps: Sequence[Step], **config: Any) -> Any:
    """The answers to the steps, and the messages in the stream at the end."""
    fields = {"name": "FAST", "subjects": ["FAST.x"], "allow_batched": True, **config}
    assert "error" not in await api(client, "STREAM.CREATE.FAST", fields)
    heard = await answers_to(client, "FAST", steps)
    state = (await api(client, "STREAM.INFO.FAST"))["state"]
    stored = [
        (await api(client, "STREAM.MSG.GET.FAST", {"seq": seq})).get("message", {}).get("hdrs")
        for seq in range(1, state["last_seq"] + 1)
    ]
    await api(client, "STREAM.DELETE.FAST")
    return heard, state["messages"], state["last_seq"], stored


async def compare(
    ours: LocalCluster, theirs: LocalCluster, steps: list[Step], **config: Any
) -> Any:
    here, there = await connect(*ours.nodes), await connect(*theirs.nodes)
    expected = await one(there, steps, **config)
    found = await one(here, steps, **config)
    await here.close()
    await there.close()
    assert found == expected
    return found


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_publisher_gets_the_answers_of_nats_server(
    single: LocalCluster, reference: LocalCluster, script: str
) -> None:
    run(lambda: compare(single, reference, SCRIPTS[script]))


@pytest.mark.parametrize(
    "config",
    [
        {"allow_batched": False}, {"max_msg_size": 2}, {"discard": "new", "max_msgs": 2},
        {"no_ack": False, "retention": "interest"}, {"allow_batched": True, "max_msgs": 2},
    ],
)  # fmt: skip
def test_rules_of_the_stream_apply_to_messages_of_a_batch(
    single: LocalCluster, reference: LocalCluster, config: dict[str, Any]
) -> None:
    run(lambda: compare(single, reference, SCRIPTS["whole"], **config))


def test_a_batch_continues_under_the_next_leader(three: LocalCluster) -> None:
    async def work() -> None:
        client = await connect(*three.nodes)
        fields = {"name": "FAST", "subjects": ["FAST.x"], "allow_batched": True, "num_replicas": 3}
        await api(client, "STREAM.CREATE.FAST", fields)
        before = await leader_of(client, three, "FAST")
        first = await answers_to(client, "FAST", [step(1, START, flow=2), step(2, APPEND, flow=2)])
        assert [body for _, body in first] == [
            {"type": "ack", "seq": 0, "msgs": 2}, {"stream": "FAST", "seq": 2},
            {"type": "ack", "seq": 2, "msgs": 2}, {"stream": "FAST", "seq": 4},
        ]  # fmt: skip
        await api(client, "STREAM.LEADER.STEPDOWN.FAST")

        async def moved() -> bool:
            return (await leader_of(client, three, "FAST")).name != before.name

        await eventually(moved, "another leader")
        rest = await answers_to(client, "FAST", [*appended(3, 4, flow=2), step(5, COMMIT, flow=2)])
        assert [body for _, body in rest] == [
            {"stream": "FAST", "seq": 6},
            {"type": "ack", "seq": 4, "msgs": 2}, {"stream": "FAST", "seq": 8},
            {"stream": "FAST", "seq": 9, "batch": "b", "count": 5}, {"stream": "FAST", "seq": 10},
        ]  # fmt: skip
        await api(client, "STREAM.DELETE.FAST")
        await client.close()

    run(work)
