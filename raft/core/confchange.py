"""Changing who belongs to a group: joint consensus, one change at a time.

Owns: the data of a CONFIG entry, which changes are allowed, the two steps of a change.
May not touch: the log, messages, roles (RaftCore takes up what the log says).
Spec: Raft section 6; thesis 4.1 (a configuration counts from the moment it is appended), 4.2.2
(a leader that is not in the new configuration), 4.3 (arbitrary changes by joint consensus).

    entry data   count of voters, learners, outgoing: u16 each, then their ids, u64 each"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from raft.types import ChangeRefused, InvariantViolation, Members, NodeId

_COUNTS: Final = struct.Struct("<HHH")
MEMBERS_MAX: Final = 1024  # of one group, voters and learners together


def encode_members(members: Members) -> bytes:
    ids = (*members.voters, *members.learners, *members.outgoing)
    counts = _COUNTS.pack(len(members.voters), len(members.learners), len(members.outgoing))
    return counts + struct.pack(f"<{len(ids)}Q", *ids)


def decode_members(data: bytes) -> Members:
    """Raises ValueError when these bytes are no members."""
    if len(data) < _COUNTS.size:
        raise ValueError(f"members in {len(data)} bytes")
    voters, learners, outgoing = _COUNTS.unpack_from(data)
    count = voters + learners + outgoing
    if not voters or len(data) != _COUNTS.size + 8 * count:
        raise ValueError(f"{voters} voters, {count} members in {len(data)} bytes")
    ids = tuple(NodeId(n) for n in struct.unpack_from(f"<{count}Q", data, _COUNTS.size))
    return Members(ids[:voters], ids[voters : voters + learners], ids[voters + learners :])


def members_of(data: bytes) -> Members:
    """The members a CONFIG entry of the log stands for. It was checked when it was proposed."""
    try:
        return decode_members(data)
    except ValueError as error:
        raise InvariantViolation(f"a configuration entry that cannot be read: {error}") from error


def first_step(now: Members, *, voters: Sequence[NodeId], learners: Sequence[NodeId]) -> Members:
    """What to append to get to these members. Raises ChangeRefused.

    Other voters need the joint phase; other learners decide nothing and change at once."""
    if now.joint:
        raise ChangeRefused("another change of members is under way")
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
    """What to append once the joint configuration is committed."""
    return Members(joint.voters, joint.learners)
