"""`jetraft dr` on two clusters: one is lost, the other takes over, and the stream goes home."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import nats.errors
import pytest
from click.testing import CliRunner
from nats.js.api import StreamConfig

from broker.cli.disaster.dr import dr
from broker.local import LocalCluster, free_ports
from tests.support.clusters import connect, eventually, run

Sites = tuple[LocalCluster, LocalCluster]


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    """Two clusters of three that know each other as remotes `home` and `away`."""
    place = tmp_path_factory.mktemp("sites")
    ports = free_ports(18)
    halves = {"home": ports[:9], "away": ports[9:]}
    urls = {
        name: [f"nats://127.0.0.1:{port}" for port in half[::3]] for name, half in halves.items()
    }
    other = {"home": "away", "away": "home"}

    def site(name: str) -> LocalCluster:
        remote = other[name]
        quoted = ", ".join(f'"{url}"' for url in urls[remote])
        return LocalCluster(
            place / name, name=name, ports=halves[name],
            jetstream=f"remotes {{ {remote} {{ urls: [{quoted}] }} }}",
        )  # fmt: skip

    with site("home") as home, site("away") as away:
        yield home, away


def command(*words: str, fails: bool = False) -> str:
    result = CliRunner().invoke(dr, list(words))
    assert (result.exit_code != 0) == fails, result.output
    return result.output


def url(cluster: LocalCluster) -> str:
    return ",".join(cluster.urls)


def publish(cluster: LocalCluster, first: int, last: int) -> None:
    async def work() -> None:
        client = await connect(*cluster.nodes)

        async def one(i: int) -> bool:
            headers = {"Nats-Msg-Id": str(i)}
            await client.jetstream().publish("orders.new", b"%d" % i, headers=headers)
            return True

        for i in range(first, last + 1):
            await eventually(lambda i=i: one(i), f"publishing {i}")
        await client.close()

    run(work)


def content(cluster: LocalCluster) -> list[bytes]:
    async def work() -> list[bytes]:
        client = await connect(*cluster.nodes)
        stream = client.jetstream()

        async def state() -> Any:
            return (await stream.stream_info("ORDERS")).state

        found = await eventually(state, "the stream")
        bodies = [
            (await stream.get_msg("ORDERS", seq)).data
            for seq in range(found.first_seq, found.last_seq + 1)
        ]
        await client.close()
        return bodies

    return run(work)


def refuses(cluster: LocalCluster) -> None:
    async def work() -> None:
        client = await connect(*cluster.nodes)
        with pytest.raises(nats.errors.Error):
            await client.jetstream().publish("orders.new", b"no", timeout=2)
        await client.close()

    run(work)


def numbers(*ranges: tuple[int, int]) -> list[bytes]:
    return [b"%d" % i for first, last in ranges for i in range(first, last + 1)]


def test_the_home_cluster_is_lost_and_comes_back(sites: Sites) -> None:
    home, away = sites

    async def create() -> None:
        client = await connect(*home.nodes)
        config = StreamConfig(name="ORDERS", subjects=["orders.*"], num_replicas=3)
        await client.jetstream().add_stream(config)
        await client.close()

    run(create)
    publish(home, 1, 60)
    command("protect", "ORDERS", "--active", url(home), "--standby", url(away), "--remote", "home")
    publish(home, 61, 70)
    shown = command("status", "ORDERS", "--active", url(home), "--standby", url(away))
    assert "active   last sequence 70" in shown
    document = json.loads(
        command("status", "ORDERS", "--active", url(home), "--standby", url(away), "--json")
    )
    assert document["active"]["state"]["last_seq"] == 70
    assert document["standby"]["config"]["mirror"]["name"] == "ORDERS"
    refuses(away)

    # A planned switch: the old side is fenced, and nothing is missing.
    both = ("--active", url(home), "--standby", url(away))
    assert "last sequence 70" in command("failover", "ORDERS", *both)
    refuses(home)
    publish(away, 71, 75)
    back = ("--active", url(away), "--home", url(home), "--remote", "away", "--back", "home")
    assert "--discard" in command("failback", "ORDERS", *back, fails=True)
    assert "last sequence 75" in command("failback", "ORDERS", *back, "--discard")
    refuses(away)
    publish(home, 76, 80)
    command("protect", "ORDERS", *both, "--remote", "home")  # as it is; waits until it is complete
    assert content(home) == content(away) == numbers((1, 80))

    # The home cluster is lost.
    for node in home.nodes:
        node.kill()
    assert "last sequence 80" in command("failover", "ORDERS", "--standby", url(away), "--lost")
    publish(away, 81, 90)
    for node in home.nodes:
        node.start()
    for node in home.nodes:
        node.wait_healthy()
    assert "last sequence 90" in command("failback", "ORDERS", *back, "--discard")
    publish(home, 91, 95)
    command("protect", "ORDERS", *both, "--remote", "home")
    assert content(home) == content(away) == numbers((1, 95))


def test_what_cannot_be_done_is_said(sites: Sites) -> None:
    home, away = sites
    both = ("--active", url(home), "--standby", url(away))
    assert "there is no stream" in command("protect", "X", *both, "--remote", "home", fails=True)
    assert "there is no stream" in command(
        "failover", "X", "--standby", url(away), "--lost", fails=True
    )
    assert "either" in command("failover", "X", *both, "--lost", fails=True)
