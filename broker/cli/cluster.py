"""`jetraft cluster`: the nodes of a cluster, as an operator sees and changes them.

Owns: the options and output of these commands.
May not touch: the server's internals; every command is a request of the system account.
Spec: docs/cluster.md."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import click

from broker.cli.connect import api
from broker.cli.connect.blocking import connected
from broker.cli.connect.client_shape import CommandClient
from broker.cli.connect.failures import ApiRefused, CannotConnect, CommandFailed, NoAnswerInTime
from broker.cli.connect.options import Destination, at, connects
from broker.cli.lazy import CommandGroup
from broker.cli.operations.system_requests import NEEDS_SYSTEM
from broker.cli.output.tables import show, show_json, table
from broker.cli.output.units import DURATION, NS, counted

ANSWER_WITHIN_S = 10.0
STATUS_WITHIN_S = 3.0
REBALANCE_WITHIN_S = 60.0
POLL_EVERY_S = 0.2

PATIENCE_S = 10.0  # how long a lost connection is tried again
NOT_A_CLUSTER_HERE = 10008
NOT_ENABLED = 10039
wait_option = click.option(
    "--wait", "wait_ns", type=DURATION, help="Wait at most this long until it is complete."
)

Status = dict[str, Any]


class Unavailable(CommandFailed):
    """The node that was asked belongs to no cluster, or not any more."""


@click.group(cls=CommandGroup)
def cluster() -> None:
    """Show, add, drain and remove nodes. Needs a user of the system account."""


@cluster.command("status")
@connects
def status(*, to: Destination, as_json: bool) -> None:
    """Show the nodes: their state, whether they are connected, what they hold and lead."""
    with connected(to, patience_s=PATIENCE_S) as client:
        _print(_status(client), as_json=as_json)


@cluster.command("add")
@click.argument("name")
@wait_option
@connects
def add(*, name: str, wait_ns: int | None, to: Destination, as_json: bool) -> None:
    """Make a node a full member: undo its drain, or a removal that is not finished.

    A new node joins by itself when it is started with a route to a member; with --wait this
    command waits for it."""

    with connected(to, patience_s=PATIENCE_S) as client:
        if wait_ns is not None:
            _until(client, lambda now: _find(now, name) is not None, wait_ns / NS, f"{name} joins")
        _request(client, "SERVER.RETURN", peer=name)
        _print(_status(client), as_json=as_json)


@cluster.command("drain")
@click.argument("name")
@wait_option
@connects
def drain(*, name: str, wait_ns: int | None, to: Destination, as_json: bool) -> None:
    """Move replicas and leaders away from a node. It stays a member; `add` undoes it."""

    def empty(now: Status) -> bool:
        node = _find(now, name)
        return node is None or node["replicas"] == 0

    _print(_changed("SERVER.EVACUATE", name, empty, wait_ns, to), as_json=as_json)


@cluster.command("remove")
@click.argument("name")
@wait_option
@connects
def remove(*, name: str, wait_ns: int | None, to: Destination, as_json: bool) -> None:
    """Remove a node for good, also one that is down. Its replicas move to other nodes first."""
    _print(
        _changed("SERVER.REMOVE", name, lambda now: _find(now, name) is None, wait_ns, to),
        as_json=as_json,
    )


@cluster.command("rebalance")
@connects
def rebalance(*, to: Destination, as_json: bool) -> None:
    """Spread the leaders of streams evenly over the nodes, a few at a time."""

    with connected(to, patience_s=PATIENCE_S) as client:
        deadline = time.monotonic() + REBALANCE_WITHIN_S
        while time.monotonic() < deadline:
            if not _request(client, "SERVER.REBALANCE")["transfers"]:
                break
            time.sleep(POLL_EVERY_S)
        _print(_status(client), as_json=as_json)


@cluster.command("step-down")
@click.option("--to", "preferred", default="", help="The node that should lead the meta group.")
@connects
def step_down(*, preferred: str, to: Destination, as_json: bool) -> None:
    """Move the leadership of the meta group to another node."""
    with connected(to, patience_s=PATIENCE_S) as client:
        before = _status(client)["meta_leader"]
        _request(client, "META.LEADER.STEPDOWN", placement={"preferred": preferred})

        def moved(now: Status) -> bool:
            return now["meta_leader"] not in ("", before)

        _print(_until(client, moved, ANSWER_WITHIN_S, "another node leads"), as_json=as_json)


def _changed(
    subject: str, name: str, done: Callable[[Status], bool], wait_ns: int | None, to: Destination
) -> Status:
    wait = None if wait_ns is None else wait_ns / NS
    with connected(to, patience_s=PATIENCE_S) as client:
        known = dict.fromkeys([*to.servers, *(client.info.get("connect_urls") or [])])
        try:
            _request(client, subject, peer=name)
        except Unavailable:
            if subject != "SERVER.REMOVE":
                raise
            wait = wait or ANSWER_WITHIN_S  # whether it was accepted, the others know
        else:
            try:
                return _outcome(client, done, wait, name)
            except Unavailable:
                if subject != "SERVER.REMOVE":
                    raise
    return _told_by_another(at(",".join(known), to), done, wait, name)


def _told_by_another(
    to: Destination, done: Callable[[Status], bool], wait: float | None, name: str
) -> Status:
    """For a command that may have removed the node that it was connected to."""
    problem: CommandFailed | None = None
    for url in to.servers:
        try:
            with connected(at(url, to), patience_s=PATIENCE_S) as other:
                return _outcome(other, done, wait, name)
        except (Unavailable, CannotConnect) as failed:
            problem = failed
    raise problem or Unavailable("no other node is known")


def _outcome(
    client: CommandClient, done: Callable[[Status], bool], wait: float | None, name: str
) -> Status:
    return _status(client) if wait is None else _until(client, done, wait, f"{name} is done")


def _request(client: CommandClient, subject: str, **body: object) -> Status:
    within = STATUS_WITHIN_S if subject == "SERVER.STATUS" else ANSWER_WITHIN_S
    try:
        return api.call(client, subject, body, timeout_s=within)
    except NoAnswerInTime as silence:
        raise NoAnswerInTime(f"no answer: {NEEDS_SYSTEM}") from silence
    except ApiRefused as refused:
        if refused.err_code == NOT_ENABLED:
            raise CommandFailed(NEEDS_SYSTEM) from refused
        if refused.err_code == NOT_A_CLUSTER_HERE:
            raise Unavailable(refused.message) from refused
        raise


def _status(client: CommandClient) -> Status:
    return _request(client, "SERVER.STATUS")


def _until(
    client: CommandClient, done: Callable[[Status], bool], seconds: float, what: str
) -> Status:
    deadline = time.monotonic() + seconds
    while True:
        now = _status(client)
        if done(now):
            return now
        if time.monotonic() > deadline:
            raise NoAnswerInTime(f"not within {seconds:g} s: {what}")
        time.sleep(POLL_EVERY_S)


def _find(now: Status, name: str) -> Status | None:
    return next((node for node in now["servers"] if node["name"] == name), None)


def _print(now: Status, *, as_json: bool) -> None:
    if as_json:
        now.pop("type", None)
        show_json(now)
        return
    moving = f", {now['moving']} of them moving" if now["moving"] else ""
    level = now.get("feature_level", 0)
    streams = counted(now["streams"], "stream")
    show(f"cluster {now['cluster']}: {streams}{moving}, feature level {level}")
    rows = [
        (
            node["name"], node["state"], "connected" if node["connected"] else "away",
            "leader" if node["meta_leader"] else "", node["replicas"], node["leaders"],
        )
        for node in now["servers"]
    ]  # fmt: skip
    table(("name", "state", "link", "meta", "replicas", "leaders"), rows, empty="no nodes")
