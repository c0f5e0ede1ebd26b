"""Transports of several nodes in one process, over real sockets on loopback."""

from __future__ import annotations

import asyncio
import logging
import shutil
import ssl
import struct
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from raft.transport.transport import RAFT_BULK, TransportLimits
from raft.types import NodeId, node_id
from tests.support.listener import Listener
from tests.support.transport_rig import Cluster, cluster_test, loop_kind, until

__all__ = ["loop_kind"]  # a fixture: every test here runs on both event loops


def test_one_seed_makes_a_full_mesh_quickly() -> None:
    async def body(c: Cluster) -> None:
        began = time.monotonic()
        a = await c.start("a")
        await c.start("b", a.port)
        await c.start("d", a.port)
        await until(c.is_full_mesh)
        assert time.monotonic() - began < 2.0
        peers = c.transports[1].peers()
        assert {p.name: p.hello for p in peers.values()} == {
            "a": {"client": "a"},
            "d": {"client": "d"},
        }
        assert ("d", True) in c.events["b"]

    cluster_test(body)


def test_frames_of_any_size_keep_their_order() -> None:
    async def body(c: Cluster) -> None:
        a = await c.start("a")
        b = await c.start("b", a.port)
        await until(c.is_full_mesh)
        got: list[tuple[NodeId, bytes]] = []
        views: list[bytes] = []
        a.register(16, lambda node, payload: got.append((node, payload)))
        a.register(17, lambda node, view: views.append(bytes(view)), borrowed=True)
        sizes = [0, 1, 5, 100_000, 3, 262_139, 262_140, 262_144, 2, 3_000_000, 7]
        frames = [bytes([i]) * size for i, size in enumerate(sizes)]
        for payload in frames:
            assert b.send(a.node, 16, payload)
            assert b.send(a.node, 17, [payload[:1], payload[1:]])
        assert b.send(a.node, 99, b"nobody listens on this channel")
        await until(lambda: len(got) == len(views) == len(frames))
        assert [payload for _, payload in got] == frames == views
        assert {node for node, _ in got} == {b.node}
        assert a.send(b.node, 16, b"x", control=True)
        assert b.statistics().sent_bytes > 6_000_000
        assert a.statistics().received_bytes > 6_000_000

    cluster_test(body)


def test_appends_and_their_answers_leave_at_once() -> None:
    async def body(c: Cluster) -> None:
        a = await c.start("a")
        b = await c.start("b", a.port)
        await until(c.is_full_mesh)
        await until(lambda: b.pending_bytes(a.node) == 0)
        assert b.send(a.node, 16, b"in the next turn of the loop")
        assert b.pending_bytes(a.node) > 0
        assert b.send(a.node, RAFT_BULK, b"")
        assert b.pending_bytes(a.node) == 0, "and what was queued before it"

    cluster_test(body)


def test_our_own_address_is_recognized_and_not_dialed() -> None:
    async def body(c: Cluster) -> None:
        a = await c.start("a")
        port = a.port
        await a.stop()
        c.transports.clear()
        a = await c.start("a", port, port=port)  # its own address among the routes
        b = await c.start("b", port)
        await until(c.is_full_mesh)
        assert set(a.peers()) == {b.node}
        plan = a._plan
        await until(lambda: plan._seeds[("127.0.0.1", port)] == a.node)
        assert ("127.0.0.1", port) not in plan._dialers

    cluster_test(body)


@pytest.mark.parametrize("credentials", [("u", "other"), None, ("v", "secret")])
def test_wrong_credentials_are_refused_with_one_line_on_both_sides(
    caplog: pytest.LogCaptureFixture, credentials: tuple[str, str] | None
) -> None:
    async def body(c: Cluster) -> None:
        a = await c.start("a", credentials=("u", "secret"))
        b = await c.start("b", a.port, credentials=("u", "secret"))
        await until(c.is_full_mesh)
        x = await c.start("x", a.port, credentials=credentials)
        await until(lambda: sum("were refused by" in r.message for r in caplog.records) == 1)
        await until(lambda: sum("we refused" in r.message for r in caplog.records) == 1)
        assert "does not have the credentials" in caplog.text
        assert "secret" not in caplog.text
        assert not x.peers()
        assert set(a.peers()) == {b.node}
        assert a.statistics().refused["credentials"] >= 1

    with caplog.at_level(logging.WARNING):
        cluster_test(body)


def test_the_accepting_side_must_prove_its_credentials_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def body(c: Cluster) -> None:
        a = await c.start("a")  # requires no credentials, and cannot prove any
        b = await c.start("b", a.port, credentials=("u", "secret"))
        await until(lambda: "does not have the credentials" in caplog.text)
        assert not b.connected(a.node)

    with caplog.at_level(logging.WARNING):
        cluster_test(body)


def test_a_node_of_another_cluster_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    async def body(c: Cluster) -> None:
        a = await c.start("a")
        b = await c.start("b", a.port, cluster="other")
        await until(lambda: caplog.text.count('belongs to cluster "other"') == 2)
        await until(lambda: len(a._acceptor._pending) == 0)
        assert not a.peers()
        assert not b.peers()
        await until(lambda: a.statistics().refused.get("cluster", 0) >= 2)  # it retries
        assert caplog.text.count('belongs to cluster "other"') == 2  # logged once on each side

    with caplog.at_level(logging.WARNING):
        cluster_test(body)


def test_a_second_server_of_the_same_name_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    async def body(c: Cluster) -> None:
        a = await c.start("a")
        b = await c.start("b", a.port)
        await until(c.is_full_mesh)
        twin = await c.start("b", a.port)
        await until(lambda: "were refused by" in caplog.text)
        assert 'another server has the name "b"' in caplog.text
        assert a.peers()[b.node].port == b.port
        assert not twin.connected(a.node)
        await c.start("a", b.port)  # and one that has the name of the node it dials
        await until(lambda: 'another server has the name "a"' in caplog.text)

    with caplog.at_level(logging.WARNING):
        cluster_test(body)


def test_a_restarted_node_is_found_on_another_port() -> None:
    async def body(c: Cluster) -> None:
        a = await c.start("a")
        b = await c.start("b", a.port)
        d = await c.start("d", a.port)
        await until(c.is_full_mesh)
        await b.stop()
        c.transports.remove(b)
        await until(lambda: not a.connected(b.node) and not d.connected(b.node))
        assert c.events["a"][-1] == ("b", False)
        again = await c.start("b", a.port)
        assert again.port != b.port
        await until(c.is_full_mesh)
        assert a.peers()[b.node].port == again.port

    cluster_test(body)


def test_a_node_that_returns_with_another_id_takes_the_place_of_its_predecessor(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its data directory was replaced. Its name is refused only while the old one is alive."""

    async def body(c: Cluster) -> None:
        a = await c.start("a")
        b = await c.start("b", a.port)
        d = await c.start("d", a.port)
        await until(c.is_full_mesh)
        port = b.port
        twin = await c.start("b", a.port, node=node_id("b", 2))
        await until(lambda: a.statistics().refused.get("name", 0) > 0)
        await until(lambda: "were refused by" in caplog.text)
        assert not a.connected(twin.node)
        assert not twin.connected(a.node)
        await twin.stop()
        await b.stop()
        c.transports = [a, d]
        again = await c.start("b", a.port, node=node_id("b", 3), port=port)
        await until(c.is_full_mesh)
        assert [peer.name for peer in a.peers().values()].count("b") == 1
        assert a.peers()[again.node].port == port
        await until(lambda: b.node not in d.peers())

    with caplog.at_level(logging.WARNING):
        cluster_test(body)


def test_garbage_on_the_port_ends_only_that_connection() -> None:
    async def body(c: Cluster) -> None:
        a = await c.start("a")
        b = await c.start("b", a.port)
        await until(c.is_full_mesh)

        async def is_ended(garbage: bytes) -> None:
            """At once, or when the handshake times out."""
            reader, writer = await asyncio.open_connection("127.0.0.1", a.port)
            writer.write(garbage)
            rest = await reader.read()  # the greeting, perhaps a refusal, then end of file
            assert b"JRP1" in rest
            writer.close()

        await asyncio.gather(
            is_ended(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
            is_ended(b"\x00" * 64),
            is_ended(struct.pack("<IB", 0xFFFFFFFF, 0)),
            is_ended(struct.pack("<IB", 1 << 20, 0)),  # larger than a handshake may be
            is_ended(struct.pack("<IB", 3, 7) + b"xy"),
            is_ended(struct.pack("<IB", 5, 0) + b"H{}}"),
            is_ended(b""),
        )
        assert c.is_full_mesh()
        assert b.send(a.node, 16, b"still here")

    cluster_test(body)


def test_a_frame_that_raises_closes_its_connection_which_is_dialed_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def body(c: Cluster) -> None:
        a = await c.start("a")
        b = await c.start("b", a.port)
        await until(c.is_full_mesh)

        def fail(_node: NodeId, _payload: bytes) -> None:
            raise ValueError("planted")

        a.register(16, fail)
        b.send(a.node, 16, b"boom")
        await until(lambda: ("a", False) in c.events["b"])
        await until(c.is_full_mesh)
        assert "planted" in caplog.text

    cluster_test(body)


def test_a_wrong_frame_length_closes_the_connection() -> None:
    async def body(c: Cluster) -> None:
        a = await c.start("a", limits=TransportLimits(frame_bytes_max=1000, ping_seconds=0.05))
        b = await c.start("b", a.port)
        await until(c.is_full_mesh)
        assert b.send(a.node, 16, bytes(2000))
        await until(lambda: ("a", False) in c.events["b"])
        await until(c.is_full_mesh)

    cluster_test(body)


def test_a_full_queue_drops_frames_and_send_returns_false() -> None:
    async def body(c: Cluster) -> None:
        a = await c.start("a")
        limits = TransportLimits(bulk_queue_bytes_max=1 << 20)
        b = await c.start("b", a.port, limits=limits)
        await until(c.is_full_mesh)
        got: list[int] = []
        a.register(16, lambda _node, payload: got.append(len(payload)))
        payload = bytes(400_000)
        results = [b.send(a.node, 16, payload) for _ in range(10)]
        assert results == [True, True, *[False] * 8]
        assert b.pending_bytes(a.node) > 0
        assert b.statistics().dropped_frames == 8
        await until(lambda: len(got) == 2)
        assert b.send(a.node, 16, bytes(2 << 20))  # an empty queue takes a frame of any size
        await until(lambda: len(got) == 3)
        assert not b.send(NodeId(12345), 16, b"nobody")

    cluster_test(body)


def test_a_changed_hello_reaches_every_peer() -> None:
    async def body(c: Cluster) -> None:
        details: dict[str, Any] = {"clients": 1}
        a = await c.start("a", hello=lambda: dict(details))
        b = await c.start("b", a.port)
        await until(c.is_full_mesh)
        before = len(c.events["b"])
        details["clients"] = 2
        a.update_hello()
        await until(lambda: b.peers()[a.node].hello == {"clients": 2})
        assert c.events["b"][before:] == [("a", True)]

    cluster_test(body)


def test_a_silent_link_is_closed() -> None:
    """A proxy that drops everything after the handshake simulates a dead machine."""

    async def body(c: Cluster) -> None:
        a = await c.start("a")
        swallow = asyncio.Event()

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            while data := await source.read(65536):
                if not swallow.is_set():
                    sink.write(data)

        async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", a.port)
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(pump(reader, far_writer))
                    tasks.create_task(pump(far_reader, writer))
            except* OSError:
                pass  # one end is closed: close the other as well
            finally:
                far_writer.transport.abort()

        listener = Listener(proxy)
        # `advertise` makes others dial the proxy as well: both directions cross it.
        b = await c.start("b", listener.port, advertise=("127.0.0.1", 1))
        await until(lambda: b.connected(a.node))
        swallow.set()
        await until(lambda: not b.connected(a.node))
        assert ("a", False) in c.events["b"]
        await b.stop()
        await a.stop()
        c.transports.clear()
        await listener.close()

    cluster_test(body)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificate with openssl")
def test_links_over_tls(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    request = "openssl req -x509 -nodes -days 1 -newkey ec -pkeyopt ec_paramgen_curve:P-256"
    subject = "-subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1"
    subprocess.run(
        [*request.split(), *subject.split(), "-keyout", key, "-out", certificate],
        check=True,
        capture_output=True,
    )
    accepting = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    accepting.load_cert_chain(certificate, key)
    dialling = ssl.create_default_context(cafile=certificate)

    async def body(c: Cluster) -> None:
        a = await c.start("a", tls=(accepting, dialling))
        b = await c.start("b", a.port, tls=(accepting, dialling))
        plain = await c.start("p", a.port)
        await until(lambda: a.connected(b.node) and b.connected(a.node))
        got: list[int] = []
        a.register(16, lambda _node, payload: got.append(len(payload)))
        assert b.send(a.node, 16, bytes(1_000_000))
        await until(lambda: got == [1_000_000])
        assert not plain.connected(a.node)

    cluster_test(body)
