"""Documents and events of the system account have the fields of nats-server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from broker.local import LocalCluster, LocalNode
from tests.interop.test_nats_system import ACCOUNTS
from tests.support.clients import open_client
from tests.support.clusters import WITHIN_S, nats_server, run

# Fields that we do not have, by document; "" is the part about the server.
LEFT_OUT = {
    "": {"feature_flags"},
    "STATSZ": set(),
    "VARZ": {"git_commit", "feature_flags", "disk_io_wait_stats"},
    "JSZ": {"limits"},
    "ACCOUNT.A.INFO": {"imports"},
}  # fmt: skip
SERVICES = (
    "SERVER.PING", "SERVER.PING.VARZ", "SERVER.PING.CONNZ", "SERVER.PING.ROUTEZ",
    "SERVER.PING.GATEWAYZ", "SERVER.PING.LEAFZ", "SERVER.PING.ACCOUNTZ", "SERVER.PING.JSZ",
    "SERVER.PING.HEALTHZ", "ACCOUNT.A.INFO", "ACCOUNT.A.CONNZ", "ACCOUNT.A.STATZ",
    "ACCOUNT.A.CONNS",
)  # fmt: skip


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalNode, LocalNode]]:
    place = tmp_path_factory.mktemp("fields")
    theirs = LocalCluster(place, size=1, name="real", command=nats_server(), more=ACCOUNTS)
    with LocalCluster(place, size=1, name="ours", more=ACCOUNTS) as ours, theirs:
        yield ours.nodes[0], theirs.nodes[0]


async def _connect(node: LocalNode, user: str) -> Any:
    return await open_client(node.url.replace("nats://", f"nats://{user}:pw@"), name="named")


async def _answers(node: LocalNode) -> dict[str, Any]:
    """Answers by service name, and events by subject."""
    admin = await _connect(node, "admin")
    events = await admin.subscribe("$SYS.ACCOUNT.A.*")
    await admin.flush()
    otto = await _connect(node, "otto")
    found = {}
    for service in SERVICES:
        answer = await admin.request(f"$SYS.REQ.{service}", b"", timeout=WITHIN_S)
        found[service] = msgspec.json.decode(answer.data)
    await otto.close()
    async with asyncio.timeout(WITHIN_S):
        for _ in range(2):
            event = await events.next_msg(WITHIN_S)
            found[event.subject.rpartition(".")[2]] = msgspec.json.decode(event.data)
    await admin.close()
    return found


@pytest.fixture(scope="module")
def answers(servers: tuple[LocalNode, LocalNode]) -> tuple[dict[str, Any], dict[str, Any]]:
    ours, theirs = servers
    return run(lambda: _answers(ours)), run(lambda: _answers(theirs))


def _missing(ours: Any, theirs: Any, left_out: set[str]) -> set[str]:
    return set(theirs) - set(ours) - left_out


@pytest.mark.parametrize("name", [*SERVICES, "CONNECT", "DISCONNECT"])
def test_no_field_is_missing(answers: tuple[dict[str, Any], dict[str, Any]], name: str) -> None:
    ours, theirs = answers[0][name], answers[1][name]
    assert _missing(ours, theirs, set()) == set()
    assert _missing(ours["server"], theirs["server"], LEFT_OUT[""]) == set()
    left_out = LEFT_OUT.get(name, LEFT_OUT.get(name.rpartition(".")[2], set()))
    for part in ("data", "statsz", "client"):
        if part in theirs:
            assert _missing(ours[part], theirs[part], left_out | {"name_tag"}) == set(), part


def test_no_nested_field_is_missing(answers: tuple[dict[str, Any], dict[str, Any]]) -> None:
    ours, theirs = answers
    for document, listed in (("SERVER.PING.CONNZ", "connections"),
                             ("ACCOUNT.A.STATZ", "account_statz")):  # fmt: skip
        first, second = (one[document]["data"][listed][0] for one in (ours, theirs))
        assert _missing(first, second, set()) == set(), listed
    first, second = (one["SERVER.PING"]["statsz"]["jetstream"] for one in (ours, theirs))
    assert _missing(first, second, {"limits"}) == set()
