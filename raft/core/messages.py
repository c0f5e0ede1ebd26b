"""Log entries, and the messages that the members of one group exchange.

Owns: Entry and Message as plain values, and the list of messages a core has not sent yet. The
encoding of messages is in raft/transport/codec.py.
May not touch: I/O, clocks, random numbers.
Spec: Raft figure 2 (RequestVote, AppendEntries); thesis 9.6 (pre-vote), 3.10 (leadership
transfer), figure 5.3 (InstallSnapshot)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from raft.types import Index, NodeId, Term

_NO_INDEX = Index(0)
_NO_TERM = Term(0)

BOTH_NEEDED = Term(1)  # value of hint_term: the candidate is one of two voters
PROMISE = Term(1)  # value of hint_term: a lease is asked for, or granted

# Values of Message.context. Any other context of a heartbeat is the number of its round.
COMMIT_NOTICE = 0  # the heartbeat only carries a commit index; the receiver does not answer
SLEEP = 2**64 - 1  # the heartbeat sends the group to sleep
TRANSFER_VOTE = 1  # the vote request was asked for by the leader itself (thesis 3.10)


class EntryKind(IntEnum):
    NORMAL = 0
    NOOP = 1  # a new leader's first entry: commits the entries of earlier terms (section 5.4.2)
    CONFIG = 2  # the members from this entry on; raft/core/membership.py encodes its data


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
    SNAPSHOT = 9  # the position of a snapshot whose chunks have all arrived
    TIMEOUT_NOW = 10


@dataclass(slots=True)
class Message:
    """One message of one group. Fields that a kind does not use stay zero.

    VOTE, PRE_VOTE: index and log_term are the candidate's last entry; hint_term 1 says that it is
    one of two voters, so that a receiver that has lost its log may vote for it. A PRE_VOTE with a
    life in hint_index asks instead whether the receiver has lost its log too; the reply repeats
    hint_index, and hint_term 1 means yes.
    APPEND: index and log_term are the entry before `entries`; commit is the leader's.
    APPEND_REPLY: index is the last matching index. On reject, index is the previous index that
    was refused, and (hint_index, hint_term) let the leader skip a whole conflicting term. Context
    is the sender's life.
    HEARTBEAT: commit is min(match, leader's commit); the reply repeats context. Two kinds of
    heartbeat also carry the end of the leader's log in (index, log_term): one that sends the group
    to sleep, and one for a member that has lost its log, with that member's life in hint_index.
    hint_term 1 asks the peer to promise that it will not vote for a while (read_index.py).
    HEARTBEAT_REPLY: hint_index is the sender's life; reject means that it has lost its log;
    hint_term 1 means that it promises.
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


@dataclass(slots=True)
class PendingMessages:
    """The messages that one core has not handed out yet."""

    now: list[Message] = field(default_factory=list)
    after_persist: list[Message] = field(default_factory=list)  # promises: they wait for a flush


def answers_before_sleep(message: Message, *, term: Term) -> bool:
    """Whether a message to a sleeping group answers something that was sent before the group went
    to sleep, or is the one that sends it to sleep. Such a message must not wake the group, or slow
    links would keep it awake forever. `term` is the receiver's."""
    kind = message.kind
    if kind == MessageKind.HEARTBEAT:
        return message.context == SLEEP
    if message.term > term:
        return False
    if kind in (MessageKind.VOTE_REPLY, MessageKind.PRE_VOTE_REPLY):
        return True
    if kind == MessageKind.HEARTBEAT_REPLY:
        return not message.reject and message.context not in (COMMIT_NOTICE, SLEEP)
    return kind == MessageKind.APPEND_REPLY and not message.reject
