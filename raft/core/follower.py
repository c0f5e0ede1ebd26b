"""Follower: what a member does with a leader's appends, heartbeats and snapshots.

Owns: the answers to a leader, and that a promise waits for the disk.
May not touch: which entries fit (raft/core/log_matching.py), elections, leading, disk, network,
clock, random numbers.
Spec: Raft figure 2 (AppendEntries, receiver implementation), section 7 (snapshots)."""

from __future__ import annotations

from raft.core.commitment import Commitment
from raft.core.election import Election
from raft.core.local_progress import LocalProgress
from raft.core.log import RaftLog
from raft.core.log_matching import LogMatching
from raft.core.membership import MembersInUse
from raft.core.messages import COMMIT_NOTICE, PROMISE, SLEEP, Message, MessageKind, PendingMessages
from raft.core.vote_granting import LostLog
from raft.types import Index, NodeId, SnapshotMeta


class Follower:
    """The follower's side of one member."""

    __slots__ = (
        "_commitment",
        "_election",
        "_local",
        "_log",
        "_lost_log",
        "_matching",
        "_members",
        "_node",
        "_pending",
    )

    def __init__(
        self,
        *,
        node: NodeId,
        election: Election,
        log: RaftLog,
        matching: LogMatching,
        commitment: Commitment,
        local: LocalProgress,
        members: MembersInUse,
        lost_log: LostLog,
        pending: PendingMessages,
    ) -> None:
        self._node = node
        self._election = election
        self._log = log
        self._matching = matching
        self._commitment = commitment
        self._local = local
        self._members = members
        self._lost_log = lost_log
        self._pending = pending

    # -- appends

    def on_append(self, message: Message) -> None:
        self._election.follow(message.sender)
        if self._local.installing is not None:
            return  # this log is about to be replaced
        agreed = self._matching.accept(message.index, message.log_term, message.entries)
        if agreed is None:
            self._refuse_append(message)
            return
        self._commitment.follow_leader(min(message.commit, agreed))
        if not self._members.is_current():
            self._election.refresh_members()
        self.confirm_append(message.sender, agreed)

    def confirm_append(self, to: NodeId, index: Index) -> None:
        """Promise that our log up to index equals the leader's and is on disk. The message waits
        for the flush: the leader counts it towards the commit (figure 2)."""
        self._pending.after_persist.append(
            Message(
                MessageKind.APPEND_REPLY,
                self._node,
                to,
                self._election.term,
                index=index,
                context=self._lost_log.life,
            )
        )

    def _refuse_append(self, message: Message) -> None:
        """Tell the leader where the logs may agree."""
        hint, hint_term = self._matching.hint(message.index, message.log_term)
        self._answer(
            Message(
                MessageKind.APPEND_REPLY,
                self._node,
                message.sender,
                self._election.term,
                index=message.index,
                reject=True,
                hint_index=hint,
                hint_term=hint_term,
                context=self._lost_log.life,
            )
        )

    def _answer(self, message: Message) -> None:
        """Send an answer that promises nothing. It need not wait for the disk, unless it reports
        our new life: that must be on disk before another member learns of it."""
        pending = self._pending
        (pending.after_persist if self._lost_log.recovering else pending.now).append(message)

    # -- heartbeats

    def on_heartbeat(self, message: Message) -> bool:
        """Returns whether to go to sleep."""
        self._election.follow(message.sender)
        lost_log = self._lost_log
        commitment = self._commitment
        # The leader may count on entries that we held in an earlier life.
        stale_life = lost_log.recovering and message.hint_index != lost_log.life
        if self._local.installing is None and not stale_life:
            commitment.follow_leader(message.commit)
        if lost_log.recovering and lost_log.heard_leader(
            message, commit=commitment.index, persisted=self._log.persisted
        ):
            self._election.recovered()
        if message.context == SLEEP and self._may_sleep(message):
            return True
        if message.context != COMMIT_NOTICE:
            reply = self._heartbeat_reply(message.sender, message.context)
            if message.hint_term == PROMISE:
                self.promise()
                reply.hint_term = PROMISE
            self._answer(reply)
        return False

    def promise(self) -> None:
        """The leader asks for a lease: no other leader for a while."""
        self._election.promise()

    def _may_sleep(self, message: Message) -> bool:
        """Whether we have, and have applied, everything that the leader has."""
        log = self._log
        return (
            not self._lost_log.recovering
            and (log.last_index, log.last_term) == (message.index, message.log_term)
            and self._local.applied == log.last_index
        )

    def wake_leader(self, leader: NodeId) -> None:
        """Tell the leader of a sleeping group that it is awake."""
        self._pending.now.append(self._heartbeat_reply(leader, COMMIT_NOTICE))

    def _heartbeat_reply(self, to: NodeId, context: int) -> Message:
        return Message(
            MessageKind.HEARTBEAT_REPLY,
            self._node,
            to,
            self._election.term,
            context=context,
            hint_index=Index(self._lost_log.life),
            reject=self._lost_log.recovering,
        )

    # -- snapshots

    def on_snapshot(self, message: Message) -> None:
        """All chunks of a snapshot are here. Ready.snapshot asks the host to install it, unless
        our log already holds its position: then we keep the log (section 7)."""
        self._election.follow(message.sender)
        if self._local.installing is not None:
            return
        commit = self._commitment.index
        if message.index <= commit:
            self.confirm_append(message.sender, commit)
        elif self._log.term(message.index) == message.log_term:
            self._commitment.follow_leader(message.index)
            self.confirm_append(message.sender, message.index)
        else:
            self._local.install(SnapshotMeta(message.index, message.log_term))

    def snapshot_installed(self, meta: SnapshotMeta) -> None:
        """State machine and stored log now start at this snapshot, durably."""
        self._local.restart_at(meta)
        self._election.refresh_members()
        leader = self._election.leader
        if leader is not None and leader != self._node:
            self.confirm_append(leader, meta.index)
