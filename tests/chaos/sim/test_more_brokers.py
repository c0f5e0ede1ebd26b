"""Whole brokers under simulation, the second half of the fresh seeds."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.support.broker_seeds import SECOND_HALF, run_portion


@pytest.mark.parametrize("portion", SECOND_HALF)
def test_every_promise_is_kept(portion: int) -> None:
    run_portion(portion, Counter())
