"""What accounts and this server hold in bytes, and how much more one stream may take.

Owns: the running totals of this node's replicas, and what leaders elsewhere have told of theirs.
May not touch: the decision: the bounds of a batch go into its entry, and apply judges by them.
A stream's own bytes are exact at apply. Those of other streams are as its leader knows them when
it proposes: those it has a replica of at once, the others TELL_EVERY_S later at most.
Spec: JetStream sheet 3.3 (15, 17)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from broker.cluster.peers.channels import CHANNEL_USAGE
from broker.jetstream.commands.publish_entry import UNBOUNDED, Bounds
from broker.jetstream.config.stream_config import Storage
from raft import NodeId

if TYPE_CHECKING:
    from broker.cluster.node import JetStreamNode
    from broker.cluster.replica.replica import Replica
    from raft.transport.transport import Peer

TELL_EVERY_S = 0.2

_encode = msgspec.msgpack.Encoder().encode
_told = msgspec.msgpack.Decoder(list[tuple[int, int]])
_Key = tuple[str, Storage]


@dataclass(slots=True)
class _Counted:
    key: _Key
    replicas: int
    size: int  # of one replica


@dataclass(slots=True)
class Usage:
    node: JetStreamNode
    _counted: dict[int, _Counted] = field(default_factory=dict)  # this node's, by group
    _accounts: dict[_Key, int] = field(default_factory=dict)  # theirs, times replicas
    _server: dict[Storage, int] = field(default_factory=dict)
    _elsewhere: dict[int, int] = field(default_factory=dict)  # sizes, of groups we have no part in
    _remote: dict[_Key, int] = field(default_factory=dict)  # the same by account, times replicas
    _to_tell: dict[int, int] = field(default_factory=dict)

    def start(self) -> None:
        self.node.mesh.register(CHANNEL_USAGE, self._received)
        self.node.mesh.on_peer(self._peer_changed)

    # -- counting -------------------------------------------------------------------------------

    def changed(self, replica: Replica) -> None:
        """It has applied something, or was opened."""
        counted = self._counted.get(replica.group)
        size, replicas = replica.stream.store.bytes, len(replica.assignment.peers)
        if counted is None:
            key = (replica.assignment.account, replica.stream.config.storage)
            counted = self._counted[replica.group] = _Counted(key, replicas, 0)
        elif counted.size == size and counted.replicas == replicas:
            return
        self._add(counted, -1)
        counted.size, counted.replicas = size, replicas
        self._add(counted, 1)
        if replica.leading is not None:
            self._tell_later(replica.group, counted)

    def _add(self, counted: _Counted, sign: int) -> None:
        storage = counted.key[1]
        size = sign * counted.size
        self._accounts[counted.key] = self._accounts.get(counted.key, 0) + size * counted.replicas
        self._server[storage] = self._server.get(storage, 0) + size

    def forget(self, group: int) -> None:
        """The stream is gone."""
        counted = self._counted.pop(group, None)
        if counted is not None:
            self._add(counted, -1)
        self._to_tell.pop(group, None)
        if self._elsewhere.pop(group, None) is not None:
            self._sum_up()

    def bounds(self, replica: Replica) -> Bounds | None:
        """For a batch to be proposed now; None when nothing limits it."""
        account, storage = replica.assignment.account, replica.stream.config.storage
        options = self.node.options
        granted = options.accounts.get(account)
        if storage is Storage.MEMORY:
            most_here = options.max_memory_store
            most = granted.max_memory if granted is not None else -1
        else:
            most_here = options.max_file_store
            most = granted.max_storage if granted is not None else -1
        if most < 0 and not most_here:
            return None
        counted = self._counted[replica.group]
        bounds = Bounds()
        if most >= 0:
            others = self._accounts[counted.key] - counted.size * counted.replicas
            others += self._remote.get(counted.key, 0)
            bounds = Bounds(account=(most - others) // counted.replicas)
        if most_here:
            server = most_here - (self._server[storage] - counted.size)
            bounds = Bounds(account=bounds.account, server=min(server, UNBOUNDED))
        return bounds

    # -- streams of which only other nodes have replicas ----------------------------------------

    def _tell_later(self, group: int, counted: _Counted) -> None:
        if len(self.node.members) < 2 or counted.key[0] not in self.node.options.accounts:
            return
        if not self._to_tell:
            asyncio.get_running_loop().call_later(TELL_EVERY_S, self._tell)
        self._to_tell[group] = counted.size

    def _tell(self) -> None:
        told, self._to_tell = self._to_tell, {}
        if told:
            self.node.mesh.broadcast(CHANNEL_USAGE, _encode(list(told.items())))

    def _peer_changed(self, peer: Peer, connected: bool) -> None:  # noqa: FBT001
        if not connected:
            return
        led = [
            (group, counted.size)
            for group, counted in self._counted.items()
            if counted.key[0] in self.node.options.accounts
            and self.node.replicas[group].leading is not None
        ]
        if led:
            self.node.mesh.send(peer.node, CHANNEL_USAGE, _encode(led))

    def _received(self, _peer: NodeId, frame: bytes) -> None:
        for group, size in _told.decode(frame):
            if group not in self._counted:
                self._elsewhere[group] = size
        self._sum_up()

    def _sum_up(self) -> None:
        remote: dict[_Key, int] = {}
        for assignment in self.node.meta:
            size = self._elsewhere.get(assignment.group, 0)
            if size and assignment.group not in self._counted:
                key = (assignment.account, assignment.config.storage)
                remote[key] = remote.get(key, 0) + size * len(assignment.peers)
        self._remote = remote
