"""`jetraft dr`: a standby copy of a stream in another cluster, failover to it and failback.

Owns: the order of the steps, and what is checked between them.
May not touch: the server's internals; every step is a JetStream API request.
Spec: docs/disaster-recovery.md.

The standby is a mirror whose metadata holds the subjects of the active stream. A failover removes
`mirror` from it and gives it the subjects. The fence of a planned failover replaces the subjects of
the active stream, so that no message is acknowledged on both sides."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import click

from broker.cli.connect import api
from broker.cli.connect.blocking import connected
from broker.cli.connect.client_shape import CommandClient
from broker.cli.connect.contexts import names as saved_contexts
from broker.cli.connect.failures import ApiRefused, CommandFailed
from broker.cli.connect.options import Destination, at, of_context
from broker.cli.lazy import CommandGroup
from broker.cli.output.tables import json_option, show, show_json
from broker.cli.output.units import DURATION, NS

SUBJECTS_KEY: Final = "jetraft.dr.subjects"
FENCE: Final = "jetraft.dr.fenced."
POLL_EVERY_S: Final = 0.1
ANSWER_WITHIN_S: Final = 10.0
PATIENCE_S: Final = 10.0  # how long a lost connection is tried again
# Of a stream's configuration, what its copy has too.
COPIED: Final = (
    "storage", "num_replicas", "max_msgs", "max_bytes", "max_age", "max_msg_size",
    "max_msgs_per_subject", "allow_direct", "compression", "allow_msg_ttl",
    "deny_delete", "deny_purge",
)  # fmt: skip

Config = dict[str, Any]
stream_argument = click.argument("stream")
active_option = click.option("--active", required=True, help="Servers of the active stream.")
standby_option = click.option("--standby", required=True, help="Servers of the standby copy.")
wait_option = click.option(
    "--wait", "wait_ns", type=DURATION, default="10m", show_default=True,
    help="How long to wait for the copy to catch up.",
)  # fmt: skip


class NotReady(CommandFailed):
    """What stands in the way, for the operator."""


class Site:
    """One side: a connection, and the requests about one stream."""

    def __init__(self, client: CommandClient, stream: str, name: str) -> None:
        self._client = client
        self.stream = api.name(stream)
        self.name = name

    def info(self) -> Config | None:
        """None if there is no such stream."""
        with self._told("info"):
            return api.stream_or_none(self._client, self.stream)

    def change(self, request: str, body: object = None) -> Config:
        with self._told(request.lower()):
            return api.call(self._client, f"STREAM.{request}.{self.stream}", body)

    @contextmanager
    def _told(self, what: str) -> Iterator[None]:
        """An error says which side refused what."""
        try:
            yield
        except ApiRefused as refused:
            text = f"{what} of {self.stream} at the {self.name} side: {refused.message}"
            raise NotReady(text) from refused


@click.group(cls=CommandGroup)
def dr() -> None:
    """Keep a copy of a stream in another cluster; fail over to it, and back.

    Servers are URLs with their login, separated by commas, or the name of a saved context."""


@dr.command("protect")
@stream_argument
@active_option
@standby_option
@click.option(
    "--remote", required=True, help="Name of the active cluster in `remotes` of the standby."
)
@wait_option
@json_option
def protect(
    *, stream: str, active: str, standby: str, remote: str, wait_ns: int, as_json: bool
) -> None:
    """Create the standby copy, and wait until it is complete."""
    with _sites(stream, active, standby) as (here, there):
        _protect(here, there, remote)
        _level(here, there, wait_ns / NS)
        state = _state(here, there)
    show_json(state) if as_json else show(f"{stream} is protected")


@dr.command("status")
@stream_argument
@active_option
@standby_option
@json_option
def status(*, stream: str, active: str, standby: str, as_json: bool) -> None:
    """Show how far the copy is."""
    with _sites(stream, active, standby) as (here, there):
        state = _state(here, there)
    if as_json:
        show_json(state)
        return
    mirror = state["standby"].get("mirror") or {}
    show(f"active   last sequence {state['active']['state']['last_seq']}")
    copied = state["standby"]["state"]["last_seq"]
    show(f"standby  last sequence {copied}, lag {mirror.get('lag')}")
    if mirror.get("error"):
        show(f"standby  {mirror['error'].get('description')}")


@dr.command("failover")
@stream_argument
@standby_option
@click.option("--active", default="", help="Servers of the active stream.")
@click.option("--lost", is_flag=True, help="The active cluster is lost: promote the copy as it is.")
@wait_option
@json_option
def failover(
    *, stream: str, standby: str, active: str, lost: bool, wait_ns: int, as_json: bool
) -> None:
    """Make the copy the stream that is written.

    With --active, the stream there is fenced first, and nothing is lost. With --lost, messages that
    the copy had not yet received are not in it."""
    if bool(active) == lost:
        raise CommandFailed("give either --active, or --lost")
    with _sites(stream, active or standby, standby) as (here, there):
        last = _promote(there) if lost else _switch(here, there, wait_ns / NS)
    if as_json:
        show_json({"stream": stream, "active": "standby", "last_seq": last})
    else:
        show(f"{stream} is active at the standby side, last sequence {last}")


@dr.command("failback")
@stream_argument
@click.option("--active", required=True, help="Servers of the active stream.")
@click.option("--home", required=True, help="Servers that the stream returns to.")
@click.option(
    "--remote", required=True, help="Name of the active cluster in `remotes` of the home cluster."
)
@click.option(
    "--back", required=True, help="Name of the home cluster in `remotes` of the active cluster."
)
@click.option(
    "--discard", is_flag=True, help="Delete the old stream at home, with messages that only it has."
)
@wait_option
@json_option
def failback(
    *, stream: str, active: str, home: str, remote: str, back: str, discard: bool, wait_ns: int,
    as_json: bool,
) -> None:  # fmt: skip
    """Copy the stream home, switch over to it, and protect it again."""
    wait = wait_ns / NS
    with _sites(stream, active, home) as (here, there):
        _clear(here, there, discard=discard)
        _protect(here, there, remote)
        _level(here, there, wait)
        last = _switch(here, there, wait)
        here.change("DELETE")  # fenced, and the other side has all of it
        _protect(there, here, back)
        _level(there, here, wait)
    if as_json:
        show_json({"stream": stream, "active": "home", "last_seq": last})
    else:
        show(f"{stream} is active at home, last sequence {last}, and protected again")


# -- the steps


def _known(site: Site) -> dict[str, Any]:
    info = site.info()
    if info is None:
        raise NotReady(f"there is no stream {site.stream} at the {site.name} side")
    return info


def _protect(active: Site, standby: Site, remote: str) -> None:
    """Create the copy, unless it is there already."""
    config: Config = _known(active)["config"]
    if config.get("mirror"):
        raise NotReady(f"{active.stream} at the {active.name} side is itself a copy")
    found = standby.info()
    if found is not None:
        if not found["config"].get("mirror"):
            raise NotReady(f"{standby.stream} at the {standby.name} side is not a copy")
        return
    copy = {key: config[key] for key in COPIED if key in config}
    metadata = {SUBJECTS_KEY: json.dumps(config.get("subjects", []))}
    mirror = {"name": active.stream, "external": {"api": f"$JS.{remote}.API", "deliver": ""}}
    new = copy | {"name": standby.stream, "mirror": mirror, "metadata": metadata}
    standby.change("CREATE", new)


def _level(active: Site, standby: Site, wait: float) -> None:
    """Until the copy has all that the stream has."""
    deadline = time.monotonic() + wait
    while True:
        first, second = _known(active), _known(standby)
        ends = first["state"], second["state"]
        mirror = second.get("mirror") or {}
        if ends[0]["last_seq"] == ends[1]["last_seq"]:
            return
        if time.monotonic() > deadline:
            reason = (mirror.get("error") or {}).get("description", "it did not catch up in time")
            raise NotReady(
                f"the copy has sequence {ends[1]['last_seq']} of {ends[0]['last_seq']}: {reason}"
            )
        time.sleep(POLL_EVERY_S)


def _switch(active: Site, standby: Site, wait: float) -> int:
    """Fence the stream, wait for its copy, promote that. If the copy cannot follow, the fence is
    removed again."""
    config: Config = _known(active)["config"]
    if not _known(standby)["config"].get("mirror"):
        raise NotReady(f"{standby.stream} at the {standby.name} side is not a copy")
    active.change("UPDATE", config | {"subjects": [FENCE + active.stream]})
    try:
        _level(active, standby, wait)
        return _promote(standby)
    except BaseException:
        if _known(standby)["config"].get("mirror"):
            active.change("UPDATE", config)
        raise


def _promote(standby: Site) -> int:
    """Returns the last sequence."""
    config: Config = _known(standby)["config"]
    if not config.get("mirror"):
        raise NotReady(f"{standby.stream} at the {standby.name} side is not a copy")
    metadata = dict(config.get("metadata") or {})
    subjects = json.loads(metadata.pop(SUBJECTS_KEY, "[]"))
    if not subjects:
        raise NotReady(f"{standby.stream} has no {SUBJECTS_KEY} in its metadata: see protect")
    promoted = {key: value for key, value in config.items() if key != "mirror"}
    promoted |= {"subjects": subjects, "metadata": metadata, "mirror_direct": False}
    answer = standby.change("UPDATE", promoted)
    return int(answer["state"]["last_seq"])


def _clear(active: Site, home: Site, *, discard: bool) -> None:
    """Delete the old stream at home. What only it has must be given up explicitly."""
    old = home.info()
    if old is None or old["config"].get("mirror"):
        return
    new = _known(active)
    more = old["state"]["last_seq"] - new["state"]["first_seq"] + 1
    if not discard:
        raise NotReady(
            f"the old stream at home is at sequence {old['state']['last_seq']}, the active one at "
            f"{new['state']['last_seq']}; it is deleted with all that it has ({more} messages or "
            "less are also in the active one, or differ there). Save it (nats stream backup), then "
            "repeat with --discard"
        )
    home.change("DELETE")


def _state(active: Site, standby: Site) -> Config:
    return {"active": _known(active), "standby": _known(standby)}


@contextmanager
def _sites(stream: str, active: str, standby: str) -> Iterator[tuple[Site, Site]]:
    with (
        connected(_side(active), patience_s=PATIENCE_S) as first,
        connected(_side(standby), patience_s=PATIENCE_S) as second,
    ):
        yield Site(first, stream, "active"), Site(second, stream, "standby")


def _side(servers: str) -> Destination:
    if servers in saved_contexts():
        return of_context(servers, timeout_s=ANSWER_WITHIN_S)
    return at(servers, Destination(timeout_s=ANSWER_WITHIN_S))
