"""A member as it follows: its log, what a leader tells it, what it promises in return.

Owns: how appends, heartbeats and snapshots of a leader are taken; members as the log names them.
May not touch: leading (RaftCore and Leading), disk, network, clock, dice.
Spec: Raft sections 5.3, 6 and 7; thesis 4.1 (a configuration counts once it is in the log)."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from raft.core.election import LEARNER_PATIENCE, Election
from raft.core.leader import COMMIT_NOTICE, SLEEP
from raft.core.log import RaftLog
from raft.core.log_position import LogPosition
from raft.core.messages import Message, MessageKind
from raft.core.ready import CoreConfig
from raft.types import (
    HardState,
    Index,
    InvariantViolation,
    Members,
    NodeId,
    SnapshotMeta,
    Term,
)


class Follower(Election):
    """The part of a RaftCore that follows. Abstract: RaftCore says how to lead."""

    __slots__ = (
        "_begun_with",
        "_bug_append_before_flush",
        "_bug_late_members",
        "_replica",
        "_snapshot_due",
        "asleep",
    )

    def __init__(
        self,
        *,
        node: NodeId,
        begun_with: Members,
        log: RaftLog,
        hard_state: HardState,
        config: CoreConfig,
        draw: Callable[[int, int], int],
        applied: Index | None,
    ) -> None:
        super().__init__(
            node=node,
            members=log.members or begun_with,
            log=log,
            hard_state=hard_state,
            config=config,
            draw=draw,
        )
        self._begun_with = begun_with
        self._replica = LogPosition(log, commit=hard_state.commit, applied=applied)
        self._replica.truncates_blindly = "truncate_stale" in config.bugs
        self._snapshot_due = False
        self.asleep = False  # needs no ticks until something happens; the host looks after that
        self._bug_append_before_flush = "append_before_flush" in config.bugs
        self._bug_late_members = "late_members" in config.bugs
        self._take_up_members()

    @property
    def last_index(self) -> Index:
        return self.log.last_index

    @property
    def commit(self) -> Index:
        return self._replica.commit

    @property
    def applied_index(self) -> Index:
        return self._replica.applied

    @property
    def _may_campaign(self) -> bool:
        """Not as leader, nor with a log that is lost or about to be replaced."""
        return (
            self._leading is None
            and (self._voter or self._still_needed() or self._is_last_resort())
            and not self.recovering
            and self._replica.installing is None
        )

    def _still_needed(self) -> bool:
        """We are no voter by our latest configuration, but it is not known to be committed: by
        the one before it others may need us as leader, whose log may be the longest of those
        that decide (thesis 4.2.2)."""
        at = self.log.members_index
        return at > self.commit and self.members_at(Index(at - 1)).has_voter(self.node)

    def _is_last_resort(self) -> bool:
        """A learner by our log, and long without a leader. Others may know us as a voter, in a
        configuration that is not committed, and yet we cannot vote for them: our log has the
        newer end, of a leader that is gone. If we lead for as long as it takes to commit that,
        or lose to one of them, they can go on."""
        return self._unled > LEARNER_PATIENCE and self.node in self._members.learners

    def snapshot_installed(self, index: Index, term: Term, members: Members | None = None) -> None:
        """Machine and stored log now start at this snapshot, durably. `members` are those of
        the snapshot; None: those the group began with."""
        self._snapshot_due = False
        self._replica.restart_at(SnapshotMeta(index, term, members))
        self._take_up_members()
        if self.leader is not None and self.leader != self.node:
            self._accept_append(self.leader, index)

    # -- members and sleep

    @property
    def members(self) -> Members:
        """The members by the latest configuration in the log, committed or not."""
        return self._members

    def members_at(self, index: Index) -> Members:
        """The members as of this index, which must not be cut away."""
        return self.log.members_at(index) or self._begun_with

    def _take_up_members(self) -> None:
        """A configuration counts as soon as it is in the log (thesis 4.1), and no longer."""
        members = self.log.members
        if self._bug_late_members:
            members = self.log.members_at(self.commit)
        members = members or self._begun_with
        if members is not self._members:
            self._adopt(members)

    def wake(self, because_of: NodeId | None = None) -> None:
        """Time counts again, from now. A follower that is woken by another than its leader
        tells the leader, which would otherwise learn it by an election only."""
        if not self.asleep:
            return
        self.asleep = False
        self._elapsed = 0
        if self._leading is not None:
            self._leading.wake(self.commit)
        elif self.leader is not None and because_of != self.leader:
            self._outbox.now.append(self._heartbeat_reply(self.leader, COMMIT_NOTICE))

    # -- the follower's log

    def _follow(self, leader: NodeId) -> None:
        if self._leading is not None:
            raise InvariantViolation(f"two leaders in term {self.term}: {leader} and ourselves")
        if self.leader != leader or self._ballot is not None:
            self._become_follower(self.term, leader)
        self._elapsed = 0
        self._suspicious = False

    def _on_append(self, message: Message) -> None:
        self._follow(message.sender)
        replica = self._replica
        if replica.installing is not None:
            return  # this log is about to be replaced
        agreed = replica.offer(message.index, message.log_term, message.entries)
        if agreed is None:
            self._refuse_append(message)
            return
        replica.commit_to(min(message.commit, agreed))
        if self.log.members is not self._members:
            self._take_up_members()
        self._accept_append(message.sender, agreed)

    def _accept_append(self, to: NodeId, index: Index) -> None:
        """Promise that our log up to index is the leader's and on disk."""
        outbox = self._outbox
        box = outbox.now if self._bug_append_before_flush else outbox.after_persist
        box.append(
            Message(
                MessageKind.APPEND_REPLY, self.node, to, self.term, index=index, context=self.life
            )
        )

    def _refuse_append(self, message: Message) -> None:
        """Say where we might agree. No promise, so it need not wait for the disk, unless it
        tells of a new life of ours."""
        start = min(message.index, self.log.last_index)
        hint, hint_term = self.log.back_off(start, message.log_term, floor=self.commit)
        self._plain_answers().append(
            Message(
                MessageKind.APPEND_REPLY,
                self.node,
                message.sender,
                self.term,
                index=message.index,
                reject=True,
                hint_index=hint,
                hint_term=hint_term,
                context=self.life,
            )
        )

    def _on_heartbeat(self, message: Message) -> None:
        self._follow(message.sender)
        # It may count on what we held in an earlier life.
        stale_life = self.recovering and message.hint_index != self.life
        if self._replica.installing is None and not stale_life:
            self._replica.commit_to(message.commit)
            if self._bug_late_members:
                self._take_up_members()
        if self.recovering:
            self._note_recovery(message, self.commit)
        if message.context == SLEEP and self._may_rest(message):
            self.asleep = True
        elif message.context != COMMIT_NOTICE:
            reply = self._heartbeat_reply(message.sender, message.context)
            self._plain_answers().append(reply)

    def _plain_answers(self) -> list[Message]:
        return self._outbox.after_persist if self.recovering else self._outbox.now

    def _may_rest(self, message: Message) -> bool:
        """Whether we have and know all that the leader has."""
        log = self.log
        return (
            not self.recovering
            and (log.last_index, log.last_term) == (message.index, message.log_term)
            and self.applied_index == log.last_index
        )

    def _heartbeat_reply(self, to: NodeId, context: int) -> Message:
        return Message(
            MessageKind.HEARTBEAT_REPLY,
            self.node,
            to,
            self.term,
            context=context,
            hint_index=Index(self.life),
            reject=self.recovering,
        )

    def _on_snapshot(self, message: Message) -> None:
        """All chunks of a snapshot are here. Ready.snapshot asks for it unless our log already
        holds its position: then the log is worth more than the snapshot (section 7)."""
        self._follow(message.sender)
        if self._replica.installing is not None:
            return
        if message.index <= self.commit:
            self._accept_append(message.sender, self.commit)
        elif self.log.term(message.index) == message.log_term:
            self._replica.commit_to(message.index)
            self._accept_append(message.sender, message.index)
        else:
            self._replica.installing = SnapshotMeta(message.index, message.log_term)
            self._snapshot_due = True

    _on_leader: ClassVar[dict[int, Callable[[Follower, Message], None]]] = {
        **Election._on_election,  # noqa: SLF001 - our own base
        MessageKind.APPEND: _on_append,
        MessageKind.HEARTBEAT: _on_heartbeat,
        MessageKind.SNAPSHOT: _on_snapshot,
    }
