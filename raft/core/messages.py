"""Log entries and the messages that nodes of one group exchange.

Owns: Entry and Message, as plain values; their bytes are raft.codec's.
May not touch: I/O, clocks, dice.
Spec: Raft figure 2 (RequestVote, AppendEntries), thesis 9.6 (pre-vote), 3.10 (leadership
transfer), figure 5.3 (InstallSnapshot)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from raft.types import Index, NodeId, Term

_NO_INDEX = Index(0)
_NO_TERM = Term(0)


class EntryKind(IntEnum):
    NORMAL = 0
    NOOP = 1  # a new leader's first entry: commits what earlier terms left behind (section 5.4.2)
    CONFIG = 2  # the members from this entry on; data is raft.confchange's


@dataclass(slots=True)
class Entry:
    index: Index
    term: Term
    data: bytes
    kind: EntryKind = EntryKind.NORMAL


class MessageKind(IntEnum):
    PRE_VOTE = 1
    PRE_VOTE_REPLY = 2
    VOTE = 3
    VOTE_REPLY = 4
    APPEND = 5
    APPEND_REPLY = 6
    HEARTBEAT = 7
    HEARTBEAT_REPLY = 8
    SNAPSHOT = 9  # the meta of a snapshot whose chunks have all arrived
    TIMEOUT_NOW = 10


@dataclass(slots=True)
class Message:
    """One message of one group. Fields a kind does not use stay zero.

    VOTE, PRE_VOTE: index and log_term are the candidate's last entry.
    APPEND: index and log_term are the entry before `entries`; commit is the leader's.
    APPEND_REPLY: index is the last matching index; on reject, index is the refused previous
    index and (hint_index, hint_term) let the leader skip a whole conflicting term.
    HEARTBEAT: commit is min(match, leader's commit); context comes back in the reply. One that
    sends the group to sleep also says where the leader's log ends (index, log_term); so does one
    for a member that has lost its log, with that member's life in hint_index.
    HEARTBEAT_REPLY: hint_index is the sender's life, reject says that it has lost its log.
    APPEND_REPLY: context is the sender's life. PRE_VOTE with a life in hint_index asks whether
    the others have lost their logs too; the reply repeats it, hint_term 1 says yes.
    SNAPSHOT: index and log_term are the snapshot's position."""

    kind: MessageKind
    sender: NodeId
    to: NodeId
    term: Term
    index: Index = _NO_INDEX
    log_term: Term = _NO_TERM
    commit: Index = _NO_INDEX
    reject: bool = False
    hint_index: Index = _NO_INDEX
    hint_term: Term = _NO_TERM
    context: int = 0
    entries: list[Entry] = field(default_factory=list)
