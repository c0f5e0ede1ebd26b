"""A leader that was paused and continues must not answer from its old state."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from nats.js.api import StreamConfig

from broker.local import LocalCluster
from tests.support.clusters import WITHIN_S, connect, eventually, leader_of, run

STREAM, KEY = "STALE", "stale.key"


def requests() -> list[tuple[str, bytes]]:
    """Every way to ask for the last message of a subject."""
    body = json.dumps({"last_by_subj": KEY}).encode()
    return [
        (f"$JS.API.DIRECT.GET.{STREAM}.{KEY}", b""),
        (f"$JS.API.DIRECT.GET.{STREAM}", body),
        (f"$JS.API.STREAM.MSG.GET.{STREAM}", body),
    ]


def value(subject: str, data: bytes) -> bytes:
    if "MSG.GET" in subject:
        return base64.b64decode(json.loads(data)["message"]["data"])
    return data


def test_a_leader_that_was_paused_answers_with_what_was_stored_meanwhile(tmp_path: Path) -> None:
    async def work() -> None:
        with LocalCluster(tmp_path, name="stale") as cluster:
            first = await connect(*cluster.nodes)
            await first.jetstream().add_stream(
                StreamConfig(name=STREAM, subjects=["stale.>"], num_replicas=3, allow_direct=True)
            )
            await first.jetstream().publish(KEY, b"old")
            leader = await leader_of(first, cluster, STREAM)
            others = [node for node in cluster.nodes if node is not leader]
            there, elsewhere = await connect(leader), await connect(*others)
            inboxes = []
            for number, (subject, body) in enumerate(requests()):
                answer = await there.request(subject, body, timeout=WITHIN_S)
                assert value(subject, answer.data) == b"old"
                inboxes.append(await there.subscribe(f"answers.{number}"))
            await there.flush()

            leader.pause()
            try:
                # The requests are in its socket buffer when it continues.
                for number, (subject, body) in enumerate(requests()):
                    await there.publish(subject, body, reply=f"answers.{number}")

                async def stored() -> Any:
                    return await elsewhere.jetstream().publish(KEY, b"new", timeout=2)

                await eventually(stored, "another leader")
            finally:
                leader.resume()
            for (subject, _), inbox in zip(requests(), inboxes, strict=True):
                answer = await inbox.next_msg(timeout=WITHIN_S)
                assert value(subject, answer.data) == b"new", subject
            for client in (first, there, elsewhere):
                await client.close()

    run(work)
