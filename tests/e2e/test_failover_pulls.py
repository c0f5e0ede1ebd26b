"""Pull requests that waited at a leader which was killed: their clients are told at once."""

from __future__ import annotations

import json
from pathlib import Path

from nats.js.api import AckPolicy, ConsumerConfig, StreamConfig

from broker.local import LocalCluster
from tests.support.clusters import WITHIN_S, connect, leader_of, run

PULL = "$JS.API.CONSUMER.MSG.NEXT.FAIL.C"
ACK_WAIT_S = 2.0


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
            await context.add_stream(
                StreamConfig(name="FAIL", subjects=["fail", "mark"], num_replicas=3)
            )
            config = ConsumerConfig(
                durable_name="C",
                ack_policy=AckPolicy.EXPLICIT,
                ack_wait=ACK_WAIT_S,
                filter_subject="fail",
            )
            await context.add_consumer("FAIL", config)
            leader = await leader_of(first, cluster, "FAIL")
            client = await connect(*(node for node in cluster.nodes if node is not leader))
            inbox = await client.subscribe("answers.pull")
            await client.publish(PULL, body, reply="answers.pull")
            await client.jetstream().publish("fail", b"one")
            assert (await inbox.next_msg(timeout=WITHIN_S)).data == b"one"
            # Later in the same log: when it is acked, the followers know of the delivery too.
            await client.jetstream().publish("mark", b"")
            leader.kill()
            status = await inbox.next_msg(timeout=WITHIN_S)
            assert status.headers["Status"] == "409"
            assert status.headers["Description"] == "Leadership Change"
            # At once, before a leader is elected: it is held for the next one.
            await client.publish(PULL, body, reply="answers.pull")
            again = await inbox.next_msg(timeout=WITHIN_S)
            assert again.data == b"one"
            assert again.metadata.num_delivered == 2
            await client.close()
            await first.close()

    run(work)
