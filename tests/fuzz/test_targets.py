"""Every target: what was found before, and some inputs that are new each time."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.__main__ import CORPUS, mutate, mutated
from tests.fuzz.targets import TARGETS, Target


@pytest.mark.parametrize("name", TARGETS)
def test_what_was_found_before_is_handled(name: str) -> None:
    target = TARGETS[name]
    found = sorted((CORPUS / name).glob("*")) if (CORPUS / name).exists() else []
    for data in [b"", *target.seeds, *(path.read_bytes() for path in found)]:
        target.run(data)


@pytest.mark.parametrize("name", TARGETS)
@given(data=st.data())
def test_only_documented_errors_are_raised(name: str, data: st.DataObject) -> None:
    target = TARGETS[name]
    if data.draw(st.booleans()):
        target.run(data.draw(st.binary(max_size=400)))
    else:
        dice = random.Random(data.draw(st.integers(0, 2**32)))
        target.run(mutated(dice, list(target.seeds)))


def test_the_loop_finds_and_keeps_an_input(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = tmp_path_factory.mktemp("corpus")
    monkeypatch.setattr("tests.fuzz.__main__.CORPUS", place)

    def breaks(data: bytes) -> None:
        if b"\x00" in data:
            raise ZeroDivisionError

    target = Target(breaks, (b"abc\x01",), ("tests.fuzz.targets",))
    with pytest.raises(ZeroDivisionError):
        mutate(target, "broken", seconds=20, seed=1)
    (kept,) = (place / "broken").iterdir()
    assert b"\x00" in kept.read_bytes()
