"""`nats server cluster ...` and `nats server check ...` of the official tool, on four nodes."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.local import LocalCluster, LocalNode
from tests.support.nats_tool import WITHIN_S, Cli, needs_the_tool

pytestmark = needs_the_tool

ACCOUNTS = """
accounts {
  SYS { users [{user: admin, password: pw}] }
  A { jetstream: enabled, users [{user: otto, password: pw}] }
}
system_account: SYS
"""
STREAMS = ["S0", "S1", "S2", "S3"]


class Tools:
    def __init__(self, cluster: LocalCluster, home: Path) -> None:
        self.cluster, self.home = cluster, home

    def at(self, node: LocalNode, user: str) -> Cli:
        return Cli(node.url.replace("nats://", f"nats://{user}:pw@"), self.home)

    @property
    def meta_leader(self) -> str:
        meta: Any = self.cluster.nodes[0].http("/jsz")["meta_cluster"]
        return str(meta["leader"])


@pytest.fixture
def tools(tmp_path: Path) -> Iterator[Tools]:
    with LocalCluster(tmp_path, size=4, name="four", more=ACCOUNTS) as running:
        tools = Tools(running, tmp_path)
        otto = tools.at(running.nodes[0], "otto")
        for name in STREAMS:
            otto("stream", "add", name, f"--subjects={name}.*", "--replicas=3", "--defaults")
        yield tools


def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def check(cli: Cli, *words: str) -> tuple[int, str]:
    """Exit code (0: OK, 2: CRITICAL) and output."""
    done = subprocess.run(
        cli.command("server", "check", *words),
        env=cli.environment,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    return done.returncode, done.stdout


def test_a_node_that_is_behind_is_critical_and_a_removed_one_is_gone(tools: Tools) -> None:
    nodes, leader = tools.cluster.nodes, tools.meta_leader
    asked, behind = nodes[0], next(n for n in nodes[1:] if n.name != leader)
    admin, otto = tools.at(asked, "admin"), tools.at(asked, "otto")

    def places(name: str) -> tuple[str, list[dict[str, Any]]]:
        group = otto.json("stream", "info", name)["cluster"]
        return group["leader"], group["replicas"]

    # A replica that does not lead falls behind, while its node has its connections.
    followed = next(
        name for name in STREAMS if behind.name in [peer["name"] for peer in places(name)[1]]
    )
    checked = ["stream", "--stream", followed, "--peer-expect=3", "--peer-lag-critical=20"]
    until(lambda: check(otto, *checked)[0] == 0, "all replicas are current")
    behind.pause()
    otto("pub", f"{followed}.x", "--jetstream", "--count=50", "hi")
    code, shown = check(otto, *checked)
    assert (code, "1 replicas lagged" in shown) == (2, True), shown
    behind.resume()
    until(lambda: check(otto, *checked)[0] == 0, "the replica has caught up")

    # The tool itself refuses the leader; another node loses its replicas and its membership.
    meta = ["meta", "--lag-critical=10", "--seen-critical=10s"]
    assert "peers=4" in check(admin, *meta, "--expect=4")[1]
    admin("server", "cluster", "peer-remove", behind.name, "--force")
    until(lambda: check(admin, *meta, "--expect=3")[0] == 0, "three members of the meta group")
    left = {node.name for node in nodes if node is not behind}

    def moved() -> bool:
        found = [places(name) for name in STREAMS]
        return all({first, *(p["name"] for p in others)} == left for first, others in found)

    until(moved, "every stream is on the three others")
    assert all(check(otto, "stream", "--stream", n, "--peer-expect=3")[0] == 0 for n in STREAMS)
    info = otto.json("stream", "info", followed)
    assert info["state"]["messages"] == 50
