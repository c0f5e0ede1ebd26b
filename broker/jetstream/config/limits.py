"""Limits of accounts and servers, and the check of a stream against them.

Owns: the limits as values, and what the configuration rules may see besides the configuration.
May not touch: usage counters, the cluster, where the numbers come from.
Spec: JetStream account info (`limits`), server `limits` block; -1 and 0 are "no limit"."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from broker.jetstream.config.stream_config import Storage, StreamConfig
from broker.jetstream.errors import ErrCode, JetStreamError
from broker.jetstream.strict_json import always


class AccountLimits(msgspec.Struct, frozen=True, kw_only=True):
    """An account's limits, as shown by account info."""

    max_memory: int = always(-1)
    max_storage: int = always(-1)
    max_streams: int = always(-1)
    max_consumers: int = always(-1)
    max_ack_pending: int = always(-1)
    memory_max_stream_bytes: int = always(-1)
    storage_max_stream_bytes: int = always(-1)
    max_bytes_required: bool = always(value=False)


NO_FLAT_LIMITS = AccountLimits(  # what the info of an account with tiers shows besides them
    max_memory=0,
    max_storage=0,
    max_streams=0,
    max_consumers=0,
    max_ack_pending=0,
    memory_max_stream_bytes=0,
    storage_max_stream_bytes=0,
)


def tier_name(replicas: int) -> str:
    return f"R{replicas}"


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """The server's own `limits` block, where 0 is "not set", and what it may store."""

    duplicate_window_ns: int = 0
    max_ack_pending: int = 0
    max_request_batch: int = 0
    max_memory: int | None = None  # None: unlimited; 0: there is no such storage
    max_storage: int | None = None


@dataclass(frozen=True, slots=True)
class AccountView:
    """What a request is checked against. `streams` are the account's streams by name."""

    streams: Mapping[str, StreamConfig] = field(default_factory=dict)
    limits: AccountLimits = field(default_factory=AccountLimits)
    tiers: Mapping[str, AccountLimits] = field(default_factory=dict)  # if set, replace `limits`
    server: ServerLimits = field(default_factory=ServerLimits)
    clustered: bool = True
    # Bytes that the account's own streams reserve, if the caller has the sum.
    reserved: Mapping[Storage, int] | None = None
    # Bytes that streams of other accounts have reserved on this server, by storage. Not used in a
    # cluster: there the free space differs between nodes, and placement checks it.
    reserved_by_others: Mapping[Storage, int] = field(default_factory=dict)

    def limits_of(self, config: StreamConfig) -> AccountLimits:
        """The limits of the account, or of the tier for the stream's number of replicas."""
        if not self.tiers:
            return self.limits
        tier = self.tiers.get(tier_name(config.num_replicas))
        if tier is None:
            raise JetStreamError(ErrCode.NO_LIMITS)
        return tier

    def counted(self, config: StreamConfig) -> list[StreamConfig]:
        """The streams that count against the same limits."""
        same = config.num_replicas
        return [s for s in self.streams.values() if not self.tiers or s.num_replicas == same]


def reserved_bytes(streams: Iterable[StreamConfig], storage: Storage) -> int:
    """Bytes reserved by the streams of one storage type: their max_bytes on every replica."""
    return sum(max(s.max_bytes, 0) * s.num_replicas for s in streams if s.storage is storage)


def check_account_limits(config: StreamConfig, view: AccountView) -> None:
    """Raise if a stream to create or update does not fit into the account with its others."""
    limits = view.limits_of(config)
    known = view.streams.get(config.name)
    count = len(view.counted(config)) if view.tiers else len(view.streams)
    if known is None and 0 <= limits.max_streams <= count:
        raise JetStreamError(ErrCode.MAXIMUM_STREAMS_LIMIT)
    if 0 < limits.max_consumers < config.max_consumers:
        raise JetStreamError(ErrCode.MAXIMUM_CONSUMERS_LIMIT)
    kind = config.storage
    reserved = (
        view.reserved[kind]
        if view.reserved is not None
        else reserved_bytes(view.streams.values(), kind)
    )
    reserved += reserved_bytes([config], kind)
    if known is not None:
        reserved -= reserved_bytes([known], kind)
    elsewhere = view.reserved_by_others.get(config.storage, 0)
    limited = reserved_in_tier(config, view) if view.tiers else reserved
    if config.storage is Storage.MEMORY:
        if 0 <= limits.max_memory < limited or _exceeds_server(
            config, reserved + elsewhere, view.server.max_memory, view
        ):
            raise JetStreamError(ErrCode.MEMORY_RESOURCES_EXCEEDED)
    elif 0 <= limits.max_storage < limited or _exceeds_server(
        config, reserved + elsewhere, view.server.max_storage, view
    ):
        raise JetStreamError(ErrCode.STORAGE_RESOURCES_EXCEEDED)


def reserved_in_tier(config: StreamConfig, view: AccountView) -> int:
    """Bytes reserved in the tier, including the stream. Limits of a tier apply to one replica."""
    others = [s for s in view.counted(config) if s.name != config.name]
    return sum(max(s.max_bytes, 0) for s in (*others, config) if s.storage is config.storage)


def _exceeds_server(
    config: StreamConfig, reserved: int, most: int | None, view: AccountView
) -> bool:
    """Whether the server has no storage of this kind or, if standalone, would reserve more than its
    limit."""
    if not most:
        return most is not None
    return not view.clustered and config.max_bytes > 0 and most < reserved


def check_stream_bytes(config: StreamConfig, limits: AccountLimits) -> None:
    """Raise if max_bytes of the stream violates the account's limits for a single stream."""
    if limits.max_bytes_required and config.max_bytes <= 0:
        raise JetStreamError(ErrCode.STREAM_MAX_BYTES_REQUIRED)
    in_memory = config.storage is Storage.MEMORY
    most = limits.memory_max_stream_bytes if in_memory else limits.storage_max_stream_bytes
    if 0 < most < config.max_bytes:
        raise JetStreamError(ErrCode.STREAM_MAX_STREAM_BYTES_EXCEEDED)
