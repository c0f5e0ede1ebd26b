"""A node comes back with a clock that is one hour ahead: it says so, and harms nobody."""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from nats.js.api import StreamConfig

from broker.local import LocalCluster, LocalNode
from tests.support.clusters import connect, eventually, leader_of, run

AHEAD_S = 3600
MAX_AGE_S = 1800
# The broker reads its clocks through the module `time` only.
AHEAD = f"""
import runpy, sys, time
wall, wall_ns = time.time, time.time_ns
time.time = lambda: wall() + {AHEAD_S}
time.time_ns = lambda: wall_ns() + {AHEAD_S} * 1_000_000_000
sys.argv[0] = "broker"
runpy.run_module("broker", run_name="__main__")
"""


def health_of(node: LocalNode) -> dict[str, Any]:
    try:
        return node.http("/healthz")
    except urllib.error.HTTPError as error:
        found: dict[str, Any] = json.load(error)
        return found


def test_a_clock_one_hour_ahead_moves_no_time_and_leads_nothing_others_can(tmp_path: Path) -> None:
    async def work() -> None:
        with LocalCluster(tmp_path, name="clock") as cluster:
            client = await connect(*cluster.nodes)
            streams = client.jetstream()
            for name, replicas in (("COMMON", 3), ("LONE", 1)):
                await streams.add_stream(
                    StreamConfig(
                        name=name,
                        subjects=[name.lower()],
                        num_replicas=replicas,
                        max_age=MAX_AGE_S,
                        duplicate_window=MAX_AGE_S,
                    )
                )
                await streams.publish(name.lower(), b"1", headers={"Nats-Msg-Id": "one"})
            wrong = await leader_of(client, cluster, "LONE")
            wrong.kill()
            wrong.command = [sys.executable, "-P", "-c", AHEAD, "serve"]
            wrong.start()

            async def told() -> bool:
                return "ahead of the time of the cluster" in health_of(wrong).get("error", "")

            await eventually(told, "the node says that its clock is wrong")

            async def stored() -> Any:  # the only replica is on the node with the wrong clock
                return await streams.publish("lone", b"2", timeout=2)

            assert (await eventually(stored, "a leader of LONE")).seq == 2
            again = await streams.publish("lone", b"1", headers={"Nats-Msg-Id": "one"})
            assert (again.seq, again.duplicate) == (1, True)
            answer = await client.request("$JS.API.STREAM.MSG.GET.LONE", b'{"seq": 2}')
            at = datetime.fromisoformat(json.loads(answer.data)["message"]["time"])
            assert abs(datetime.now(UTC) - at) < timedelta(minutes=5)

            leader = await leader_of(client, cluster, "COMMON")
            assert leader is not wrong
            leader.kill()

            async def repeated() -> Any:
                headers = {"Nats-Msg-Id": "one"}
                return await streams.publish("common", b"1", headers=headers, timeout=2)

            again = await eventually(repeated, "a leader of COMMON")
            assert (again.seq, again.duplicate) == (1, True)
            assert (await leader_of(client, cluster, "COMMON")) not in (leader, wrong)
            for name, count in (("COMMON", 1), ("LONE", 2)):
                assert (await streams.stream_info(name)).state.messages == count
            gauges = urllib.request.urlopen(f"http://127.0.0.1:{wrong.http_port}/metrics").read()
            offset = next(
                line for line in gauges.decode().splitlines()
                if line.startswith("jetraft_clock_offset_seconds")
            )  # fmt: skip
            assert abs(float(offset.split()[1]) - AHEAD_S) < 1
            await client.close()

    run(work)
