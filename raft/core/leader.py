"""What only a leader has: the progress of every peer, and what to send to each of them.

Owns: Progress per peer, the heartbeat and quorum timers, a leadership transfer under way, the peers
that need a snapshot, the reads that wait. Lives for one term of leadership.
May not touch: term, vote and role (raft/core/election.py), the commit rule
(raft/core/commitment.py), disk, clocks, random numbers.
Spec: Raft section 5.3 (replication); thesis 3.10 (transfer), 6.2 (check-quorum), 6.4 (reads),
10.2.1 (pipelining)."""

from __future__ import annotations

from collections.abc import Container, Sequence

from raft.core.commitment import Commitment
from raft.core.log import RaftLog
from raft.core.membership import encode_members
from raft.core.messages import (
    COMMIT_NOTICE,
    PROMISE,
    SLEEP,
    Entry,
    EntryKind,
    Message,
    MessageKind,
    PendingMessages,
)
from raft.core.progress import Progress, ProgressState, VoterProgress
from raft.core.read_index import WANTED_TICKS, ReadIndex
from raft.core.ready import CoreConfig, PeerStatus
from raft.types import ChangeRefused, Index, InvariantViolation, Members, NodeId, RaftError, Term


class LeaderState:
    """One term of leadership."""

    __slots__ = (
        "_config",
        "_heartbeat_elapsed",
        "_log",
        "_members",
        "_node",
        "_pending",
        "_quorum_elapsed",
        "_term",
        "_ticks",
        "_transfer_ticks",
        "due",
        "peers",
        "reads",
        "snapshot_to",
        "term_start",
        "transfer_to",
        "voters",
    )

    def __init__(
        self,
        *,
        node: NodeId,
        term: Term,
        members: Members,
        log: RaftLog,
        config: CoreConfig,
        pending: PendingMessages,
    ) -> None:
        self._node = node
        self._term = term
        self._log = log
        self._config = config
        self._pending = pending
        self.term_start = Index(log.last_index + 1)  # index of this term's first entry, a NOOP
        self._members = members
        self.peers: dict[NodeId, Progress] = {}
        self.voters = VoterProgress([])
        self.due = True  # there may be something to send
        self._ticks = 0  # since this term of leadership began
        self._heartbeat_elapsed = 0  # ticks since the last heartbeat round by timer
        self._quorum_elapsed = 0  # ticks since the last quorum check
        self.reads = ReadIndex()
        self.snapshot_to: list[NodeId] = []
        self.transfer_to: NodeId | None = None
        self._transfer_ticks = 0  # until the transfer is given up
        self.change_members(members)

    # -- members

    def change_members(self, members: Members) -> None:
        """Lead these members from now on. Peers that stay keep their progress."""
        self._members = members
        following = Index(self._log.last_index + 1)
        old, self.peers = self.peers, {}
        for node in members.everyone():
            if node != self._node:
                voter = members.has_voter(node)
                self.peers[node] = peer = old.get(node) or Progress(following, voter)
                peer.voter = voter
        self.voters = VoterProgress(
            [
                (self._node in nodes, [self.peers[n] for n in nodes if n != self._node])
                for nodes in self.voter_sets(members)
            ]
        )
        self.reads.lease.end()  # it was granted by a majority of the former voters
        if self.transfer_to is not None and not members.has_voter(self.transfer_to):
            self.transfer_to = None
        self.due = True

    def voter_sets(self, members: Members) -> list[tuple[NodeId, ...]]:
        """The sets of nodes of which every decision needs a majority: the voters, and in a joint
        phase the outgoing voters too (section 6). Learners do not count."""
        return [nodes for nodes in (members.voters, members.outgoing) if nodes]

    def append_members(self, members: Members) -> Index:
        """Append a configuration. It is in use from now on; the caller must act on it."""
        index = Index(self._log.last_index + 1)
        self._log.append(Entry(index, self._term, encode_members(members), EntryKind.CONFIG))
        self.due = True
        return index

    def check_change(self, voters: Sequence[NodeId], *, commit: Index) -> None:
        """Whether a change to these voters may begin now. Raises ChangeRefused."""
        if self._log.configurations.latest_index > commit or commit < self.term_start:
            raise ChangeRefused(
                "another membership change, or the leader's first entry, is not committed yet"
            )
        # One that votes already may have lost its log and then, for good, its disk: nothing could
        # take its place if no change were allowed while it is a voter.
        new = [node for node in voters if node in self.peers and not self._members.has_voter(node)]
        lost = [node for node in new if self.peers[node].recovering]
        if lost:
            raise ChangeRefused(f"{lost} lost their logs and may not vote before they catch up")
        # But without it the others must be able to elect a leader, or nobody could tell it where
        # the log ends, and it would never vote again. One that was not heard of may be such a one.
        absent = [
            node
            for node in voters
            if self._members.has_voter(node)
            and (peer := self.peers.get(node)) is not None
            and (peer.recovering or not peer.match)
        ]
        if 2 * len(absent) >= len(voters):
            raise ChangeRefused(f"{absent} lost their logs, or have not answered in this term")

    # -- time

    def tick(self, commit: Index) -> bool:
        """One tick. Returns False when no majority has answered for an election timeout: the
        leader must step down (check-quorum, thesis 6.2)."""
        config = self._config
        self._ticks += 1
        self._quorum_elapsed += 1
        self._heartbeat_elapsed += 1
        if self._heartbeat_elapsed >= config.heartbeat_ticks:
            self._heartbeat_elapsed = 0
            self.heartbeat(commit)
        if self.transfer_to is not None:
            self._tick_transfer()
        if self._quorum_elapsed < config.election_ticks:
            return True
        self._quorum_elapsed = 0
        return not config.check_quorum or self._heard_from_majority()

    def restart_timers(self) -> None:
        """The group has woken up: start to count time again."""
        self._heartbeat_elapsed = self._quorum_elapsed = 0

    def _heard_from_majority(self) -> bool:
        """Whether every needed majority answered since the last call."""
        heard = self.voters.is_majority(lambda peer: peer.active)
        for peer in self.peers.values():
            peer.active = False
        return heard

    def keeps_quorum(self, reachable: Container[NodeId]) -> bool:
        """Whether the reachable nodes and ourselves are a majority."""
        there = {id(peer) for node, peer in self.peers.items() if node in reachable}
        return self.voters.is_majority(lambda peer: id(peer) in there)

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
            # Under load the next append carries the commit index. When no append follows, a
            # heartbeat does.
            if commit == last and peer.sent_commit < commit == peer.match:
                self._send_heartbeat(node, peer, commit, COMMIT_NOTICE)
        if self.reads.wants_round:
            self.heartbeat(commit)

    def heartbeat(self, commit: Index) -> None:
        """Start a heartbeat round: every peer is asked for an answer."""
        promise = self.reads.begin_round(self._ticks)
        number = self.reads.round
        for node, peer in self.peers.items():
            self._send_heartbeat(node, peer, commit, number, promise=promise)
        self._count_rounds()  # we may be the only voter

    def _send_heartbeat(
        self,
        to: NodeId,
        peer: Progress,
        commit: Index,
        context: int,
        *,
        promise: bool = False,
    ) -> None:
        # Not beyond match: the peer's entries above it may differ from ours.
        sent = peer.sent_commit = min(peer.match, commit)
        message = Message(
            MessageKind.HEARTBEAT, self._node, to, self._term, commit=sent, context=context
        )
        if promise:
            message.hint_term = PROMISE
        if peer.recovering:
            message.index, message.hint_index = self._log.last_index, Index(peer.life)
        self._pending.now.append(message)

    def _send_append(
        self, to: NodeId, peer: Progress, commit: Index, *, with_entries: bool
    ) -> bool:
        """Send one append after peer.next - 1, or ask for a snapshot if that entry is compacted
        away. Returns False in the second case."""
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
        self._pending.now.append(
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
        peer.sent_commit = min(commit, last)
        return True

    # -- answers

    def append_answered(self, message: Message) -> bool:
        """Returns whether the answer moved a match index, so that more may be committed."""
        peer = self.peers.get(message.sender)
        if peer is None or not self._is_current(peer, message.context):
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
        moved = peer.accepted(index)
        state = peer.state
        if state is ProgressState.PROBE:
            if index >= peer.match:
                peer.replicate()
        elif state is ProgressState.SNAPSHOT and peer.match + 1 >= log.first_index:
            peer.replicate()
        if peer.next <= log.last_index or peer.sent_commit < peer.match:
            self.due = True
        if self.transfer_to == message.sender:
            self._finish_transfer(message.sender, peer)
        return moved

    def heartbeat_answered(self, message: Message, commit: Index) -> None:
        """The peer is up. If its log has not moved since its last answer, appends may be lost: an
        append without entries makes it report where its log ends."""
        peer = self.peers.get(message.sender)
        if peer is None or not self._is_current(peer, message.hint_index):
            return
        peer.active = True
        peer.recovering = message.reject
        if message.context != SLEEP and message.context > peer.round_answered:
            peer.round_answered = message.context
            if message.hint_term == PROMISE:
                peer.round_promised = message.context
            self._count_rounds()
        if peer.state is ProgressState.PROBE:
            self._send_append(message.sender, peer, commit, with_entries=False)
        elif peer.state is ProgressState.REPLICATE:
            if peer.match < self._log.last_index and peer.match == peer.match_at_heartbeat:
                self._send_append(message.sender, peer, commit, with_entries=False)
            peer.match_at_heartbeat = peer.match

    def _is_current(self, peer: Progress, life: int) -> bool:
        """Whether an answer belongs to the peer's present life. A new life means that the peer has
        lost its log: its progress starts over."""
        if life > peer.life:
            peer.start_over(life)
            self.due = True
        return life == peer.life

    def unreachable(self, node: NodeId) -> None:
        """Appends to this node were lost: find out again where its log ends."""
        peer = self.peers.get(node)
        if peer is not None and peer.state is ProgressState.REPLICATE:
            peer.probe(following=peer.match)
            peer.paused = True  # until it answers a heartbeat

    def snapshot_sent(self, node: NodeId, *, ok: bool) -> None:
        """The transfer of a snapshot ended: probe the peer once it answers a heartbeat."""
        peer = self.peers.get(node)
        if peer is None or peer.state is not ProgressState.SNAPSHOT:
            return
        # After a success its log should end near ours: a probe from our end makes it report where.
        peer.probe(following=self._log.last_index if ok else peer.match)
        peer.paused = True

    # -- commits

    def advance_commit(self, commitment: Commitment) -> bool:
        """Commit what the commit rule allows. Returns whether the commit index moved."""
        before = commitment.index
        if not commitment.advance(self.voters, term_start=self.term_start):
            return False
        if before < self.term_start <= commitment.index:
            self.reads.first_commit(commitment.index)
        self.due = True  # tell idle followers
        return True

    # -- reads

    def _count_rounds(self) -> None:
        reads = self.reads
        reads.answered(self.voters.round_answered(reads.round))
        reads.lease.promised(self.voters.round_promised(reads.round))

    def read(self, context: int, commit: Index) -> None:
        """Queue a read."""
        self.use_lease()
        self.reads.ask(context, commit if commit >= self.term_start else None)
        self.due = True

    def use_lease(self) -> None:
        """There was a read: the next rounds ask for a lease."""
        self.reads.lease.read(self._ticks)

    def lease_age(self, applied: Index) -> int | None:
        """Ticks since the lease began; None: we never had one, or it was ended."""
        return self.reads.lease.age(self._ticks) if applied >= self.term_start else None

    def leads_alone(self, applied: Index) -> bool:
        """Whether nobody else can be elected, since we are the only voter."""
        return self.voters.leader_alone and applied >= self.term_start

    # -- sleep

    def may_sleep(self, commit: Index, reachable: Container[NodeId]) -> bool:
        """Whether nothing is left to do: the reachable peers are a majority, each of them has all
        entries and knows that they are committed."""
        last = self._log.last_index
        if commit != last or self.transfer_to is not None or not self.reads.idle:
            return False
        # Followers do not count time while they sleep: their promises must have expired before.
        awake_ticks = WANTED_TICKS + self._config.promise_ticks
        if self.reads.lease.read_within(awake_ticks, self._ticks):
            return False
        for node, peer in self.peers.items():
            level = peer.match == last == peer.sent_commit and not peer.recovering
            if node in reachable and not level:
                return False
        return self.keeps_quorum(reachable)  # or it must step down

    def wake(self, commit: Index) -> None:
        """Start a heartbeat round: it wakes the followers, and their answers show which of them
        are reachable."""
        self._quorum_elapsed = 0
        for peer in self.peers.values():
            peer.active = False
        self.heartbeat(commit)

    def send_to_sleep(self, commit: Index) -> None:
        log = self._log
        self.reads.lease.end()
        for node, peer in self.peers.items():
            if peer.match == log.last_index:
                self._pending.now.append(
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

    # -- transfer

    def transfer(self, to: NodeId) -> bool:
        """Hand leadership to this voter as soon as its log has caught up with ours. Returns False
        if that is ourselves. Raises RaftError if it is not a voter."""
        if to not in self._members.voters:
            raise RaftError(f"cannot transfer leadership to {to}: not a voter of this group")
        if to == self._node:
            return False
        self.transfer_to = to
        self._transfer_ticks = self._config.election_ticks
        self.due = True
        self._finish_transfer(to, self.peers[to])
        return True

    def _tick_transfer(self) -> None:
        """After an election timeout the transfer is given up and proposals are accepted again."""
        self._transfer_ticks -= 1
        if self._transfer_ticks <= 0:
            self.transfer_to = None

    def _finish_transfer(self, to: NodeId, peer: Progress) -> None:
        if peer.match == self._log.last_index:
            # The peer may campaign now, or later if this message is delayed: no lease any more.
            self.reads.lease.revoke()
            self._pending.now.append(Message(MessageKind.TIMEOUT_NOW, self._node, to, self._term))

    def resign(self) -> None:
        """We are no longer a voter: ask a voter that has caught up to campaign at once."""
        last = self._log.last_index
        for node, peer in self.peers.items():
            if peer.voter and peer.match == last:
                self._finish_transfer(node, peer)
                return

    def status(self) -> tuple[PeerStatus, ...]:
        return tuple(
            PeerStatus(
                node,
                peer.state.value,
                peer.match,
                peer.next,
                peer.active,
                len(peer.inflight),
                peer.recovering,
            )
            for node, peer in self.peers.items()
        )
