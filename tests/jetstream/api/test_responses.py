"""Answers have the same keys as those of nats-server, and satisfy the contract of their type.

cases/answers.jsonl holds answers recorded from nats-server (version and level changed to ours).
Each is decoded into our Structs and encoded again: nothing may be lost, added or reordered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from broker.jetstream.api.info import (
    AccountInfo,
    ClusterInfo,
    ConsumerInfo,
    PeerInfo,
    SourceInfo,
    StoredMessageInfo,
    StreamInfo,
    StreamState,
)
from broker.jetstream.api.responses import (
    INFOS_PER_STEP,
    ConsumerList,
    ConsumerNames,
    DidCreate,
    GotMessage,
    Initiated,
    Paged,
    Paused,
    PubAck,
    Purged,
    Reset,
    ResponsePart,
    RestoreReady,
    SnapshotStarted,
    StreamList,
    StreamNames,
    Success,
    encode_consumer_names,
    encode_error,
    encode_pub_ack,
    encode_pub_error,
    encode_response,
    encode_stream_names,
    list_steps,
    page,
)
from broker.jetstream.api.subjects import TYPE_PREFIX, ApiKind
from broker.jetstream.config import ConsumerConfig, StreamConfig
from broker.jetstream.config.api_levels import SERVER_VERSION, shown_consumer, shown_stream
from broker.jetstream.config.limits import AccountView
from broker.jetstream.config.stream_rules import check_stream_config
from broker.jetstream.errors import ErrCode, ErrorBody, JetStreamError
from broker.jetstream.strict_json import convert
from broker.subjects import finish
from tests.support.contract.checker import PREFIX, answers, violation

ANSWERS = (Path(__file__).parent / "cases" / "answers.jsonl").read_text().splitlines()
KINDS = {kind.response_type: kind for kind in reversed(ApiKind)}
PARTS: dict[ApiKind, list[type[Any]]] = {
    ApiKind.INFO: [AccountInfo],
    ApiKind.STREAM_CREATE: [StreamInfo, DidCreate],
    ApiKind.STREAM_INFO: [Paged, StreamInfo],
    ApiKind.STREAM_LIST: [Paged, StreamList],
    ApiKind.STREAM_NAMES: [Paged, StreamNames],
    ApiKind.STREAM_DELETE: [Success],
    ApiKind.STREAM_PURGE: [Purged],
    ApiKind.STREAM_MSG_GET: [GotMessage],
    ApiKind.CONSUMER_CREATE: [ConsumerInfo],
    ApiKind.CONSUMER_INFO: [ConsumerInfo],
    ApiKind.CONSUMER_LIST: [Paged, ConsumerList],
    ApiKind.CONSUMER_NAMES: [Paged, ConsumerNames],
    ApiKind.CONSUMER_PAUSE: [Paused],
    ApiKind.CONSUMER_RESET: [ConsumerInfo, Reset],
    ApiKind.CONSUMER_UNPIN: [],
}


def read_back(part: type[Any], body: dict[str, Any]) -> ResponsePart:
    keys = {field.encode_name for field in msgspec.structs.fields(part)}
    answer: ResponsePart = convert(
        {key: value for key, value in body.items() if key in keys}, part, strict=True
    )
    return answer


@pytest.mark.parametrize("line", ANSWERS, ids=lambda line: line[len(TYPE_PREFIX) + 9 : 80])
def test_recorded_answers_round_trip(line: str) -> None:
    body = json.loads(line)
    kind = KINDS[body["type"]]
    if "error" in body:
        recorded = body["error"]
        error = JetStreamError(ErrCode(recorded["err_code"]), recorded["description"])
        ours = encode_error(kind, error)
    else:
        ours = encode_response(kind, *(read_back(part, body) for part in PARTS[kind]))
    assert json.loads(ours) == body
    assert list(json.loads(ours)) == list(body)
    if "config" in body:
        assert list(json.loads(ours)["config"]) == list(body["config"])


def full_stream_info() -> StreamInfo:
    config = check_stream_config(StreamConfig(name="S", subjects=("s.>",)), view=AccountView())
    peer = PeerInfo(name="n2", current=True, active=5, lag=3, peer="abcdefgh")
    return StreamInfo(
        config=shown_stream(config),
        created=1_700_000_000_123_456_789,
        state=StreamState(
            messages=2, bytes=70, first_seq=1, first_ts=1, last_seq=3, last_ts=2, num_deleted=1,
            deleted=(2,), num_subjects=1, subjects={"s.ts": 2}, consumer_count=1,
        ),
        cluster=ClusterInfo(
            name="c", raft_group="g", leader="n1", leader_since=3, replicas=(peer,)
        ),
        mirror=SourceInfo(name="o", error=ErrorBody(404, 10059, "stream not found")),
        ts=1_700_000_001_000_000_000,
    )  # fmt: skip


def full_consumer_info() -> ConsumerInfo:
    config = ConsumerConfig(durable_name="c", name="c", opt_start_time=1, max_deliver=-1)
    return ConsumerInfo(
        stream_name="S", name="c", created=5, config=shown_consumer(config), ts=6, paused=True
    )


SUCCESSES: list[tuple[ApiKind, tuple[ResponsePart, ...]]] = [
    (ApiKind.INFO, (AccountInfo(domain="hub"),)),
    (ApiKind.STREAM_CREATE, (full_stream_info(), DidCreate(did_create=True))),
    (ApiKind.STREAM_UPDATE, (full_stream_info(),)),
    (ApiKind.STREAM_INFO, (Paged(), full_stream_info())),
    (ApiKind.STREAM_LIST, (Paged(), StreamList((full_stream_info(),), ("M",), {"M": "why"}))),
    (ApiKind.STREAM_NAMES, (Paged(), StreamNames(("S",)))),
    (ApiKind.STREAM_DELETE, (Success(success=True),)),
    (ApiKind.STREAM_PURGE, (Purged(success=True, purged=3),)),
    (
        ApiKind.STREAM_MSG_GET,
        (GotMessage(StoredMessageInfo(subject="s", seq=1, hdrs=b"h", data=b"d", time=1)),),
    ),
    (ApiKind.STREAM_MSG_DELETE, (Success(success=True),)),
    (ApiKind.STREAM_SNAPSHOT, (SnapshotStarted(full_stream_info().config, StreamState()),)),
    (ApiKind.STREAM_RESTORE, (RestoreReady("$JS.SNAPSHOT.RESTORE.S.x"),)),
    (ApiKind.STREAM_PEER_REMOVE, (Success(success=True),)),
    (ApiKind.STREAM_LEADER_STEPDOWN, (Success(success=True),)),
    (ApiKind.CONSUMER_CREATE, (full_consumer_info(),)),
    (ApiKind.CONSUMER_INFO, (full_consumer_info(),)),
    (ApiKind.CONSUMER_LIST, (Paged(), ConsumerList((full_consumer_info(),)))),
    (ApiKind.CONSUMER_NAMES, (Paged(), ConsumerNames(("c",)))),
    (ApiKind.CONSUMER_DELETE, (Success(success=True),)),
    (ApiKind.CONSUMER_PAUSE, (Paused(paused=True, pause_until=5, pause_remaining=6),)),
    (ApiKind.CONSUMER_RESET, (full_consumer_info(), Reset(5))),
    (ApiKind.CONSUMER_UNPIN, ()),
    (ApiKind.CONSUMER_LEADER_STEPDOWN, (Success(success=True),)),
    (ApiKind.META_LEADER_STEPDOWN, (Success(success=True),)),
    (ApiKind.SERVER_REMOVE, (Success(success=True),)),
    (ApiKind.ACCOUNT_PURGE, (Initiated(initiated=True),)),
]


def validate(body: bytes, kind: str) -> None:
    assert not violation(kind, json.loads(body))


@pytest.mark.parametrize(("kind", "parts"), SUCCESSES, ids=lambda value: getattr(value, "name", ""))
def test_successes_satisfy_the_contract(kind: ApiKind, parts: tuple[ResponsePart, ...]) -> None:
    body = encode_response(kind, *parts)
    assert body.startswith(b'{"type":"%s"' % kind.response_type.encode())
    validate(body, kind.response_type.removeprefix(PREFIX))


@pytest.mark.parametrize("count", [0, 1, 100])
def test_lists_are_encoded_in_steps(count: int) -> None:
    """Two hundred infos at once take 20 ms or more."""
    paged = Paged(total=count, offset=1, limit=256)
    for kind, found in (
        (ApiKind.STREAM_LIST, StreamList(count * (full_stream_info(),), ("M",), {"M": "why"})),
        (ApiKind.STREAM_LIST, StreamList(count * (full_stream_info(),))),
        (ApiKind.CONSUMER_LIST, ConsumerList(count * (full_consumer_info(),))),
    ):
        assert finish(list_steps(kind, paged, found)) == encode_response(kind, paged, found)
        assert sum(1 for _ in list_steps(kind, paged, found)) == count // INFOS_PER_STEP


@pytest.mark.parametrize("kind", sorted({k for k, _ in SUCCESSES}, key=str))
def test_failures_satisfy_the_contract(kind: ApiKind) -> None:
    body = encode_error(kind, JetStreamError(ErrCode.STREAM_NOT_FOUND))
    validate(body, kind.response_type.removeprefix(PREFIX))


def test_every_answer_of_the_contract_is_encoded() -> None:
    encoded = {kind.response_type.removeprefix(TYPE_PREFIX) for kind, _ in SUCCESSES}
    assert answers() - encoded == {"pub_ack_response"}


@pytest.mark.parametrize(
    ("ack", "text"),
    [
        (PubAck(stream="S", seq=5), b'{"stream":"S","seq":5}'),
        (PubAck(stream="S", seq=5, duplicate=True), b'{"stream":"S","seq":5,"duplicate":true}'),
        (PubAck(stream="S", seq=5, domain="d"), b'{"stream":"S","seq":5,"domain":"d"}'),
        (
            PubAck(stream="S", seq=5, batch="b", count=2),
            b'{"stream":"S","seq":5,"batch":"b","count":2}',
        ),
    ],
)
def test_pub_acks(ack: PubAck, text: bytes) -> None:
    assert encode_pub_ack(ack) == text
    validate(text, "api.v1.pub_ack_response")


def test_failed_publishes() -> None:
    body = encode_pub_error("S", JetStreamError(ErrCode.STREAM_NOT_MATCH))
    assert body == (
        b'{"error":{"code":400,"err_code":10060,"description":"expected stream does not match"},'
        b'"stream":"S","seq":0}'
    )
    validate(body, "api.v1.pub_ack_response")


@pytest.mark.parametrize(
    ("offset", "first", "shown_offset", "count"),
    [(0, "000", 0, 256), (250, "250", 250, 50), (300, None, 300, 0), (999, None, 300, 0),
     (-5, "000", 0, 256)],
)  # fmt: skip
def test_pages_are_clamped(offset: int, first: str | None, shown_offset: int, count: int) -> None:
    items, paged = page([f"{n:03}" for n in range(300)], offset, limit=256)
    assert (items[0] if items else None, len(items)) == (first, count)
    assert paged == Paged(total=300, offset=shown_offset, limit=256)


def test_names_are_sorted_and_no_match_is_null_only_for_streams() -> None:
    body = json.loads(encode_stream_names(["b", "a"], 0))
    assert (body["streams"], body["total"], body["limit"]) == (["a", "b"], 2, 1024)
    assert json.loads(encode_stream_names([], 0))["streams"] is None
    assert json.loads(encode_stream_names(["a"], 5))["streams"] is None
    assert json.loads(encode_consumer_names([], 0))["consumers"] == []


def test_a_subject_named_like_a_field_keeps_its_count() -> None:
    body = json.loads(encode_response(ApiKind.STREAM_UPDATE, full_stream_info()))
    assert body["state"]["subjects"] == {"s.ts": 2}
    assert body["created"] == "2023-11-14T22:13:20.123456789Z"


def test_the_version_in_metadata_is_the_one_in_server_info() -> None:
    options = pytest.importorskip("broker.config.options")
    assert options.VERSION == SERVER_VERSION
