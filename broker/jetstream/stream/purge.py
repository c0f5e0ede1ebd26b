"""Removal by command: purge, and delete of one message.

Owns: when these commands are refused, and their results.
May not touch: how the store removes messages; clocks.
Spec: NATS JetStream API, STREAM.PURGE and STREAM.MSG.DELETE.

A purge by filter is split into several entries of bounded work (MessageStore.purge_part); the
leader proposes one after the other."""

from __future__ import annotations

from dataclasses import dataclass

from broker.jetstream.commands.stream_commands import DeleteMessage, Purge
from broker.jetstream.config import Storage, StreamConfig
from broker.jetstream.errors import ErrCode, JetStreamError
from broker.store.index import SubjectIndex
from broker.store.messages import FEW_SUBJECTS, MessageStore
from broker.store.removal import PurgePart
from broker.subjects import Steps

SUBJECTS_PER_STEP = 512


def purge(
    config: StreamConfig, store: MessageStore, command: Purge
) -> int | PurgePart | JetStreamError:
    """Returns how many messages were removed, or for a part of a purge where to continue."""
    if config.sealed:
        return JetStreamError(ErrCode.STREAM_SEALED)
    if config.deny_purge:
        text = "stream purge not permitted"
        return JetStreamError.of(ErrCode.STREAM_PURGE_FAILED, err=text)
    up_to = command.seq or None
    if command.start < 0:
        return store.purge(command.filter or None, up_to, command.keep)
    return store.purge_part(
        command.filter,
        up_to,
        command.keep,
        start=command.start,
        left=command.left,
        subjects=command.subjects,
    )


@dataclass(frozen=True, slots=True)
class PurgeScope:
    """What a pattern matches: the subjects, if they are few, and how many messages."""

    subjects: list[bytes]
    messages: int


def purge_scope(index: SubjectIndex, pattern: bytes) -> Steps[PurgeScope]:
    """For the leader, so that replicas do not have to search all subjects when they apply the
    purge."""
    subjects: list[bytes] = []
    messages = 0
    last: bytes | None = b""
    while last is not None:
        part, last = index.matching_part(pattern, last, SUBJECTS_PER_STEP)
        entries = map(index.get, part)
        messages += sum(entry.count for entry in entries if entry is not None)
        if len(subjects) <= FEW_SUBJECTS:
            subjects += part
        yield
    return PurgeScope(subjects if len(subjects) <= FEW_SUBJECTS else [], messages)


def purge_removed(result: object) -> bool:
    """Whether a purge with this result removed anything."""
    return isinstance(result, int | PurgePart) and bool(
        result.count if isinstance(result, PurgePart) else result
    )


def delete(
    config: StreamConfig, store: MessageStore, command: DeleteMessage
) -> bool | JetStreamError:
    if config.sealed:
        return JetStreamError(ErrCode.STREAM_SEALED)
    if config.deny_delete:
        text = "message delete not permitted"
        return JetStreamError.of(ErrCode.STREAM_MSG_DELETE_FAILED, err=text)
    seq = command.seq
    if store.remove(seq) if command.no_erase else store.erase(seq):
        return True
    if config.storage is Storage.FILE and not store.first_seq <= seq <= store.last_seq:
        text = "stream store EOF" if seq > store.last_seq else "no message found"
        return JetStreamError.of(ErrCode.STREAM_MSG_DELETE_FAILED, err=text)
    return JetStreamError.of(ErrCode.SEQUENCE_NOT_FOUND, seq=seq)
