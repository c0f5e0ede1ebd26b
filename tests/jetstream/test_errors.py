"""The error table and the exception built on it."""

from __future__ import annotations

import json
from importlib.resources import files

import pytest

from broker.jetstream.errors import API_ERRORS, ErrCode, JetStreamError


def test_every_entry_has_exactly_one_name() -> None:
    assert {code.value for code in ErrCode} == set(API_ERRORS)
    assert len(ErrCode.__members__) == len(API_ERRORS) == 226


def test_names_are_the_constants_without_prefix_and_suffix() -> None:
    for code in ErrCode:
        constant = API_ERRORS[code].constant.removeprefix("JS").lower()
        assert constant.startswith(code.name.replace("_", "").lower())


def test_the_table_ships_with_the_package() -> None:
    raw = files("broker.jetstream").joinpath("errors.json").read_text()
    assert len(json.loads(raw)) == 226


@pytest.mark.parametrize(
    ("error", "code", "description"),
    [
        (JetStreamError(ErrCode.STREAM_NOT_FOUND), 404, "stream not found"),
        (
            JetStreamError.of(ErrCode.STREAM_WRONG_LAST_SEQUENCE, seq=7),
            400,
            "wrong last sequence: 7",
        ),
        (JetStreamError.of(ErrCode.STREAM_INVALID_CONFIG, err="{seq} stays"), 500, "{seq} stays"),
        (
            JetStreamError.of(ErrCode.STREAM_EXTERNAL_DEL_PREFIX_OVERLAPS, prefix="p", subject="s"),
            400,
            "stream external delivery prefix p overlaps with stream subject s",
        ),
    ],
)
def test_a_body_has_the_code_and_the_description_with_its_placeholders_filled(
    error: JetStreamError, code: int, description: str
) -> None:
    body = error.body()
    assert (body.code, body.err_code, body.description) == (code, error.err_code, description)
    assert str(error) == f"{description} ({error.err_code:d})"


def test_an_error_is_definite_by_default() -> None:
    assert JetStreamError(ErrCode.STREAM_NOT_FOUND).definite
    assert not JetStreamError.of(ErrCode.CLUSTER_NOT_AVAIL, definite=False).definite


def test_errors_with_the_same_content_are_not_equal() -> None:
    one, other = (JetStreamError(ErrCode.STREAM_NOT_FOUND) for _ in range(2))
    assert one != other
    assert one.body() == other.body()
    assert len({one, other}) == 2
