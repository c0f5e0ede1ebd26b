"""How the first nodes of a cluster agree who they are: the founding of the meta group.

Owns: the founding record (members by name and incarnation), on disk before anything follows
from it, and the rule who may found.
May not touch: Raft; it only says with which members the meta group starts.
A node joins one founding in its life. The smallest node id among those connected founds, once as
many are connected as the configuration expects; the others take over its record. Nothing is
guessed: with too few nodes a cluster waits, and a node whose data was replaced is no member.
Spec: DESIGN section 6 (incarnations); membership changes come later."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from raft import NodeId, node_id

logger = logging.getLogger("jetraft.cluster")


class Founding(msgspec.Struct, frozen=True):
    """The members the meta group began with: server name -> incarnation of its data."""

    cluster: str
    members: dict[str, str]

    def voters(self) -> list[NodeId]:
        return sorted(node_id(name) for name in self.members)


class Candidate(msgspec.Struct, frozen=True):
    """What a node says of itself when a peer asks."""

    name: str
    incarnation: str
    founding: Founding | None = None


@dataclass(slots=True)
class Founders:
    """Waits for enough peers, then founds or follows. `on_formed` is called once."""

    path: Path
    cluster: str
    name: str
    incarnation: str
    expected: Callable[[], int]
    on_formed: Callable[[Founding], None]
    founding: Founding | None = None
    _seen: dict[str, Candidate] = field(default_factory=dict)
    _refused: Founding | None = None  # we are no member of it, and have said so

    def load(self) -> None:
        if self.path.exists():
            self.founding = msgspec.json.decode(self.path.read_bytes(), type=Founding)

    def start(self) -> None:
        if self.founding is not None:
            self.on_formed(self.founding)
        else:
            self.consider()

    def candidate(self) -> Candidate:
        return Candidate(self.name, self.incarnation, self.founding)

    def peer_seen(self, peer: Candidate) -> None:
        self._seen[peer.name] = peer
        if self.founding is None:
            self.consider()
        elif peer.founding is not None and peer.founding != self.founding:
            logger.error(
                "node %s belongs to a cluster founded by %s, not to ours founded by %s: "
                "stop one of them or clear its store directory",
                peer.name, sorted(peer.founding.members), sorted(self.founding.members),
            )  # fmt: skip

    def peer_lost(self, name: str) -> None:
        self._seen.pop(name, None)

    def consider(self) -> None:
        """Found or follow, if the time has come."""
        if self.founding is None:
            self._consider()

    def _consider(self) -> None:
        foundings = [peer.founding for peer in self._seen.values() if peer.founding is not None]
        if foundings:
            # Ours among them, if a stray node has brought another one along.
            self._follow(next((f for f in foundings if self._is_member(f)), foundings[0]))
            return
        names = sorted([self.name, *self._seen], key=node_id)
        if len(names) >= self.expected() and names[0] == self.name:
            members = {peer.name: peer.incarnation for peer in self._seen.values()}
            members[self.name] = self.incarnation
            self._adopt(Founding(self.cluster, members))

    def _is_member(self, founding: Founding) -> bool:
        return founding.members.get(self.name) == self.incarnation

    def _follow(self, founding: Founding) -> None:
        if self._is_member(founding):
            self._adopt(founding)
        elif founding != self._refused:  # asked again and again: said once
            self._refused = founding
            logger.error(
                "this node is not one of the founders %s (or its data was replaced): it serves "
                "clients, but holds no streams; adding members is not supported yet",
                sorted(founding.members),
            )

    def _adopt(self, founding: Founding) -> None:
        write_durably(self.path, msgspec.json.encode(founding))
        self.founding = founding
        self.on_formed(founding)


def write_durably(path: Path, content: bytes) -> None:
    """Replace a small file so that a crash leaves the old one or the new one."""
    partial = path.with_suffix(".new")
    with partial.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.rename(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def next_session(path: Path) -> int:
    """A number above that of every earlier run of this node, on disk before it is used.

    The clock makes it rise even when the directory was replaced, the file when the clock went
    back."""
    earlier = int(path.read_text()) if path.exists() else 0
    session = max(earlier + 1, time.time_ns() // 1_000_000)
    write_durably(path, str(session).encode())
    return session
