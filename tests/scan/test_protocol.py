"""Requests and answers of scans that cannot be read."""

from __future__ import annotations

import pytest

from broker.scan.protocol import (
    ScanProtocolError,
    ScanRefused,
    decode_plan,
    decode_plan_request,
    decode_request,
    decode_write_answer,
)

DEEP = b'{"x":' + b"[" * 100_000


def test_what_is_nested_too_deep_is_refused() -> None:
    for decode in (decode_plan_request, decode_request):
        with pytest.raises(ScanRefused):
            decode(DEEP)
    for answer in (decode_plan, decode_write_answer):
        with pytest.raises(ScanProtocolError):
            answer(DEEP)
