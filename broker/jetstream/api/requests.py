"""Bodies of API requests: which body an endpoint takes, and how strictly it is read.

Owns: the request Structs that are not configurations, and the empty/optional/required rules.
May not touch: state; whether the asset exists is asked later.
Spec: JetStream sheet 0 (empty requests, optional bodies, strict JSON), 1.5, 1.6."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

import msgspec

from broker.jetstream.api.info import StreamState
from broker.jetstream.api.subjects import ApiKind, ApiRequest, CreateForm
from broker.jetstream.config.api_levels import level_is_met
from broker.jetstream.config.consumer_config import ConsumerConfig, ConsumerCreateRequest
from broker.jetstream.config.consumer_rules import check_group_name
from broker.jetstream.config.names import has_path_separator
from broker.jetstream.config.stream_config import Placement, StreamConfig, StreamConfigRequest
from broker.jetstream.errors import ErrCode, JetStreamError
from broker.jetstream.strict_json import Unsigned, WallTime, decode, invalid_json
from broker.subjects import valid_subject


class NoBody(msgspec.Struct, frozen=True):
    """The endpoint takes no body, or ignores it."""


class PagedRequest(msgspec.Struct, frozen=True):
    offset: int = 0


class StreamsRequest(msgspec.Struct, frozen=True):
    """STREAM.NAMES and STREAM.LIST: streams whose subjects collide with `subject`."""

    offset: int = 0
    subject: str = ""


class StreamInfoRequest(msgspec.Struct, frozen=True):
    offset: int = 0
    deleted_details: bool = False
    subjects_filter: str = ""


class PurgeRequest(msgspec.Struct, frozen=True):
    """Remove below `seq`, or all but the newest `keep`, of what matches `filter`."""

    seq: Unsigned = 0
    filter: str = ""
    keep: Unsigned = 0


class MsgGetRequest(msgspec.Struct, frozen=True, kw_only=True):
    """MSG.GET and DIRECT.GET. Times are None when not given."""

    seq: Unsigned = 0
    last_by_subj: str = ""
    next_by_subj: str = ""
    batch: int = 0
    max_bytes: int = 0
    start_time: WallTime | None = None
    multi_last: tuple[str, ...] = ()
    up_to_seq: Unsigned = 0
    up_to_time: WallTime | None = None
    no_hdr: bool = False


class MsgDeleteRequest(msgspec.Struct, frozen=True):
    seq: Unsigned = 0
    no_erase: bool = False


class SnapshotRequest(msgspec.Struct, frozen=True, kw_only=True):
    deliver_subject: str = ""
    no_consumers: bool = False
    chunk_size: int = 0
    window_size: int = 0
    jsck: bool = False


class RestoreRequest(msgspec.Struct, frozen=True, kw_only=True):
    config: StreamConfig = StreamConfig()
    state: StreamState = StreamState()


class PeerRequest(msgspec.Struct, frozen=True):
    peer: str = ""


class StepdownRequest(msgspec.Struct, frozen=True):
    placement: Placement | None = None


class PauseRequest(msgspec.Struct, frozen=True):
    pause_until: WallTime = 0


class UnpinRequest(msgspec.Struct, frozen=True):
    group: str = ""


class ResetRequest(msgspec.Struct, frozen=True):
    seq: Unsigned = 0


class ServerPeerRequest(msgspec.Struct, frozen=True):
    """`peer` is a server name; `peer_id`, if given, is used in its place."""

    peer: str = ""
    peer_id: str = ""


class RescueRequest(msgspec.Struct, frozen=True):
    quorum_needed: int = 0


class StreamMoveRequest(msgspec.Struct, frozen=True):
    server: str = ""
    cluster: str = ""
    domain: str = ""
    tags: tuple[str, ...] = ()


RequestBody = (
    NoBody
    | PagedRequest
    | StreamsRequest
    | StreamInfoRequest
    | StreamConfigRequest
    | ConsumerCreateRequest
    | PurgeRequest
    | MsgGetRequest
    | MsgDeleteRequest
    | SnapshotRequest
    | RestoreRequest
    | PeerRequest
    | StepdownRequest
    | PauseRequest
    | UnpinRequest
    | ResetRequest
    | ServerPeerRequest
    | RescueRequest
    | StreamMoveRequest
)


class _Reading(Enum):
    """How an endpoint looks at the bytes before it decodes them."""

    PLAIN = auto()  # decode; nothing at all counts as an object without keys
    OPTIONAL = auto()  # decode only what starts like an object or array, ignore the rest
    REQUIRED = auto()  # an empty request is a bad request (10003)
    FORBIDDEN = auto()  # anything but an empty request is refused (10038)
    IGNORED = auto()
    LENIENT = auto()  # as PLAIN, but unknown fields never matter


_READINGS: Final[dict[ApiKind, tuple[_Reading, type[RequestBody]]]] = {
    ApiKind.INFO: (_Reading.IGNORED, NoBody),
    ApiKind.STREAM_CREATE: (_Reading.PLAIN, StreamConfigRequest),
    ApiKind.STREAM_UPDATE: (_Reading.PLAIN, StreamConfigRequest),
    ApiKind.STREAM_NAMES: (_Reading.OPTIONAL, StreamsRequest),
    ApiKind.STREAM_LIST: (_Reading.OPTIONAL, StreamsRequest),
    ApiKind.STREAM_INFO: (_Reading.OPTIONAL, StreamInfoRequest),
    ApiKind.STREAM_DELETE: (_Reading.FORBIDDEN, NoBody),
    ApiKind.STREAM_PURGE: (_Reading.OPTIONAL, PurgeRequest),
    ApiKind.STREAM_MSG_GET: (_Reading.REQUIRED, MsgGetRequest),
    ApiKind.STREAM_MSG_DELETE: (_Reading.REQUIRED, MsgDeleteRequest),
    ApiKind.STREAM_SNAPSHOT: (_Reading.REQUIRED, SnapshotRequest),
    ApiKind.STREAM_RESTORE: (_Reading.REQUIRED, RestoreRequest),
    ApiKind.STREAM_PEER_REMOVE: (_Reading.REQUIRED, PeerRequest),
    ApiKind.STREAM_PEER_EVACUATE: (_Reading.REQUIRED, PeerRequest),
    ApiKind.STREAM_CANCEL_MOVE: (_Reading.IGNORED, NoBody),
    ApiKind.STREAM_LEADER_STEPDOWN: (_Reading.OPTIONAL, StepdownRequest),
    ApiKind.CONSUMER_CREATE: (_Reading.PLAIN, ConsumerCreateRequest),
    ApiKind.CONSUMER_NAMES: (_Reading.OPTIONAL, PagedRequest),
    ApiKind.CONSUMER_LIST: (_Reading.OPTIONAL, PagedRequest),
    ApiKind.CONSUMER_INFO: (_Reading.FORBIDDEN, NoBody),
    ApiKind.CONSUMER_DELETE: (_Reading.FORBIDDEN, NoBody),
    ApiKind.CONSUMER_PAUSE: (_Reading.OPTIONAL, PauseRequest),
    ApiKind.CONSUMER_UNPIN: (_Reading.LENIENT, UnpinRequest),
    ApiKind.CONSUMER_RESET: (_Reading.LENIENT, ResetRequest),
    ApiKind.CONSUMER_LEADER_STEPDOWN: (_Reading.OPTIONAL, StepdownRequest),
    ApiKind.DIRECT_GET: (_Reading.LENIENT, MsgGetRequest),
    ApiKind.META_LEADER_STEPDOWN: (_Reading.OPTIONAL, StepdownRequest),
    ApiKind.SERVER_REMOVE: (_Reading.REQUIRED, ServerPeerRequest),
    ApiKind.SERVER_EVACUATE: (_Reading.REQUIRED, ServerPeerRequest),
    ApiKind.META_RESCUE: (_Reading.REQUIRED, RescueRequest),
    ApiKind.ACCOUNT_PURGE: (_Reading.IGNORED, NoBody),
    ApiKind.ACCOUNT_STREAM_MOVE: (_Reading.PLAIN, StreamMoveRequest),
    ApiKind.ACCOUNT_STREAM_CANCEL_MOVE: (_Reading.IGNORED, NoBody),
}


def decode_request(kind: ApiKind, body: bytes, *, strict: bool = True) -> RequestBody:
    """The body of a request, checked as far as it can be without state.

    MSG.NEXT is not read here: its integer and JSON forms belong to the pull engine.
    """
    reading, wanted = _READINGS[kind]
    match reading:
        case _Reading.IGNORED:
            return NoBody()
        case _Reading.FORBIDDEN:
            if not is_empty_request(body):
                raise JetStreamError(ErrCode.NOT_EMPTY_REQUEST)
            return NoBody()
        case _Reading.OPTIONAL if body.lstrip(b" \t\r\n")[:1] not in (b"{", b"["):
            return wanted()
        case _Reading.REQUIRED if is_empty_request(body):
            raise JetStreamError(ErrCode.BAD_REQUEST)
        case _Reading.LENIENT:
            strict = False
    request = decode(body, wanted, strict=strict)
    _check(kind, request)
    return request


def is_empty_request(body: bytes) -> bool:
    """No bytes, or an object without keys however it is spaced."""
    if not body or body == b"{}":
        return True
    try:
        return bool(msgspec.json.decode(body) == {})
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


@dataclass(frozen=True, slots=True)
class StatusAnswer:
    """A status line answer: headers only, no payload."""

    code: int
    text: str

    @property
    def header(self) -> bytes:
        return f"NATS/1.0 {self.code} {self.text}\r\n\r\n".encode()


EMPTY_REQUEST: Final = StatusAnswer(408, "Empty Request")
MALFORMED_REQUEST: Final = StatusAnswer(408, "Malformed Request")
BAD_REQUEST: Final = StatusAnswer(408, "Bad Request")
MESSAGE_NOT_FOUND: Final = StatusAnswer(404, "Message Not Found")
NO_RESULTS: Final = StatusAnswer(404, "No Results")
TOO_MANY_RESULTS: Final = StatusAnswer(413, "Too Many Results")
REQUIRED_API_LEVEL: Final = StatusAnswer(412, "Required Api Level")


def parse_direct_get(
    subject: str, body: bytes, *, required_level: bytes | None = None
) -> MsgGetRequest | StatusAnswer:
    """What DIRECT.GET asks for, or the status to answer.

    `subject` is what followed the stream name; such a request means the last message on it.
    """
    if not level_is_met(required_level):
        return REQUIRED_API_LEVEL
    if not body and not subject:
        return EMPTY_REQUEST
    try:
        request = decode(body, MsgGetRequest, strict=False)
    except JetStreamError:
        return MALFORMED_REQUEST
    chosen = _chosen(request)
    if subject:
        limits = request.batch or request.up_to_seq or request.up_to_time is not None
        if chosen or limits:
            return BAD_REQUEST
        return msgspec.structs.replace(request, last_by_subj=subject)
    if not chosen:
        return EMPTY_REQUEST
    return BAD_REQUEST if _is_contradictory(request, chosen) else request


def named_consumer(request: ConsumerCreateRequest, api: ApiRequest) -> ConsumerConfig:
    """The requested configuration with the name its subject gives it ("" = make one up)."""
    config = request.config
    if api.stream != request.stream_name:
        raise JetStreamError(ErrCode.STREAM_MISMATCH)
    if has_path_separator(api.consumer or config.name):
        raise JetStreamError(ErrCode.CONSUMER_NAME_CONTAINS_PATH_SEPARATORS)
    _check_form(config, api)
    if api.rest and config.filter_subjects:
        raise JetStreamError(ErrCode.CONSUMER_MULTIPLE_FILTERS_NOT_ALLOWED)
    if api.rest and config.filter_subject != api.rest:
        raise JetStreamError(ErrCode.CONSUMER_CREATE_FILTER_SUBJECT_MISMATCH)
    return msgspec.structs.replace(config, name=api.consumer) if api.consumer else config


def _check(kind: ApiKind, request: RequestBody) -> None:
    match request:
        case MsgGetRequest() if kind is ApiKind.STREAM_MSG_GET:
            chosen = _chosen(request) - {"multi_last"}
            if request.batch > 0 or request.max_bytes > 0 or not chosen:
                raise JetStreamError(ErrCode.BAD_REQUEST)
            if _is_contradictory(request, chosen):
                raise JetStreamError(ErrCode.BAD_REQUEST)
        case PurgeRequest(seq=seq, keep=keep) if seq > 0 and keep > 0:
            raise JetStreamError(ErrCode.BAD_REQUEST)
        case UnpinRequest(group=""):
            raise invalid_json("consumer group not specified")
        case UnpinRequest(group=group):
            check_group_name(group)
        case SnapshotRequest(deliver_subject=subject):
            if not valid_subject(subject.encode(), wildcards=False):
                raise JetStreamError(ErrCode.SNAPSHOT_DELIVER_SUBJECT_INVALID)


def _chosen(request: MsgGetRequest) -> set[str]:
    """The selectors a request uses."""
    used = {
        "seq": request.seq > 0,
        "last_by_subj": request.last_by_subj != "",
        "next_by_subj": request.next_by_subj != "",
        "start_time": request.start_time is not None,
        "multi_last": bool(request.multi_last),
    }
    return {name for name, is_used in used.items() if is_used}


_TOGETHER: Final[tuple[set[str], ...]] = (
    {"seq", "last_by_subj"},
    {"seq", "start_time"},
    {"start_time", "last_by_subj"},
    {"last_by_subj", "next_by_subj"},
    {"last_by_subj", "multi_last"},
    {"next_by_subj", "multi_last"},
)


def _is_contradictory(request: MsgGetRequest, chosen: set[str]) -> bool:
    if any(pair <= chosen for pair in _TOGETHER):
        return True
    if "last_by_subj" in chosen and request.batch > 0:
        return True
    return request.up_to_seq > 0 and request.up_to_time is not None


def _check_form(config: ConsumerConfig, api: ApiRequest) -> None:
    """Each form of the create subject has its own idea of durable names."""
    durable = config.durable_name
    match api.form:
        case CreateForm.DURABLE:
            if not api.consumer:
                raise JetStreamError(ErrCode.CONSUMER_DURABLE_NAME_NOT_IN_SUBJECT)
            if not durable:
                raise JetStreamError(ErrCode.CONSUMER_DURABLE_NAME_NOT_SET)
            if durable != api.consumer:
                raise JetStreamError(ErrCode.CONSUMER_DURABLE_NAME_NOT_MATCH_SUBJECT)
        case CreateForm.NAMED:
            if durable not in ("", api.consumer):
                raise JetStreamError(ErrCode.CONSUMER_DURABLE_NAME_NOT_MATCH_SUBJECT)
        case _:
            if durable:
                raise JetStreamError(ErrCode.CONSUMER_EPHEMERAL_WITH_DURABLE_NAME)
