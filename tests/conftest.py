"""For every test: settings of property tests, and the order of the test files.

Owns: nothing that runs. Fixtures live in the folders that need them."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

# Property tests are judged by what they find, not by how fast the machine is.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")

# Long files first: with several workers, one that starts last would run alone at the end.
LONG_FIRST = (
    "tests/e2e/test_readme.py",
    "tests/spark/test_cluster.py",
    "tests/chaos/test_kill_rounds.py",
    "tests/spark/",
    "tests/e2e/test_chaos.py",
    "tests/e2e/test_replicas.py",
    "tests/chaos/sim/",
    "tests/e2e/",
    "tests/interop/",
    "tests/accounts/",
    "tests/raft/",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort by LONG_FIRST; the order inside a file, and of all other files, stays as it is."""
    items.sort(key=_rank)


def _rank(item: pytest.Item) -> int:
    for rank, start in enumerate(LONG_FIRST):
        if item.nodeid.startswith(start):
            return rank
    return len(LONG_FIRST)
