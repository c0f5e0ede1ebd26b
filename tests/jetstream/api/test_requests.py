"""Bodies of API requests: strict JSON, empty and optional bodies, direct get."""

from __future__ import annotations

import pytest

from broker.jetstream.api.requests import (
    BAD_REQUEST,
    EMPTY_REQUEST,
    MALFORMED_REQUEST,
    REQUIRED_API_LEVEL,
    MsgDeleteRequest,
    MsgGetRequest,
    NoBody,
    PagedRequest,
    PauseRequest,
    PurgeRequest,
    RequestBody,
    ResetRequest,
    RestoreRequest,
    SnapshotRequest,
    StatusAnswer,
    StepdownRequest,
    StreamInfoRequest,
    StreamsRequest,
    UnpinRequest,
    decode_request,
    is_empty_request,
    parse_direct_get,
)
from broker.jetstream.api.subjects import ApiKind
from broker.jetstream.config import ConsumerCreateRequest, Discard, StreamConfigRequest
from broker.jetstream.config.api_levels import API_LEVEL, level_is_met
from broker.jetstream.config.stream_config import Placement
from broker.jetstream.errors import JetStreamError

S = 1_000_000_000


@pytest.mark.parametrize(
    ("kind", "body", "request_"),
    [
        (ApiKind.INFO, b"anything", NoBody()),
        (ApiKind.STREAM_NAMES, b"", StreamsRequest()),
        (ApiKind.STREAM_NAMES, b"plain text", StreamsRequest()),
        (ApiKind.STREAM_NAMES, b' {"offset":3,"subject":"a.>"}', StreamsRequest(3, "a.>")),
        (ApiKind.STREAM_LIST, b'{"Offset":3}', StreamsRequest(3)),
        (ApiKind.CONSUMER_LIST, b'{"offset":3}', PagedRequest(3)),
        (
            ApiKind.STREAM_INFO,
            b'{"subjects_filter":">","deleted_details":true}',
            StreamInfoRequest(0, True, ">"),
        ),
        (ApiKind.STREAM_DELETE, b"", NoBody()),
        (ApiKind.STREAM_DELETE, b" { } ", NoBody()),
        (ApiKind.CONSUMER_INFO, b"{}", NoBody()),
        (ApiKind.STREAM_PURGE, b"", PurgeRequest()),
        (ApiKind.STREAM_PURGE, b'{"filter":"a","keep":1}', PurgeRequest(filter="a", keep=1)),
        (ApiKind.STREAM_MSG_DELETE, b'{"seq":5,"no_erase":true}', MsgDeleteRequest(5, True)),
        (ApiKind.STREAM_MSG_GET, b'{"seq":5}', MsgGetRequest(seq=5)),
        (
            ApiKind.STREAM_MSG_GET,
            b'{"next_by_subj":"a.*","start_time":"1970-01-01T00:00:05Z"}',
            MsgGetRequest(next_by_subj="a.*", start_time=5 * S),
        ),
        (ApiKind.CONSUMER_PAUSE, b"", PauseRequest()),
        (ApiKind.CONSUMER_PAUSE, b'{"pause_until":"1970-01-01T00:00:01Z"}', PauseRequest(S)),
        (ApiKind.CONSUMER_RESET, b"", ResetRequest()),
        (ApiKind.CONSUMER_RESET, b'{"seq":9,"unknown":1}', ResetRequest(9)),
        (ApiKind.CONSUMER_UNPIN, b'{"group":"g","unknown":1}', UnpinRequest("g")),
        (
            ApiKind.STREAM_LEADER_STEPDOWN,
            b'{"placement":{"preferred":"n1"}}',
            StepdownRequest(Placement(preferred="n1")),
        ),
        (
            ApiKind.STREAM_SNAPSHOT,
            b'{"deliver_subject":"d","jsck":true}',
            SnapshotRequest(deliver_subject="d", jsck=True),
        ),
    ],
)
def test_bodies(kind: ApiKind, body: bytes, request_: RequestBody) -> None:
    assert decode_request(kind, body) == request_


def test_create_bodies() -> None:
    stream = decode_request(ApiKind.STREAM_CREATE, b'{"NAME":"A","Discard":"New","sources":null}')
    assert stream == StreamConfigRequest(name="A", discard=Discard.NEW)
    assert decode_request(ApiKind.STREAM_CREATE, b"") == StreamConfigRequest()
    consumer = decode_request(ApiKind.CONSUMER_CREATE, b'{"stream_name":"S","config":null}')
    assert consumer == ConsumerCreateRequest(stream_name="S")
    restore = decode_request(
        ApiKind.STREAM_RESTORE,
        b'{"config":{"name":"A"},"state":{"messages":1,"first_ts":"1970-01-01T00:00:01Z"}}',
    )
    assert isinstance(restore, RestoreRequest)
    assert (restore.config.name, restore.state.first_ts) == ("A", S)


@pytest.mark.parametrize(
    ("kind", "body", "err_code", "description"),
    [
        (ApiKind.STREAM_DELETE, b"x", 10038, "expected an empty request payload"),
        (ApiKind.CONSUMER_INFO, b'{"a":1}', 10038, "expected an empty request payload"),
        (ApiKind.CONSUMER_DELETE, b"[]", 10038, "expected an empty request payload"),
        (ApiKind.STREAM_MSG_GET, b"", 10003, "bad request"),
        (ApiKind.STREAM_MSG_GET, b"{}", 10003, "bad request"),
        (ApiKind.STREAM_MSG_GET, b'{"seq":0}', 10003, "bad request"),
        (ApiKind.STREAM_MSG_GET, b'{"seq":1,"batch":1}', 10003, "bad request"),
        (ApiKind.STREAM_MSG_GET, b'{"seq":1,"max_bytes":1}', 10003, "bad request"),
        (ApiKind.STREAM_MSG_GET, b'{"seq":1,"last_by_subj":"a"}', 10003, "bad request"),
        (
            ApiKind.STREAM_MSG_GET,
            b'{"seq":1,"start_time":"2020-01-01T00:00:00Z"}',
            10003,
            "bad request",
        ),
        (
            ApiKind.STREAM_MSG_GET,
            b'{"last_by_subj":"a","next_by_subj":"b"}',
            10003,
            "bad request",
        ),
        (ApiKind.STREAM_MSG_DELETE, b"", 10003, "bad request"),
        (ApiKind.STREAM_PEER_REMOVE, b"", 10003, "bad request"),
        (ApiKind.STREAM_SNAPSHOT, b"{}", 10003, "bad request"),
        (ApiKind.STREAM_PURGE, b'{"seq":1,"keep":1}', 10003, "bad request"),
        (
            ApiKind.STREAM_SNAPSHOT,
            b'{"deliver_subject":"a.*"}',
            10015,
            "deliver subject not valid",
        ),
        (ApiKind.CONSUMER_UNPIN, b"", 10025, "invalid JSON: consumer group not specified"),
        (
            ApiKind.STREAM_CREATE,
            b'{"name":"A","bogus":1}',
            10025,
            'invalid JSON: json: unknown field "bogus"',
        ),
        (
            ApiKind.STREAM_CREATE,
            b'{"mirror":{"name":"A","bogus":1}}',
            10025,
            'invalid JSON: json: unknown field "bogus"',
        ),
        (
            ApiKind.STREAM_CREATE,
            b'{"retention":"Limits"}',
            10025,
            'invalid JSON: can not unmarshal "\\"Limits\\""',
        ),
        (ApiKind.STREAM_CREATE, b'{"name":', 10025, "invalid JSON: unexpected EOF"),
        (ApiKind.STREAM_NAMES, b'{"limit":1}', 10025, 'invalid JSON: json: unknown field "limit"'),
    ],
)
def test_refused_bodies(kind: ApiKind, body: bytes, err_code: int, description: str) -> None:
    with pytest.raises(JetStreamError) as refused:
        decode_request(kind, body)
    assert (refused.value.err_code, refused.value.description) == (err_code, description)


@pytest.mark.parametrize(
    "body",
    [
        b'{"subjects":"x"}',
        b'{"max_msgs":"1"}',
        b'{"max_msgs":1.0}',
        b'{"max_msgs":true}',
        b'{"max_msgs":9223372036854775808}',
        b'{"max_msgs":-9223372036854775809}',
        b'{"first_seq":18446744073709551616}',
        b'{"max_msgs":' + b"9" * 10_000 + b"}",
        b'{"max_msgs":1e400}',
        b'{"sources":[{"opt_start_seq":18446744073709551616}]}',
        b'{"max_msg_size":4294967296}',
        b'{"first_seq":-1}',
        b'{"sealed":1}',
        b'{"subjects":[1]}',
        b'{"mirror":[]}',
        b'{"mirror":{"opt_start_time":"yesterday"}}',
        b'{"mirror":{"opt_start_time":5}}',
        b'{"metadata":{"a":1}}',
        b'{"retention":1}',
        b"[]",
        b'"text"',
        b"not json",
        b'{"name":"\xff"}',
        b"[" * 100_000,
    ],
)
@pytest.mark.parametrize("strict", [True, False])
def test_wrong_types_are_refused_strict_or_not(body: bytes, *, strict: bool) -> None:
    with pytest.raises(JetStreamError) as refused:
        decode_request(ApiKind.STREAM_CREATE, body, strict=strict)
    assert refused.value.err_code == 10025


def test_unknown_fields_are_ignored_when_not_strict() -> None:
    request = decode_request(ApiKind.STREAM_CREATE, b'{"name":"A","bogus":1}', strict=False)
    assert request == StreamConfigRequest(name="A")


@pytest.mark.parametrize(
    ("body", "is_empty"),
    [
        (b"", True),
        (b"{}", True),
        (b" {\n} ", True),
        (b"[]", False),
        (b"null", False),
        (b"x", False),
    ],
)
def test_empty_requests(body: bytes, *, is_empty: bool) -> None:
    assert is_empty_request(body) is is_empty


@pytest.mark.parametrize(
    ("subject", "body", "answer"),
    [
        ("", b"", EMPTY_REQUEST),
        ("", b"{}", EMPTY_REQUEST),
        ("", b'{"batch":5}', EMPTY_REQUEST),
        ("", b"x", MALFORMED_REQUEST),
        ("a", b"x", MALFORMED_REQUEST),
        ("", b'{"seq":1,"last_by_subj":"a"}', BAD_REQUEST),
        ("", b'{"seq":1,"start_time":"2020-01-01T00:00:00Z"}', BAD_REQUEST),
        ("", b'{"last_by_subj":"a","start_time":"2020-01-01T00:00:00Z"}', BAD_REQUEST),
        ("", b'{"last_by_subj":"a","next_by_subj":"b"}', BAD_REQUEST),
        ("", b'{"last_by_subj":"a","batch":1}', BAD_REQUEST),
        ("", b'{"last_by_subj":"a","multi_last":["b"]}', BAD_REQUEST),
        ("", b'{"next_by_subj":"a","multi_last":["b"]}', BAD_REQUEST),
        (
            "",
            b'{"multi_last":["b"],"up_to_seq":1,"up_to_time":"2020-01-01T00:00:00Z"}',
            BAD_REQUEST,
        ),
        ("a", b'{"seq":1}', BAD_REQUEST),
        ("a", b'{"batch":1}', BAD_REQUEST),
        ("a", b'{"up_to_seq":1}', BAD_REQUEST),
        ("a.b", b"", MsgGetRequest(last_by_subj="a.b")),
        ("a.b", b'{"no_hdr":true}', MsgGetRequest(last_by_subj="a.b", no_hdr=True)),
        ("", b'{"seq":7,"unknown":1}', MsgGetRequest(seq=7)),
        ("", b'{"seq":7,"batch":2,"next_by_subj":"a"}', None),
        ("", b'{"multi_last":["a"],"seq":3,"batch":2,"up_to_seq":9}', None),
    ],
)
def test_direct_get(subject: str, body: bytes, answer: MsgGetRequest | StatusAnswer | None) -> None:
    got = parse_direct_get(subject, body)
    if answer is None:
        assert isinstance(got, MsgGetRequest)
    else:
        assert got == answer


def test_status_lines() -> None:
    assert BAD_REQUEST.header == b"NATS/1.0 408 Bad Request\r\n\r\n"


@pytest.mark.parametrize(
    ("header", "is_met"),
    [
        (None, True),
        (b"", True),
        (b"0", True),
        (b"-5", True),
        (b"%d" % API_LEVEL, True),
        (b"%d" % (API_LEVEL + 1), False),
        (b"1.0", False),
        (b"x", False),
        (b"+", False),
    ],
)
def test_required_level(header: bytes | None, *, is_met: bool) -> None:
    assert level_is_met(header) is is_met
    got = parse_direct_get("a", b"", required_level=header)
    assert (got == REQUIRED_API_LEVEL) is not is_met
