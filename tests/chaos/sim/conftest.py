"""The simulator takes out of gc's permanent generation what it finds there: put it back."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def _collected_tests_set_aside() -> Iterator[None]:
    """As tests/conftest.py does, which says why. A run sets aside what exists by itself."""
    yield
    gc.freeze()
