"""The JetStream metrics of /metrics.

Owns: their names and help texts, and how many streams and consumers get samples of their own.
May not touch: live state beyond reading it; the text form (broker/server/metric_samples.py).
Spec: Prometheus, metric and label naming. A replica is reported by every node that has it, a
consumer only by the node that leads its stream, so that a sum over all nodes counts it once.
Bounds: STREAMS_MAX replicas and CONSUMERS_MAX consumers have labels of their own; the number left
out is reported as a metric. Totals include them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from broker.cluster.limits.usage import Usage
from broker.cluster.observe.asset_info import AssetInfo
from broker.cluster.replica.replica_table import ReplicaTable
from broker.jetstream.api.info import ApiStats, PeerInfo
from broker.scan.readers import StreamingReader
from broker.scan.server import Scans
from broker.server.metric_samples import (
    Exposition,
    Family,
    Sample,
    SampleRows,
    counter,
    escaped,
    gauge,
    histogram,
    labels,
)
from broker.store.search import about_time
from raft import GroupId
from raft.host.latency import Latency
from raft.host.statistics import HostMetrics
from raft.store.disk_space import DiskFacts

if TYPE_CHECKING:
    from broker.accounts import Account
    from broker.jetstream.consumer.consumer import ConsumerNumbers
    from broker.jetstream.stream.stream import Stream

STREAMS_MAX = 5_000
CONSUMERS_MAX = 20_000
PER_STEP = 8  # replicas or consumers per step; other work of the event loop runs in between

STREAMS = gauge("streams", "Stream replicas on this node.")
STREAMS_LED = gauge("streams_led", "Streams that this node leads.")
CONSUMERS = gauge("consumers", "Consumers of the streams that this node leads.")
LEFT_OUT = gauge("metrics_left_out", "Streams and consumers without numbers of their own here.")
HEALTHY = gauge("store_healthy", "1 while writes succeed.")
DROPPED = counter("consumer_requests_dropped", "Acks and pulls without a leader.")
CLOCK_OFFSET = gauge(
    "clock_offset_seconds", "How far the clock of this node is ahead of the time of the cluster."
)
CLOCK_AGREES = gauge("clock_agrees", "1 while the clock of this node is that of a majority.")
DISK = gauge("disk_bytes", "Size of the store's file system.")
DISK_FREE = gauge("disk_free_bytes", "Free bytes of it.")
DISK_RESERVE = gauge("disk_reserve_bytes", "With less than this free, no messages are stored.")
DISK_FULL = gauge("disk_full", "1 while no messages are stored.")
STORED = gauge("stored_bytes", "Bytes of all stream replicas on this node, by storage.")
STORED_MAX = gauge("stored_bytes_max", "The limit of them: max_file_store, max_memory_store.")
ACCOUNT_STORED = gauge(
    "account_stored_bytes", "Bytes of all replicas of an account with a limit, in the cluster."
)
ACCOUNT_STORED_MAX = gauge("account_stored_bytes_max", "The limit of them.")
SCANS_OPEN = gauge("scans_open", "Bulk reads in progress.")
SCANS = counter("scans", "Bulk reads that were completed.")
SCANS_REFUSED = counter("scans_refused", "Bulk reads that were refused.")
SCAN_BYTES = counter("scan_sent_bytes", "Bytes sent to bulk reads.")
READER_LAG = gauge("reader_lag", "Messages that a streaming query has still to read.")
API_REQUESTS = counter("api_requests", "JetStream API requests, of an account.")
API_ERRORS = counter("api_errors", "Those that were answered with an error.")

GROUPS = gauge("raft_groups", "Raft groups on this node.")
GROUPS_LED = gauge("raft_groups_led", "Those that this node leads.")
GROUPS_AWAKE = gauge("raft_groups_awake", "Those that are not idle.")
GROUPS_STOPPED = gauge("raft_groups_stopped", "Those that stopped because of an error.")
GROUPS_LEADERLESS = gauge("raft_groups_leaderless", "Those without a leader that is known here.")
GROUPS_RECOVERING = gauge("raft_groups_recovering", "Members that lost their log, until caught up.")
TERMS = counter("raft_terms", "Sum of the terms of all groups: rises with every election.")
ROUNDS = counter("raft_rounds", "Rounds of the write path: one write for all groups.")
APPLIED = counter("raft_applied_entries", "Log entries applied.")
WRITTEN = counter("log_written_bytes", "Bytes written to the log.")
REFUSED = counter("log_refused_writes", "Writes that the store refused.")
WAITING = gauge("raft_waiting_bytes", "Bytes proposed and not applied yet.")
LATE_TICKS = counter("raft_late_ticks", "Ticks that came late because the event loop was busy.")
SNAPSHOTS_SENT = counter("snapshots_sent", "Snapshots sent to other nodes.")
SNAPSHOTS_INSTALLED = counter("snapshots_installed", "Snapshots received and installed.")
RECOVERIES = counter("store_recoveries", "Times that the store recovered from a failed disk.")
FLUSH = histogram("flush_latency", "Time of a flush of the log.")
COMMIT = histogram(
    "commit_latency", "Time from a proposal to its application, when a publish is acked (sampled)."
)

MESSAGES = gauge("stream_messages", "Messages stored.")
BYTES = gauge("stream_bytes", "Bytes stored.")
LAST_SEQ = gauge("stream_last_sequence", "Newest sequence.")
FIRST_SEQ = gauge("stream_first_sequence", "Oldest sequence.")
APPLIED_INDEX = gauge("stream_applied_index", "Raft index applied.")
STREAM_CONSUMERS = gauge("stream_consumers", "Consumers of the stream.")
STREAM_LEADER = gauge("stream_leader", "1 on the node that leads the stream.")
REPLICA_LAG = gauge("stream_replica_lag", "Log entries that a replica lacks, as its leader knows.")
REPLICA_OFFLINE = gauge("stream_replica_offline", "1 for a replica on a node that is not there.")
ORIGIN_LAG = gauge("origin_lag", "Messages that a mirror or source has still to copy.")
ORIGIN_SILENT = gauge("origin_silent_seconds", "Time since the origin was heard; -1: never.")

PENDING = gauge("consumer_pending", "Messages not delivered yet.")
ACK_PENDING = gauge("consumer_ack_pending", "Messages delivered and not acked.")
REDELIVERED = gauge("consumer_redelivered", "Messages not acked that were delivered repeatedly.")
WAITING_PULLS = gauge("consumer_waiting", "Pull requests that wait for messages.")
DELIVERED = counter("consumer_delivered", "Deliveries.")
ACK_FLOOR = gauge("consumer_ack_floor", "Stream sequence up to which everything is acked.")
LAG_SECONDS = gauge(
    "consumer_lag_seconds", "Age of the oldest message that is not acked, about; 0: none is left."
)


OF_STREAM = (
    MESSAGES, BYTES, FIRST_SEQ, LAST_SEQ, APPLIED_INDEX, STREAM_CONSUMERS, STREAM_LEADER,
)  # fmt: skip
OF_REPLICA = (REPLICA_LAG, REPLICA_OFFLINE)
OF_ORIGIN = (ORIGIN_LAG, ORIGIN_SILENT)
OF_CONSUMER = (
    PENDING, ACK_PENDING, REDELIVERED, WAITING_PULLS, DELIVERED, ACK_FLOOR, LAG_SECONDS,
)  # fmt: skip


class MeasuredReplica(Protocol):
    """A replica, as far as metrics read it."""

    @property
    def name(self) -> str: ...
    @property
    def account(self) -> Account: ...
    @property
    def group(self) -> GroupId: ...
    @property
    def stream(self) -> Stream: ...
    @property
    def leading(self) -> object | None: ...
    @property
    def consumer_count(self) -> int: ...


class MeasuredStore(Protocol):
    """What is measured of the disk."""

    @property
    def full(self) -> bool: ...
    def disk_facts(self) -> DiskFacts: ...


@dataclass(slots=True)
class StreamTables:
    """The rows of streams, of the other replicas of those led here, and of their origins."""

    streams: SampleRows
    replicas: SampleRows
    origins: SampleRows

    @classmethod
    def of(cls, into: Exposition) -> StreamTables:
        return cls(into.table(*OF_STREAM), into.table(*OF_REPLICA), into.table(*OF_ORIGIN))


@dataclass(slots=True)
class JetStreamMetrics:
    """One per node."""

    replicas: ReplicaTable
    info: AssetInfo
    peers: Callable[[GroupId], Sequence[PeerInfo]]  # the other replicas of a stream led here
    host: Callable[[], HostMetrics]
    trouble: Callable[[], str | None]  # why the store takes no writes
    store: MeasuredStore
    requests_dropped: Callable[[], int]
    clock_error_ns: Callable[[], int]
    clock_trouble: Callable[[], str | None]
    api: Callable[[str], ApiStats]  # of an account
    usage: Usage
    scans: Scans
    readers: Callable[[], Iterator[StreamingReader]]

    def steps(self, into: Exposition) -> Iterator[None]:
        """Add all samples, in steps of a few milliseconds at most."""
        replicas = list(self.replicas)
        into.add(self._node(replicas))
        into.add(self._limits())
        into.add(self._api(replicas))
        into.add(self._scans())
        self._raft(into)
        yield
        shown = replicas[:STREAMS_MAX]
        tables = StreamTables.of(into)
        for number, replica in enumerate(shown):
            self._stream(replica, tables)
            if number % PER_STEP == PER_STEP - 1:
                yield
        yield
        led = [one for one in replicas if one.leading is not None]
        total = sum(one.consumer_count for one in led)
        now = self.info.now_ns()
        rows = into.table(*OF_CONSUMER)
        consumers = ((one, consumer) for one in led for consumer in one.consumers())
        for number, (replica, consumer) in enumerate(islice(consumers, CONSUMERS_MAX)):
            if replica.leading is not None:
                yield from replica.leading.counting(consumer.name)
            numbers = None if replica.leading is None else replica.leading.numbers(consumer.name)
            if numbers is not None:
                rows.append(_consumer_row(replica, consumer.name, numbers, now))
            if number % PER_STEP == PER_STEP - 1:
                yield
        into.add(
            (
                Sample(CONSUMERS, total),
                Sample(LEFT_OUT, len(replicas) - len(shown), '{kind="stream"}'),
                Sample(LEFT_OUT, max(total - CONSUMERS_MAX, 0), '{kind="consumer"}'),
            )
        )

    def _node(self, replicas: Sequence[MeasuredReplica]) -> Iterator[Sample]:
        yield Sample(STREAMS, len(replicas))
        yield Sample(STREAMS_LED, sum(replica.leading is not None for replica in replicas))
        yield Sample(HEALTHY, self.trouble() is None)
        yield Sample(DROPPED, self.requests_dropped())
        yield Sample(CLOCK_OFFSET, self.clock_error_ns() / 1e9)
        yield Sample(CLOCK_AGREES, self.clock_trouble() is None)
        disk = self.store.disk_facts()
        yield Sample(DISK, disk.total_bytes)
        yield Sample(DISK_FREE, disk.free_bytes)
        yield Sample(DISK_RESERVE, disk.reserve_bytes)
        yield Sample(DISK_FULL, self.store.full)

    def _limits(self) -> Iterator[Sample]:
        for storage, stored, most in self.usage.of_server():
            where = f'{{storage="{storage.value}"}}'
            yield Sample(STORED, stored, where)
            if most is not None:
                yield Sample(STORED_MAX, most, where)
        for account, storage, stored, most in self.usage.of_accounts():
            where = labels({"account": account, "storage": storage.value})
            yield Sample(ACCOUNT_STORED, stored, where)
            yield Sample(ACCOUNT_STORED_MAX, most, where)

    def _scans(self) -> Iterator[Sample]:
        scans = self.scans
        yield Sample(SCANS_OPEN, scans.admission.open)
        yield Sample(SCANS, scans.served)
        yield Sample(SCANS_REFUSED, scans.refused)
        yield Sample(SCAN_BYTES, scans.bytes_sent)
        for reader in self.readers():
            names = {"account": reader.account, "stream": reader.stream, "reader": reader.name}
            yield Sample(READER_LAG, reader.lag, labels(names))

    def _api(self, replicas: Sequence[MeasuredReplica]) -> Iterator[Sample]:
        for account in sorted({replica.account.name for replica in replicas}):
            stats, where = self.api(account), labels({"account": account})
            yield Sample(API_REQUESTS, stats.total, where)
            yield Sample(API_ERRORS, stats.errors, where)

    def _raft(self, into: Exposition) -> None:
        host = self.host()
        numbers = host.statistics
        facts: tuple[tuple[Family, float], ...] = (
            (GROUPS, numbers.groups),
            (GROUPS_LED, numbers.leading),
            (GROUPS_AWAKE, numbers.awake),
            (GROUPS_STOPPED, len(numbers.stopped)),
            (GROUPS_LEADERLESS, sum(leader is None for leader in host.leaders.values())),
            (GROUPS_RECOVERING, numbers.recovering),
            (TERMS, sum(host.terms.values())),
            (ROUNDS, numbers.rounds),
            (APPLIED, numbers.applied_entries),
            (WRITTEN, numbers.written_bytes),
            (REFUSED, numbers.refused_writes),
            (WAITING, numbers.waiting_bytes),
            (LATE_TICKS, numbers.late_ticks),
            (SNAPSHOTS_SENT, numbers.snapshots_sent),
            (SNAPSHOTS_INSTALLED, numbers.snapshots_installed),
            (RECOVERIES, numbers.recoveries),
        )
        into.add(Sample(family, value) for family, value in facts)
        for family, latency in ((FLUSH, numbers.flush_latency), (COMMIT, numbers.commit_latency)):
            _add_latency(into, family, latency)

    def _stream(self, replica: MeasuredReplica, tables: StreamTables) -> None:
        where = _where(replica)
        store, leads = replica.stream.store, replica.leading is not None
        tables.streams.append((
            f"{{{where}}}", store.messages, store.bytes, store.first_seq, store.last_seq,
            replica.stream.applied, replica.consumer_count, int(leads),
        ))  # fmt: skip
        if not leads:
            return
        for peer in self.peers(replica.group):
            there = f'{{{where},node="{escaped(peer.name)}"}}'
            tables.replicas.append((there, peer.lag, int(peer.offline)))
        for origin in self.info.origin_infos(replica.group).values():
            there = f'{{{where},origin="{escaped(origin.name)}"}}'
            silent_s = origin.active / 1e9 if origin.active >= 0 else -1
            tables.origins.append((there, origin.lag, silent_s))


def _where(replica: MeasuredReplica) -> str:
    return f'account="{escaped(replica.account.name)}",stream="{escaped(replica.name)}"'


def _consumer_row(
    replica: MeasuredReplica, name: str, numbers: ConsumerNumbers, now: int
) -> tuple[str | float, ...]:
    lag_s = 0.0
    if numbers.num_pending or numbers.num_ack_pending:
        store = replica.stream.store
        oldest = max(numbers.floor_stream_seq + 1, store.first_seq)
        lag_s = round(max(now - about_time(store.segments, oldest), 0) / 1e9, 3)
    return (
        f'{{{_where(replica)},consumer="{escaped(name)}"}}',
        numbers.num_pending, numbers.num_ack_pending, numbers.num_redelivered,
        numbers.num_waiting, numbers.consumer_seq, numbers.floor_stream_seq, lag_s,
    )  # fmt: skip


def _add_latency(into: Exposition, family: Family, latency: Latency) -> None:
    into.add_histogram(family, latency.bounds, latency.counts, latency.seconds_total)
