"""One server of ours and one nats-server, shared by the tests of the command."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from broker.local import LocalCluster
from tests.support.clusters import nats_server

ACCOUNTS = """
accounts {
  SYS { users: [ { user: sys, password: sys } ] }
  A { jetstream: enabled, users: [ { user: ann, password: secret } ] }
}
system_account: SYS
no_auth_user: ann
"""


@pytest.fixture(scope="session")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    place = tmp_path_factory.mktemp("ours")
    with LocalCluster(place, size=1, name="ours", more=ACCOUNTS) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    place = tmp_path_factory.mktemp("theirs")
    command = nats_server()
    with LocalCluster(place, size=1, name="theirs", command=command, more=ACCOUNTS) as cluster:
        yield cluster


@pytest.fixture(scope="session", params=["ours", "theirs"])
def url(request: pytest.FixtureRequest) -> str:
    """Both servers, in turn."""
    cluster: LocalCluster = request.getfixturevalue(request.param)
    return cluster.urls[0]


@pytest.fixture(autouse=True)
def no_saved_contexts(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    """Whatever the person who runs the tests has selected."""
    monkeypatch.setenv("XDG_CONFIG_HOME", f"{tmp_path}/config")
    for name in ("NATS_URL", "NATS_CONTEXT", "NATS_USER", "NATS_PASSWORD", "NATS_CREDS"):
        monkeypatch.delenv(name, raising=False)
