"""One Spark session per process: starting one takes longer than all the queries."""

from __future__ import annotations

import os
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
STARTS_MAX = 10


def finished(start: Callable[[], Any]) -> Any:
    """The query, after it has ended. Spark gives the Python worker of a streaming source ten
    seconds to start, which a busy machine exceeds: a query that failed before it began is started
    again."""
    from pyspark.errors import StreamingQueryException

    for attempt in range(1, STARTS_MAX + 1):
        query = start()
        try:
            assert query.awaitTermination(300)
        except StreamingQueryException as failure:
            began = bool(query.recentProgress) or "failed to connect back" not in str(failure)
            if began or attempt == STARTS_MAX:
                raise
        else:
            return query
    raise AssertionError


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        assert os.environ.get("CI") != "true", "Java is missing, and CI must not skip Spark"
        pytest.skip("Java is missing: Spark needs a JVM")
    # Spark's workers are separate processes; without this they use the python3 of the PATH
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    environment = pytest.MonkeyPatch()
    environment.setenv("PYTHONPATH", path)
    environment.setenv("PYSPARK_PYTHON", sys.executable)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pyspark.sql import SparkSession

        scratch = tmp_path_factory.mktemp("spark")
        session = (
            SparkSession.builder.master("local[2]")
            .appName("jetraft tests")
            .config("spark.ui.enabled", "false")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.local.dir", str(scratch))
            .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
            .config("spark.log.level", "ERROR")
            .config("spark.sql.session.timeZone", "UTC")
            .getOrCreate()
        )
        yield session
        session.stop()
    environment.undo()
