"""Bytes that accounts and this server store, and how much more one stream may store.

Owns: the running totals of this node's replicas, and the sizes that leaders on other nodes report.
May not touch: the decision. The bounds of a batch are written into its entry and checked at apply.
A stream's own bytes are exact at apply. For other streams, the leader uses what it knows when it
proposes: current sizes of streams it holds a replica of, and up to REPORT_EVERY_S old ones of the
others.
Spec: nats-server `jetstream` limits of an account (max_mem, max_file) and of the server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from broker.cluster.limits.staged_bytes import StagedBytes
from broker.cluster.meta.assignments import Assignment
from broker.cluster.peers.channels import CHANNEL_USAGE
from broker.config.options import JetStreamOptions
from broker.jetstream.commands.publish_entry import NO_SPACE, UNBOUNDED, Bounds
from broker.jetstream.config.limits import tier_name
from broker.jetstream.config.stream_config import Storage
from raft import GroupId, NodeId
from raft.transport.transport import Peer

REPORT_EVERY_S = 0.2
# If more than this is left, a batch is proposed without bounds: far less can be proposed and not
# yet applied (HostLimits.waiting_bytes_max per stream).
AMPLE_BYTES = 1 << 30

_encode = msgspec.msgpack.Encoder().encode
_sizes = msgspec.msgpack.Decoder(list[tuple[int, int]])
_Key = tuple[str, Storage, int]  # account, storage, replicas of a tier (0: all streams)


class StagingStream(Protocol):
    @property
    def staged_bytes(self) -> int: ...


class SizedReplica(Protocol):
    """A replica as far as its size is counted."""

    @property
    def stream(self) -> StagingStream: ...
    @property
    def group(self) -> GroupId: ...
    @property
    def assignment(self) -> Assignment: ...
    @property
    def storage(self) -> Storage: ...
    @property
    def stored_bytes(self) -> int: ...
    @property
    def is_leading(self) -> bool: ...


class UsageLinks(Protocol):
    """Frames to the other nodes."""

    def send(self, to: NodeId, channel: int, frame: bytes) -> bool: ...
    def broadcast(self, channel: int, frame: bytes) -> None: ...


@dataclass(slots=True)
class _Counted:
    key: _Key
    tier: _Key
    replicas: int
    size: int  # of one replica


@dataclass(slots=True)
class Usage:
    options: JetStreamOptions
    assignments: Iterable[Assignment]  # of all streams of the cluster
    clustered: Callable[[], bool]
    leads: Callable[[int], bool]  # whether this node leads the group
    links: UsageLinks
    _counted: dict[int, _Counted] = field(default_factory=dict)  # this node's, by group
    _accounts: dict[_Key, int] = field(default_factory=dict)  # their sum, times replicas
    _server: dict[Storage, int] = field(default_factory=dict)
    _elsewhere: dict[int, int] = field(default_factory=dict)  # of groups without a replica here
    _remote: dict[_Key, int] = field(default_factory=dict)  # the same by account, times replicas
    _to_report: dict[int, int] = field(default_factory=dict)
    _staged: StagedBytes = field(default_factory=StagedBytes)

    # -- counting -------------------------------------------------------------------------------

    def changed(self, replica: SizedReplica) -> None:
        """The replica was opened or has applied something."""
        self._staged.note(replica.assignment.account, replica.group, replica.stream.staged_bytes)
        counted = self._counted.get(replica.group)
        size, replicas = replica.stored_bytes, len(replica.assignment.peers)
        if counted is None:
            key = (replica.assignment.account, replica.storage, 0)
            counted = self._counted[replica.group] = _Counted(key, key, replicas, 0)
        elif counted.replicas == replicas:
            grown = size - counted.size
            if grown:
                counted.size = size
                self._accounts[counted.key] += grown * replicas
                self._accounts[counted.tier] += grown * replicas
                self._server[counted.key[1]] += grown
                if replica.is_leading:
                    self._report_later(replica.group, counted)
            return
        self._add(counted, -1)
        counted.size, counted.replicas = size, replicas
        account, storage, _ = counted.key
        counted.tier = (account, storage, replica.assignment.config.num_replicas)
        self._add(counted, 1)
        if replica.is_leading:
            self._report_later(replica.group, counted)

    def _add(self, counted: _Counted, sign: int) -> None:
        storage = counted.key[1]
        size = sign * counted.size
        for key in (counted.key, counted.tier):
            self._accounts[key] = self._accounts.get(key, 0) + size * counted.replicas
        self._server[storage] = self._server.get(storage, 0) + size

    def stored_here(self) -> int:
        """Bytes of all replicas on this node."""
        return sum(self._server.values())

    def of_server(self) -> Iterator[tuple[Storage, int, int | None]]:
        """Bytes of all replicas on this node, and their limit."""
        for storage in Storage:
            in_memory = storage is Storage.MEMORY
            most = self.options.max_memory_store if in_memory else self.options.max_file_store
            yield storage, self._server.get(storage, 0), most

    def of_accounts(self) -> Iterator[tuple[str, Storage, int, int]]:
        """Bytes of all replicas of an account in the cluster, as far as they are known here, and
        their limit. Only accounts with such a limit, and not those with tiers."""
        for name, granted in self.options.accounts.items():
            for storage in () if granted.tiers else Storage:
                most = granted.max_memory if storage is Storage.MEMORY else granted.max_storage
                if most >= 0:
                    key = (name, storage, 0)
                    yield name, storage, self._accounts.get(key, 0) + self._remote.get(key, 0), most

    def forget(self, group: int) -> None:
        """The stream, or its replica on this node, was removed."""
        counted = self._counted.pop(group, None)
        if counted is not None:
            self._add(counted, -1)
            self._staged.note(counted.key[0], group, 0)
        self._to_report.pop(group, None)
        if self._elsewhere.pop(group, None) is not None:
            self._sum_remote()

    def bounds(self, replica: SizedReplica) -> Bounds | None:
        """For a batch that is proposed now; None if there is no limit, or much space is left."""
        if self._staged.refuses(replica.assignment.account):
            return NO_SPACE
        storage, options = replica.storage, self.options
        counted = self._counted[replica.group]
        in_memory = storage is Storage.MEMORY
        most_here = options.max_memory_store if in_memory else options.max_file_store
        key, most = self._limit(counted)
        if most < 0 and most_here is None:
            return None
        if most_here is not None and most_here - self._server[storage] > AMPLE_BYTES:
            most_here = None
        if most >= 0:
            used = self._accounts[key] + self._remote.get(key, 0)
            if most - used > AMPLE_BYTES * counted.replicas:
                most = -1
        if most < 0 and most_here is None:
            return None
        bounds = Bounds()
        if most >= 0:
            others = self._accounts[key] - counted.size * counted.replicas
            others += self._remote.get(key, 0)
            bounds = Bounds(account=(most - others) // counted.replicas)
        if most_here is not None:
            server = most_here - (self._server[storage] - counted.size)
            bounds = Bounds(account=bounds.account, server=min(server, UNBOUNDED))
        return bounds

    def _limit(self, counted: _Counted) -> tuple[_Key, int]:
        """The key of the usage that counts against the limit, and the limit; -1: none. The limit of
        a tier applies to one replica. An account that has lost the tier of a stream may store
        nothing more in that stream."""
        account, storage, _ = counted.key
        granted = self.options.accounts.get(account)
        if granted is None:
            return counted.key, -1
        if not granted.tiers:
            in_memory = storage is Storage.MEMORY
            return counted.key, granted.max_memory if in_memory else granted.max_storage
        replicas = counted.tier[2]
        tier = granted.tiers.get(tier_name(replicas))
        if tier is None:
            return counted.tier, 0
        most = tier.max_memory if storage is Storage.MEMORY else tier.max_storage
        return counted.tier, most * replicas if most > 0 else most

    # -- streams that have replicas on other nodes only -----------------------------------------

    def _report_later(self, group: int, counted: _Counted) -> None:
        if counted.key[0] not in self.options.accounts or not self.clustered():
            return
        if not self._to_report:
            asyncio.get_running_loop().call_later(REPORT_EVERY_S, self._report)
        self._to_report[group] = counted.size

    def _report(self) -> None:
        sizes, self._to_report = self._to_report, {}
        if sizes:
            self.links.broadcast(CHANNEL_USAGE, _encode(list(sizes.items())))

    def peer_changed(self, peer: Peer, connected: bool) -> None:  # noqa: FBT001
        if not connected:
            return
        led = [
            (group, counted.size)
            for group, counted in self._counted.items()
            if counted.key[0] in self.options.accounts and self.leads(group)
        ]
        if led:
            self.links.send(peer.node, CHANNEL_USAGE, _encode(led))

    def received(self, _peer: NodeId, frame: bytes) -> None:
        for group, size in _sizes.decode(frame):
            if group not in self._counted:
                self._elsewhere[group] = size
        self._sum_remote()

    def _sum_remote(self) -> None:
        remote: dict[_Key, int] = {}
        for assignment in self.assignments:
            size = self._elsewhere.get(assignment.group, 0)
            if size and assignment.group not in self._counted:
                config = assignment.config
                for tier in (0, config.num_replicas):
                    key = (assignment.account, config.storage, tier)
                    remote[key] = remote.get(key, 0) + size * len(assignment.peers)
        self._remote = remote
