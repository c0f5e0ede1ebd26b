"""Direct gets of many messages end early: an answer is built in memory."""

from __future__ import annotations

import json

import pytest

from broker.cluster.api.direct_get import BATCH_BYTES_MAX, BATCH_ROWS_MAX, direct_get
from broker.subjects import finish
from broker.wire import headers as wire_headers
from tests.support.stream_rig import Driver

LEFT = 52


def ends(answers: list[tuple[bytes, bytes]]) -> tuple[int, int, int]:
    """Number of messages, and the pending count and last sequence of the final message."""
    end = answers[-1][0]
    assert end.startswith(b"NATS/1.0 204 EOB")
    left, last = (wire_headers.get(end, n) for n in (b"Nats-Num-Pending", b"Nats-Last-Sequence"))
    assert left is not None
    assert last is not None
    return len(answers) - 1, int(left), int(last)


def get(driver: Driver, **request: object) -> list[tuple[bytes, bytes]]:
    return finish(direct_get(driver.stream, "", b"", json.dumps(request).encode()))


def test_a_batch_is_bounded_in_rows_and_says_where_to_continue() -> None:
    driver = Driver(allow_direct=True)
    driver.batch([(b"s.a", {}, b"x")] * (BATCH_ROWS_MAX + LEFT))
    answers = get(driver, seq=1, batch=10**6)
    assert ends(answers) == (BATCH_ROWS_MAX, LEFT, BATCH_ROWS_MAX)
    answers = get(driver, seq=BATCH_ROWS_MAX + 1, batch=10**6)
    assert ends(answers) == (LEFT, 0, BATCH_ROWS_MAX + LEFT)


@pytest.mark.parametrize("asked", [0, 10**12])
@pytest.mark.parametrize("selector", [{"seq": 1, "batch": 100}, {"multi_last": ["s.*"]}])
def test_a_batch_is_bounded_in_bytes(selector: dict[str, object], asked: int) -> None:
    driver = Driver(allow_direct=True)
    payload = bytes(1 << 20)
    for i in range(10):
        driver.batch([(b"s.%d" % i, {}, payload)])
    fit = BATCH_BYTES_MAX // len(payload)
    limit = {"max_bytes": asked} if asked else {}
    assert ends(get(driver, **selector, **limit)) == (fit, 10 - fit, fit)
