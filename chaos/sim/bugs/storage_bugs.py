"""Bugs of storage and of lost data: compression, encryption, logs that were given up.

Owns: the replaced functions.
May not touch: anything while no bug is installed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Final

from broker.cluster.replica.replica_storage import ReplicaStorage
from broker.store.encryption.directory_cipher import DirectoryCipher
from broker.store.segments import Segment, Segments
from broker.store.values.value_files import ValueFiles
from chaos.sim.bugs.broker_bug import BrokerBug, Replacement
from raft.core.vote_granting import LostLog

Rewrite = Callable[[Segments, Segment, bytes], None]


def _keep_packed(original: Rewrite) -> Rewrite:
    """Keep the compressed form that was prepared for the checkpoint, although the block changed."""

    def rewrite(self: Segments, segment: Segment, raw: bytes) -> None:
        packed = segment.packed
        original(self, segment, raw)
        segment.packed = packed

    return rewrite


def _recover_at_once(original: Callable[[LostLog, int], None]) -> object:
    def begin(self: LostLog, lives: int) -> None:
        original(self, lives)
        self.recovering = False

    return begin


def _seal_nothing(_: object) -> object:
    return lambda cipher, data, _place: bytes(cipher.overhead) + data


def _open_nothing(_: object) -> object:
    return lambda cipher, sealed, _place: sealed[cipher.overhead :]


def _leave_it(_: object) -> object:
    return lambda *_, **__: nullcontext()


def _nothing(_original: object) -> object:
    return lambda *_: None


STORAGE_BUGS: Final[dict[str, BrokerBug]] = {
    "the compressed form outlives its messages": BrokerBug(
        "what is stored of a block is what is in it, also if that was compressed ahead",
        (
            Replacement(Segments, "shrink", _keep_packed),
            Replacement(Segments, "replace_rows", _keep_packed),
        ),
        found_by=902,
        workloads=("purged consumers",),
        faults=("kill",),
    ),
    "stored in clear": BrokerBug(
        "with a key, nothing that clients sent or named is on a disk in clear",
        (
            Replacement(DirectoryCipher, "seal", _seal_nothing),
            Replacement(DirectoryCipher, "open", _open_nothing),
        ),
        found_by=0,
        workloads=("acked publishers",),
    ),
    "a member that lost its log votes": BrokerBug(
        "a member without the log that it had votes only after it has caught up with a leader",
        (Replacement(LostLog, "_begin", _recover_at_once),),
        found_by=0,
        workloads=("acked publishers",),
        faults=("damage", "isolate", "cut", "slow link"),
    ),
    "damage at the start ends the process": BrokerBug(
        "a database that refuses writes while the node starts is rebuilt from the peers",
        (Replacement(ReplicaStorage, "starting", _leave_it),),
        found_by=6,
        workloads=("acked publishers",),
        faults=("database damage",),
    ),
    "a block is referred to before it is synced": BrokerBug(
        "what the state refers to is on disk",
        (Replacement(ValueFiles, "_sync", _nothing),),
        found_by=3,
        workloads=("acked publishers", "purged consumers"),
        faults=("power",),
    ),
}
