"""The checker of the API contract finds missing fields, wrong types, bad values, unknown fields."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.support.contract.checker import PREFIX, violation

INFO: dict[str, Any] = {
    "type": PREFIX + "api.v1.consumer_info_response",
    "stream_name": "S",
    "name": "C",
    "created": "2020-01-01T00:00:00Z",
    "config": {"deliver_policy": "all", "ack_policy": "explicit", "backoff": [1, 2]},
    "delivered": {"consumer_seq": 1, "stream_seq": 1},
    "ack_floor": {"consumer_seq": 0, "stream_seq": 0},
    "num_ack_pending": 1,
    "num_redelivered": 0,
    "num_waiting": 0,
    "num_pending": 0,
}
NAK: dict[str, Any] = {
    "type": PREFIX + "advisory.v1.nak",
    "id": "i",
    "timestamp": "2020-01-01T00:00:00Z",
    "stream": "S",
    "consumer": "C",
    "consumer_seq": 1,
    "stream_seq": 1,
    "deliveries": 1,
}
GONE = object()


def changed(body: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    body = copy.deepcopy(body)
    *parents, last = path.split(".")
    part = body
    for parent in parents:
        part = part[parent]
    if value is GONE:
        del part[last]
    else:
        part[last] = value
    return body


def test_a_complete_body_satisfies_the_contract() -> None:
    assert violation("api.v1.consumer_info_response", INFO) == ""
    assert violation("advisory.v1.nak", NAK | {"domain": "hub"}) == ""


@pytest.mark.parametrize(
    ("path", "value", "found"),
    [
        ("num_pending", GONE, "num_pending is missing"),
        ("num_pending", "0", "'0' is not u64"),
        ("num_pending", True, "True is not u64"),
        ("num_pending", -1, "-1 is not u64"),
        ("num_waiting", 2**63, "is not count"),
        ("created", "yesterday", "'yesterday' is not time"),
        ("type", PREFIX + "api.v1.consumer_create_response", "type is"),
        ("delivered.stream_seq", GONE, "delivered: stream_seq is missing"),
        ("delivered.other", 1, "delivered: unknown fields ['other']"),
        ("delivered", [], "delivered: not an object"),
        ("config.ack_policy", "some", "'some' is not one of none|all|explicit|flow_control"),
        ("config.durable_name", "a.b", "'a.b' is not name"),
        ("config.description", "x" * 4097, "is not text ..4096"),
        ("config.backoff", 5, "backoff: not a list"),
        ("config.backoff", [1, -1], "backoff[1]: -1 is not count"),
        ("config.metadata", {"k": 1}, "metadata.k: 1 is not text"),
        ("config.num_replicas", 6, "6 is not int 0..5"),
        ("config.deliver_policy", "by_start_time", "opt_start_time is missing"),
        ("error", {"err_code": 1}, "error: code is missing"),
        ("error", {"code": 200}, "200 is not int 300..699"),
    ],
)
def test_a_violation_of_an_answer_is_found(path: str, value: object, found: str) -> None:
    assert found in violation("api.v1.consumer_info_response", changed(INFO, path, value))


@pytest.mark.parametrize(
    ("path", "value", "found"),
    [
        ("id", GONE, "id is missing"),
        ("consumer_seq", "1", "'1' is not int 0.."),
        ("stream_seq", 0, "0 is not int 1.."),
        ("other", 1, "unknown fields ['other']"),
    ],
)
def test_a_violation_of_an_event_is_found(path: str, value: object, found: str) -> None:
    assert found in violation("advisory.v1.nak", changed(NAK, path, value))


def test_an_answer_may_have_further_fields_where_the_contract_says_so() -> None:
    assert violation("api.v1.consumer_info_response", changed(INFO, "config.other", 1)) == ""


def test_a_failed_answer_needs_only_the_fields_that_failures_have() -> None:
    kind = "api.v1.stream_names_response"
    failed = {"type": PREFIX + kind, "error": {"code": 400}, "total": 0, "offset": 0, "limit": 0}
    assert violation(kind, failed) == ""
    assert "limit is missing" in violation(kind, changed(failed, "limit", GONE))
    assert "streams is missing" in violation(kind, changed(failed, "error", GONE))


def test_null_is_allowed_only_where_the_contract_says_so() -> None:
    kind = "api.v1.stream_names_response"
    body = {"type": PREFIX + kind, "total": 0, "offset": 0, "limit": 0, "streams": None}
    assert violation(kind, body) == ""
    assert "is not int" in violation(kind, body | {"total": None})


def test_a_type_that_is_not_in_the_contract_is_a_violation() -> None:
    assert "not in the contract" in violation("api.v1.other_response", {})
