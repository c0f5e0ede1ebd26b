"""Pull requests that waited at a leader which was killed: their clients are told at once."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any, cast

from nats.js.api import AckPolicy, ConsumerConfig, StreamConfig

from broker.local import LocalCluster, LocalNode
from tests.support.clusters import WITHIN_S, connect, eventually, leader_of, run

PULL = "$JS.API.CONSUMER.MSG.NEXT.FAIL.C"
ACK_WAIT_S = 2.0


async def recorded_at(nodes: list[LocalNode], deliveries: int) -> bool:
    """Whether each of them has applied the records of so many deliveries; one that is behind may
    not even know the stream."""
    delivered = [
        consumer["delivered"]["consumer_seq"]
        for node in nodes
        for account in cast("list[Any]", node.http("/jsz?consumers=1").get("account_details", []))
        for stream in account.get("stream_detail", [])
        for consumer in stream.get("consumer_detail", [])
    ]
    return delivered == [deliveries] * len(nodes)


async def delivered(inbox: Any, others: list[LocalNode]) -> int:
    """How often the message was delivered, all of it known to the followers: more than once where
    they take longer than the ack wait. A delivery of the last milliseconds may be unknown to the
    next leader."""
    count = 0
    while not count or inbox.pending_msgs:
        count += 1
        message = await inbox.next_msg(timeout=WITHIN_S)
        assert message.data == b"one"
        assert message.metadata.num_delivered == count
        known = partial(recorded_or_repeated, inbox, others, count)
        await eventually(known, "deliveries that the followers know of")
    return count


async def recorded_or_repeated(inbox: Any, others: list[LocalNode], deliveries: int) -> bool:
    return inbox.pending_msgs > 0 or await recorded_at(others, deliveries)


def test_pulls_that_waited_at_a_killed_leader_get_a_status_and_the_next_is_served(
    tmp_path: Path,
) -> None:
    """A message that was delivered but not acked is redelivered after its ack wait, not after the
    expiry of the request that was lost."""
    expires_s = 10 * WITHIN_S
    body = json.dumps({"batch": 10, "expires": int(expires_s * 1e9)}).encode()

    async def work() -> None:
        with LocalCluster(tmp_path, name="pulls") as cluster:
            first = await connect(*cluster.nodes)
            context = first.jetstream()
            await context.add_stream(StreamConfig(name="FAIL", subjects=["fail"], num_replicas=3))
            config = ConsumerConfig(
                durable_name="C", ack_policy=AckPolicy.EXPLICIT, ack_wait=ACK_WAIT_S
            )
            await context.add_consumer("FAIL", config)
            leader = await leader_of(first, cluster, "FAIL")
            others = [node for node in cluster.nodes if node is not leader]
            client = await connect(*others)
            inbox = await client.subscribe("answers.pull")
            await client.publish(PULL, body, reply="answers.pull")
            await client.jetstream().publish("fail", b"one")
            count = await delivered(inbox, others)
            leader.kill()
            message = await inbox.next_msg(timeout=WITHIN_S)
            assert message.headers, f"{message} is no status"
            while message.headers:  # an election may be followed by another
                assert message.headers["Status"] == "409"
                assert message.headers["Description"] == "Leadership Change"
                # At once, before a leader is elected: it is held for the next one.
                await client.publish(PULL, body, reply="answers.pull")
                message = await inbox.next_msg(timeout=WITHIN_S)
            assert message.data == b"one"
            assert message.metadata.num_delivered == count + 1
            await client.close()
            await first.close()

    run(work)
