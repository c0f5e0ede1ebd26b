"""Streams with sources: local and remote, filtered and renamed, through failures and changes."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import urllib.request
from pathlib import Path
from typing import Any

from nats.js.api import ExternalStream, StreamConfig, StreamSource

from broker.local import LocalCluster, free_ports
from tests.support.clients import open_client
from tests.support.clusters import connect, eventually, leader_of, nats_server, run
from tests.support.server import Process

FAR = ExternalStream(api="$JS.far.API", deliver="")


async def api(client: Any, subject: str, body: object = None) -> Any:
    payload = json.dumps(body).encode() if body is not None else b""
    return json.loads((await client.request(f"$JS.API.{subject}", payload, timeout=10)).data)


async def holds(client: Any, stream: str, count: int) -> None:
    async def check() -> bool:
        info = await client.jetstream().stream_info(stream)
        assert info.state.last_seq <= count, "copied twice"
        return bool(info.state.last_seq == count)

    await eventually(check, f"{count} messages in {stream}")


async def content(client: Any, stream: str, last: int) -> list[tuple[str, bytes, str]]:
    """Subject, payload and source of each message."""
    found = []
    for seq in range(1, last + 1):
        answer = await api(client, f"STREAM.MSG.GET.{stream}", {"seq": seq})
        message = answer["message"]
        block = base64.b64decode(message.get("hdrs", "")).decode()
        lines = [line for line in block.splitlines() if line.startswith("Nats-Stream-Source")]
        source = lines[0].partition(": ")[2] if lines else ""
        found.append((message["subject"], base64.b64decode(message.get("data", "")), source))
    return found


async def fill(client: Any, subject: str, first: int, last: int) -> None:
    for i in range(first, last + 1):
        await client.jetstream().publish(f"{subject}.{i % 3}", b"%s %d" % (subject.encode(), i))


def test_sources_here_and_on_a_nats_server_survive_the_kill_of_the_leader(tmp_path: Path) -> None:
    far = LocalCluster(tmp_path / "far", size=1, name="far", command=nats_server())
    with far:
        remote = f'remotes {{ far {{ urls: ["{far.urls[0]}"] }} }}'
        with LocalCluster(tmp_path / "near", name="near", jetstream=remote) as near:

            async def work() -> None:
                there, here = await connect(*far.nodes), await connect(*near.nodes)
                await there.jetstream().add_stream(StreamConfig(name="F", subjects=["f.*"]))
                await here.jetstream().add_stream(
                    StreamConfig(name="N", subjects=["n.*"], num_replicas=3)
                )
                await fill(there, "f", 1, 60)
                await fill(here, "n", 1, 60)
                sources = [
                    StreamSource(name="N"),
                    StreamSource(name="F", external=FAR, filter_subject="f.1"),
                ]
                await here.jetstream().add_stream(
                    StreamConfig(name="ALL", sources=sources, num_replicas=3)
                )
                await holds(here, "ALL", 80)
                (await leader_of(here, near, "ALL")).kill()
                await fill(there, "f", 61, 120)

                async def accepted() -> bool:
                    await fill(here, "n", 61, 61)
                    return True

                await eventually(accepted, "publishing to N")
                last = (await here.jetstream().stream_info("N")).state.last_seq
                await holds(here, "ALL", last + 40)
                got = await content(here, "ALL", last + 40)
                near_ones = [s.split() for _, _, s in got if s.startswith("N ")]
                assert [int(parts[1]) for parts in near_ones] == list(range(1, last + 1))
                far_ones = [s.split() for _, _, s in got if s.startswith("F:")]
                assert [int(parts[1]) for parts in far_ones] == list(range(1, 121, 3))
                assert {parts[2] for parts in far_ones} == {"f.1"}
                names = await api(there, "CONSUMER.NAMES.F")
                assert names["consumers"] == [], "consumers of sources are hidden"
                await there.close()
                await here.close()

            run(work)


def test_sources_are_filtered_renamed_added_removed_and_reported(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, size=1, name="one") as server:

        async def work() -> None:
            client = await connect(*server.nodes)
            for name in ("A", "B"):
                await client.jetstream().add_stream(
                    StreamConfig(name=name, subjects=[f"{name.lower()}.*"])
                )
                await fill(client, name.lower(), 1, 6)
            renamed = {"name": "B", "subject_transforms": [{"src": "b.1", "dest": "was.b"}]}
            both = {"name": "S", "sources": [{"name": "A", "opt_start_seq": 5}, renamed]}
            assert "error" not in await api(client, "STREAM.CREATE.S", both)
            await holds(client, "S", 4)
            got = sorted(await content(client, "S", 4))
            assert [(subject, data) for subject, data, _ in got] == [
                ("a.0", b"a 6"), ("a.2", b"a 5"), ("was.b", b"b 1"), ("was.b", b"b 4"),
            ]  # fmt: skip
            info = await api(client, "STREAM.INFO.S")
            assert [s["name"] for s in info["sources"]] == ["A", "B"]
            assert all(s["active"] >= 0 and s["lag"] == 0 for s in info["sources"])
            assert info["sources"][1]["subject_transforms"] == renamed["subject_transforms"]
            await api(client, "STREAM.UPDATE.S", {"name": "S", "sources": [renamed]})
            await fill(client, "a", 7, 8)
            await fill(client, "b", 7, 7)
            await holds(client, "S", 5)
            missing = {"name": "GONE"}
            back = {"name": "S", "sources": [{"name": "A", "opt_start_seq": 5}, missing]}
            await api(client, "STREAM.UPDATE.S", back)
            await holds(client, "S", 7)
            assert [s for _, _, s in await content(client, "S", 7)][5:] == [
                "A 7 > > a.1", "A 8 > > a.2",
            ]  # fmt: skip

            async def reported() -> bool:
                info = await api(client, "STREAM.INFO.S")
                gone = info["sources"][1]
                return bool(gone.get("error", {}).get("err_code") == 10059 and gone["active"] == -1)

            await eventually(reported, "the error of the missing origin")
            await client.close()

        run(work)


def test_a_full_stream_gets_the_rest_when_its_limit_is_raised(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, size=1, name="full") as server:

        async def work() -> None:
            client = await connect(*server.nodes)
            await client.jetstream().add_stream(StreamConfig(name="A", subjects=["a.*"]))
            await fill(client, "a", 1, 30)
            config = {"name": "S", "sources": [{"name": "A"}], "discard": "new", "max_msgs": 10}
            await api(client, "STREAM.CREATE.S", config)
            await holds(client, "S", 10)
            await api(client, "STREAM.UPDATE.S", config | {"max_msgs": 100})
            await holds(client, "S", 30)
            got = [int(s.split()[1]) for _, _, s in await content(client, "S", 30)]
            assert got == list(range(1, 31))
            await client.close()

        run(work)


def test_source_consumers_of_nats_server_are_hidden_or_kept(tmp_path: Path) -> None:
    """The consumers that nats-server makes at an origin it mirrors or sources."""
    with LocalCluster(tmp_path, size=1, name="org") as server:

        async def work() -> None:
            client = await connect(*server.nodes)
            reader = {
                "name": "JS_SRC_abcdefgh", "deliver_subject": "$JS.S.abcdefgh", "direct": True,
                "sourcing": True, "ack_policy": "none", "max_deliver": 1, "flow_control": True,
                "ack_wait": 79_200_000_000_000, "idle_heartbeat": 1_000_000_000,
                "inactive_threshold": 10_000_000_000, "metadata": {"_nats.src.stream": "X"},
            }  # fmt: skip
            for name, retention in (("L", "limits"), ("W", "workqueue")):
                body = {"name": name, "subjects": [f"{name}.>"], "retention": retention}
                await api(client, f"STREAM.CREATE.{name}", body | {"max_consumers": 1})
                made = await api(
                    client,
                    f"CONSUMER.CREATE.{name}.JS_SRC_abcdefgh",
                    {"stream_name": name, "config": reader},
                )
                assert "error" not in made, made
                names = (await api(client, f"CONSUMER.NAMES.{name}"))["consumers"]
                listed = (await api(client, f"CONSUMER.LIST.{name}"))["consumers"]
                state = (await api(client, f"STREAM.INFO.{name}"))["state"]
                if retention == "limits":
                    assert made["name"].startswith("JS_SRC_abcdefgh-")
                    assert (names, listed, state["consumer_count"]) == ([], [], 0)
                else:
                    assert made["config"]["ack_policy"] == "flow_control"
                    assert names == ["JS_SRC_abcdefgh"]
            await client.close()

        run(work)


ACROSS = """
listen: "127.0.0.1:-1"
http: "127.0.0.1:{http}"
jetstream {{ store_dir: "{place}/data" }}
accounts {{
  A {{ jetstream: enabled, users: [ {{ user: a, password: a }} ]
      exports: [ {{ service: "$JS.API.CONSUMER.>" }}, {{ service: "$JS.FC.>" }}
                 {{ stream: "deliver.>" }} ] }}
  B {{ jetstream: enabled, users: [ {{ user: b, password: b }} ]
      imports: [ {{ service: {{ account: A, subject: "$JS.API.CONSUMER.>" }}
                    to: "JS.A.API.CONSUMER.>" }}
                 {{ service: {{ account: A, subject: "$JS.FC.>" }} }}
                 {{ stream: {{ account: A, subject: "deliver.>" }} }} ] }}
}}
"""


def test_streams_of_another_account_are_read_through_imports(tmp_path: Path) -> None:
    [http] = free_ports(1)
    (tmp_path / "server.conf").write_text(ACROSS.format(place=tmp_path, http=http))
    origin = {"name": "O", "external": {"api": "JS.A.API", "deliver": "deliver.b"}}

    async def work(port: int) -> None:
        there = await open_client(f"nats://a:a@127.0.0.1:{port}")
        here = await open_client(f"nats://b:b@127.0.0.1:{port}")
        await api(there, "STREAM.CREATE.O", {"name": "O", "subjects": ["o.*"]})
        await fill(there, "o", 1, 30)
        await api(here, "STREAM.CREATE.M", {"name": "M", "mirror": origin})
        await api(here, "STREAM.CREATE.S", {"name": "S", "sources": [origin]})
        for stream in ("M", "S"):
            await holds(here, stream, 30)
        await fill(there, "o", 31, 35)
        for stream in ("M", "S"):
            await holds(here, stream, 35)
            found = [(subject, body) for subject, body, _ in await content(here, stream, 35)]
            assert found == [(f"o.{i % 3}", b"o %d" % i) for i in range(1, 36)]
        info = await api(here, "STREAM.INFO.S")
        assert (info["sources"][0]["seq"], info["sources"][0]["lag"]) == (35, 0)
        await there.close()
        await here.close()
        page = await asyncio.to_thread(urllib.request.urlopen, f"http://127.0.0.1:{http}/metrics")
        metrics = page.read().decode()
        assert re.search(r'jetraft_origin_lag{[^}]*origin="O"[^}]*} 0', metrics)

    with Process("-c", str(tmp_path / "server.conf")) as server:
        run(lambda: work(server.port))
