"""Removal by command: purge, and delete of one message.

Owns: when these commands are refused, and their results.
May not touch: how the store removes messages; clocks.
Spec: NATS JetStream API, STREAM.PURGE and STREAM.MSG.DELETE.

A purge by filter is split into several entries of bounded work (MessageStore.purge_part); the
leader proposes one after the other."""

from __future__ import annotations

from broker.jetstream.commands.stream_commands import DeleteMessage, Purge
from broker.jetstream.config import Storage, StreamConfig
from broker.jetstream.errors import ErrCode, JetStreamError
from broker.store.messages import MessageStore, PurgePart


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
        command.filter, up_to, command.keep, start=command.start, left=command.left
    )


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
