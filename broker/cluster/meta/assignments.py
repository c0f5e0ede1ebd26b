"""Which streams exist, with which configuration, on which nodes: the meta group's state machine.

Owns: assignments, keyed by (account, stream), and the rules that concurrent creates and updates
must respect. The table of nodes (node_table.py) is part of the same state.
May not touch: sockets, clocks, random numbers, Raft; the leader puts times and peers into the
command.
Spec: NATS JetStream API, STREAM.CREATE, STREAM.UPDATE and STREAM.DELETE."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import msgspec

from broker.cluster.meta.feature_level import LevelRaised, RaiseLevel, known_level
from broker.cluster.meta.node_table import (
    AddNode,
    NodeRecord,
    NodeTable,
    SetStanding,
    Standing,
)
from broker.cluster.meta.table_sums import TableSums
from broker.jetstream.config import StreamConfig
from broker.jetstream.config.api_levels import same_stream
from broker.jetstream.errors import ErrCode, JetStreamError
from broker.subjects import TooManySteps, any_overlap, finish
from raft import GroupId, Index, NodeId

META_GROUP = GroupId(1)
# Bound of the comparison at apply with streams that are newer than the check before the proposal.
# Beyond it all replicas refuse the command; the requesting node checks again and retries.
APPLY_STEPS_MAX = 50
NODES_MIN = 2  # nodes that must be left when one is removed
FIRST_STREAM_GROUP = 1000  # a stream's group id is this plus the meta index that assigned it


class Assignment(msgspec.Struct, frozen=True):
    """Where one stream lives. A stream that is deleted and created again is a new Raft group."""

    account: str
    config: StreamConfig
    created_ns: int
    group: int
    peers: list[int]  # node ids that should hold a replica; the first one campaigns first
    founders: list[int] = []  # the voters its log began with
    # Invariant: every voter of the group is listed here, and was listed before it could vote.
    members: list[int] = []
    first_config: StreamConfig | None = None  # the configuration its log began with, if different
    asked_ns: int = 0  # when the peers were last changed
    origin: int = 0  # how many replicas there were before that change
    changed: int = 0  # the meta index of its present subjects; 0: that of its creation

    def __post_init__(self) -> None:
        """Records of streams that were never reconfigured contain only the peers."""
        for name in ("founders", "members"):
            if not getattr(self, name):
                msgspec.structs.force_setattr(self, name, self.peers)

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def subjects_since(self) -> int:
        return self.changed or self.group - FIRST_STREAM_GROUP

    @property
    def incarnation(self) -> str:
        """Globally unique, within the nanosecond resolution of clocks; stored in the checkpoints of
        readers. A stream that is deleted and created again, or loses all data (RenewStream), gets a
        new one, and a stream of the same name and number in another cluster has a different one."""
        return f"{self.created_ns:x}-{self.group}"

    @property
    def initial_config(self) -> StreamConfig:
        """The configuration an empty replica starts with: the log replays every later change."""
        return self.first_config or self.config

    @property
    def is_settled(self) -> bool:
        """Whether the wanted number of nodes, and no others, hold a replica."""
        peers, members = self.peers, self.members
        enough = len(peers) >= self.config.num_replicas
        return enough and (peers == members or set(peers) == set(members))

    @property
    def holders(self) -> set[int]:
        """The nodes that hold a replica, including those that are joining or leaving."""
        return {*self.peers, *self.members}


class AssignStream(msgspec.Struct, tag="assign", frozen=True):
    account: str
    config: StreamConfig
    created_ns: int
    peers: list[int]
    # The subjects were compared with those of all streams as of this meta index. 0: with none.
    checked: int = 0


class ReconfigureStream(msgspec.Struct, tag="update", frozen=True):
    account: str
    config: StreamConfig
    peers: list[int] = []  # empty: unchanged
    now_ns: int = 0
    checked: int = 0  # as in AssignStream


class RecordMembers(msgspec.Struct, tag="members", frozen=True):
    """The stream's leader reports which nodes vote, or are about to. Refused when the wanted peers
    have changed meanwhile."""

    account: str
    name: str
    group: int
    peers: list[int]
    members: list[int]


class MoveReplicas(msgspec.Struct, tag="move", frozen=True):
    """Other nodes should hold the stream. Refused when the wanted peers have changed meanwhile."""

    account: str
    name: str
    group: int
    before: list[int]
    peers: list[int]
    now_ns: int


class RenewStream(msgspec.Struct, tag="renew", frozen=True):
    """The only member has lost the stream's data. Other nodes may hold old parts of the log that
    conflict with new entries, so the stream continues, empty, as a new group."""

    account: str
    name: str
    group: int
    members: list[int]


class RemoveStream(msgspec.Struct, tag="remove", frozen=True):
    """Idempotent: a stream that was created under this name since then stays."""

    account: str
    name: str
    created_ns: int = 0  # identifies the stream to remove; 0: whichever has the name


class NodeChange(msgspec.Struct, frozen=True):
    """What a command about a node did: its record, and the streams whose peers changed with it."""

    record: NodeRecord
    moved: list[Assignment] = []


StreamCommand = (
    AssignStream | ReconfigureStream | RecordMembers | MoveReplicas | RenewStream | RemoveStream
)
NodeCommand = AddNode | SetStanding
MetaCommand = StreamCommand | NodeCommand | RaiseLevel
MetaResult = Assignment | NodeChange | LevelRaised | JetStreamError

_encoder = msgspec.msgpack.Encoder()
_command = msgspec.msgpack.Decoder(MetaCommand)
TableState = tuple[int, list[Assignment], list[NodeRecord], int]  # applied, ..., feature level
_record: msgspec.msgpack.Decoder[TableState] = msgspec.msgpack.Decoder(TableState)
# Formats of earlier versions, by their first byte; the second is written at feature level 0.
_record_without_nodes = msgspec.msgpack.Decoder(tuple[int, list[Assignment]])
_record_without_level = msgspec.msgpack.Decoder(tuple[int, list[Assignment], list[NodeRecord]])
_ARRAY_OF_TWO, _ARRAY_OF_THREE = b"\x92", b"\x93"


def encode_command(command: MetaCommand) -> bytes:
    return _encoder.encode(command)


class AssignmentTable:
    """The replicated table of assignments. Only `apply` and `load_dump` change it.

    `sums` and an order are derived from it, so that no request has to walk the table."""

    def __init__(self) -> None:
        self.applied = Index(0)
        self.nodes = NodeTable()
        self.level = 0  # the feature level of the cluster (feature_level.py)
        self.on_changed: Callable[[str, str], None] = lambda _account, _name: None
        self._accounts: dict[str, dict[str, Assignment]] = {}
        self.sums: TableSums[Assignment] = TableSums()
        # The streams of an account, those with the newest subjects last.
        self._recent: dict[str, dict[str, None]] = {}
        self._unwritten: dict[int, Assignment | None] = {}  # by group; None: it was removed

    def get(self, account: str, name: str) -> Assignment | None:
        streams = self._accounts.get(account)
        return None if streams is None else streams.get(name)

    def of_account(self, account: str) -> list[Assignment]:
        """The account's assignments in name order."""
        streams = self._accounts.get(account, {})
        return [streams[name] for name in sorted(streams)]

    def names(self, account: str) -> Iterator[str]:
        return iter(self._accounts.get(account, {}))

    def configs(self, account: str) -> Mapping[str, StreamConfig]:
        """The account's configurations by name: a view, not a copy."""
        return _Configs(self._accounts.get(account, {}))

    def __iter__(self) -> Iterator[Assignment]:
        return iter([a for streams in self._accounts.values() for a in streams.values()])

    def __len__(self) -> int:
        return self.sums.count

    def load(self, node: NodeId) -> int:
        """How many replicas the node holds: what placement balances."""
        return self.sums.load[node]

    def apply(self, index: Index, data: bytes) -> tuple[MetaCommand, MetaResult]:
        command = _command.decode(data)
        self.applied = index
        match command:
            case AssignStream():
                return command, self._assign(index, command)
            case ReconfigureStream():
                return command, self._reconfigure(index, command)
            case RecordMembers():
                return command, self._record(command)
            case MoveReplicas():
                return command, self._move(command)
            case RenewStream():
                return command, self._renew(index, command)
            case AddNode():
                return command, self._add_node(command)
            case SetStanding():
                return command, self._set_standing(command)
            case RaiseLevel():
                self.level = known_level(max(self.level, command.level))
                return command, LevelRaised(self.level)
            case _:
                return command, self._remove(command)

    def advanced(self, index: Index) -> None:
        """An entry without a command (the first one of a new leader) was applied."""
        self.applied = index

    def overlap(self, account: str, config: StreamConfig, *, checked: int) -> JetStreamError | None:
        """Why the subjects may not be captured: a stream that got its subjects after index
        `checked` captures some of them, or there are too many to compare."""
        recent: list[bytes] = []
        for name in reversed(self._recent.get(account, {})):
            other = self._accounts[account][name]
            if other.subjects_since <= checked:
                break
            if name != config.name:
                recent.extend(other.config.subject_patterns)
        if not recent:
            return None
        steps = any_overlap(recent, config.subject_patterns)
        try:
            found = finish(steps, most=APPLY_STEPS_MAX if checked else None)
        except TooManySteps:
            return JetStreamError(ErrCode.INSUFFICIENT_RESOURCES)
        return JetStreamError(ErrCode.STREAM_SUBJECT_OVERLAP) if found else None

    def dump(self) -> bytes:
        ordered = [
            self._accounts[account][name]
            for account in sorted(self._accounts)
            for name in sorted(self._accounts[account])
        ]
        level = (self.level,) if self.level else ()
        return _encoder.encode((self.applied, ordered, self.nodes.dump(), *level))

    def load_dump(self, record: bytes | None) -> None:
        """Replace the whole table. None: it becomes empty."""
        self.load_all(_read_record(record) if record is not None else (0, [], [], 0))

    def load_all(self, state: TableState) -> None:
        """Replace the whole table."""
        applied, assignments, nodes, level = state
        self.level = known_level(level)
        for known in self:
            self._take(known.account, known.name)
        self.applied = Index(applied)
        self.nodes.load(nodes)
        for assignment in sorted(assignments, key=lambda a: a.subjects_since):
            self._put(assignment)

    def take_unwritten(self) -> dict[int, Assignment | None]:
        """Changes since the last call, by group: the assignment, or None if it was removed."""
        unwritten, self._unwritten = self._unwritten, {}
        return unwritten

    def _assign(self, index: Index, command: AssignStream) -> MetaResult:
        key = (command.account, command.config.name)
        existing = self.get(*key)
        if existing is not None:
            same = same_stream(existing.config, command.config)
            return existing if same else JetStreamError(ErrCode.STREAM_NAME_EXIST)
        refusal = self.overlap(command.account, command.config, checked=command.checked)
        if refusal is not None:
            return refusal
        assignment = Assignment(
            account=command.account,
            config=command.config,
            created_ns=command.created_ns,
            group=FIRST_STREAM_GROUP + index,
            peers=command.peers,
        )
        self._put(assignment)
        return assignment

    def _reconfigure(self, index: Index, command: ReconfigureStream) -> MetaResult:
        key = (command.account, command.config.name)
        existing = self.get(*key)
        if existing is None:
            return JetStreamError(ErrCode.STREAM_NOT_FOUND)
        refusal = self.overlap(command.account, command.config, checked=command.checked)
        if refusal is not None:
            return refusal
        same = command.config.subjects == existing.config.subjects
        updated = msgspec.structs.replace(
            existing,
            config=command.config,
            first_config=existing.initial_config,
            changed=existing.changed if same else index,
        )
        if command.peers and set(command.peers) != set(existing.peers):
            updated = msgspec.structs.replace(
                updated,
                peers=command.peers,
                asked_ns=command.now_ns,
                origin=len(existing.peers),
            )
        self._put(updated)
        return updated

    def _record(self, command: RecordMembers) -> MetaResult:
        key = (command.account, command.name)
        existing = self.get(*key)
        if existing is None or existing.group != command.group:
            return JetStreamError(ErrCode.STREAM_NOT_FOUND)
        if existing.peers != command.peers:
            return JetStreamError.of(
                ErrCode.STREAM_INVALID_CONFIG, err="the wanted peers have changed meanwhile"
            )
        updated = msgspec.structs.replace(existing, members=command.members)
        self._put(updated)
        return updated

    def _move(self, command: MoveReplicas) -> MetaResult:
        key = (command.account, command.name)
        existing = self.get(*key)
        if existing is None or existing.group != command.group:
            return JetStreamError(ErrCode.STREAM_NOT_FOUND)
        if existing.peers == command.peers:
            return existing  # the command was repeated
        if existing.peers != command.before:
            return JetStreamError.of(
                ErrCode.STREAM_INVALID_CONFIG, err="the wanted peers have changed meanwhile"
            )
        return self._set_peers(existing, command.peers, command.now_ns)

    def _set_peers(self, existing: Assignment, peers: list[int], now_ns: int) -> Assignment:
        updated = msgspec.structs.replace(
            existing, peers=peers, asked_ns=now_ns, origin=len(existing.peers)
        )
        self._put(updated)
        return updated

    def _add_node(self, command: AddNode) -> MetaResult:
        """A new incarnation of a node replaces the old one in all assignments; the stream leaders
        then change the members of their groups."""
        record, former = self.nodes.add(command)
        if former is None:
            return NodeChange(record)
        moved = [
            self._set_peers(
                one,
                [command.node if peer == former.node else peer for peer in one.peers],
                command.now_ns,
            )
            for one in self
            if former.node in one.peers
        ]
        return NodeChange(record, moved)

    def _set_standing(self, command: SetStanding) -> MetaResult:
        refused = self._may_not_leave(command)
        if refused is not None:
            return refused
        record = self.nodes.set_standing(command)
        if record is None:
            return JetStreamError(ErrCode.CLUSTER_SERVER_NOT_MEMBER)
        return NodeChange(record)

    def _may_not_leave(self, command: SetStanding) -> JetStreamError | None:
        """Nodes leave one at a time, and at least NODES_MIN stay. Checked at apply, because two
        removals may be requested at the same time on different nodes."""
        if command.standing is not Standing.LEAVING:
            return None
        others = [record for record in self.nodes.present() if record.node != command.node]
        if any(record.standing is Standing.LEAVING for record in others):
            return JetStreamError(ErrCode.CLUSTER_SERVER_MEMBER_CHANGE_INFLIGHT)
        if len(others) < NODES_MIN:
            return JetStreamError(
                ErrCode.CLUSTER_NOT_AVAIL,
                f"a cluster needs {NODES_MIN} nodes: without this one {len(others)} would be left",
            )
        return None

    def _renew(self, index: Index, command: RenewStream) -> MetaResult:
        key = (command.account, command.name)
        existing = self.get(*key)
        if existing is None:
            return JetStreamError(ErrCode.STREAM_NOT_FOUND)
        if existing.group != command.group or existing.members != command.members:
            return existing
        renewed = Assignment(
            account=existing.account,
            config=existing.config,
            created_ns=existing.created_ns,
            group=FIRST_STREAM_GROUP + index,
            peers=existing.peers,
        )
        self._put(renewed)
        return renewed

    def _remove(self, command: RemoveStream) -> MetaResult:
        known = self.get(command.account, command.name)
        another = known is not None and command.created_ns not in (0, known.created_ns)
        if another and self.level:  # version 0.1 does not compare
            return JetStreamError(ErrCode.STREAM_NOT_FOUND)
        removed = self._take(command.account, command.name)
        return removed if removed is not None else JetStreamError(ErrCode.STREAM_NOT_FOUND)

    # -- the table and what is derived from it --------------------------------------------------

    def _put(self, assignment: Assignment) -> None:
        account, name = assignment.account, assignment.name
        streams = self._accounts.setdefault(account, {})
        recent = self._recent.setdefault(account, {})
        known = streams.get(name)
        if known is not None:
            self._unwritten[known.group] = None
            self.sums.subtract(known)
        if known is None or known.subjects_since != assignment.subjects_since:
            recent.pop(name, None)
            recent[name] = None
        streams[name] = assignment
        self._unwritten[assignment.group] = assignment
        self.sums.add(assignment)
        self.on_changed(account, name)

    def _take(self, account: str, name: str) -> Assignment | None:
        known = self.get(account, name)
        if known is None:
            return None
        del self._accounts[account][name], self._recent[account][name]
        if not self._accounts[account]:
            del self._accounts[account], self._recent[account]
        self._unwritten[known.group] = None
        self.sums.subtract(known)
        self.on_changed(account, name)
        return known


class _Configs(Mapping[str, StreamConfig]):
    def __init__(self, streams: Mapping[str, Assignment]) -> None:
        self._streams = streams

    def __getitem__(self, name: str) -> StreamConfig:
        return self._streams[name].config

    def __iter__(self) -> Iterator[str]:
        return iter(self._streams)

    def __len__(self) -> int:
        return len(self._streams)


def _read_record(record: bytes) -> TableState:
    if record[:1] == _ARRAY_OF_TWO:
        return (*_record_without_nodes.decode(record), [], 0)
    if record[:1] == _ARRAY_OF_THREE:
        return (*_record_without_level.decode(record), 0)
    return _record.decode(record)
