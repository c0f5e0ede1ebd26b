"""API answers as bytes: `type` first, then the error or the result.

Owns: the answer bodies that are not info documents, paging, and the encoding of all answers.
May not touch: state, subjects, which node answers.
Spec: JetStream API responses; success and failure have the same `type`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

import msgspec

from broker.jetstream.api.info import (
    AccountInfo,
    ClusterStatus,
    ConsumerInfo,
    StoredMessageInfo,
    StreamInfo,
    StreamState,
)
from broker.jetstream.api.subjects import ApiKind
from broker.jetstream.config.stream_config import StreamConfig
from broker.jetstream.errors import ErrorBody, JetStreamError
from broker.jetstream.strict_json import WallTime, always, encode, to_wire
from broker.subjects import Steps

T = TypeVar("T")

NAMES_LIMIT: Final = 1024
LIST_LIMIT: Final = 256
INFOS_PER_STEP: Final = 16
SUBJECT_DETAILS_LIMIT: Final = 100_000


class Paged(msgspec.Struct, frozen=True, kw_only=True):
    total: int = always(0)
    offset: int = always(0)
    limit: int = always(0)


class Success(msgspec.Struct, frozen=True):
    """DELETE, MSG.DELETE, STEPDOWN, PEER.REMOVE and SERVER.REMOVE."""

    success: bool = False


class DidCreate(msgspec.Struct, frozen=True):
    did_create: bool = False


class Purged(msgspec.Struct, frozen=True):
    success: bool = False
    purged: int = always(0)


class GotMessage(msgspec.Struct, frozen=True):
    message: StoredMessageInfo


class SnapshotStarted(msgspec.Struct, frozen=True):
    config: StreamConfig
    state: StreamState


class RestoreReady(msgspec.Struct, frozen=True):
    deliver_subject: str = always("")


class Paused(msgspec.Struct, frozen=True):
    paused: bool = always(value=False)
    pause_until: WallTime = always(0)
    pause_remaining: int = 0


class Reset(msgspec.Struct, frozen=True):
    reset_seq: int = always(0)


class Initiated(msgspec.Struct, frozen=True):
    initiated: bool = False


class Transfers(msgspec.Struct, frozen=True):
    """SERVER.REBALANCE: how many leaderships are being transferred. 0: they are even."""

    transfers: int = always(0)


class Rescued(msgspec.Struct, frozen=True):
    server: str = always("")
    server_id: str = always("")
    prev_quorum: int = 0
    new_quorum: int = 0


class StreamNames(msgspec.Struct, frozen=True):
    streams: tuple[str, ...] | None = always(None)


class StreamList(msgspec.Struct, frozen=True):
    streams: tuple[StreamInfo, ...] = always(())
    missing: tuple[str, ...] = ()
    offline: dict[str, str] = {}


class ConsumerNames(msgspec.Struct, frozen=True):
    consumers: tuple[str, ...] = always(())


class ConsumerList(msgspec.Struct, frozen=True):
    consumers: tuple[ConsumerInfo, ...] = always(())
    missing: tuple[str, ...] = ()
    offline: dict[str, str] = {}


class PubAck(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to a publish; it has no `type`. On failure `seq` is 0."""

    error: ErrorBody | None = None
    stream: str
    seq: int = always(0)
    domain: str = ""
    duplicate: bool = False
    val: str = ""
    batch: str = ""
    count: int = 0


ResponsePart = (
    AccountInfo
    | ClusterStatus
    | ConsumerInfo
    | ConsumerList
    | ConsumerNames
    | DidCreate
    | GotMessage
    | Initiated
    | Paged
    | Paused
    | Purged
    | Rescued
    | Reset
    | RestoreReady
    | SnapshotStarted
    | StreamInfo
    | StreamList
    | StreamNames
    | Success
    | Transfers
)

# Fields that nats-server never omits appear in failures too, at zero.
_IN_FAILURES: Final[dict[ApiKind, tuple[ResponsePart, ...]]] = {
    ApiKind.STREAM_INFO: (Paged(),),
    ApiKind.STREAM_NAMES: (Paged(), StreamNames()),
    ApiKind.STREAM_LIST: (Paged(), StreamList()),
    ApiKind.CONSUMER_NAMES: (Paged(), ConsumerNames()),
    ApiKind.CONSUMER_LIST: (Paged(), ConsumerList()),
    ApiKind.STREAM_PURGE: (Purged(),),
    ApiKind.STREAM_RESTORE: (RestoreReady(),),
    ApiKind.CONSUMER_PAUSE: (Paused(),),
    ApiKind.CONSUMER_RESET: (Reset(),),
    ApiKind.META_RESCUE: (Rescued(),),
}


def encode_response(kind: ApiKind, *parts: ResponsePart) -> bytes:
    """A success body: the fields of all parts in one object, in the order given.

    STREAM.CREATE is (StreamInfo, DidCreate), STREAM.INFO (Paged, StreamInfo), lists and names
    (Paged, list), CONSUMER.RESET (ConsumerInfo, Reset); the others have one part.
    """
    return _body(kind, None, parts)


def list_steps(kind: ApiKind, paged: Paged, found: StreamList | ConsumerList) -> Steps[bytes]:
    """Like `encode_response` of both, a few infos per step: each takes a tenth of a millisecond."""
    infos: Sequence[StreamInfo] | Sequence[ConsumerInfo]
    if isinstance(found, StreamList):
        name, infos = "streams", found.streams
    else:
        name, infos = "consumers", found.consumers
    encoded: list[msgspec.Raw] = []
    for at, info in enumerate(infos, 1):
        encoded.append(msgspec.Raw(encode(info)))
        if at % INFOS_PER_STEP == 0:
            yield
    rest = to_wire(msgspec.structs.replace(found, **{name: ()}))
    assert isinstance(rest, dict), "an answer part is a Struct"
    body = {"type": kind.response_type} | to_wire(paged) | rest | {name: encoded}  # type: ignore[operator]
    return msgspec.json.encode(body)


def encode_error(kind: ApiKind, error: JetStreamError) -> bytes:
    """A failure body: the same `type`, and the error."""
    return _body(kind, error.body(), _IN_FAILURES.get(kind, ()))


def encode_pub_ack(ack: PubAck) -> bytes:
    return encode(ack)


def encode_pub_error(stream: str, error: JetStreamError) -> bytes:
    return encode(PubAck(error=error.body(), stream=stream))


def page(items: Sequence[T], offset: int, *, limit: int) -> tuple[Sequence[T], Paged]:
    """One page of sorted `items`. An offset outside is clamped to the nearest end."""
    offset = min(max(offset, 0), len(items))
    part = items[offset : offset + limit]
    return part, Paged(total=len(items), offset=offset, limit=limit)


def encode_stream_names(names: Sequence[str], offset: int) -> bytes:
    """`names` are all that match, in any order. If there is none, `streams` is null."""
    part, paged = page(sorted(names), offset, limit=NAMES_LIMIT)
    found = StreamNames(tuple(part) or None)
    return encode_response(ApiKind.STREAM_NAMES, paged, found)


def encode_consumer_names(names: Sequence[str], offset: int) -> bytes:
    part, paged = page(sorted(names), offset, limit=NAMES_LIMIT)
    return encode_response(ApiKind.CONSUMER_NAMES, paged, ConsumerNames(tuple(part)))


def _body(kind: ApiKind, error: ErrorBody | None, parts: Sequence[ResponsePart]) -> bytes:
    body: dict[str, object] = {"type": kind.response_type}
    if error is not None:
        body["error"] = to_wire(error)
    for part in parts:
        fields = to_wire(part)
        assert isinstance(fields, dict), "an answer part is a Struct"
        body |= fields
    return msgspec.json.encode(body)
