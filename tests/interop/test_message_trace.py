"""Traced messages: sent to our server and to nats-server, with the same events."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.clusters import nats_server, run
from tests.support.server import Process
from tests.support.trace_rig import CONFIG, Client, Scene

DEST = "Nats-Trace-Dest: t"
ONLY = DEST + "|Nats-Trace-Only: true"
TRACEPARENT = "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


async def plain(scene: Scene) -> int:
    await scene.subscriber("x", "p.x", "p.*")
    await scene.subscriber("y", "p.x group")
    await scene.subscriber("z", "p.> group")
    publisher = await scene.client("publisher")
    publisher.publish("p.y", DEST + "|Other:  two  |Other: three")
    await publisher.flush()
    return 1


async def only(scene: Scene) -> int:
    await scene.subscriber("x", "p.x", "p.* group")
    publisher = await scene.subscriber("publisher", "in")
    publisher.publish("p.x", ONLY, reply="in")
    await publisher.flush()
    return 1


async def nobody(scene: Scene) -> int:
    publisher = await scene.subscriber("publisher", "in")
    publisher.publish("p.x", ONLY, reply="in")
    publisher.publish("p.x", DEST, reply="in")
    await publisher.flush()
    return 2


async def no_echo(scene: Scene) -> int:
    publisher = await scene.client("publisher", echo=False)
    publisher.send("SUB p.x 1\r\n")
    publisher.publish("p.x", DEST)
    await publisher.flush()
    return 1


async def refused(scene: Scene) -> int:
    publisher = await scene.client("publisher", "narrow")
    publisher.publish("no.x", DEST)
    publisher.publish("p.x", DEST, reply="_R_.x")
    publisher.publish("p.x", "Nats-Trace-Dest: t.secret")
    publisher.publish("p.x", "Nats-Trace-Dest: t.*")
    publisher.publish("p.x", "Nats-Trace-Dest: trace disabled")
    publisher.publish("p.x", "Nats-Trace-Dest: t|Nats-Trace-Origin-Account: A")
    publisher.publish("p.x", "nats-trace-dest: t")
    publisher.publish("p.x", "Nats-Trace-Only: 1")
    publisher.publish("$NRG.x", DEST)
    await publisher.flush()
    return 3


async def denied(scene: Scene) -> int:
    await scene.subscriber("deaf", "deaf.*", user="narrow")
    publisher = await scene.subscriber("publisher", "in")
    publisher.publish("deaf.x", DEST, reply="in")
    await publisher.flush()
    return 1


async def not_traced(scene: Scene) -> int:
    await scene.subscriber("x", "p.x")
    publisher = await scene.client("publisher", "narrow")
    publisher.publish("p.x", "Nats-Trace-Dest: t.secret", "1")
    publisher.publish("p.x", "Nats-Trace-Dest: t.*", "2")
    publisher.publish("p.x", "Nats-Trace-Dest: t.*|Nats-Trace-Only: on", "3")
    publisher.publish("p.x", "Nats-Trace-Dest: trace disabled|Nats-Trace-Only: on", "4")
    publisher.publish("p.x", "Nats-Trace-Dest: t|Nats-Trace-Origin-Account: A", "5")
    publisher.publish("p.x", "nats-trace-dest: t", "6")
    publisher.publish("p.x", "Nats-Trace-Only: 1", "7")
    publisher.publish("p.x", TRACEPARENT, "8")
    publisher.publish("p.x", "Nats-Trace-Dest: |A: b", "9")
    await publisher.flush()
    return 0


async def in_a_row(scene: Scene) -> int:
    await scene.subscriber("x", "p.x")
    publisher = await scene.client("publisher")
    for number in range(6):
        publisher.publish("p.x", DEST if number in (1, 2, 4) else "A: b", str(number))
    await publisher.flush()
    return 3


async def external(scene: Scene) -> int:
    await scene.subscriber("x", "p.x", user="c")
    publisher = await scene.client("publisher", "c")
    publisher.publish("p.x", "TraceParent" + TRACEPARENT[11:])
    publisher.publish("p.x", TRACEPARENT.replace("-01", "-00"))
    publisher.publish("p.x", TRACEPARENT + "|Nats-Trace-Only: true")
    await publisher.flush()
    return 2


async def exported(scene: Scene) -> int:
    await scene.subscriber("x", "from.s.>", "from.u.x", user="b")
    publisher = await scene.client("publisher")
    publisher.publish("s.x", DEST)
    publisher.publish("u.x", DEST)
    publisher.publish("s.x", ONLY)
    publisher.publish("u.x", ONLY)
    await publisher.flush()
    return 4


async def imported(scene: Scene) -> int:
    await scene.subscriber("x", "svc", "shy", user="b")
    publisher = await scene.subscriber("publisher", "in")
    publisher.publish("ask", ONLY, reply="in")
    publisher.publish("shy", ONLY, reply="in")
    await publisher.flush()
    return 2


async def service_called(scene: Scene) -> int:
    await scene.subscriber("x", "svc", "shy", user="b")
    publisher = await scene.client("publisher")
    publisher.publish("ask", DEST)
    publisher.publish("shy", DEST)
    served = scene.clients["x"]
    while len(served.heard) < 2:
        await served.operation()
    # The client-info header contains a time, and the destination of the trace is hidden.
    served.heard = [(subject, "", payload) for subject, _, payload in served.heard]
    return 2


async def api(scene: Scene) -> int:
    publisher = await scene.subscriber("publisher", "in")
    publisher.publish("$JS.API.STREAM.INFO.NONE", DEST, "", reply="in")
    while not publisher.heard:
        await publisher.operation()
    publisher.heard.clear()
    return 1


async def make_stream(publisher: Client, name: str, **config: object) -> None:
    body = json.dumps({"name": name, "subjects": [f"{name}.>"], **config})
    publisher.send(
        f"SUB made 77\r\nPUB $JS.API.STREAM.CREATE.{name} made {len(body)}\r\n{body}\r\n"
    )
    while not any(subject == "made" for subject, _, _ in publisher.heard):
        await publisher.operation()
    publisher.heard.clear()


async def stored(scene: Scene) -> int:
    publisher = await scene.subscriber("publisher", "in")
    await make_stream(publisher, "stored")
    await scene.subscriber("x", "stored.a")
    for headers in (
        DEST,
        ONLY,
        DEST + "|Nats-Msg-Id: 1",
        DEST + "|Nats-Msg-Id: 1",
        DEST + "|Nats-Expected-Last-Sequence: 9",
        DEST + "|Nats-Expected-Stream: B",
    ):
        publisher.publish("stored.a", headers, reply="in")
        before = len(publisher.heard)
        while "Only" not in headers and len(publisher.heard) == before:
            await publisher.operation()
    publisher.publish("stored.b", DEST)
    body = '{"last_by_subj":"stored.a"}'
    publisher.send(f"PUB $JS.API.STREAM.MSG.GET.stored made {len(body)}\r\n{body}\r\n")
    while publisher.heard[-1][0] != "made":
        await publisher.operation()
    got = json.loads(publisher.heard.pop()[2])["message"]
    publisher.heard.append(("got", str(got["seq"]), got.get("hdrs", "").encode()))
    return 7


async def batched(scene: Scene) -> int:
    publisher = await scene.subscriber("publisher", "in")
    await make_stream(publisher, "batched", allow_atomic=True)
    batch = DEST + "|Nats-Batch-Id: one|Nats-Batch-Sequence: "
    publisher.publish("batched.a", batch + "1", reply="in")
    publisher.publish("batched.a", batch + "2")
    publisher.publish("batched.a", batch + "3|Nats-Batch-Commit: 1", reply="in")
    while len(publisher.heard) < 2:
        await publisher.operation()
    return 1


async def transformed(scene: Scene) -> int:
    publisher = await scene.client("publisher")
    await make_stream(publisher, "moved", subject_transform={"src": "moved.>", "dest": "here.>"})
    publisher.publish("moved.a", DEST)
    publisher.publish("moved.a", ONLY)
    return 2


async def without_interest(scene: Scene) -> int:
    publisher = await scene.client("publisher")
    await make_stream(publisher, "idle", retention="interest")
    publisher.publish("idle.a", DEST)
    publisher.publish("idle.a", ONLY)
    return 2


async def unanswered(scene: Scene) -> int:
    publisher = await scene.client("publisher")
    await make_stream(publisher, "mute", no_ack=True)
    publisher.publish("mute.a", DEST)
    return 1


SCENES: dict[str, Callable[[Scene], Awaitable[int]]] = {
    scene.__name__: scene
    for scene in (plain, only, nobody, no_echo, refused, denied, not_traced, in_a_row, external,
                  exported, imported, service_called, api, stored, batched, transformed,
                  without_interest, unanswered)
}  # fmt: skip
USER = {"external": "c"}


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, int]]:
    """The ports of our server and of nats-server, with the same configuration."""
    ours, theirs = tmp_path_factory.mktemp("ours"), tmp_path_factory.mktemp("theirs")
    with (
        Process("-c", configuration(ours)) as here,
        Process("-c", configuration(theirs), command=nats_server()) as there,
    ):
        yield here.port, there.port


def configuration(place: Path) -> str:
    path = place / "server.conf"
    path.write_text(CONFIG.format(store=place))
    return str(path)


async def played(port: int, name: str) -> dict[str, Any]:
    scene = Scene(port)
    user = USER.get(name, "a")
    await scene.subscriber("tracer", "t", "t.end", user=user)
    events = await SCENES[name](scene)
    return await scene.end(events=events, user=user)


@pytest.mark.parametrize("name", SCENES)
def test_traces_are_those_of_nats_server(ports: tuple[int, int], name: str) -> None:
    ours, theirs = (run(lambda port=port: played(port, name)) for port in ports)  # type: ignore[misc]
    assert ours == theirs
    assert ours["traced"] or name == "not_traced"
