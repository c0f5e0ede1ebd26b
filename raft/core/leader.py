"""What only a leader has: the progress of every peer, and the decision what to send each.

Owns: Progress per peer, the transfer under way, which peers need a snapshot, reads that wait.
Lives for one term of leadership and is thrown away with it.
May not touch: term, vote and role (RaftCore's), disk, clocks, dice.
Spec: Raft sections 5.3, 5.4.2, 6 (joint majorities); thesis 3.10 (transfer), 6.2 (check-quorum),
6.4 (reads), 10.2.1 (pipelining)."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass, field

from raft.core.log import RaftLog
from raft.core.messages import Entry, Message, MessageKind
from raft.core.progress import Progress, ProgressState
from raft.core.quorum import majority, majority_index
from raft.core.read_index import Reads
from raft.core.ready import CoreConfig, PeerStatus
from raft.types import Index, InvariantViolation, Members, NodeId, Term

COMMIT_NOTICE = 0  # context of a heartbeat that only tells a commit index: no answer wanted
SLEEP = 2**64 - 1  # context of a heartbeat that sends the group to sleep; others count rounds


@dataclass(slots=True)
class PendingMessages:
    """Messages of one core, apart by whether they wait for the disk."""

    now: list[Message] = field(default_factory=list)
    after_persist: list[Message] = field(default_factory=list)


class LeaderState:
    """One term of leadership."""

    __slots__ = (
        "_config",
        "_electorates",
        "_lease_void",
        "_log",
        "_node",
        "_outbox",
        "_term",
        "due",
        "peers",
        "reads",
        "snapshot_to",
        "term_start",
        "ticks",
        "transfer_ticks",
        "transfer_to",
    )

    def __init__(
        self,
        *,
        node: NodeId,
        term: Term,
        members: Members,
        log: RaftLog,
        config: CoreConfig,
        outbox: PendingMessages,
    ) -> None:
        self._node = node
        self._term = term
        self._log = log
        self._config = config
        self._outbox = outbox
        self.term_start = Index(log.last_index + 1)  # index of this term's noop
        self.peers: dict[NodeId, Progress] = {}
        # For each majority that is needed: whether we are one of its voters, and the others.
        self._electorates: list[tuple[bool, list[Progress]]] = []
        self.due = True  # there may be something to send
        self.ticks = 0
        self.reads = Reads()
        self._lease_void = False
        self.snapshot_to: list[NodeId] = []
        self.transfer_to: NodeId | None = None
        self.transfer_ticks = 0
        self.adopt(members)

    def adopt(self, members: Members) -> None:
        """These are the members from now on."""
        following = Index(self._log.last_index + 1)
        old, self.peers = self.peers, {}
        for node in members.everyone():
            if node != self._node:
                voter = members.has_voter(node)
                self.peers[node] = peer = old.get(node) or Progress(following, voter)
                peer.voter = voter
        self._electorates = []
        counted = members.learners if "count_learner" in self._config.bugs else ()
        for voters in (members.voters, members.outgoing):
            if voters:
                others = [self.peers[n] for n in (*voters, *counted) if n != self._node]
                self._electorates.append((self._node in voters, others))
        if self.transfer_to is not None and not members.has_voter(self.transfer_to):
            self.transfer_to = None
        self.due = True

    # -- sending

    def send_due(self, commit: Index) -> None:
        """Send what the windows allow; tell an idle group the commit index at once."""
        self.due = False
        last = self._log.last_index
        window = self._config.max_inflight_batches
        for node, peer in self.peers.items():
            while peer.next <= last and peer.may_send(window):
                if not self._send_append(node, peer, commit, with_entries=True):
                    break
            # Under load the next append carries the commit index; a pause must not hide it.
            if commit == last and peer.told_commit < commit == peer.match:
                self._send_heartbeat(node, peer, commit, COMMIT_NOTICE)
        if self.reads.wanted:
            self.heartbeat(commit)

    def heartbeat(self, commit: Index) -> None:
        """A round: every peer is asked for an answer."""
        number = self.reads.begin_round(self.ticks)
        for node, peer in self.peers.items():
            self._send_heartbeat(node, peer, commit, number)
        self._count_rounds()  # we may be the only voter

    def _send_heartbeat(self, to: NodeId, peer: Progress, commit: Index, context: int) -> None:
        # Not beyond match: what the peer holds above it may not be ours.
        told = peer.told_commit = min(peer.match, commit)
        message = Message(
            MessageKind.HEARTBEAT, self._node, to, self._term, commit=told, context=context
        )
        if peer.recovering:
            message.index, message.hint_index = self._log.last_index, Index(peer.life)
        self._outbox.now.append(message)

    def _send_append(
        self, to: NodeId, peer: Progress, commit: Index, *, with_entries: bool
    ) -> bool:
        """One append after peer.next - 1, or a snapshot if that is cut away. False: stop here."""
        log = self._log
        previous = Index(peer.next - 1)
        previous_term = log.term(previous)
        entries: list[Entry] = []
        if previous_term is not None and with_entries:
            end = Index(log.last_index + 1)
            entries = log.entries(peer.next, end, self._config.max_append_bytes)
        if previous_term is None or (with_entries and not entries):
            peer.await_snapshot()
            self.snapshot_to.append(to)
            return False
        last = entries[-1].index if entries else previous
        self._outbox.now.append(
            Message(
                MessageKind.APPEND,
                self._node,
                to,
                self._term,
                index=previous,
                log_term=previous_term,
                commit=commit,
                entries=entries,
            )
        )
        if entries or peer.state is ProgressState.PROBE:
            peer.sent(last)
        peer.told_commit = min(commit, last)
        return True

    # -- answers

    def append_answered(self, message: Message) -> bool:
        """Whether the answer moved a match index, so that more may be committed."""
        peer = self.peers.get(message.sender)
        if peer is None or not self._lives(peer, message.context):
            return False
        peer.active = True
        log = self._log
        if message.reject:
            agree_at = min(message.hint_index, log.last_index)
            if message.hint_term:
                agree_at, _ = log.back_off(agree_at, message.hint_term, floor=peer.match)
            self.due |= peer.rejected(message.index, agree_at=agree_at)
            return False
        index = message.index
        if index > log.last_index:
            raise InvariantViolation(
                f"{message.sender} says it matches up to {index}, "
                f"our log of term {self._term} ends at {log.last_index}"
            )
        news = peer.accepted(index)
        state = peer.state
        if state is ProgressState.PROBE:
            if index >= peer.match:
                peer.replicate()
        elif state is ProgressState.SNAPSHOT and peer.match + 1 >= log.first_index:
            peer.replicate()
        if peer.next <= log.last_index or peer.told_commit < peer.match:
            self.due = True
        if self.transfer_to == message.sender:
            self._finish_transfer(message.sender, peer)
        return news

    def heartbeat_answered(self, message: Message, commit: Index) -> None:
        """The peer lives. If its log has not moved since the last time, appends may be lost:
        an append without entries makes it say where it stands."""
        peer = self.peers.get(message.sender)
        if peer is None:
            return
        if not self._lives(peer, message.hint_index):
            return
        peer.active = True
        peer.recovering = message.reject
        if message.context != SLEEP and message.context > peer.round_answered:
            peer.round_answered = message.context
            self._count_rounds()
        if peer.state is ProgressState.PROBE:
            self._send_append(message.sender, peer, commit, with_entries=False)
        elif peer.state is ProgressState.REPLICATE:
            if peer.match < self._log.last_index and peer.match == peer.match_at_heartbeat:
                self._send_append(message.sender, peer, commit, with_entries=False)
            peer.match_at_heartbeat = peer.match

    def _lives(self, peer: Progress, life: int) -> bool:
        """Whether an answer is of the peer's present life. In a new one its log is gone."""
        if life > peer.life:
            peer.start_over(life)
            self.due = True
        return life == peer.life

    def unreachable(self, node: NodeId) -> None:
        peer = self.peers.get(node)
        if peer is not None and peer.state is ProgressState.REPLICATE:
            peer.probe(following=peer.match)
            peer.paused = True  # until it answers a heartbeat

    def snapshot_sent(self, node: NodeId, *, ok: bool) -> None:
        """The stream of a snapshot ended. Ask where the peer stands, when it lives again."""
        peer = self.peers.get(node)
        if peer is None or peer.state is not ProgressState.SNAPSHOT:
            return
        # After a success its log should end near ours: probing from our end makes it tell.
        peer.probe(following=self._log.last_index if ok else peer.match)
        peer.paused = True

    # -- majorities

    def majority_match(self) -> Index:
        """The largest index that every needed majority has on disk, ourselves included."""
        own = self._log.persisted
        return Index(self._agreed(own, lambda peer: peer.match))

    def _agreed(self, own: int, held: Callable[[Progress], int]) -> int:
        lowest = -1
        for ours, others in self._electorates:
            values = [held(peer) for peer in others]
            if ours:
                values.append(own)
            agreed = majority_index(values)
            if lowest < 0 or agreed < lowest:
                lowest = agreed
        return lowest

    def heard_from_majority(self) -> bool:
        """Whether every needed majority spoke since the last call."""
        heard = self.majority_in(lambda peer: peer.active)
        for peer in self.peers.values():
            peer.active = False
        return heard

    def majority_in(self, counts: Callable[[Progress], bool]) -> bool:
        """Whether the voters that count, and ourselves, are a majority wherever one is needed."""
        for ours, others in self._electorates:
            if ours + sum(map(counts, others)) < majority(ours + len(others)):
                return False
        return True

    # -- reads

    def _count_rounds(self) -> None:
        reads = self.reads
        reads.answered(self._agreed(reads.round, lambda peer: peer.round_answered))
        if self._lease_void:
            reads.end_lease()

    def read(self, context: int, commit: Index, *, lease: bool) -> None:
        known = commit if commit >= self.term_start else None
        config = self._config
        self.reads.ask(context, known)
        by_lease = lease and config.lease_reads and self.lease_holds(commit)
        if by_lease or "read_unconfirmed" in config.bugs:
            self.reads.confirm_by_lease()
        self.due = True

    def lease_holds(self, commit: Index) -> bool:
        config = self._config
        return (
            commit >= self.term_start
            and config.check_quorum
            and self.reads.lease_holds(self.ticks, lease_ticks=config.election_ticks // 2)
        )

    def end_lease(self) -> None:
        self.reads.end_lease()

    # -- sleep

    def may_sleep(self, commit: Index, reachable: Container[NodeId]) -> bool:
        """Whether nothing is left to do: whoever can be reached has all and knows it, and a
        majority can be reached."""
        last = self._log.last_index
        if commit != last or self.transfer_to is not None or not self.reads.idle:
            return False
        for node, peer in self.peers.items():
            level = peer.match == last == peer.told_commit and not peer.recovering
            if node in reachable and not level:
                return False
        return self.majority_in(lambda peer: peer.match == last)

    def wake(self, commit: Index) -> None:
        """The others sleep too, or wonder: a round tells them, and us who is there."""
        for peer in self.peers.values():
            peer.active = False
        self.heartbeat(commit)

    def send_to_sleep(self, commit: Index) -> None:
        log = self._log
        self.end_lease()
        for node, peer in self.peers.items():
            if peer.match == log.last_index:
                self._outbox.now.append(
                    Message(
                        MessageKind.HEARTBEAT,
                        self._node,
                        node,
                        self._term,
                        index=log.last_index,
                        log_term=log.last_term,
                        commit=commit,
                        context=SLEEP,
                    )
                )

    def is_recovering(self, node: NodeId) -> bool:
        peer = self.peers.get(node)
        return peer is not None and peer.recovering

    # -- transfer

    def transfer(self, to: NodeId) -> None:
        self.transfer_to = to
        self.transfer_ticks = self._config.election_ticks
        peer = self.peers[to]
        self.due = True
        self._finish_transfer(to, peer)

    def tick_transfer(self) -> None:
        """Give up a transfer that took an election timeout: we take proposals again."""
        self.transfer_ticks -= 1
        if self.transfer_ticks <= 0:
            self.transfer_to = None

    def _finish_transfer(self, to: NodeId, peer: Progress) -> None:
        if peer.match == self._log.last_index:
            self._lease_void = True  # it may campaign now, or when this message arrives late
            self.reads.end_lease()
            self._outbox.now.append(Message(MessageKind.TIMEOUT_NOW, self._node, to, self._term))

    def resign(self) -> None:
        """We are no voter any more: let one that is level take over without a timeout."""
        last = self._log.last_index
        for node, peer in self.peers.items():
            if peer.voter and peer.match == last:
                self._finish_transfer(node, peer)
                return

    def status(self) -> tuple[PeerStatus, ...]:
        return tuple(
            PeerStatus(
                node, peer.state.value, peer.match, peer.next, peer.active, len(peer.inflight)
            )
            for node, peer in self.peers.items()
        )
