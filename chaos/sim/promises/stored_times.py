"""Promises about the times of stored messages: they never go back, and no wrong clock moves them.

Owns: the rules.
May not touch: running nodes; it reads what they stored after the faults are over.
Spec: docs/decisions/0020-cluster-time.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from broker.store.messages import StoredMessage
from chaos.sim.promises.broken import BrokenPromise
from chaos.sim.promises.journal import Operation, Result
from chaos.sim.promises.seen_replica import SeenReplica
from chaos.sim.world.virtual_time import EPOCH_NS, NS

# Drifting clocks, and those that are only slightly wrong, may shift cluster time by this much.
TOLERANCE_NS: Final = 2 * NS


def _messages(replicas: Mapping[str, SeenReplica]) -> list[StoredMessage]:
    store = next(replica.stream.store for replica in replicas.values() if replica.is_leading)
    found = (store.get(seq) for seq in range(store.first_seq, store.last_seq + 1))
    return [message for message in found if message is not None]


def check_order(stream: str, replicas: Mapping[str, SeenReplica]) -> None:
    last_ns = 0
    for message in _messages(replicas):
        if message.time_ns < last_ns:
            raise BrokenPromise(f"{stream}: the time goes back at sequence {message.seq}")
        last_ns = message.time_ns


def check_times(
    stream: str, publishes: Sequence[Operation], replicas: Mapping[str, SeenReplica]
) -> None:
    """Each message has a time between its first publish and its first ack."""
    began: dict[bytes, int] = {}
    ended: dict[bytes, int] = {}
    for operation in publishes:
        payload = operation.fields["payload"]
        began.setdefault(payload, operation.invoked_ns)
        if operation.result is Result.OK:
            ended.setdefault(payload, operation.completed_ns)
    for message in _messages(replicas):
        time_ns = message.time_ns - EPOCH_NS
        first_ns = began[message.data] - TOLERANCE_NS
        last_ns = ended.get(message.data, time_ns) + TOLERANCE_NS
        if not first_ns <= time_ns <= last_ns:
            raise BrokenPromise(
                f"{stream}: {message.data[:24]!r}, published at {began[message.data] / NS:.4f} s, "
                f"has the time {time_ns / NS:.4f} s"
            )
