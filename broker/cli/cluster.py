"""`jetraft cluster`: the nodes of a cluster, as an operator sees and changes them.

Owns: the options and output of these commands.
May not touch: the server's internals; every command is a request of the system account.
Spec: docs/cluster.md."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import click
from nats.errors import NoRespondersError

from broker.cli.client import SECONDS, connection, server_option, with_connection
from broker.cli.output.tables import show, table

ANSWER_WITHIN_S = 10.0
STATUS_WITHIN_S = 3.0
NEEDS_SYSTEM = "this command needs a user of the system account"
REBALANCE_WITHIN_S = 60.0
POLL_EVERY_S = 0.2

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
wait_option = click.option(
    "--wait", type=SECONDS, default=None, help="Wait until it is done, for so many seconds."
)

Status = dict[str, Any]


class Unavailable(ValueError):
    """The node that was asked belongs to no cluster, or not any more."""


@click.group()
def cluster() -> None:
    """Show, add, drain and remove nodes. Needs a user of the system account."""


@cluster.command("status")
@json_option
@server_option
def status(*, as_json: bool, server: str) -> None:
    """Show the nodes: their state, whether they are connected, what they hold and lead."""
    _print(with_connection(server, _status), as_json=as_json)


@cluster.command("add")
@click.argument("name")
@wait_option
@json_option
@server_option
def add(*, name: str, wait: float | None, as_json: bool, server: str) -> None:
    """Make a node a full member: undo its drain, or a removal that is not finished.

    A new node joins by itself when it is started with a route to a member; with --wait this
    command waits for it."""

    async def work(nc: Any) -> Status:
        if wait is not None:
            await _until(nc, lambda now: _find(now, name) is not None, wait, f"{name} joins")
        await _request(nc, "SERVER.RETURN", peer=name)
        return await _status(nc)

    _print(with_connection(server, work), as_json=as_json)


@cluster.command("drain")
@click.argument("name")
@wait_option
@json_option
@server_option
def drain(*, name: str, wait: float | None, as_json: bool, server: str) -> None:
    """Move replicas and leaders away from a node. It stays a member; `add` undoes it."""

    def empty(now: Status) -> bool:
        node = _find(now, name)
        return node is None or node["replicas"] == 0

    _change("SERVER.EVACUATE", name, empty, wait, as_json=as_json, server=server)


@cluster.command("remove")
@click.argument("name")
@wait_option
@json_option
@server_option
def remove(*, name: str, wait: float | None, as_json: bool, server: str) -> None:
    """Remove a node for good, also one that is down. Its replicas move to other nodes first."""
    _change(
        "SERVER.REMOVE", name, lambda now: _find(now, name) is None, wait,
        as_json=as_json, server=server,
    )  # fmt: skip


@cluster.command("rebalance")
@json_option
@server_option
def rebalance(*, as_json: bool, server: str) -> None:
    """Spread the leaders of streams evenly over the nodes, a few at a time."""

    async def work(nc: Any) -> Status:
        deadline = time.monotonic() + REBALANCE_WITHIN_S
        while time.monotonic() < deadline:
            if not (await _request(nc, "SERVER.REBALANCE"))["transfers"]:
                break
            await asyncio.sleep(POLL_EVERY_S)
        return await _status(nc)

    _print(with_connection(server, work), as_json=as_json)


@cluster.command("step-down")
@click.option("--to", default="", help="The node that should lead the meta group.")
@json_option
@server_option
def step_down(*, to: str, as_json: bool, server: str) -> None:
    """Move the leadership of the meta group to another node."""

    async def work(nc: Any) -> Status:
        before = (await _status(nc))["meta_leader"]
        await _request(nc, "META.LEADER.STEPDOWN", placement={"preferred": to})

        def moved(now: Status) -> bool:
            return now["meta_leader"] not in ("", before)

        return await _until(nc, moved, ANSWER_WITHIN_S, "another node leads")

    _print(with_connection(server, work), as_json=as_json)


def _change(
    subject: str, name: str, done: Callable[[Status], bool], wait: float | None, *,
    as_json: bool, server: str,
) -> None:  # fmt: skip
    async def work(nc: Any) -> Status:
        others = [url.geturl() for url in nc.discovered_servers]
        accepted = False
        try:
            await _request(nc, subject, peer=name)
            accepted = True
            return await _outcome(nc, done, wait, name)
        except Unavailable:
            if subject != "SERVER.REMOVE" or not others:
                raise
        # It may have removed the node that it is connected to: the others know.
        async with connection(",".join(others), []) as other:
            within = wait if accepted else wait or ANSWER_WITHIN_S
            return await _outcome(other, done, within, name)

    _print(with_connection(server, work), as_json=as_json)


async def _outcome(
    nc: Any, done: Callable[[Status], bool], wait: float | None, name: str
) -> Status:
    return await _status(nc) if wait is None else await _until(nc, done, wait, f"{name} is done")


async def _request(nc: Any, subject: str, **body: object) -> Status:
    within = STATUS_WITHIN_S if subject == "SERVER.STATUS" else ANSWER_WITHIN_S
    try:
        answer = await nc.request(f"$JS.API.{subject}", json.dumps(body).encode(), timeout=within)
    except NoRespondersError as nobody:
        raise ValueError("no answer: is JetStream enabled?") from nobody
    except TimeoutError as silence:
        raise ValueError(f"no answer: {NEEDS_SYSTEM}") from silence
    document: Status = json.loads(answer.data)
    if "error" in document:
        error = document["error"]
        if error.get("err_code") == 10039:
            raise ValueError(NEEDS_SYSTEM)
        refusal = Unavailable if error.get("err_code") == 10008 else ValueError
        raise refusal(f"{error['description']} ({error['err_code']})")
    return document


async def _status(nc: Any) -> Status:
    return await _request(nc, "SERVER.STATUS")


async def _until(nc: Any, done: Callable[[Status], bool], seconds: float, what: str) -> Status:
    deadline = time.monotonic() + seconds
    while True:
        now = await _status(nc)
        if done(now):
            return now
        if time.monotonic() > deadline:
            raise ValueError(f"not within {seconds:g} s: {what}")
        await asyncio.sleep(POLL_EVERY_S)


def _find(now: Status, name: str) -> Status | None:
    return next((node for node in now["servers"] if node["name"] == name), None)


def _print(now: Status, *, as_json: bool) -> None:
    if as_json:
        now.pop("type", None)
        click.echo(json.dumps(now, indent=2))
        return
    moving = f", {now['moving']} of them moving" if now["moving"] else ""
    level = now.get("feature_level", 0)
    show(f"cluster {now['cluster']}: {now['streams']} streams{moving}, feature level {level}")
    rows = [
        (
            node["name"], node["state"], "connected" if node["connected"] else "away",
            "leader" if node["meta_leader"] else "", node["replicas"], node["leaders"],
        )
        for node in now["servers"]
    ]  # fmt: skip
    table(("name", "state", "link", "meta", "replicas", "leaders"), rows, empty="no nodes")
