"""The safety checks: they observe every step of every node and end the run at the first violation.

Owns: the ledger of committed entries, the leader and votes of each term, what was acknowledged.
May not touch: the nodes under test; the checks only read.
Spec: Raft figure 3 (election safety, leader append-only, log matching, leader completeness, state
machine safety) and what this project promises: nothing is answered before it is on disk; what is
acknowledged is on the disks of a majority and is found exactly once; a read sees everything that
was committed before it was asked for (thesis 6.4). Majorities are those of the configuration in
the log of the node that decides, both of them in a joint phase."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from chaos.sim.consensus.disk import DiskImage, MachineState, SimDisk
from raft.core.messages import Entry, EntryKind, Message, MessageKind
from raft.core.quorum import majority
from raft.core.raft_core import RaftCore
from raft.types import Index, Members, NodeId, Role, Term


class CheckedNode(Protocol):
    """What the checks read of a node."""

    @property
    def id(self) -> NodeId: ...

    @property
    def core(self) -> RaftCore: ...

    @property
    def disk(self) -> SimDisk: ...

    @property
    def state(self) -> MachineState: ...

    @property
    def disk_before_loss(self) -> DiskImage | None: ...

    @property
    def leads(self) -> bool: ...

    @property
    def recovering(self) -> bool: ...


class Violation(Exception):
    """A node broke a rule; the text says which rule and which node."""


@dataclass(slots=True)
class CommittedEntry:
    entry: Entry
    committed_in: Term  # the term of the leader that counted it


@dataclass(slots=True)
class LastSeen:
    """What was last seen of a node since its last restart."""

    term: Term
    commit: Index
    role: Role


class SafetyChecks:
    """The checks of one run. `nodes` may still be empty when the checks are created."""

    def __init__(self, begun_with: Members, nodes: Mapping[NodeId, CheckedNode]) -> None:
        self._begun_with = begun_with
        self._nodes = nodes
        self.ledger: list[CommittedEntry] = []  # position i holds the entry at index i + 1
        self.shown = 0  # the highest index that a client has seen, by an ack or by a read
        self.counters: Counter[str] = Counter()
        self._committed_in: list[Term] = []
        self._leaders: dict[Term, NodeId] = {}
        self._heard_of: set[Term] = set()  # terms whose leader has sent messages to others
        self._votes: dict[tuple[NodeId, Term], NodeId] = {}
        self._entries: dict[tuple[Index, Term], tuple[bytes, EntryKind, Term | None]] = {}
        self._digests: dict[Index, bytes] = {}
        self._committed_at: dict[bytes, Index] = {}
        self._acknowledged: dict[bytes, Index] = {}
        self._seen: dict[NodeId, LastSeen] = {}
        # (voter, candidate, term) of pre-vote requests whose log was up to date
        self._pre_votes: set[tuple[NodeId, NodeId, Term]] = set()

    def count(self, event: str) -> None:
        self.counters[event] += 1

    def started(self, node: CheckedNode) -> None:
        core = node.core
        self._forget_terms(node.id, core.term)
        self._seen[node.id] = LastSeen(core.term, Index(0), core.role)
        self.observe(node)

    def _forget_terms(self, node: NodeId, last: Term) -> None:
        """The node has started with this term. The only member of a group may forget a term in
        which it led, with the entries of that term (raft/DIVERGENCE.md), if no other node has heard
        of it; then it leads that term again."""
        forgotten = {term for term, leader in self._leaders.items() if leader == node}
        forgotten = {term for term in forgotten if term > last}
        if heard := forgotten & self._heard_of:
            raise Violation(f"disk before promise: {node} has forgotten term {min(heard)}")
        if forgotten:
            self._entries = {at: e for at, e in self._entries.items() if at[1] not in forgotten}
            self.count("forgotten terms")

    def observe(self, node: CheckedNode) -> None:
        """Call this after every step of a node."""
        core = node.core
        seen = self._seen[node.id]
        if core.term < seen.term:
            raise Violation(f"node {node.id}: term went back from {seen.term} to {core.term}")
        if core.role is Role.LEADER and (seen.role is not Role.LEADER or seen.term != core.term):
            self._leader_found(core.term, node.id)
            self._check_completeness(node)
            self.count("leaders")
        seen.term, seen.role = core.term, core.role
        commit = core.commit
        if commit < seen.commit:
            raise Violation(f"node {node.id}: commit went back from {seen.commit} to {commit}")
        if commit > seen.commit:
            self._check_commit(node, seen.commit, commit)
            seen.commit = commit

    # -- elections

    def _leader_found(self, term: Term, node: NodeId) -> None:
        known = self._leaders.setdefault(term, node)
        if known != node:
            raise Violation(f"election safety: {known} and {node} both lead term {term}")

    def _check_completeness(self, node: CheckedNode) -> None:
        """Leader completeness: a new leader holds all entries that earlier leaders committed."""
        held = bisect_left(self._committed_in, node.core.term)
        if held:
            self._check_holds(node, self.ledger[held - 1])

    def _check_holds(self, node: CheckedNode, committed: CommittedEntry) -> None:
        index, term = committed.entry.index, committed.entry.term
        core = node.core
        if index > core.log.snapshot().index and core.log.term(index) != term:
            raise Violation(
                f"leader completeness: {node.id} leads term {core.term} without entry {index} of "
                f"term {term}, committed in term {committed.committed_in}"
            )

    def sent(self, node: CheckedNode, message: Message) -> None:
        """A message is sent: what it promises must be on disk, and a vote goes to one candidate."""
        kind = message.kind
        if kind in (MessageKind.APPEND, MessageKind.HEARTBEAT):
            self._leader_found(message.term, node.id)
            self._heard_of.add(message.term)
        elif kind == MessageKind.APPEND_REPLY and not message.reject:
            _, end = node.disk.safe.end()
            if node.core.term == message.term and end < message.index:
                raise Violation(
                    f"disk before promise: {node.id} confirms entries up to {message.index}, its "
                    f"disk ends at {end}"
                )
        elif kind == MessageKind.VOTE_REPLY and not message.reject:
            self._voted(node, message.term, message.to)
        elif kind == MessageKind.VOTE:
            self._voted(node, message.term, node.id)
        elif kind == MessageKind.PRE_VOTE_REPLY:
            asked = (node.id, message.to, message.term)
            if not message.reject and asked not in self._pre_votes:
                raise Violation(
                    f"pre-vote's log check: {node.id} would vote for {message.to} in term "
                    f"{message.term}, whose log ends before its own"
                )

    def received(self, node: CheckedNode, message: Message) -> None:
        """Thesis 9.6: a pre-vote is granted only if the candidate's log is up to date."""
        if message.kind == MessageKind.PRE_VOTE:
            log = node.core.log
            if (message.log_term, message.index) >= (log.last_term, log.last_index):
                self._pre_votes.add((node.id, message.sender, message.term))

    def _voted(self, node: CheckedNode, term: Term, candidate: NodeId) -> None:
        known = self._votes.setdefault((node.id, term), candidate)
        if known != candidate:
            raise Violation(
                f"one vote per term: {node.id} voted for {known} and {candidate} in term {term}"
            )
        hard = node.disk.durable.hard_state
        if hard.term < term or (hard.term == term and hard.vote != candidate):
            raise Violation(
                f"disk before promise: {node.id} votes for {candidate} in term {term}, its disk "
                f"says {hard.vote} in term {hard.term}"
            )

    # -- logs

    def wrote(self, node: CheckedNode, entries: list[Entry]) -> None:
        """Log matching, by induction: index and term determine the entry and the term before it."""
        if not entries:
            return
        before = node.core.log.term(Index(entries[0].index - 1))
        known = self._entries
        for entry in entries:
            content = (entry.data, entry.kind, before)
            if known.setdefault((entry.index, entry.term), content) != content:
                raise Violation(
                    f"log matching: {node.id} has another entry {entry.index} of term {entry.term}"
                )
            before = entry.term

    def _check_commit(self, node: CheckedNode, old: Index, new: Index) -> None:
        core = node.core
        ledger = self.ledger
        start = max(old, core.log.snapshot().index)
        for position in range(start, min(new, len(ledger))):
            index = Index(position + 1)
            term = core.log.term(index)
            if term != ledger[position].entry.term and core.log.first_index <= index:
                raise Violation(
                    f"state machine safety: {node.id} commits entry {index} of term {term}; it "
                    f"was committed with term {ledger[position].entry.term}"
                )
        if new > len(ledger):
            low, high = Index(len(ledger) + 1), Index(new + 1)
            while low < high:
                entries = core.log.entries(low, high, 1 << 40)
                for entry in entries:
                    self._record(core.term, entry)
                low = Index(entries[-1].index + 1)
            self._check_durable(node, ledger[-1])

    def _record(self, committed_in: Term, entry: Entry) -> None:
        self.ledger.append(CommittedEntry(entry, committed_in))
        self._committed_in.append(committed_in)
        self.count("committed")
        if (
            entry.kind == EntryKind.NORMAL
            and self._committed_at.setdefault(entry.data, entry.index) != entry.index
        ):
            raise Violation(f"exactly once: {entry.data[:12]!r} is committed a second time")

    def _check_durable(self, node: CheckedNode, committed: CommittedEntry) -> None:
        """A new commit must survive any crash: a majority has it on disk, and no node that lacks
        it could win an election by what is on the disks now."""
        index, term = committed.entry.index, committed.entry.term
        nodes = list(self._nodes.values())
        # A node that has lost its log since it confirmed the entry grants no vote until it has
        # the entry again.
        holders = {
            other.id
            for other in nodes
            if other.disk.safe.holds(index, term)
            or (other.disk_before_loss is not None and other.disk_before_loss.holds(index, term))
        }
        members = node.core.log.configurations.latest or self._begun_with
        if not decided_by(holders, members):
            raise Violation(
                f"durable on a majority: {node.id} commits {index} of term {term} in term "
                f"{node.core.term}, on the disks of {holders} only, members are {members}"
            )
        voting = [n for n in nodes if not n.recovering and n.disk.durable.damaged is None]
        for rival in voting:
            if rival.id in holders:
                continue
            disk = rival.disk.safe
            end = disk.end()
            configuration = disk.members() or self._begun_with
            supporters = {v.id for v in voting if v.disk.safe.end() <= end}
            if configuration.has_voter(rival.id) and decided_by(supporters, configuration):
                raise Violation(
                    f"leader completeness: {node.id} commits {index} of term {term} in term "
                    f"{node.core.term}, but {rival.id}, which lacks it and ends in {end}, could "
                    f"be elected by {supporters}"
                )
        for other in self._nodes.values():
            if other.leads and other.core.term > committed.committed_in:
                self._check_holds(other, committed)

    # -- state machines and clients

    def applied(self, node: CheckedNode, entry: Entry) -> None:
        index = entry.index
        if index > len(self.ledger):
            raise Violation(f"state machine safety: {node.id} applies {index}, not committed")
        known = self.ledger[index - 1].entry
        if (known.term, known.data, known.kind) != (entry.term, entry.data, entry.kind):
            raise Violation(
                f"state machine safety: {node.id} applies entry {index} of term {entry.term}, "
                f"but another entry of term {known.term} is committed there"
            )
        self.installed(node)

    def installed(self, node: CheckedNode) -> None:
        """The state machine reached an index: all nodes must have the same state there."""
        state = node.state
        if self._digests.setdefault(state.index, state.digest) != state.digest:
            raise Violation(f"state machine safety: {node.id} differs at index {state.index}")

    def acknowledged(self, node: CheckedNode, name: bytes, entry: Entry) -> None:
        if entry.data != name:
            raise Violation(f"{node.id} acknowledges {name[:12]!r} for another entry")
        self._acknowledged[name] = entry.index
        self.shown = max(self.shown, entry.index)
        self.count("acknowledged")

    def read(self, node: CheckedNode, needed: int, *, barrier: bool) -> None:
        """A read is answered. It must show the first `needed` entries: with a barrier, all that
        were committed when it began; without one, all that any client knew of by then."""
        self.count("reads" if barrier else "reads by lease")
        if node.state.index < needed:
            raise Violation(
                f"linearizable reads: {node.id} answers from index {node.state.index}, "
                f"{needed} was committed before the read began"
            )
        self.shown = max(self.shown, node.state.index)

    def final(self) -> None:
        """Everything acknowledged is in the ledger, at the index that was acknowledged."""
        for name, index in self._acknowledged.items():
            if self._committed_at.get(name) != index:
                raise Violation(f"lost: {name[:12]!r}, acknowledged at {index}")


def decided_by(nodes: set[NodeId], members: Members) -> bool:
    """Whether these nodes are a majority of the voters, of both sets in a joint phase."""
    return all(
        sum(voter in nodes for voter in voters) >= majority(len(voters))
        for voters in (members.voters, members.outgoing)
        if voters
    )
