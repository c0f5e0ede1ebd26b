"""What all nodes of one simulated cluster share: virtual time, network, faults and the trace.

Owns: the parts of one run that are not a node; whether the faults are over.
May not touch: nodes and cores.
Spec: everything follows from the seed."""

from __future__ import annotations

from chaos.sim.consensus.faults import Faults
from chaos.sim.consensus.network import SimNetwork
from chaos.sim.consensus.schedule import MS, EventQueue, rng_for
from raft.core.messages import Message
from raft.types import Members, NodeId


class SimEnvironment:
    """The environment of the nodes. `calm` is set once the faults are over."""

    def __init__(self, seed: int, faults: Faults, *, trace: list[str] | None) -> None:
        self.faults = faults
        self.schedule = EventQueue()
        self.network = SimNetwork(self.schedule, faults, rng_for(seed, "network"))
        self.calm = False
        self.tracing = trace is not None
        self._trace = trace
        voters, learners, spares = faults.voters, faults.learners, faults.spares
        ids = [NodeId(n) for n in range(1, voters + learners + spares + 1)]
        self.begun_with = Members(tuple(ids[:voters]), tuple(ids[voters : voters + learners]))
        self.node_ids = tuple(ids)  # voters, learners, then the spares that may join

    def end_faults(self) -> None:
        self.calm = self.network.calm = True

    def trace(self, node: NodeId | None, verb: str, what: object) -> None:
        """Add a line to the trace, if there is one. `node` is None for the cluster as a whole."""
        if self._trace is None:
            return
        who = "--" if node is None else f"n{node}"
        text = _message_text(what) if isinstance(what, Message) else str(what)
        self._trace.append(f"{self.schedule.now_us / (1000 * MS):9.4f} {who} {verb} {text}")


def _message_text(message: Message) -> str:
    parts = [f"{message.kind.name} {message.sender}->{message.to} term {message.term}"]
    if message.index or message.log_term:
        parts.append(f"at ({message.index}, {message.log_term})")
    if message.entries:
        parts.append(f"entries {message.entries[0].index}..{message.entries[-1].index}")
    if message.commit:
        parts.append(f"commit {message.commit}")
    if message.reject:
        parts.append(f"REJECT hint ({message.hint_index}, {message.hint_term})")
    return " ".join(parts)
