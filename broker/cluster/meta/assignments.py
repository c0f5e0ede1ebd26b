"""Which streams exist, with which configuration, on which nodes: the meta group's state machine.

Owns: assignments, keyed by (account, stream), and the rules that concurrent creates and updates
must respect. The table of nodes (node_table.py) is part of the same state.
May not touch: sockets, clocks, random numbers, Raft; the leader puts times and peers into the
command.
Spec: NATS JetStream API, STREAM.CREATE, STREAM.UPDATE and STREAM.DELETE."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import msgspec

from broker.cluster.meta.node_table import AddNode, NodeRecord, NodeTable, SetStanding
from broker.jetstream.config import StreamConfig
from broker.jetstream.config.api_levels import same_stream
from broker.jetstream.errors import ErrCode, JetStreamError
from broker.subjects import Patterns
from raft import GroupId, Index, NodeId

META_GROUP = GroupId(1)
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
    first_config: StreamConfig | None = None  # the one its log began with, if it was another
    asked_ns: int = 0  # when the peers were last changed
    origin: int = 0  # how many replicas there were before that change

    def __post_init__(self) -> None:
        """Records of streams that were never reconfigured list the peers only."""
        for name in ("founders", "members"):
            if not getattr(self, name):
                msgspec.structs.force_setattr(self, name, self.peers)

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def initial_config(self) -> StreamConfig:
        """The configuration an empty replica starts with: the log replays every later change."""
        return self.first_config or self.config

    @property
    def holders(self) -> set[int]:
        """The nodes that hold a replica, including those that are joining or leaving."""
        return {*self.peers, *self.members}


class AssignStream(msgspec.Struct, tag="assign", frozen=True):
    account: str
    config: StreamConfig
    created_ns: int
    peers: list[int]


class ReconfigureStream(msgspec.Struct, tag="update", frozen=True):
    account: str
    config: StreamConfig
    peers: list[int] = []  # empty: unchanged
    now_ns: int = 0


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
    account: str
    name: str


class NodeChange(msgspec.Struct, frozen=True):
    """What a command about a node did: its record, and the streams whose peers changed with it."""

    record: NodeRecord
    moved: list[Assignment] = []


StreamCommand = (
    AssignStream | ReconfigureStream | RecordMembers | MoveReplicas | RenewStream | RemoveStream
)
NodeCommand = AddNode | SetStanding
MetaCommand = StreamCommand | NodeCommand
MetaResult = Assignment | NodeChange | JetStreamError

_encoder = msgspec.msgpack.Encoder()
_command = msgspec.msgpack.Decoder(MetaCommand)
_record = msgspec.msgpack.Decoder(tuple[int, list[Assignment], list[NodeRecord]])
_record_without_nodes = msgspec.msgpack.Decoder(tuple[int, list[Assignment]])
_ARRAY_OF_TWO = b"\x92"  # how a record of an earlier version begins


def encode_command(command: MetaCommand) -> bytes:
    return _encoder.encode(command)


class AssignmentTable:
    """The replicated table of assignments. Only `apply` and `load_dump` change it."""

    def __init__(self) -> None:
        self.applied = Index(0)
        self.nodes = NodeTable()
        self._streams: dict[tuple[str, str], Assignment] = {}

    def get(self, account: str, name: str) -> Assignment | None:
        return self._streams.get((account, name))

    def of_account(self, account: str) -> list[Assignment]:
        """The account's assignments in name order."""
        return sorted(
            (a for (owner, _), a in self._streams.items() if owner == account), key=lambda a: a.name
        )

    def __iter__(self) -> Iterator[Assignment]:
        return iter(list(self._streams.values()))

    def __len__(self) -> int:
        return len(self._streams)

    def load(self, node: NodeId) -> int:
        """How many replicas the node holds: what placement balances."""
        return sum(1 for a in self._streams.values() if node in a.holders)

    def apply(self, index: Index, data: bytes) -> tuple[MetaCommand, MetaResult]:
        command = _command.decode(data)
        self.applied = index
        match command:
            case AssignStream():
                return command, self._assign(index, command)
            case ReconfigureStream():
                return command, self._reconfigure(command)
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
            case _:
                return command, self._remove(command)

    def advanced(self, index: Index) -> None:
        """An entry without a command (the first one of a new leader) was applied."""
        self.applied = index

    def overlap(self, account: str, config: StreamConfig) -> str | None:
        """The name of another stream of the account that captures one of these subjects."""
        wanted = Patterns(config.subject_patterns)
        for (owner, name), other in self._streams.items():
            if owner != account or name == config.name:
                continue
            if any(map(wanted.meet, other.config.subject_patterns)):
                return name
        return None

    def dump(self) -> bytes:
        ordered = [self._streams[key] for key in sorted(self._streams)]
        return _encoder.encode((self.applied, ordered, self.nodes.dump()))

    def load_dump(self, record: bytes | None) -> None:
        """Replace the whole table. None: it becomes empty."""
        applied, assignments, nodes = _read_record(record) if record is not None else (0, [], [])
        self.applied = Index(applied)
        self.nodes.load(nodes)
        self._streams = {(a.account, a.name): a for a in assignments}

    def digest(self) -> bytes:
        return hashlib.sha256(self.dump()).digest()

    def _assign(self, index: Index, command: AssignStream) -> MetaResult:
        key = (command.account, command.config.name)
        existing = self._streams.get(key)
        if existing is not None:
            same = same_stream(existing.config, command.config)
            return existing if same else JetStreamError(ErrCode.STREAM_NAME_EXIST)
        if self.overlap(command.account, command.config) is not None:
            return JetStreamError(ErrCode.STREAM_SUBJECT_OVERLAP)
        assignment = Assignment(
            account=command.account,
            config=command.config,
            created_ns=command.created_ns,
            group=FIRST_STREAM_GROUP + index,
            peers=command.peers,
        )
        self._streams[key] = assignment
        return assignment

    def _reconfigure(self, command: ReconfigureStream) -> MetaResult:
        key = (command.account, command.config.name)
        existing = self._streams.get(key)
        if existing is None:
            return JetStreamError(ErrCode.STREAM_NOT_FOUND)
        if self.overlap(command.account, command.config) is not None:
            return JetStreamError(ErrCode.STREAM_SUBJECT_OVERLAP)
        updated = msgspec.structs.replace(
            existing, config=command.config, first_config=existing.initial_config
        )
        if command.peers and set(command.peers) != set(existing.peers):
            updated = msgspec.structs.replace(
                updated,
                peers=command.peers,
                asked_ns=command.now_ns,
                origin=len(existing.peers),
            )
        self._streams[key] = updated
        return updated

    def _record(self, command: RecordMembers) -> MetaResult:
        key = (command.account, command.name)
        existing = self._streams.get(key)
        if existing is None or existing.group != command.group:
            return JetStreamError(ErrCode.STREAM_NOT_FOUND)
        if existing.peers != command.peers:
            return JetStreamError.of(
                ErrCode.STREAM_INVALID_CONFIG, err="the wanted peers have changed meanwhile"
            )
        updated = msgspec.structs.replace(existing, members=command.members)
        self._streams[key] = updated
        return updated

    def _move(self, command: MoveReplicas) -> MetaResult:
        key = (command.account, command.name)
        existing = self._streams.get(key)
        if existing is None or existing.group != command.group:
            return JetStreamError(ErrCode.STREAM_NOT_FOUND)
        if existing.peers != command.before:
            return JetStreamError.of(
                ErrCode.STREAM_INVALID_CONFIG, err="the wanted peers have changed meanwhile"
            )
        return self._set_peers(existing, command.peers, command.now_ns)

    def _set_peers(self, existing: Assignment, peers: list[int], now_ns: int) -> Assignment:
        updated = msgspec.structs.replace(
            existing, peers=peers, asked_ns=now_ns, origin=len(existing.peers)
        )
        self._streams[existing.account, existing.name] = updated
        return updated

    def _add_node(self, command: AddNode) -> MetaResult:
        """A new incarnation takes the places of the one it replaces: the stream leaders then
        exchange the members of their groups."""
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
        record = self.nodes.set_standing(command)
        if record is None:
            return JetStreamError(ErrCode.CLUSTER_SERVER_NOT_MEMBER)
        return NodeChange(record)

    def _renew(self, index: Index, command: RenewStream) -> MetaResult:
        key = (command.account, command.name)
        existing = self._streams.get(key)
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
        self._streams[key] = renewed
        return renewed

    def _remove(self, command: RemoveStream) -> MetaResult:
        removed = self._streams.pop((command.account, command.name), None)
        return removed if removed is not None else JetStreamError(ErrCode.STREAM_NOT_FOUND)


def _read_record(record: bytes) -> tuple[int, list[Assignment], list[NodeRecord]]:
    if record[:1] == _ARRAY_OF_TWO:
        return (*_record_without_nodes.decode(record), [])
    return _record.decode(record)
