"""For every test: settings of property tests, and the order of the test files.

Owns: nothing that runs. Fixtures live in the folders that need them."""

from __future__ import annotations

import gc
import signal
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# Property tests are judged by what they find, not by how fast the machine is.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")

# A shell that runs the tests in the background has SIGINT ignored, and so would every process that
# they start: Ctrl-C could not be tested.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Long files first: with several workers, one that starts last would run alone at the end. The first
# three load the machine differently: Spark, the simulator (one process that never waits), and
# clusters (many processes that often wait).
LONG_FIRST = (
    "tests/spark/",
    "tests/chaos/sim/test_broker_bugs.py",
    "tests/e2e/test_replicas.py",
    "tests/e2e/test_readme.py",
    "tests/chaos/sim/test_whole_brokers.py",
    "tests/e2e/test_membership.py",
    "tests/chaos/sim/test_more_brokers.py",
    "tests/interop/parity/",
    "tests/e2e/test_upgrade.py",
    "tests/e2e/test_truncated_log.py",
    "tests/chaos/",
    "tests/e2e/",
    "tests/interop/",
    "tests/raft/",
    "tests/accounts/",
    "tests/server/process/",
)
# Files that run in the same process, one after the other: they share a Spark session, whose start
# and first query take as long as all the others.
WITH_SPARK = ("test_cluster", "test_operator_login", "test_orders", "test_source")
TOGETHER = {f"tests/spark/{name}.py": "spark" for name in WITH_SPARK}


def pytest_collection_finish() -> None:
    """What was collected stays to the end, and is more than a million objects: without this, every
    full collection of garbage looks at all of them."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort by LONG_FIRST; the order inside a file, and of all other files, stays as it is."""
    items.sort(key=_rank)


def _rank(item: pytest.Item) -> int:
    for rank, start in enumerate(LONG_FIRST):
        if item.nodeid.startswith(start):
            return rank
    return len(LONG_FIRST)


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """--dist loadfile, with the files of TOGETHER as one."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class FilesTogether(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return TOGETHER.get(file, file)

    return FilesTogether(config, log)
