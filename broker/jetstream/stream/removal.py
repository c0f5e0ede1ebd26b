"""Messages leave a stream by command: purge and delete.

Owns: what refuses them, and what they answer.
May not touch: how the store removes; clocks.
Spec: JetStream sheet 4.4-4.6. A purge by filter comes as several entries, each bounded (see
MessageStore.purge_part): the leader proposes one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.jetstream.commands.stream_commands import DeleteMessage, Purge
from broker.jetstream.config import Storage
from broker.jetstream.errors import ErrCode, JetStreamError
from broker.store.messages import PurgePart

if TYPE_CHECKING:
    from broker.jetstream.stream.stream import Stream


def purge(stream: Stream, command: Purge) -> int | PurgePart | JetStreamError:
    """How many messages went, or for a part of a purge where to go on."""
    if stream.config.sealed:
        return JetStreamError(ErrCode.STREAM_SEALED)
    if stream.config.deny_purge:
        text = "stream purge not permitted"
        return JetStreamError.of(ErrCode.STREAM_PURGE_FAILED, err=text)
    store, up_to = stream.store, command.seq or None
    if command.start < 0:
        return store.purge(command.filter or None, up_to, command.keep)
    return store.purge_part(
        command.filter, up_to, command.keep, start=command.start, left=command.left
    )


def purged(result: object) -> bool:
    """Whether a purge with this result removed anything."""
    return isinstance(result, int | PurgePart) and bool(
        result.count if isinstance(result, PurgePart) else result
    )


def delete(stream: Stream, command: DeleteMessage) -> bool | JetStreamError:
    if stream.config.sealed:
        return JetStreamError(ErrCode.STREAM_SEALED)
    if stream.config.deny_delete:
        text = "message delete not permitted"
        return JetStreamError.of(ErrCode.STREAM_MSG_DELETE_FAILED, err=text)
    store, seq = stream.store, command.seq
    if store.remove(seq) if command.no_erase else store.erase(seq):
        return True
    if stream.config.storage is Storage.FILE and not store.first_seq <= seq <= store.last_seq:
        text = "stream store EOF" if seq > store.last_seq else "no message found"
        return JetStreamError.of(ErrCode.STREAM_MSG_DELETE_FAILED, err=text)
    return JetStreamError.of(ErrCode.SEQUENCE_NOT_FOUND, seq=seq)
