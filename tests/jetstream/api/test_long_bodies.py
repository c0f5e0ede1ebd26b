"""A long body is decoded field by field, and refused at its first wrong value.

Decoded in one call, a megabyte of empty lists held the event loop for 40 ms."""

from __future__ import annotations

import json
from typing import Any

import pytest

from broker.jetstream import strict_json
from broker.jetstream.api.requests import RequestBody, decode_request, is_empty_request
from broker.jetstream.api.requests import request_steps as steps_of
from broker.jetstream.api.subjects import ApiKind
from broker.jetstream.config.consumer_config import ConsumerCreateRequest
from broker.jetstream.config.stream_config import StreamConfigRequest
from broker.jetstream.errors import JetStreamError

SUBJECTS = [f"s.{number}" for number in range(20_000)]
METADATA = {f"key{number}": "value" for number in range(5_000)}


def steps(body: bytes) -> tuple[int, RequestBody]:
    work = steps_of(ApiKind.STREAM_CREATE, body, strict=True)
    count = 1
    while True:
        try:
            next(work)
        except StopIteration as end:
            return count, end.value
        count += 1


def test_every_long_field_is_a_step() -> None:
    body = json.dumps({"name": "S", "subjects": SUBJECTS, "metadata": METADATA}).encode()
    count, request = steps(body)
    assert count == 3
    assert isinstance(request, StreamConfigRequest)
    assert list(request.subjects) == SUBJECTS
    assert request.metadata == METADATA


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"[" + b"[]," * 20_000 + b"[]]", "cannot unmarshal a long value"),
        (b'{"subjects":[' + b"[]," * 20_000 + b"[]]}", "Expected `str`, got `array` - at `$[0]`"),
        (b'{"sources":[' + b"[]," * 20_000 + b"[]]}", "more than 5000 values"),
        (b'{"subjects":[' + b'"",' * 110_001 + b'""]}', "more than 110000 texts"),
        (b"{" + b",".join(b'"k%d":1' % at for at in range(30_000)) + b"}", "unknown field `k0`"),
        (b'{"name":"S","subjects":["' + b"s" * 40_000, "unexpected EOF"),
    ],
)
def test_what_no_request_has_is_not_decoded(body: bytes, reason: str) -> None:
    with pytest.raises(JetStreamError) as refused:
        decode_request(ApiKind.STREAM_CREATE, body)
    assert refused.value.err_code == 10025
    assert reason in refused.value.description


@pytest.mark.parametrize(
    "value",
    [
        {"name": "S", "Subjects": ["a", "b"], "MAX_AGE": 5, "storage": "memory"},
        {"name": "S", "mirror": {"name": "O", "opt_start_time": "2026-01-02T03:04:05Z"}},
        {"name": "S", "sources": [{"name": "A"}, {"name": "B", "filter_subject": "x"}]},
        {"name": "S", "subjects": None, "metadata": {"a": "b"}, "unknown": {"x": [1]}},
        {"name": "S", "republish": {"src": "a", "dest": "b"}, "max_msgs": -1},
        {"name": 5},
        {"name": "S", "subjects": "a"},
        {"name": "S", "retention": "wrong"},
        {"name": "S", "max_msgs": 2**70},
        {},
    ],
)
def test_a_long_body_means_the_same(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    body = json.dumps(value).encode()
    for strict in (True, False):
        results: list[RequestBody | int] = []
        for long_bytes in (1 << 20, len(b"null")):
            monkeypatch.setattr(strict_json, "LONG_BYTES", long_bytes)
            try:
                results.append(decode_request(ApiKind.STREAM_CREATE, body, strict=strict))
            except JetStreamError as refused:
                results.append(refused.err_code)
        assert results[0] == results[1]


def test_a_structure_in_a_structure_is_decoded_by_its_fields() -> None:
    config = {"durable_name": "C", "filter_subjects": SUBJECTS}
    body = json.dumps({"stream_name": "S", "config": config}).encode()
    request = decode_request(ApiKind.CONSUMER_CREATE, body)
    assert isinstance(request, ConsumerCreateRequest)
    assert list(request.config.filter_subjects) == SUBJECTS


@pytest.mark.parametrize("body", [b"", b"{}", b" { \r\n\t} ", b"{" + b" " * 50_000 + b"}"])
def test_an_empty_request(body: bytes) -> None:
    assert is_empty_request(body)


@pytest.mark.parametrize("body", [b" ", b"{", b"}", b"{x}", b"[]", b"null", b'{"a":1}'])
def test_what_is_no_empty_request(body: bytes) -> None:
    assert not is_empty_request(body)
