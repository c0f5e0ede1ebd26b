"""Promises about consumers, checked after the faults: all was delivered, no ack floor went back.

Owns: the rules, and what a workload records about one consumer.
May not touch: running nodes; it reads the state that replicas ended with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from chaos.sim.promises.broken import BrokenPromise
from chaos.sim.promises.seen_replica import SeenReplica
from chaos.sim.world.virtual_time import NS

LINKS_FAIL_NS = 10 * NS  # a node detects a lost node within this time


@dataclass(slots=True)
class Received:
    """A message of a consumer, as a client received it."""

    deliveries: int
    seq: int
    consumer_seq: int
    time_ns: int
    subject: bytes
    reply: bytes
    headers: bytes
    data: bytes


@dataclass(slots=True)
class Fetch:
    """One pull request. `told`: it ended with a full batch or a status, not without an answer."""

    messages: list[Received] = field(default_factory=list)
    status: int = 0
    told: bool = False
    connection_lost: bool = False


@dataclass(slots=True)
class ConsumerRecord:
    """One consumer, as its clients saw it."""

    stream: str
    config: dict[str, Any]
    received: list[Received] = field(default_factory=list)
    acks_sent: set[int] = field(default_factory=set)  # sequences; the ack may have been lost
    confirmed: set[int] = field(default_factory=set)  # sequences whose double ack was answered
    infos: list[dict[str, Any]] = field(default_factory=list)  # of one client, one after the other
    finished: bool = False
    created_ns: int = 0  # when its creation was answered

    @property
    def name(self) -> str:
        return str(self.config["durable_name"])

    @property
    def title(self) -> str:
        return f"{self.stream} > {self.name}"


def check_records(
    records: Sequence[ConsumerRecord],
    replicas: Mapping[str, SeenReplica],
    *,
    removals: bool = False,
) -> None:
    """All promises about these consumers of one stream."""
    for record in records:
        check_replicas(record, replicas)
        check_floors(record)
        check_consumed(record, replicas, removals=removals)


def check_replicas(record: ConsumerRecord, replicas: Mapping[str, SeenReplica]) -> None:
    """All replicas hold the same state of the consumer."""
    images = {n: r.stream.consumers[record.name].encode() for n, r in replicas.items()}
    if len(set(images.values())) != 1:
        raise BrokenPromise(f"{record.title}: the replicas differ: {images}")


def check_floors(record: ConsumerRecord) -> None:
    """The ack floor of consumer info never goes back. Without acks there is no such promise: the
    position is replicated only now and then."""
    if record.config["ack_policy"] == "none":
        return
    for before, after in zip(record.infos, record.infos[1:], strict=False):
        floors = [one["ack_floor"]["stream_seq"] for one in (before, after)]
        if floors[1] < floors[0]:
            raise BrokenPromise(f"{record.title}: the ack floor went back: {floors}")


def check_consumed(
    record: ConsumerRecord, replicas: Mapping[str, SeenReplica], *, removals: bool = False
) -> None:
    """Every message that the consumer selects was received, and its final numbers are consistent.
    `removals`: received messages may have been removed."""
    replica = next(replica for replica in replicas.values() if replica.is_leading)
    store, consumer = replica.stream.store, replica.stream.consumers[record.name]
    stored = (store.get(seq) for seq in range(store.first_seq, store.last_seq + 1))
    wanted = {m.seq for m in stored if m is not None and consumer.wants(m.subject)}
    received = {one.seq for one in record.received}
    if not removals and (strange := received - wanted):
        raise BrokenPromise(f"{record.title}: received {sorted(strange)}, which it does not select")
    config = record.config
    if config["ack_policy"] == "none":  # a new leader may resume a little before the end
        return
    surely = config["ack_policy"] == "explicit" and config.get("max_deliver", -1) < 0
    # A publish without an answer may be stored after the clients have seen the end and left.
    last = record.infos[-1]["delivered"]["stream_seq"]
    due = {seq for seq in wanted if seq <= last}
    if surely and (missing := due - received):
        raise BrokenPromise(f"{record.title}: nobody received {sorted(missing)}")
    state = consumer.state
    if pending := [seq for seq in state.pending if seq <= last]:
        raise BrokenPromise(f"{record.title}: {pending} wait for acks at the end")
    if due == wanted and consumer.num_pending():
        raise BrokenPromise(f"{record.title}: {consumer.num_pending()} pending at the end")
    if lost := {seq for seq in record.confirmed if not state.settled(seq)}:
        raise BrokenPromise(f"{record.title}: confirmed acks of {sorted(lost)} are lost")
    if state.stream_seq < max(due, default=0):
        raise BrokenPromise(f"{record.title}: delivered up to {state.stream_seq} of {max(due)}")


def check_pulls_told(
    pulls: Sequence[tuple[int, int, Fetch]], healed_ns: int, *, links_stay_up: bool
) -> None:
    """A pull request that waited at a lost leader ends with a status. `pulls`: when each began and
    ended. One that was lost with a link shortly before its own expiry needs none."""
    for began_ns, ended_ns, fetched in pulls:
        if fetched.told or fetched.connection_lost:
            continue
        if links_stay_up or ended_ns > healed_ns + LINKS_FAIL_NS:
            span = f"{began_ns / NS:.3f} s to {ended_ns / NS:.3f} s"
            raise BrokenPromise(f"a pull request waited from {span} and was never told anything")
