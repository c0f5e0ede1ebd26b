"""One server and one cluster of three, shared by the tests of this folder that do not harm them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from broker.local import LocalCluster
from tests.support.clusters import nats_server


@pytest.fixture(scope="session")
def single(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("single"), size=1, name="single") as cluster:
        yield cluster


@pytest.fixture(scope="session")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("three"), size=3, name="three") as cluster:
        yield cluster


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """nats-server, for tests in which both servers must answer alike."""
    place = tmp_path_factory.mktemp("reference")
    with LocalCluster(place, size=1, name="reference", command=nats_server()) as cluster:
        yield cluster
