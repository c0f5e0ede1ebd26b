"""Stream info and consumer info, as API answers and /jsz show them.

Owns: which part of the node provides each field of an info.
May not touch: anything; it only reads.
Spec: NATS JetStream API, STREAM.INFO and CONSUMER.INFO."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from broker.cluster.meta.assignments import META_GROUP, Assignment
from broker.cluster.meta.members import ClusterMembers
from broker.cluster.replica.member_changes import MemberChanges
from broker.cluster.replica.reconfiguration import Record, Step, Wait
from broker.cluster.replica.replica import Replica
from broker.jetstream.api.info import (
    DELETED_DETAILS_LIMIT,
    Alternate,
    ClusterInfo,
    ConsumerInfo,
    DesiredCluster,
    DesiredOrigin,
    DesiredPeer,
    DesiredStatus,
    PeerInfo,
    PriorityGroupState,
    SequenceInfo,
    SourceInfo,
    StreamInfo,
    StreamState,
)
from broker.jetstream.api.requests import StreamInfoRequest
from broker.jetstream.api.responses import INFOS_PER_STEP, SUBJECT_DETAILS_LIMIT, Paged
from broker.jetstream.config.api_levels import (
    shown_consumer,
    shown_stream,
    stored_consumer,
    stored_stream,
)
from broker.jetstream.config.names import get_hash
from broker.jetstream.config.stream_config import StreamSource
from broker.jetstream.consumer.consumer import Consumer
from broker.store.index import SubjectIndex
from broker.subjects import Steps
from raft import GroupId, NodeId
from raft.host.group import GroupStatus, UnknownGroup

SUBJECTS_PER_STEP: Final = 512
BYTES_PER_SUBJECT: Final = 250  # estimated memory: entry in the table of counts, and in the answer
BYTES_PER_DELETED: Final = 60  # the same, for a deleted sequence


class ShownLinks(Protocol):
    """The mesh, as far as infos show it."""

    @property
    def node(self) -> NodeId: ...
    @property
    def name(self) -> str: ...
    @property
    def cluster(self) -> str: ...
    def connected(self, node: NodeId) -> bool: ...
    def silent_ns(self, node: NodeId) -> int: ...
    def peer_name(self, node: NodeId) -> str: ...


def raft_group_name(replica: Replica) -> str:
    return f"S-R{len(replica.assignment.peers)}F-{replica.group}"


@dataclass(slots=True)
class AssetInfo:
    """One per node. `origin_infos` returns those of the mirror and sources that are being read."""

    server_name: str
    domain: str
    system_account: str
    links: ShownLinks
    members: ClusterMembers
    leader: Callable[[int], NodeId | None]
    status: Callable[[GroupId], GroupStatus]
    member_changes: MemberChanges
    origin_infos: Callable[[int], Mapping[StreamSource, SourceInfo]]
    mirrors: Callable[[str, str], Sequence[Assignment]]
    now_ns: Callable[[], int]

    def stream(
        self,
        replica: Replica,
        *,
        shown: bool,
        deleted: tuple[int, ...] = (),
        subjects: dict[str, int] | None = None,
        with_alternates: bool = False,
    ) -> StreamInfo:
        """`subjects` are the counts to show, see subject_counts; `deleted` the sequences."""
        stream = replica.stream
        origins = self._origins(replica)
        mirror = stream.config.mirror
        config = shown_stream(stream.config) if shown else stored_stream(stream.config)
        return StreamInfo(
            config=config,
            created=replica.assignment.created_ns,
            state=stream_state(replica, deleted=deleted, subjects=subjects or {}),
            domain=self.domain,
            cluster=self.cluster(replica),
            mirror=origins[mirror] if mirror is not None else None,
            sources=tuple(origins[source] for source in stream.config.sources),
            alternates=self._alternates(replica) if with_alternates else (),
            ts=self.now_ns(),
        )

    def streams(self, replicas: Iterable[Replica], *, shown: bool) -> Steps[list[StreamInfo]]:
        """For lists, a few per step. Without a cluster only STREAM.INFO shows the replicas."""
        infos: list[StreamInfo] = []
        for at, replica in enumerate(replicas, 1):
            info = self.stream(replica, shown=shown)
            if not self.members.clustered:
                info = msgspec.structs.replace(info, cluster=None)
            infos.append(info)
            if at % INFOS_PER_STEP == 0:
                yield
        return infos

    def consumers(
        self, replica: Replica, consumers: Iterable[Consumer]
    ) -> Steps[tuple[ConsumerInfo, ...]]:
        """For lists, a few per step."""
        infos: list[ConsumerInfo] = []
        for at, consumer in enumerate(consumers, 1):
            infos.append(self.consumer(replica, consumer, shown=False))
            if at % INFOS_PER_STEP == 0:
                yield
        return tuple(infos)

    def _alternates(self, replica: Replica) -> tuple[Alternate, ...]:
        """The stream and its mirrors in this cluster, if it has any."""
        mirrors = self.mirrors(replica.account.name, replica.name)
        if not mirrors or not self.members.clustered:
            return ()
        names = (replica.name, *(mirror.name for mirror in mirrors))
        cluster = self.links.cluster
        return tuple(Alternate(name=name, domain=self.domain, cluster=cluster) for name in names)

    def consumer(
        self,
        replica: Replica,
        consumer: Consumer,
        *,
        shown: bool,
        fresh_pending: int | None = None,
        num_pending: int | None = None,
    ) -> ConsumerInfo:
        """`fresh_pending`: num_pending of a consumer just created, before the leader delivers.
        `num_pending`: the number to show if this node does not lead, counted by the caller."""
        now, leading = self.now_ns(), replica.leading
        numbers = None
        if fresh_pending is None and leading is not None:
            numbers = leading.numbers(consumer.name)
        if numbers is None:
            counted = fresh_pending if fresh_pending is not None else num_pending
            numbers = consumer.numbers(now, num_pending=counted)
        bound = leading is not None and leading.push_bound(consumer.name)
        config = shown_consumer(consumer.config) if shown else stored_consumer(consumer.config)
        return ConsumerInfo(
            stream_name=replica.name,
            name=consumer.name,
            created=consumer.created_ns,
            config=config,
            delivered=SequenceInfo(
                consumer_seq=numbers.consumer_seq,
                stream_seq=numbers.stream_seq,
                last_active=numbers.last_delivered_ns or None,
            ),
            ack_floor=SequenceInfo(
                consumer_seq=numbers.floor_consumer_seq,
                stream_seq=numbers.floor_stream_seq,
                last_active=numbers.last_acked_ns or None,
            ),
            num_ack_pending=numbers.num_ack_pending,
            num_redelivered=numbers.num_redelivered,
            num_waiting=numbers.num_waiting,
            num_pending=numbers.num_pending,
            cluster=self.cluster(replica) if self.members.clustered else None,
            push_bound=bound,
            paused=numbers.paused_until_ns > 0,
            pause_remaining=max(numbers.paused_until_ns - now, 0),
            ts=now,
            priority_groups=tuple(
                PriorityGroupState(
                    group=group, pinned_client_id=numbers.pinned_id, pinned_ts=numbers.pinned_ns
                )
                for group in consumer.config.priority_groups[:1]  # only the first is tracked
            ),
        )

    def cluster(self, replica: Replica) -> ClusterInfo:
        if not self.members.clustered:
            return ClusterInfo(leader=self.server_name)
        if replica.leading is None:  # a follower does not know the progress of other replicas
            leader = self.leader(replica.group)
            return ClusterInfo(
                name=self.links.cluster,
                leader=self.members.name(leader) if leader is not None else "",
            )
        status = self.status(replica.group).core
        matches = {peer.node: peer for peer in status.peers}
        peers = []
        voters = {*status.voters, *status.outgoing}
        for peer in dict.fromkeys((*status.voters, *status.outgoing, *status.learners)):
            if peer == self.links.node:
                continue
            at = matches.get(peer)
            connected = self.links.connected(peer)
            lag = max(status.commit - at.match, 0) if at is not None else 0
            level = at is not None and lag == 0 and not at.recovering
            name = self._name(peer)
            peers.append(
                PeerInfo(
                    name=name,
                    current=connected and level and peer in voters,
                    offline=not connected,
                    active=self.links.silent_ns(peer),
                    lag=lag,
                    peer=get_hash(name),
                    pending=peer not in voters,
                )
            )
        desired = self._desired(replica)
        if not peers and desired is None:  # nats-server shows no group of one
            return ClusterInfo(name=self.links.cluster, leader=self.links.name)
        return ClusterInfo(
            name=self.links.cluster,
            raft_group=raft_group_name(replica),
            leader=self.links.name,
            leader_since=replica.leader_since_ns,
            system_account=True,  # no account sees the traffic of replicas
            traffic_account=self.system_account,
            replicas=tuple(sorted(peers, key=lambda peer: peer.name)),
            desired=desired,
        )

    def meta_peer(self, member: NodeId) -> tuple[bool, int]:
        """Whether a member has a vote in the meta group and all its committed entries, and how many
        entries it lacks. Only the leader knows this about others; on other nodes a member counts as
        current while it is connected and has a vote."""
        try:
            status = self.status(META_GROUP).core
        except UnknownGroup:  # removed from the cluster
            return False, 0
        votes = member in status.voters or member in status.outgoing
        if member == self.links.node:
            lag = max(status.commit - status.applied, 0)
            return votes and not status.recovering and lag == 0, lag
        at = next((peer for peer in status.peers if peer.node == member), None)
        lag = max(status.commit - at.match, 0) if at is not None else 0
        known = status.leader != self.links.node or (at is not None and not at.recovering)
        return self.links.connected(member) and votes and known and lag == 0, lag

    def _desired(self, replica: Replica) -> DesiredCluster | None:
        """Where the stream is moving to. None: it is where it should be."""
        step = self.member_changes.next_step(replica)
        if step is None:
            return None
        assignment = replica.assignment
        names = sorted(self._name(NodeId(peer)) for peer in assignment.peers)
        return DesiredCluster(
            created=assignment.asked_ns or None,
            name=self.links.cluster,
            replicas=tuple(DesiredPeer(name=name, peer=get_hash(name)) for name in names),
            origin=DesiredOrigin(replicas=assignment.origin),
            status=DesiredStatus(description=self.member_changes.describe(step), type=_kind(step)),
        )

    def _name(self, peer: NodeId) -> str:
        return self.links.peer_name(peer) or self.members.name(peer)

    def _origins(self, replica: Replica) -> dict[StreamSource, SourceInfo]:
        """Infos by configured origin, including origins that are not being read yet."""
        config = replica.stream.config
        origins = [*config.sources, *([config.mirror] if config.mirror is not None else [])]
        running = self.origin_infos(replica.group)
        return {
            source: running[source]
            if source in running
            else SourceInfo(
                name=source.name,
                external=source.external,
                filter_subject=source.filter_subject,
                subject_transforms=source.subject_transforms,
            )
            for source in origins
        }


def details_bytes(replica: Replica, asked: StreamInfoRequest) -> int:
    """Estimated memory of the lists of an info, while they are built and in the answer."""
    store = replica.stream.store
    subjects = min(len(store.index), SUBJECT_DETAILS_LIMIT) if asked.subjects_filter else 0
    deleted = min(store.num_deleted, DELETED_DETAILS_LIMIT) if asked.deleted_details else 0
    return BYTES_PER_SUBJECT * subjects + BYTES_PER_DELETED * deleted


def info_details(
    replica: Replica, asked: StreamInfoRequest
) -> Steps[tuple[tuple[int, ...], dict[str, int], Paged]]:
    """The deleted sequences and the messages per subject that a request asks for."""
    store = replica.stream.store
    deleted: tuple[int, ...] = ()
    counts: dict[str, int] = {}
    paged = Paged()
    if asked.deleted_details:
        deleted = yield from store.deleted_sequences(DELETED_DETAILS_LIMIT)
    if asked.subjects_filter:
        pattern = asked.subjects_filter.encode()
        counts, found = yield from subject_counts(store.index, pattern, offset=asked.offset)
        paged = found if found.total else paged
    return deleted, counts, paged


def subject_counts(
    index: SubjectIndex, pattern: bytes, *, offset: int
) -> Steps[tuple[dict[str, int], Paged]]:
    """Messages per stored subject that matches the pattern, one page. Other work runs between the
    steps, so that the counts are not a consistent snapshot."""
    counts: dict[str, int] = {}
    total, offset = 0, max(offset, 0)
    last: bytes | None = b""
    while last is not None:
        part, last = index.matching_part(pattern, last, SUBJECTS_PER_STEP)
        for subject in part:
            entry = index.get(subject) if offset <= total else None
            if entry is not None and len(counts) < SUBJECT_DETAILS_LIMIT:
                counts[subject.decode(errors="replace")] = entry.count
            total += 1
        yield
    paged = Paged(total=total, offset=offset, limit=SUBJECT_DETAILS_LIMIT)
    return counts, paged


def stream_state(
    replica: Replica, *, deleted: tuple[int, ...] = (), subjects: dict[str, int]
) -> StreamState:
    stream = replica.stream
    store = stream.store
    return StreamState(
        messages=store.messages,
        bytes=store.bytes,
        # An empty stream has a first sequence only if one was configured.
        first_seq=store.first_seq if store.last_seq or stream.config.first_seq == 1 else 0,
        first_ts=store.first_time if store.messages else 0,
        last_seq=store.last_seq,
        last_ts=store.last_time,
        num_subjects=store.num_subjects,
        subjects=subjects,
        num_deleted=store.num_deleted,
        deleted=deleted,
        consumer_count=replica.consumer_count,
    )


def _kind(step: Step) -> str:
    if isinstance(step, Wait):
        return step.kind
    return "meta" if isinstance(step, Record) else "membership"
