"""What only a leader has: the progress of every peer, and the decision what to send each.

Owns: Progress per peer, the transfer under way, which peers need a snapshot. Lives for one term
of leadership and is thrown away with it.
May not touch: term, vote and role (RaftCore's), disk, clocks, dice.
Spec: Raft sections 5.3, 5.4.2; thesis 3.10 (transfer), 6.2 (check-quorum), 10.2.1 (pipelining)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from raft.log import RaftLog
from raft.messages import Entry, Message, MessageKind
from raft.progress import Progress, ProgressState
from raft.quorum import majority, majority_index
from raft.ready import CoreConfig, PeerStatus
from raft.types import Index, InvariantViolation, NodeId, Term

COMMIT_NOTICE = 0  # context of a heartbeat that only tells a commit index: no answer wanted
HEARTBEAT_ROUND = 1  # context of a heartbeat that wants an answer


@dataclass(slots=True)
class Outbox:
    """Messages of one core, apart by whether they wait for the disk."""

    now: list[Message] = field(default_factory=list)
    after_persist: list[Message] = field(default_factory=list)


class Leading:
    """One term of leadership."""

    __slots__ = (
        "_config",
        "_log",
        "_node",
        "_outbox",
        "_term",
        "due",
        "peers",
        "snapshot_to",
        "term_start",
        "transfer_ticks",
        "transfer_to",
    )

    def __init__(
        self,
        *,
        node: NodeId,
        term: Term,
        voters: Sequence[NodeId],
        learners: Sequence[NodeId],
        log: RaftLog,
        config: CoreConfig,
        outbox: Outbox,
    ) -> None:
        self._node = node
        self._term = term
        self._log = log
        self._config = config
        self._outbox = outbox
        self.term_start = following = Index(log.last_index + 1)  # index of this term's noop
        self.peers: dict[NodeId, Progress] = {}
        for peer in (*voters, *learners):
            if peer != node:
                self.peers[peer] = Progress(next=following, voter=peer in voters)
        self.due = True  # there may be something to send
        self.snapshot_to: list[NodeId] = []
        self.transfer_to: NodeId | None = None
        self.transfer_ticks = 0

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

    def heartbeat(self, commit: Index) -> None:
        for node, peer in self.peers.items():
            self._send_heartbeat(node, peer, commit, HEARTBEAT_ROUND)

    def _send_heartbeat(self, to: NodeId, peer: Progress, commit: Index, context: int) -> None:
        # Not beyond match: what the peer holds above it may not be ours.
        told = peer.told_commit = min(peer.match, commit)
        self._outbox.now.append(
            Message(MessageKind.HEARTBEAT, self._node, to, self._term, commit=told, context=context)
        )

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
        if peer is None:
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
        peer.active = True
        if peer.state is ProgressState.PROBE:
            self._send_append(message.sender, peer, commit, with_entries=False)
        elif peer.state is ProgressState.REPLICATE:
            if peer.match < self._log.last_index and peer.match == peer.match_at_heartbeat:
                self._send_append(message.sender, peer, commit, with_entries=False)
            peer.match_at_heartbeat = peer.match

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

    # -- majority

    def majority_match(self) -> Index:
        """The largest index that a majority has on disk, ourselves included."""
        matches: list[int] = [self._log.persisted]
        for peer in self.peers.values():
            if peer.voter:
                matches.append(peer.match)
        return Index(majority_index(matches))

    def heard_from_majority(self) -> bool:
        """Whether a majority spoke since the last call."""
        voters = active = 1
        for peer in self.peers.values():
            if peer.voter:
                voters += 1
                active += peer.active
            peer.active = False
        return active >= majority(voters)

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
            self._outbox.now.append(Message(MessageKind.TIMEOUT_NOW, self._node, to, self._term))

    def status(self) -> tuple[PeerStatus, ...]:
        return tuple(
            PeerStatus(
                node, peer.state.value, peer.match, peer.next, peer.active, len(peer.inflight)
            )
            for node, peer in self.peers.items()
        )
