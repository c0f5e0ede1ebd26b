"""Bugs of nodes and of consensus inside the broker: flushes, sessions, snapshots, membership.

Owns: the replaced functions.
May not touch: anything while no bug is installed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from broker.cluster import stream_node
from broker.cluster.meta.founding import SESSION_FILE, Bootstrap
from broker.cluster.node_files import NodeFiles
from broker.cluster.publish.outbox_core import OutboxCore
from broker.cluster.publish.publish_batch import PublishBatch
from broker.jetstream.publish.dedup_window import DedupImage, DedupWindow
from broker.jetstream.publish.sessions import OutOfOrder, PublishResult, SessionImage, Sessions
from broker.store.segments import Segments
from broker.store.state_keys import BLOCK
from chaos.sim.bugs.broker_bug import BrokerBug, Replacement
from chaos.sim.world.database import DamagedValue
from raft.clock.cluster_clock import ClusterClock
from raft.host.rounds import Effects, Rounds
from raft.store import database
from raft.store.segments.promises import PromiseTable
from raft.types import NodeId

PUBLISHING: Final = ("acked publishers",)
TIMED: Final = ("timed publishers",)

Written = Callable[[Rounds[Any], int], Effects[Any]]


def _promise_when_written(original: Written) -> Written:
    def written(self: Rounds[Any], number: int) -> Effects[Any]:
        effects = original(self, number)
        batch = self._in_flight
        if batch is not None:
            promises, batch.promises = batch.promises, []
            self._release(promises, effects)
        return effects

    return written


def _first_session_again(_original: object) -> object:
    def next_session(_files: object) -> int:
        return 1

    return next_session


def _number_of_the_file(_original: object) -> object:
    def next_session(files: NodeFiles) -> int:
        try:
            session = int(files.read(SESSION_FILE) or b"0") + 1
        except ValueError:
            session = 1
        files.write(SESSION_FILE, str(session).encode())
        return session

    return next_session


def _load_no_sessions(_original: object) -> object:
    def of(cls: type[Sessions], _images: list[SessionImage]) -> Sessions:
        return cls()

    return classmethod(of)


def _reuse_batch_number(original: Any) -> object:
    def enqueue(self: OutboxCore, batch: PublishBatch) -> None:
        original(self, batch)
        if not self.in_flight and batch.number % 8 == 0:
            self._next_number = batch.number

    return enqueue


def _apply_repeated_batch(original: Any) -> object:
    def admit(self: Sessions, **which: int) -> PublishResult | OutOfOrder | None:
        answer: PublishResult | OutOfOrder | None = original(self, **which)
        return None if isinstance(answer, PublishResult) else answer

    return admit


def _snapshot_no_ids(_original: object) -> object:
    def image(_self: DedupWindow) -> DedupImage:
        return DedupImage(0, [])

    return image


def _found_alone(original: Any) -> object:
    def consider(self: Bootstrap) -> None:
        self.expected = lambda: ()
        original(self)

    return consider


def _own_wall_clock(_original: object) -> object:
    def now_ns(_self: ClusterClock) -> int:
        return time.time_ns()

    return now_ns


def _id_of_the_name(original: Callable[..., NodeId]) -> object:
    def node_id(name: str, _incarnation: int = 0) -> NodeId:
        return original(name)

    return node_id


def _check_no_block(original: Callable[..., bytes]) -> object:
    """Whatever RocksDB can read is taken to be correct."""

    def read_raw(self: Segments, files: Any, first_seq: int) -> bytes:
        try:
            raw: bytes | None = files.get(BLOCK, first_seq)
        except DamagedValue:
            raw = None
        return original(self, files, first_seq) if raw is None else raw

    return read_raw


def _read_no_promises(original: Callable[[PromiseTable], None]) -> object:
    def load(self: PromiseTable) -> None:
        original(self)
        self.found.clear()

    return load


NODE_BUGS: Final[dict[str, BrokerBug]] = {
    "ack before flush": BrokerBug(
        "a vote or an append is answered only after its batch is flushed (Raft figure 2)",
        (Replacement(Rounds, "written", _promise_when_written),),
        found_by=41,
        workloads=PUBLISHING,
    ),
    "session forgotten over a restart": BrokerBug(
        "the session of a node's outboxes rises with every run of the node",
        (Replacement(stream_node, "next_session", _first_session_again),),
        found_by=0,
        workloads=PUBLISHING,
    ),
    "a lost session file begins again": BrokerBug(
        "the session rises also if the file that holds it is lost",
        (Replacement(stream_node, "next_session", _number_of_the_file),),
        found_by=34,
        workloads=PUBLISHING,
        faults=("file damage", "kill"),
    ),
    "sessions left out of a checkpoint": BrokerBug(
        "a replica remembers over a restart which batches it has applied",
        (Replacement(Sessions, "of", _load_no_sessions),),
        found_by=0,
        workloads=PUBLISHING,
    ),
    "batch number reused": BrokerBug(
        "every batch of a session has a number of its own",
        (Replacement(OutboxCore, "enqueue", _reuse_batch_number),),
        found_by=0,
        workloads=PUBLISHING,
    ),
    "batch applied twice": BrokerBug(
        "a batch that is sent again after a change of leader is not applied again",
        (Replacement(Sessions, "admit", _apply_repeated_batch),),
        found_by=0,
        workloads=PUBLISHING,
        faults=("slow link", "reset"),
    ),
    "snapshot without message ids": BrokerBug(
        "a snapshot carries the window of message ids",
        (Replacement(DedupWindow, "image", _snapshot_no_ids),),
        found_by=0,
        workloads=PUBLISHING,
    ),
    "two foundings": BrokerBug(
        "a cluster is founded once, by all nodes that the routes name",
        (Replacement(Bootstrap, "consider", _found_alone),),
        found_by=0,
        workloads=PUBLISHING,
    ),
    "the leader's own clock is the time": BrokerBug(
        "the time is that of a majority of clocks",
        (Replacement(ClusterClock, "now_ns", _own_wall_clock),),
        found_by=8,
        workloads=TIMED,
        faults=("clock jump", "kill"),
    ),
    "a wiped member votes": BrokerBug(
        "a node with an empty disk is another member, which has promised nothing",
        (Replacement(database, "node_id", _id_of_the_name),),
        found_by=1,
        workloads=PUBLISHING,
    ),
    "a damaged block is served": BrokerBug(
        "what was read from disk is checked before it is served",
        (Replacement(Segments, "read_raw", _check_no_block),),
        found_by=22,
        workloads=PUBLISHING,
        faults=("state damage",),
    ),
    "a truncated member votes": BrokerBug(
        "a log that ends before what its member promised is given up",
        (Replacement(PromiseTable, "_load", _read_no_promises),),
        found_by=2,
        workloads=PUBLISHING,
        faults=("damage", "kill"),
    ),
}
