"""Which compression is chosen: the table of what both sides want, and round trip times."""

from __future__ import annotations

import pytest

from broker.config.options import LinkCompression
from broker.server.link_compression import UnknownCompression, chosen, level, wanted


@pytest.mark.parametrize(
    ("ours", "theirs", "used"),
    [
        ("s2_fast", "", "not supported"),
        ("s2_fast", "not supported", "not supported"),
        ("s2_fast", "off", "off"),
        ("s2_fast", "accept", "s2_fast"),
        ("s2_fast", "s2_best", "s2_fast"),
        ("accept", "accept", "off"),
        ("accept", "s2_auto", "s2_fast"),
        ("accept", "s2_best", "s2_best"),
        ("off", "s2_fast", "off"),
        ("off", "", "not supported"),
        ("not supported", "s2_fast", "not supported"),
        ("s2_auto", "s2_auto", "s2_fast"),
    ],
)
def test_each_side_chooses_for_what_it_sends(ours: str, theirs: str, used: str) -> None:
    assert chosen(LinkCompression(ours), theirs, 0.02) == used
    assert wanted(used) == used.startswith("s2")


def test_a_mode_that_nobody_knows_is_an_error() -> None:
    with pytest.raises(UnknownCompression, match="zstd"):
        chosen(LinkCompression("s2_fast"), "zstd", 0.0)


@pytest.mark.parametrize(
    ("thresholds_ms", "rtt_ms", "used"),
    [
        ((10, 50, 100), 10, "s2_uncompressed"),
        ((10, 50, 100), 11, "s2_fast"),
        ((10, 50, 100), 100, "s2_better"),
        ((10, 50, 100), 101, "s2_best"),
        ((0, 0, 20), 1, "s2_better"),
        ((0, 5), 7, "s2_fast"),
        ((5,), 7, "s2_uncompressed"),
    ],
)
def test_levels(thresholds_ms: tuple[int, ...], rtt_ms: int, used: str) -> None:
    ours = LinkCompression("s2_auto", tuple(one * 1_000_000 for one in thresholds_ms))
    assert level(ours, rtt_ms / 1e3) == used
