"""Bodies of API requests: which body an endpoint takes, and how strictly it is parsed.

Owns: the request Structs that are not configurations, the rules for empty, optional and required
bodies, direct get requests, and the name that a CONSUMER.CREATE subject gives to a consumer.
May not touch: state; whether the stream or consumer exists is checked later.
Spec: JetStream API: request bodies, strict JSON, MSG.GET and DIRECT.GET, CONSUMER.CREATE."""

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
from broker.jetstream.strict_json import Unsigned, WallTime, decode, decode_steps, invalid_json
from broker.subjects import Steps, finish, valid_subject

_BLANKS: Final = b" \t\r\n"


class NoBody(msgspec.Struct, frozen=True):
    """The body of an endpoint that takes none, or ignores it."""


class PagedRequest(msgspec.Struct, frozen=True):
    offset: int = 0


class StreamsRequest(msgspec.Struct, frozen=True):
    """STREAM.NAMES and STREAM.LIST: streams whose subjects overlap with `subject`."""

    offset: int = 0
    subject: str = ""


class StreamInfoRequest(msgspec.Struct, frozen=True):
    offset: int = 0
    deleted_details: bool = False
    subjects_filter: str = ""


class PurgeRequest(msgspec.Struct, frozen=True):
    """Remove messages that match `filter`: those below `seq`, or all but the newest `keep`."""

    seq: Unsigned = 0
    filter: str = ""
    keep: Unsigned = 0


class MsgGetRequest(msgspec.Struct, frozen=True, kw_only=True):
    """MSG.GET and DIRECT.GET. Times are None if not set."""

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
    """`peer` is a server name; `peer_id`, if set, is used instead."""

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


class _BodyRule(Enum):
    """How an endpoint treats the body before it is decoded."""

    PLAIN = auto()  # decode; an empty body counts as an empty object
    OPTIONAL = auto()  # decode a body that starts like an object or array, ignore any other
    REQUIRED = auto()  # refuse an empty request (10003)
    FORBIDDEN = auto()  # refuse anything but an empty request (10038)
    IGNORED = auto()
    LENIENT = auto()  # as PLAIN, but unknown fields are always ignored


_BODY_RULES: Final[dict[ApiKind, tuple[_BodyRule, type[RequestBody]]]] = {
    ApiKind.INFO: (_BodyRule.IGNORED, NoBody),
    ApiKind.STREAM_CREATE: (_BodyRule.PLAIN, StreamConfigRequest),
    ApiKind.STREAM_UPDATE: (_BodyRule.PLAIN, StreamConfigRequest),
    ApiKind.STREAM_NAMES: (_BodyRule.OPTIONAL, StreamsRequest),
    ApiKind.STREAM_LIST: (_BodyRule.OPTIONAL, StreamsRequest),
    ApiKind.STREAM_INFO: (_BodyRule.OPTIONAL, StreamInfoRequest),
    ApiKind.STREAM_DELETE: (_BodyRule.FORBIDDEN, NoBody),
    ApiKind.STREAM_PURGE: (_BodyRule.OPTIONAL, PurgeRequest),
    ApiKind.STREAM_MSG_GET: (_BodyRule.REQUIRED, MsgGetRequest),
    ApiKind.STREAM_MSG_DELETE: (_BodyRule.REQUIRED, MsgDeleteRequest),
    ApiKind.STREAM_SNAPSHOT: (_BodyRule.REQUIRED, SnapshotRequest),
    ApiKind.STREAM_RESTORE: (_BodyRule.REQUIRED, RestoreRequest),
    ApiKind.STREAM_PEER_REMOVE: (_BodyRule.REQUIRED, PeerRequest),
    ApiKind.STREAM_PEER_EVACUATE: (_BodyRule.REQUIRED, PeerRequest),
    ApiKind.STREAM_CANCEL_MOVE: (_BodyRule.IGNORED, NoBody),
    ApiKind.STREAM_LEADER_STEPDOWN: (_BodyRule.OPTIONAL, StepdownRequest),
    ApiKind.CONSUMER_CREATE: (_BodyRule.PLAIN, ConsumerCreateRequest),
    ApiKind.CONSUMER_NAMES: (_BodyRule.OPTIONAL, PagedRequest),
    ApiKind.CONSUMER_LIST: (_BodyRule.OPTIONAL, PagedRequest),
    ApiKind.CONSUMER_INFO: (_BodyRule.FORBIDDEN, NoBody),
    ApiKind.CONSUMER_DELETE: (_BodyRule.FORBIDDEN, NoBody),
    ApiKind.CONSUMER_PAUSE: (_BodyRule.OPTIONAL, PauseRequest),
    ApiKind.CONSUMER_UNPIN: (_BodyRule.LENIENT, UnpinRequest),
    ApiKind.CONSUMER_RESET: (_BodyRule.LENIENT, ResetRequest),
    ApiKind.CONSUMER_LEADER_STEPDOWN: (_BodyRule.OPTIONAL, StepdownRequest),
    ApiKind.DIRECT_GET: (_BodyRule.LENIENT, MsgGetRequest),
    ApiKind.META_LEADER_STEPDOWN: (_BodyRule.OPTIONAL, StepdownRequest),
    ApiKind.SERVER_REMOVE: (_BodyRule.REQUIRED, ServerPeerRequest),
    ApiKind.SERVER_EVACUATE: (_BodyRule.REQUIRED, ServerPeerRequest),
    ApiKind.SERVER_RETURN: (_BodyRule.REQUIRED, ServerPeerRequest),
    ApiKind.SERVER_STATUS: (_BodyRule.IGNORED, NoBody),
    ApiKind.SERVER_REBALANCE: (_BodyRule.IGNORED, NoBody),
    ApiKind.META_RESCUE: (_BodyRule.REQUIRED, RescueRequest),
    ApiKind.ACCOUNT_PURGE: (_BodyRule.IGNORED, NoBody),
    ApiKind.ACCOUNT_STREAM_MOVE: (_BodyRule.PLAIN, StreamMoveRequest),
    ApiKind.ACCOUNT_STREAM_CANCEL_MOVE: (_BodyRule.IGNORED, NoBody),
}


def decode_request(kind: ApiKind, body: bytes, *, strict: bool = True) -> RequestBody:
    """The body of a request, checked as far as possible without state.

    MSG.NEXT is not decoded here, see delivery/pull_queue.py.
    """
    return finish(request_steps(kind, body, strict=strict))


def request_steps(kind: ApiKind, body: bytes, *, strict: bool) -> Steps[RequestBody]:
    """`decode_request` in steps."""
    rule, wanted = _BODY_RULES[kind]
    match rule:
        case _BodyRule.IGNORED:
            return NoBody()
        case _BodyRule.FORBIDDEN:
            if not is_empty_request(body):
                raise JetStreamError(ErrCode.NOT_EMPTY_REQUEST)
            return NoBody()
        case _BodyRule.OPTIONAL if body.lstrip(_BLANKS)[:1] not in (b"{", b"["):
            return wanted()
        case _BodyRule.REQUIRED if is_empty_request(body):
            raise JetStreamError(ErrCode.BAD_REQUEST)
        case _BodyRule.LENIENT:
            strict = False
    request = yield from decode_steps(body, wanted, strict=strict)
    _check_body(kind, request)
    return request


def is_empty_request(body: bytes) -> bool:
    """No bytes, or an empty object with any whitespace."""
    text = body.strip(_BLANKS)
    return not body or (text[:1] + text[-1:] == b"{}" and not text[1:-1].strip(_BLANKS))


@dataclass(frozen=True, slots=True)
class StatusAnswer:
    """An answer that is only a status line in the headers, without payload."""

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
    """The request of DIRECT.GET, or the status to answer.

    `subject` are the tokens after the stream name; they ask for the last message on that subject.
    """
    if not level_is_met(required_level):
        return REQUIRED_API_LEVEL
    if not body and not subject:
        return EMPTY_REQUEST
    try:
        request = decode(body, MsgGetRequest, strict=False)
    except JetStreamError:
        return MALFORMED_REQUEST
    selectors = _selectors(request)
    if subject:
        limits = request.batch or request.up_to_seq or request.up_to_time is not None
        if selectors or limits:
            return BAD_REQUEST
        return msgspec.structs.replace(request, last_by_subj=subject)
    if not selectors:
        return EMPTY_REQUEST
    return BAD_REQUEST if _has_conflict(request, selectors) else request


def named_consumer(request: ConsumerCreateRequest, api: ApiRequest) -> ConsumerConfig:
    """The requested configuration, with the name from the subject ("": to be generated)."""
    config = request.config
    if api.stream != request.stream_name:
        raise JetStreamError(ErrCode.STREAM_MISMATCH)
    if has_path_separator(api.consumer or config.name):
        raise JetStreamError(ErrCode.CONSUMER_NAME_CONTAINS_PATH_SEPARATORS)
    _check_durable_name(config, api)
    if api.rest and config.filter_subjects:
        raise JetStreamError(ErrCode.CONSUMER_MULTIPLE_FILTERS_NOT_ALLOWED)
    if api.rest and config.filter_subject != api.rest:
        raise JetStreamError(ErrCode.CONSUMER_CREATE_FILTER_SUBJECT_MISMATCH)
    return msgspec.structs.replace(config, name=api.consumer) if api.consumer else config


def _check_body(kind: ApiKind, request: RequestBody) -> None:
    match request:
        case MsgGetRequest() if kind is ApiKind.STREAM_MSG_GET:
            selectors = _selectors(request) - {"multi_last"}
            if request.batch > 0 or request.max_bytes > 0 or not selectors:
                raise JetStreamError(ErrCode.BAD_REQUEST)
            if _has_conflict(request, selectors):
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


def _selectors(request: MsgGetRequest) -> set[str]:
    """The selectors that a request sets."""
    used = {
        "seq": request.seq > 0,
        "last_by_subj": request.last_by_subj != "",
        "next_by_subj": request.next_by_subj != "",
        "start_time": request.start_time is not None,
        "multi_last": bool(request.multi_last),
    }
    return {name for name, is_used in used.items() if is_used}


_CONFLICTING: Final[tuple[set[str], ...]] = (
    {"seq", "last_by_subj"},
    {"seq", "start_time"},
    {"start_time", "last_by_subj"},
    {"last_by_subj", "next_by_subj"},
    {"last_by_subj", "multi_last"},
    {"next_by_subj", "multi_last"},
)


def _has_conflict(request: MsgGetRequest, selectors: set[str]) -> bool:
    if any(pair <= selectors for pair in _CONFLICTING):
        return True
    if "last_by_subj" in selectors and request.batch > 0:
        return True
    return request.up_to_seq > 0 and request.up_to_time is not None


def _check_durable_name(config: ConsumerConfig, api: ApiRequest) -> None:
    """Each form of the create subject has its own rule for durable names."""
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
