"""Info documents of the API: streams, consumers and accounts.

Owns: the Structs of info answers, with their fields in the order of the JSON.
May not touch: where the numbers come from.
Spec: JetStream StreamInfo and StreamState, ConsumerInfo, account info. Fields with `always(...)`
are included even at their default, the others only if they differ from it."""

from __future__ import annotations

from typing import Final

import msgspec

from broker.jetstream.config.api_levels import API_LEVEL
from broker.jetstream.config.consumer_config import ConsumerConfig
from broker.jetstream.config.limits import AccountLimits
from broker.jetstream.config.stream_config import (
    External,
    Placement,
    Retention,
    StreamConfig,
    SubjectTransform,
)
from broker.jetstream.errors import ErrorBody
from broker.jetstream.strict_json import Unsigned, WallTime, always

DELETED_DETAILS_LIMIT: Final = 100_000  # most sequences listed; num_deleted counts all


class LostData(msgspec.Struct, frozen=True):
    """Messages lost to damage on disk, by sequence."""

    msgs: tuple[int, ...] = always(())
    bytes: int = always(0)


class StreamState(msgspec.Struct, frozen=True, kw_only=True):
    """The messages of a stream, in numbers. Times are 0 while it has no messages."""

    messages: Unsigned = always(0)
    bytes: Unsigned = always(0)
    first_seq: Unsigned = always(0)
    first_ts: WallTime = always(0)
    last_seq: Unsigned = always(0)
    last_ts: WallTime = always(0)
    num_subjects: int = 0
    subjects: dict[str, int] = {}
    num_deleted: int = 0
    deleted: tuple[int, ...] = ()
    lost: LostData | None = None
    consumer_count: int = always(0)


class PeerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Another replica of the group. `active` is the nanoseconds since its last message."""

    name: str
    current: bool
    offline: bool = False
    active: int = always(0)
    lag: int = 0
    peer: str = always("")
    pending: bool = False


class DesiredOrigin(msgspec.Struct, frozen=True, kw_only=True):
    replicas: int = always(0)
    placement: Placement | None = None
    retention: Retention | None = None


class DesiredStatus(msgspec.Struct, frozen=True, kw_only=True):
    description: str = always("")
    type: str = always("")
    err: str = ""


class DesiredPeer(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    peer: str = always("")


class DesiredCluster(msgspec.Struct, frozen=True, kw_only=True):
    """The target of a group that is being moved."""

    created: WallTime | None = None
    name: str = ""
    replicas: tuple[DesiredPeer, ...] = ()
    origin: DesiredOrigin | None = None
    status: DesiredStatus | None = None


class ClusterInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The Raft group of a stream or consumer. `replicas` are the other members, sorted by name."""

    name: str = ""
    raft_group: str = ""
    leader: str = ""
    leader_since: WallTime | None = None
    system_account: bool = False
    traffic_account: str = ""
    replicas: tuple[PeerInfo, ...] = ()
    desired: DesiredCluster | None = None


class ServerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One server of the cluster (SERVER.STATUS)."""

    name: str
    peer: str
    state: str = always("member")  # member, draining or leaving
    connected: bool = always(False)  # noqa: FBT003 - a default
    meta_leader: bool = always(False)  # noqa: FBT003 - a default
    replicas: int = always(0)
    leaders: int = always(0)
    since: WallTime | None = None


class ClusterStatus(msgspec.Struct, frozen=True, kw_only=True):
    cluster: str
    meta_leader: str = always("")
    streams: int = always(0)
    moving: int = always(0)  # streams whose replicas are being moved to other servers
    feature_level: int = always(0)
    servers: tuple[ServerStatus, ...] = always(())


class SourceInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a mirror or source; `active` is -1 before the first contact."""

    name: str
    external: External | None = None
    lag: int = always(0)
    seq: int = 0  # of a source: the last sequence that was copied
    active: int = always(-1)
    error: ErrorBody | None = None
    filter_subject: str = ""
    subject_transforms: tuple[SubjectTransform, ...] = ()


class Alternate(msgspec.Struct, frozen=True, kw_only=True):
    """A mirror that holds the same messages, or the stream itself."""

    name: str
    domain: str = ""
    cluster: str = always("")


class StreamInfo(msgspec.Struct, frozen=True, kw_only=True):
    """`config` is `shown_stream(...)` in single answers and `stored_stream(...)` in lists."""

    config: StreamConfig
    created: WallTime
    state: StreamState
    domain: str = ""
    cluster: ClusterInfo | None = None
    mirror: SourceInfo | None = None
    sources: tuple[SourceInfo, ...] = ()
    alternates: tuple[Alternate, ...] = ()
    ts: WallTime = always(0)


class SequenceInfo(msgspec.Struct, frozen=True, kw_only=True):
    consumer_seq: int = always(0)
    stream_seq: int = always(0)
    last_active: WallTime | None = None  # None until the first delivery or ack


class PriorityGroupState(msgspec.Struct, frozen=True, kw_only=True):
    group: str
    pinned_client_id: str = ""
    pinned_ts: WallTime = always(0)


class ConsumerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """`config` is `shown_consumer(...)` in single answers and `stored_consumer(...)` in lists."""

    stream_name: str
    name: str
    created: WallTime
    config: ConsumerConfig
    delivered: SequenceInfo = always(SequenceInfo())
    ack_floor: SequenceInfo = always(SequenceInfo())
    num_ack_pending: int = always(0)
    num_redelivered: int = always(0)
    num_waiting: int = always(0)
    num_pending: int = always(0)
    cluster: ClusterInfo | None = None
    push_bound: bool = False
    paused: bool = False
    pause_remaining: int = 0
    ts: WallTime = always(0)
    priority_groups: tuple[PriorityGroupState, ...] = ()


class StoredMessageInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A message as returned by MSG.GET; headers and payload are base64."""

    subject: str
    seq: int
    hdrs: bytes = b""
    data: bytes = b""
    time: WallTime = always(0)


class ApiStats(msgspec.Struct, frozen=True, kw_only=True):
    level: int = always(API_LEVEL)
    total: int = always(0)
    errors: int = always(0)
    inflight: int = 0


class Tier(msgspec.Struct, frozen=True, kw_only=True):
    memory: int = always(0)
    storage: int = always(0)
    reserved_memory: int = always(0)
    reserved_storage: int = always(0)
    streams: int = always(0)
    consumers: int = always(0)
    limits: AccountLimits = always(AccountLimits())


class AccountInfo(Tier, frozen=True, kw_only=True):
    domain: str = ""
    api: ApiStats = always(ApiStats())
    tiers: dict[str, Tier] = {}
