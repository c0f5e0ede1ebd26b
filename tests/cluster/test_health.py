"""/healthz: every answer is true, also about single streams and consumers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.cluster.meta.assignments import META_GROUP
from broker.cluster.observe.health import JetStreamHealth
from broker.config.options import JetStreamOptions
from broker.subjects import finish
from raft import GroupId, Members, NodeId

GROUP = 7


@dataclass
class Node:
    """What the health of a node depends on."""

    founded: bool = True
    learned: bool = True
    has_meta: bool = True
    removed: bool = False
    leaders: dict[int, NodeId] = field(
        default_factory=lambda: {META_GROUP: NodeId(1), GROUP: NodeId(1)}
    )
    trouble: str | None = None
    disk_full: bool = False
    clock_trouble: str | None = None
    meta_stopped: str | None = None
    meta_recovering: bool = False
    meta_installing: bool = False
    leaving: bool = False
    unreachable: tuple[str, ...] = ()
    strangers: tuple[str, ...] = ()
    stuck: tuple[str, ...] = ()
    lame_duck: bool = False
    held: bool = True
    stopped: str | None = None
    installing: bool = False
    recovering: bool = False
    applied: int = 10
    commit: int = 10
    voters: tuple[int, ...] = (1, 2, 3)
    meta_voters: tuple[int, ...] = (1, 2, 3)

    def ask(self, **query: str) -> tuple[int, dict[str, Any]]:
        query = {name.replace("_", "-"): value for name, value in query.items()}
        return finish(self._health().healthz(query))

    def _health(self) -> JetStreamHealth:
        assignment = cast(Any, SimpleNamespace(account="$G", name="S", group=GROUP))
        replica = SimpleNamespace(group=GroupId(GROUP), has_consumer=lambda name: name == "d")
        core = SimpleNamespace(
            asleep=False,
            recovering=self.recovering,
            applied_index=self.applied,
            commit=self.commit,
            members=Members(tuple(map(NodeId, self.voters))),
        )
        meta = SimpleNamespace(
            stopped=self.meta_stopped,
            installing=self.meta_installing,
            core=SimpleNamespace(
                members=Members(tuple(map(NodeId, self.meta_voters))),
                recovering=self.meta_recovering,
            ),
        )
        status = SimpleNamespace(stopped=self.stopped, installing=self.installing, core=core)
        return JetStreamHealth(
            node=NodeId(1),
            options=JetStreamOptions(),
            founded=lambda: self.founded,
            learned=lambda: self.learned,
            removed=lambda: self.removed,
            leaving=lambda: self.leaving,
            unreachable=lambda: list(self.unreachable),
            leader=self.leaders.get,
            trouble=lambda: self.trouble,
            disk_full=lambda: self.disk_full,
            strangers=lambda: list(self.strangers),
            stuck=lambda: list(self.stuck),
            clock_trouble=lambda: self.clock_trouble,
            lame_duck=lambda: self.lame_duck,
            has_account=lambda name: name == "$G",
            assignments=lambda: [assignment],
            assignment=lambda account, name: assignment if (account, name) == ("$G", "S") else None,
            replica=lambda _group: cast(Any, replica) if self.held else None,
            held=lambda group: (
                cast(Any, status if group == GROUP else meta) if self.has_meta else None
            ),
        )


WELL = Node()


def test_a_healthy_node_is_ok() -> None:
    for query in ({}, {"details": "true"}, {"account": "$G"}, {"account": "$G", "stream": "S"},
                  {"account": "$G", "stream": "S", "consumer": "d"}):  # fmt: skip
        assert WELL.ask(**query) == (200, {"status": "ok"}), query


def test_a_node_that_leaves_serves_without_a_vote() -> None:
    assert replace(WELL, meta_voters=(2, 3), leaving=True).ask() == (200, {"status": "ok"})


def test_refused_servers_of_a_namesake_cluster_are_a_warning() -> None:
    """Not an error: one stray server must not take the whole cluster out of its load balancer."""
    status, answer = replace(WELL, strangers=("x", "y")).ask()
    assert (status, answer["status"]) == (200, "ok")
    [warning] = answer["warnings"]
    assert "another cluster" in warning
    assert "x, y" in warning


def test_replicas_that_no_node_can_take_are_a_warning() -> None:
    status, answer = replace(WELL, stuck=("stream S has a replica on n3",)).ask()
    assert (status, answer["warnings"]) == (200, ["stream S has a replica on n3"])


@pytest.mark.parametrize(
    ("node", "sentence"),
    [
        (replace(WELL, meta_stopped="broken"), "the meta group is stopped on this node: broken"),
        (replace(WELL, meta_recovering=True), "lost the log of the meta group"),
        (replace(WELL, trouble="the disk is full"), "takes no writes: the disk is full"),
        (replace(WELL, meta_installing=True), "lost the log of the meta group"),
        (replace(WELL, founded=False, has_meta=False), "waiting for its cluster to form"),
        (replace(WELL, founded=False, has_meta=False, unreachable=("h:1 is an unknown host",)),
         "form: h:1 is an"),
        (replace(WELL, founded=False), "does not know the streams of its cluster yet"),
        (replace(WELL, learned=False), "is not current with the meta leader"),
        (replace(WELL, removed=True), "removed from the cluster"),
        (replace(WELL, leaders={GROUP: NodeId(1)}), "contact with a meta leader"),
        (replace(WELL, lame_duck=True), "lame duck mode"),
        (replace(WELL, held=False), "'$G > S' is not on this node"),
        (replace(WELL, stopped="two leaders"), "'$G > S' is stopped on this node: two leaders"),
        (replace(WELL, recovering=True), "'$G > S' is not current: it has lost its log"),
        (replace(WELL, installing=True), "'$G > S' is not current"),
        (replace(WELL, leaders={META_GROUP: NodeId(1)}), "'$G > S' has no leader"),
        (replace(WELL, voters=(2, 3)), "'$G > S' is not current: this replica is being built"),
        (replace(WELL, meta_voters=(2, 3)), "no vote in the meta group yet"),
        (replace(WELL, applied=9, commit=110), "'$G > S' is not current"),
    ],
)  # fmt: skip
def test_a_node_that_cannot_do_its_work_says_why(node: Node, sentence: str) -> None:
    code, document = node.ask()
    assert code == 503
    assert document["status"] == "unavailable"
    assert sentence in document["error"]
    assert node.ask(live="1") == (200, {"status": "ok"})


def test_a_replica_that_is_a_little_behind_is_current_while_it_advances() -> None:
    """Under load it nearly always is: the answer must not flicker."""
    clock = [0.0]
    node = Node(applied=9, commit=10)
    health = node._health()
    health.now_s = lambda: clock[0]
    core = cast(Any, health.held(GroupId(GROUP))).core

    def status() -> int:
        return finish(health.healthz({}))[0]

    assert status() == 200
    core.applied_index, core.commit, clock[0] = 19, 20, 5.0
    assert [status(), status()] == [200, 200]
    clock[0] = 6.5
    assert status() == 503
    core.applied_index = 20
    assert status() == 200
    core.commit = 21
    assert status() == 200


def test_streams_do_not_matter_at_startup_or_for_the_meta_group_alone() -> None:
    node = replace(WELL, stopped="damaged")
    for query in ({"startup": "1"}, {"js-server-only": "true"}, {"js-meta-only": "true"}):
        assert node.ask(**query)[0] == 200, query
    assert node.ask(account="$G", stream="S", consumer="d")[0] == 503


def test_details_list_the_problems() -> None:
    code, document = replace(WELL, stopped="damaged").ask(details="true")
    assert code == 503
    assert document["status"] == "error"
    assert document["errors"] == [
        {
            "type": "STREAM",
            "account": "$G",
            "stream": "S",
            "error": "JetStream stream '$G > S' is stopped on this node: damaged",
        }
    ]


@pytest.mark.parametrize(
    ("query", "code", "sentence"),
    [
        ({"stream": "S"}, 400, '"account" must not be empty when checking stream health'),
        ({"consumer": "d"}, 400, '"stream" must not be empty when checking consumer health'),
        ({"account": "NO"}, 404, 'JetStream account "NO" not found'),
        ({"account": "$G", "stream": "NO"}, 404,
         'JetStream stream "NO" not found on account "$G"'),
        ({"account": "$G", "stream": "S", "consumer": "x"}, 404,
         'JetStream consumer "x" not found for stream "S" on account "$G"'),
    ],
)  # fmt: skip
def test_what_does_not_exist_is_named(query: dict[str, str], code: int, sentence: str) -> None:
    assert WELL.ask(**query) == (
        code,
        {"status": WELL.ask(**query)[1]["status"], "error": sentence},
    )
    if code == 404:
        assert WELL.ask(**query, details="1")[1]["errors"][0]["error"] == sentence


def test_a_full_disk_is_an_error_but_the_node_stays_ready() -> None:
    node = replace(WELL, disk_full=True)
    status, report = node.ask()
    assert status == 503
    assert "the disk is full" in report["error"]
    status, report = node.ask(ready="true")
    assert (status, report["status"]) == (200, "ok")
    assert "the disk is full" in report["warnings"][0]
