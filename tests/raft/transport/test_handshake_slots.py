"""Strangers on the route port: however many are silent, a node of the cluster gets in."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from raft.transport.handshake_slots import HandshakeSlots, source_of
from raft.transport.transport import TransportLimits
from tests.support.transport_rig import Cluster, cluster_test, loop_kind, until

__all__ = ["loop_kind"]  # a fixture: every test here runs on both event loops

# Silent connections are not closed by the clock while a test runs.
PATIENT = TransportLimits(connect_seconds=60.0, ping_seconds=0.05, retry_last_seconds=0.1)
SILENT = 90


async def silent_connections(stack: AsyncExitStack, port: int) -> None:
    for _ in range(SILENT):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        stack.callback(writer.close)
        await reader.readexactly(27)  # accepted, and greeted


def test_a_restarted_node_returns_while_silent_connections_hold_the_port() -> None:
    async def body(c: Cluster) -> None:
        a = await c.start("a", limits=PATIENT)
        b = await c.start("b", a.port, limits=PATIENT)
        await until(c.is_full_mesh)
        await b.stop()
        c.transports.remove(b)
        async with AsyncExitStack() as stack:
            await silent_connections(stack, a.port)
            again = await c.start("b", a.port, limits=PATIENT)
            await until(c.is_full_mesh)
            assert again.connected(a.node)
            assert a.statistics().refused["handshake"] >= SILENT - 64

    cluster_test(body)


def test_a_node_that_was_never_met_gets_in_too() -> None:
    async def body(c: Cluster) -> None:
        a = await c.start("a", limits=PATIENT)
        async with AsyncExitStack() as stack:
            await silent_connections(stack, a.port)
            await c.start("b", a.port, limits=PATIENT)
            await until(c.is_full_mesh)

    cluster_test(body)


def test_strangers_cannot_take_the_slots_of_known_nodes() -> None:
    slots: HandshakeSlots[str] = HandshakeSlots(pool_max=4, source_max=2)
    assert slots.enter("node", "10.0.0.1", known=True) is None
    evicted = [slots.enter(f"s{i}", f"192.0.2.{i}", known=False) for i in range(40)]
    assert evicted == [None] * 4 + [f"s{i}" for i in range(36)]
    assert len(slots) == 5
    assert slots.enter("another", "10.0.0.2", known=True) is None


def test_one_address_has_no_more_than_its_share() -> None:
    slots: HandshakeSlots[str] = HandshakeSlots(pool_max=4, source_max=2)
    for name in ("a1", "a2"):
        assert slots.enter(name, "a", known=False) is None
    assert slots.enter("a3", "a", known=False) == "a1"
    assert slots.enter("b1", "b", known=False) is None
    assert slots.enter("c1", "c", known=False) is None
    assert slots.enter("d1", "d", known=False) == "a2"  # of the address that holds the most
    slots.leave("a3")
    assert slots.enter("e1", "e", known=False) is None
    slots.leave("gone before")


@pytest.mark.parametrize(
    ("address", "source"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::"),
        ("fe80::1%eth0", "fe80::"),
        ("node-1.example", "node-1.example"),
    ],
)
def test_connections_are_counted_by_the_site_they_come_from(address: str, source: str) -> None:
    assert source_of(address) == source
