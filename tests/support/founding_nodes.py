"""Nodes that are about to found a cluster: the real decision, a real directory, no links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from broker.cluster.meta.founding import Bootstrap, Founding
from broker.cluster.node_files import DirectoryFiles
from raft import NodeId, node_id

# By node id, not by name: the smallest id founds.
NAMES = sorted((f"n{i}" for i in range(1, 6)), key=node_id)


@dataclass(slots=True)
class FoundingNode:
    """A node with a disk that survives its restarts. `expected`: the names that its routes lead to,
    without its own; None: not all are known yet."""

    name: str
    directory: Path
    expected: Sequence[str] | None
    incarnation: str = "1"
    network: dict[str, FoundingNode] = field(
        default_factory=dict
    )  # those that can be asked for a promise
    formed: list[Founding] = field(default_factory=list)
    formation: Bootstrap = field(init=False)

    def __post_init__(self) -> None:
        self.network[self.name] = self
        self.directory.mkdir(exist_ok=True)
        self.boot()

    def boot(self) -> None:
        """Start the process: load what is on disk, then start."""
        self.formed.clear()
        self.formation = Bootstrap(
            files=DirectoryFiles(self.directory),
            cluster="c",
            name=self.name,
            incarnation=self.incarnation,
            expected=self._expected,
            on_formed=self.formed.append,
        )
        self.formation.load()
        self.formation.start()

    def _expected(self) -> set[NodeId] | None:
        return None if self.expected is None else {node_id(name) for name in self.expected}

    def replace_disk(self) -> None:
        for file in self.directory.iterdir():
            file.unlink()
        self.incarnation += "'"
        self.boot()

    def sees(self, *others: FoundingNode) -> None:
        for other in others:
            self.formation.peer_seen(other.formation.as_peer())
            self.ask()

    def ask(self, *unreachable: str) -> None:
        """Collect the promises for what this node proposes, if it proposes something."""
        proposal = self.formation.proposal
        if proposal is None:
            return
        others = [name for name in proposal.founding.members if name != self.name]
        promised = [
            name not in unreachable and self.network[name].formation.promise(proposal)
            for name in others
        ]
        self.formation.decide(proposal, promised=all(promised))

    @property
    def founding(self) -> Founding | None:
        return self.formation.founding


def others(name: str, count: int = 3) -> list[str]:
    return [other for other in NAMES[:count] if other != name]


def all_of(*nodes: FoundingNode) -> dict[str, str]:
    return {node.name: node.incarnation for node in nodes}
