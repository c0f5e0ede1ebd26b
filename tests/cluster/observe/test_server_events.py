"""Events of the system account: each is told once, by the server that it concerns."""

from __future__ import annotations

from typing import Any, cast

from broker.cluster.observe.server_events import ServerEvents
from broker.jetstream.config.names import get_hash

REPLICAS = [{"name": "b", "offline": False}, {"name": "c", "offline": True}]


class Cluster:
    def __init__(self) -> None:
        self.leads = self.full = False
        self.names = {"a", "b", "c"}
        self.dropped = 0
        self.events = ServerEvents(
            cast("Any", None),
            system=lambda: cast("Any", None),
            server=("a", "NA"),
            cluster="C",
            leads=lambda: self.leads,
            meta_cluster=lambda: {"leader": "a", "replicas": REPLICAS},
            names=lambda: self.names,
            full=lambda: self.full,
            dropped=lambda: self.dropped,
        )

    def told(self) -> list[tuple[str, object]]:
        prefix = "$JS.EVENT.ADVISORY."
        return [
            (one.subject.decode().removeprefix(prefix), dict(one.fields))
            for one in self.events.news()
        ]


def test_nothing_happens() -> None:
    cluster = Cluster()
    assert cluster.told() == []
    cluster.names.discard("c")  # another server leads: it tells
    assert cluster.told() == []


def test_the_leader_tells_of_itself_and_of_servers_that_leave() -> None:
    cluster = Cluster()
    cluster.leads = True
    own = {"name": "a", "current": True, "active": 0, "peer": get_hash("a")}
    others = [{"name": "b"}, {"name": "c", "offline": True}]
    fields = {"leader": get_hash("a"), "replicas": [own, *others], "cluster": "C"}
    assert cluster.told() == [("DOMAIN.LEADER_ELECTED", fields)]
    assert cluster.told() == []
    cluster.names = {"a", "b"}
    ((subject, shown),) = cluster.told()
    assert subject == "SERVER.REMOVED"
    assert cast("Any", shown)["server"] == "c"
    assert cluster.told() == []


def test_a_full_disk_and_dropped_requests() -> None:
    cluster = Cluster()
    cluster.full, cluster.dropped = True, 3
    assert cluster.told() == [
        ("SERVER.OUT_OF_STORAGE", {"server": "a", "server_id": "NA", "cluster": "C"}),
        ("API.LIMIT_REACHED", {"server": "a", "dropped": 3}),
    ]
    assert cluster.told() == []
    cluster.full, cluster.dropped = False, 4
    assert cluster.told() == [("API.LIMIT_REACHED", {"server": "a", "dropped": 1})]
