"""`nats server ...` of the official tool, as a user of the system account of three nodes."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Event, Thread
from typing import IO, Any

import pytest

from broker.local import LocalCluster
from tests.support.nats_tool import WITHIN_S, Cli, needs_the_tool

pytestmark = needs_the_tool

ACCOUNTS = """
accounts {
  SYS { users [{user: admin, password: pw}] }
  A { jetstream: enabled, users [{user: otto, password: pw}] }
}
system_account: SYS
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    place = tmp_path_factory.mktemp("system")
    with LocalCluster(place, size=3, name="sys", more=ACCOUNTS) as running:
        home = tmp_path_factory.mktemp("home")
        otto = _cli(running, home, "otto")
        otto("stream", "add", "ORDERS", "--subjects", "orders.*", "--replicas", "3", "--defaults")
        otto("pub", "orders.us", "--count=10", "hi {{Count}}")
        yield running


def _cli(cluster: LocalCluster, home: Path, user: str) -> Cli:
    return Cli(cluster.nodes[0].url.replace("nats://", f"nats://{user}:pw@"), home)


@pytest.fixture
def admin(cluster: LocalCluster, tmp_path: Path) -> Cli:
    return _cli(cluster, tmp_path, "admin")


NAMES = ["sys-1", "sys-2", "sys-3"]


def test_all_servers_are_listed_and_pinged(admin: Cli) -> None:
    listed = admin.json("server", "ls")
    assert sorted(one["server"]["name"] for one in listed) == NAMES
    assert [one["statsz"]["active_servers"] for one in listed] == [3, 3, 3]
    shown = admin("server", "ls")
    assert all(name in shown for name in NAMES)
    assert "3 replies" in admin("server", "ping", "3")


def test_a_server_is_shown_by_name_and_by_id(admin: Cli) -> None:
    assert "Server information for sys-2" in admin("server", "info", "sys-2")
    listed = {one["server"]["name"]: one["server"]["id"] for one in admin.json("server", "ls")}
    assert "Server information for sys-3" in admin("server", "info", listed["sys-3"])


@pytest.mark.parametrize("report", ["jetstream", "health", "routes", "cpu", "mem"])
def test_reports_name_every_server(admin: Cli, report: str) -> None:
    found = admin("server", "report", report)
    assert all(name in found for name in NAMES), found


def test_connections_of_all_servers_are_reported(admin: Cli, cluster: LocalCluster) -> None:
    with ExitStack() as held:
        for node in cluster.nodes:
            otto = Cli(node.url.replace("nats://", "nats://otto:pw@"), admin.home)
            assert "Subscribing on" in held.enter_context(otto.running("sub", "a")).readline()
        found = admin("server", "report", "connections")
        accounts = admin("server", "report", "accounts")
    assert all(name in found for name in NAMES), found
    assert re.search(r"A +│ 3 ", accounts), accounts
    assert re.search(r"SYS +│ 1 ", accounts), accounts


def _requested(admin: Cli, *words: str) -> list[Any]:
    """One document per server, each on one line or several."""
    text, found = admin("server", "request", *words), []
    decoder = json.JSONDecoder()
    while text.strip():
        document, end = decoder.raw_decode(text.lstrip())
        found.append(document)
        text = text.lstrip()[end:]
    return found


@pytest.mark.parametrize(
    "document",
    ["variables", "connections", "subscriptions", "routes", "accounts", "gateways", "leafnodes",
     "jetstream", "jetstream-health"],
)  # fmt: skip
def test_all_servers_send_the_requested_document(admin: Cli, document: str) -> None:
    found = _requested(admin, document)
    assert sorted(one["server"]["name"] for one in found) == NAMES
    assert all("data" in one for one in found)
    alone = _requested(admin, document, "--name", "sys-2")
    assert [one["server"]["name"] for one in alone] == ["sys-2"]


def test_jetstream_of_all_servers_is_counted(admin: Cli) -> None:
    deadline = time.monotonic() + WITHIN_S
    while True:  # followers store a little later
        found = _requested(admin, "jetstream")
        stored = [one["data"]["messages"] for one in found]
        if stored == [10, 10, 10] or time.monotonic() > deadline:
            break
    assert stored == [10, 10, 10]
    assert {one["data"]["meta_cluster"]["cluster_size"] for one in found} == {3}


def test_a_client_of_another_server_is_kicked(admin: Cli, cluster: LocalCluster) -> None:
    otto = Cli(cluster.nodes[2].url.replace("nats://", "nats://otto:pw@"), admin.home)
    with otto.running("sub", "kicked") as shown:
        assert "Subscribing on" in shown.readline()
        (served,) = _requested(admin, "connections", "--name", "sys-3", "--filter-account", "A")
        (connection,) = served["data"]["connections"]
        admin("server", "request", "kick", str(connection["cid"]), served["server"]["id"])
        closed = _requested(
            admin,
            "connections",
            "--name",
            "sys-3",
            "--filter-account",
            "A",
            "--filter-state",
            "closed",
        )
    kicked = [one for one in closed[0]["data"]["connections"] if one["cid"] == connection["cid"]]
    assert [one["reason"] for one in kicked] == ["Kicked"]


def test_the_configuration_is_reloaded(admin: Cli) -> None:
    before = _requested(admin, "variables", "--name", "sys-2")[0]
    admin("server", "config", "reload", before["server"]["id"], "--force")
    after = _requested(admin, "variables", "--name", "sys-2")[0]
    assert after["data"]["config_load_time"] > before["data"]["config_load_time"]


def test_events_of_clients_are_shown(admin: Cli, cluster: LocalCluster) -> None:
    otto = Cli(cluster.nodes[1].url.replace("nats://", "nats://otto:pw@"), admin.home)
    seen = Event()

    def come_and_go() -> None:
        while not seen.is_set():  # the first events may precede the SUB on the other node
            otto("pub", "a", "b")

    with admin.running("events") as shown:
        assert "Listening for" in shown.readline()
        clients = Thread(target=come_and_go)
        clients.start()
        try:
            _up_to(shown, "] Client Connection")
            _up_to(shown, "] Client Disconnection")
            _up_to(shown, "User: otto")
        finally:
            seen.set()
            clients.join()


def _up_to(shown: IO[str], text: str) -> str:
    read = ""
    while text not in read:
        line = shown.readline()
        assert line, f"no {text!r} in {read}"
        read += line
    return read


def test_checks_of_the_server(admin: Cli) -> None:
    assert admin("server", "check", "server", "--name", "sys-2").startswith("OK")
    assert admin("server", "check", "meta", "--expect", "3", "--lag-critical", "10",
                 "--seen-critical", "10s").startswith("OK")  # fmt: skip


def test_raft_groups_are_shown(admin: Cli) -> None:
    found = _requested(admin, "raft")
    groups = [one["data"]["SYS"]["_meta_"] for one in found]
    assert sorted(one["state"] for one in groups) == ["FOLLOWER", "FOLLOWER", "LEADER"]
    assert len({one["leader"] for one in groups}) == 1


def test_routes_name_the_remote_server(admin: Cli) -> None:
    ids = {one["server"]["name"]: one["server"]["id"] for one in admin.json("server", "ls")}
    for one in _requested(admin, "routes"):
        others = {name: ids[name] for name in NAMES if name != one["server"]["name"]}
        routes = one["data"]["routes"]
        assert {route["remote_name"]: route["remote_id"] for route in routes} == others
        assert all(route["subscriptions"] > 0 for route in routes)
    asked_at = next(
        one["data"]["routes"] for one in _requested(admin, "routes")
        if one["server"]["name"] == NAMES[0]
    )  # fmt: skip
    assert all(route["in_msgs"] > 0 and route["out_msgs"] > 0 for route in asked_at)


def test_profiles_of_all_servers_become_files(admin: Cli, tmp_path: Path) -> None:
    admin("server", "request", "profile", "goroutine", str(tmp_path))
    found = list(tmp_path.glob("*goroutine*"))
    assert len(found) == len(NAMES)
    assert all(one.read_bytes()[:2] == b"\x1f\x8b" for one in found)  # gzip, for `go tool pprof`


def test_a_request_for_the_leader_is_answered_by_the_leader_only(admin: Cli) -> None:
    shown = admin("request", "$SYS.REQ.SERVER.PING.JSZ", '{"leader_only":true}', "--raw",
                  "--replies", "0", "--timeout", "3s")  # fmt: skip
    (answer,) = [json.loads(line) for line in shown.splitlines() if line.startswith("{")]
    assert answer["data"]["meta_cluster"]["leader"] == answer["server"]["name"]


def test_a_request_for_stream_leaders_is_answered_by_them_only(admin: Cli) -> None:
    body = '{"streams":true,"stream_leader_only":true}'
    shown = admin("request", "$SYS.REQ.SERVER.PING.JSZ", body, "--raw",
                  "--replies", "3", "--timeout", "10s")  # fmt: skip
    answers = [json.loads(line) for line in shown.splitlines() if line.startswith("{")]
    streams = [
        stream["name"]
        for answer in answers
        for account in answer["data"]["account_details"]
        for stream in account["stream_detail"]
    ]
    assert (len(answers), streams) == (3, ["ORDERS"])
