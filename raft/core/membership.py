"""Membership change: who belongs to a group, by joint consensus, one change at a time.

Owns: the encoding of a CONFIG entry, the two steps of a change and which changes are allowed, the
configurations that a log holds, and which of them is in use.
May not touch: the log itself, messages, roles.
Spec: Raft section 6; thesis 4.1 (a configuration is in use as soon as it is appended), 4.2.2 (a
leader that is not in the new configuration), 4.3 (arbitrary changes by joint consensus).

    entry data   number of voters, learners, outgoing: u16 each, then their ids, u64 each"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, Protocol

from raft.core.messages import Entry
from raft.types import ChangeRefused, Index, InvariantViolation, Members, NodeId, SnapshotMeta

_COUNTS: Final = struct.Struct("<HHH")
MEMBERS_MAX: Final = 1024  # of one group, voters and learners together


def encode_members(members: Members) -> bytes:
    ids = (*members.voters, *members.learners, *members.outgoing)
    counts = _COUNTS.pack(len(members.voters), len(members.learners), len(members.outgoing))
    return counts + struct.pack(f"<{len(ids)}Q", *ids)


def decode_members(data: bytes) -> Members:
    """Raises ValueError when the bytes are not an encoded configuration."""
    if len(data) < _COUNTS.size:
        raise ValueError(f"members in {len(data)} bytes")
    voters, learners, outgoing = _COUNTS.unpack_from(data)
    count = voters + learners + outgoing
    if not voters or len(data) != _COUNTS.size + 8 * count:
        raise ValueError(f"{voters} voters, {count} members in {len(data)} bytes")
    ids = tuple(NodeId(n) for n in struct.unpack_from(f"<{count}Q", data, _COUNTS.size))
    return Members(ids[:voters], ids[voters : voters + learners], ids[voters + learners :])


def members_of(data: bytes) -> Members:
    """The members that a CONFIG entry of the log names. It was checked when it was proposed."""
    try:
        return decode_members(data)
    except ValueError as error:
        raise InvariantViolation(f"a configuration entry that cannot be read: {error}") from error


def first_step(now: Members, *, voters: Sequence[NodeId], learners: Sequence[NodeId]) -> Members:
    """The configuration to append first to get to these members. Raises ChangeRefused.

    A change of voters goes through a joint phase. A change of learners alone does not move any
    majority, so it takes effect in one step."""
    if now.joint:
        raise ChangeRefused("another membership change is in its joint phase")
    if not voters:
        raise ChangeRefused("a group needs a voter")
    everyone = (*voters, *learners)
    if len(set(everyone)) != len(everyone):
        raise ChangeRefused("a node is named twice")
    if len(everyone) > MEMBERS_MAX:
        raise ChangeRefused(f"more than {MEMBERS_MAX} members")
    outgoing = now.voters if set(voters) != set(now.voters) else ()
    return Members(tuple(voters), tuple(learners), outgoing)


def last_step(joint: Members) -> Members:
    """The configuration to append once the joint one is committed."""
    return Members(joint.voters, joint.learners)


class LogConfigurations:
    """The configurations that one log holds, in log order. The first one may be that of the
    snapshot the log starts at."""

    __slots__ = ("_known", "latest", "latest_index")

    def __init__(self, stored: Sequence[tuple[Index, Members]]) -> None:
        self._known = list(stored)
        self.latest: Members | None = None  # None: the members that the group began with
        self.latest_index: Index = Index(0)  # where it was appended
        self._find_latest()

    def at(self, index: Index) -> Members | None:
        """The configuration as of this index, which must not be compacted away."""
        for position, members in reversed(self._known):
            if position <= index:
                return members
        return None

    def append(self, entry: Entry, *, log_start: Index) -> None:
        """A CONFIG entry was appended. Configurations before the start of the log are dropped,
        except the one that is in use there."""
        known = self._known
        while len(known) > 1 and known[1][0] <= log_start:
            del known[0]
        known.append((entry.index, members_of(entry.data)))
        self._find_latest()

    def cut_after(self, last: Index) -> None:
        """The log now ends at `last`: later configurations were removed with their entries."""
        known = self._known
        while known and known[-1][0] > last:
            known.pop()
            self._find_latest()

    def restart_at(self, meta: SnapshotMeta) -> None:
        """The log now starts at this snapshot."""
        self._known = [] if meta.members is None else [(meta.index, meta.members)]
        self._find_latest()

    def _find_latest(self) -> None:
        if self._known:
            self.latest_index, self.latest = self._known[-1]
        else:
            self.latest_index, self.latest = Index(0), None


class CommitIndex(Protocol):
    """How far the log is known to be committed (raft/core/commitment.py)."""

    @property
    def index(self) -> Index: ...


class MembersInUse:
    """The configuration that one member acts on, and whether it is a voter there."""

    __slots__ = ("_begun_with", "_commit", "_configurations", "_node", "members", "voter")

    def __init__(
        self,
        node: NodeId,
        *,
        begun_with: Members,
        configurations: LogConfigurations,
        commit: CommitIndex,
    ) -> None:
        self._node = node
        self._begun_with = begun_with
        self._configurations = configurations
        self._commit = commit
        self.members = self.effective()
        self.voter = self.members.has_voter(node)

    def effective(self) -> Members:
        """The configuration to act on: the latest in the log, committed or not (thesis 4.1). If
        members waited for the commit, two majorities that share no voter could decide."""
        return self._configurations.latest or self._begun_with

    def is_current(self) -> bool:
        """Whether no other configuration was appended or cut since the last refresh()."""
        return (self._configurations.latest or self._begun_with) is self.members

    def refresh(self) -> bool:
        """Take up what the log says now. Returns whether the configuration changed."""
        members = self.effective()
        if members is self.members:
            return False
        self.members = members
        self.voter = members.has_voter(self._node)
        return True

    def at(self, index: Index) -> Members:
        """The members as of this index, which must not be compacted away."""
        return self._configurations.at(index) or self._begun_with

    def alone(self) -> bool:
        """Whether this member is the only voter."""
        return self.members.alone(self._node)

    def is_one_of_two(self) -> bool:
        """Whether this member and one other are the voters, so that nothing is committed, no other
        configuration either, that is not in this member's log."""
        members = self.members
        return len(members.voters) == 2 and self.voter and not members.outgoing

    def other_voters(self) -> list[NodeId]:
        """Each once, in a fixed order."""
        return [voter for voter in self.members.all_voters() if voter != self._node]

    def is_outgoing_voter(self) -> bool:
        """Whether the latest configuration removes us as a voter, but is not known to be
        committed. Under the previous configuration the others may still need us as leader: our log
        may be the most up-to-date one of its voters (thesis 4.2.2)."""
        index = self._configurations.latest_index
        return index > self._commit.index and self.at(Index(index - 1)).has_voter(self._node)
