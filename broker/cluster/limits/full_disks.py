"""Full disks in the cluster: every node knows which disks are full, and such a node does not lead.

Owns: what this node tells its peers about its disk, and the set of peers whose disks are full.
May not touch: what a full disk refuses (raft/store), the transfer itself (raft).
Spec: docs/decisions/0023-a-full-disk.md. A leader with a full disk hands over to a replica that has
space, so that publishing continues. If there is none, it keeps leading: purges and reads need a
leader."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from broker.jetstream.config import Storage
from raft import NodeId, RaftError
from raft.transport.transport import Peer

logger = logging.getLogger("jetraft.cluster")

CHECK_EVERY_S: Final = 0.1
HAND_OVER_EVERY: Final = 20  # checks
_FACT: Final = "disk_full"  # in the hello


class LedReplica(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def is_leading(self) -> bool: ...
    @property
    def storage(self) -> Storage: ...
    def successors(self) -> Sequence[NodeId]: ...
    def transfer(self, to: NodeId) -> None: ...


@dataclass(slots=True)
class FullDisks:
    """One per node; `run` is its task."""

    full: Callable[[], bool]  # whether our disk is full
    tell: Callable[..., None]  # tells our peers (Mesh.tell)
    resend: Callable[[Callable[[int], bool]], None]  # resends publishes of the matching groups
    leader: Callable[[int], NodeId | None]  # the leader of a group
    flush: Callable[[], None]  # flushes the state: then logs can be compacted, and space is freed
    replicas: Callable[[], Iterable[LedReplica]]
    peers: set[int] = field(default_factory=set)  # peers whose disks are full
    _told: bool = False

    def peer_changed(self, peer: Peer, connected: bool) -> None:  # noqa: FBT001 - a callback
        """Also called when the hello of a peer has changed."""
        hello: dict[str, Any] = peer.hello
        if connected and hello.get(_FACT) is True:
            self.peers.add(peer.node)
        elif peer.node in self.peers:
            self.peers.discard(peer.node)
            self.resend(lambda group: self.leader(group) == peer.node)

    async def run(self) -> None:
        checks = 0
        while True:
            await asyncio.sleep(CHECK_EVERY_S)
            full = self.full()
            if full != self._told:
                self._told = full
                self.tell(**{_FACT: full})
                self.flush()
                if not full:  # batches that arrived while the disk was full were dropped
                    self.resend(lambda _group: True)
                checks = 0
            if full:
                if checks % HAND_OVER_EVERY == 0:
                    self._hand_over()
                checks += 1

    def _hand_over(self) -> None:
        for replica in self.replicas():
            if not replica.is_leading or replica.storage is Storage.MEMORY:
                continue
            able = [node for node in replica.successors() if node not in self.peers]
            if able:
                try:
                    replica.transfer(able[0])
                except RaftError as error:
                    logger.debug("stream %s is not handed over: %s", replica.name, error)
