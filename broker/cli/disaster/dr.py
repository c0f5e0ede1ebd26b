"""`jetraft dr`: a standby copy of a stream in another cluster, failover to it and failback.

Owns: the order of the steps, and what is checked between them.
May not touch: the server's internals; every step is a JetStream API request.
Spec: docs/disaster-recovery.md.

The standby is a mirror whose metadata holds the subjects of the active stream. A failover removes
`mirror` from it and gives it the subjects. The fence of a planned failover replaces the subjects of
the active stream, so that no message is acknowledged on both sides."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import click

from broker.cli.client import SECONDS, connection, with_errors

T = TypeVar("T")
SUBJECTS_KEY: Final = "jetraft.dr.subjects"
FENCE: Final = "jetraft.dr.fenced."
POLL_EVERY_S: Final = 0.1
ANSWER_WITHIN_S: Final = 10.0
# Of a stream's configuration, what its copy has too.
COPIED: Final = (
    "storage", "num_replicas", "max_msgs", "max_bytes", "max_age", "max_msg_size",
    "max_msgs_per_subject", "allow_direct", "compression", "allow_msg_ttl",
    "deny_delete", "deny_purge",
)  # fmt: skip

Config = dict[str, Any]
stream_argument = click.argument("stream")
active_option = click.option("--active", default="", help="Servers where the stream is written.")
standby_option = click.option("--standby", required=True, help="Servers that hold the copy.")
wait_option = click.option(
    "--wait", type=SECONDS, default=600.0, show_default=True, help="Until the copy is complete."
)


class NotReady(ValueError):
    """What stands in the way, for the operator."""


class Site:
    """One side: a connection, and the requests about one stream."""

    def __init__(self, nc: Any, stream: str, name: str) -> None:
        self._nc = nc
        self.stream = stream
        self.name = name

    async def ask(self, request: str, body: object = None) -> dict[str, Any]:
        payload = b"" if body is None else json.dumps(body).encode()
        answer = await self._nc.request(f"$JS.API.{request}", payload, timeout=ANSWER_WITHIN_S)
        found: dict[str, Any] = json.loads(answer.data)
        return found

    async def info(self) -> dict[str, Any] | None:
        """None if there is no such stream."""
        answer = await self.ask(f"STREAM.INFO.{self.stream}")
        error = answer.get("error")
        if error is not None and error.get("err_code") == 10059:
            return None
        return self._checked(answer, "info")

    async def change(self, request: str, body: object = None) -> dict[str, Any]:
        answer = await self.ask(f"STREAM.{request}.{self.stream}", body)
        return self._checked(answer, request.lower())

    def _checked(self, answer: dict[str, Any], what: str) -> dict[str, Any]:
        error = answer.get("error")
        if error is not None:
            reason = f"{error.get('description')} ({error.get('err_code', error.get('code'))})"
            raise NotReady(f"{what} of {self.stream} at the {self.name} side: {reason}")
        return answer


@click.group()
def dr() -> None:
    """Keep a copy of a stream in another cluster; fail over to it, and back."""


@dr.command("protect")
@stream_argument
@click.option("--active", required=True, help="Servers where the stream is written.")
@standby_option
@click.option("--remote", required=True, help="Name of the active cluster in `remotes` there.")
@wait_option
def protect(*, stream: str, active: str, standby: str, remote: str, wait: float) -> None:
    """Create the standby copy, and wait until it is complete."""

    async def work(here: Site, there: Site) -> None:
        await _protect(here, there, remote)
        await _level(here, there, wait)

    _run(stream, active, standby, work)
    click.echo(f"{stream} is protected")


@dr.command("status")
@stream_argument
@click.option("--active", required=True, help="Servers where the stream is written.")
@standby_option
def status(*, stream: str, active: str, standby: str) -> None:
    """Show how far the copy is."""

    async def work(here: Site, there: Site) -> None:
        first, second = await _known(here), await _known(there)
        mirror = second.get("mirror") or {}
        click.echo(f"active   last sequence {first['state']['last_seq']}")
        click.echo(f"standby  last sequence {second['state']['last_seq']}, lag {mirror.get('lag')}")
        if mirror.get("error"):
            click.echo(f"standby  {mirror['error'].get('description')}")

    _run(stream, active, standby, work)


@dr.command("failover")
@stream_argument
@standby_option
@active_option
@click.option("--lost", is_flag=True, help="The active side is lost: promote what the copy has.")
@wait_option
def failover(*, stream: str, standby: str, active: str, lost: bool, wait: float) -> None:
    """Make the copy the stream that is written.

    With --active, the stream there is fenced first, and nothing is lost. With --lost, messages that
    the copy had not yet received are not in it."""
    if bool(active) == lost:
        raise click.ClickException("give either --active, or --lost")

    async def planned(here: Site, there: Site) -> int:
        return await _switch(here, there, wait)

    async def unplanned(_: Site, there: Site) -> int:
        return await _promote(there)

    last = _run(stream, active or standby, standby, unplanned if lost else planned)
    click.echo(f"{stream} is active at the standby side, last sequence {last}")


@dr.command("failback")
@stream_argument
@click.option("--active", required=True, help="Servers where the stream is written now.")
@click.option("--home", required=True, help="Servers where it is to be written again.")
@click.option("--remote", required=True, help="Name of the active cluster in `remotes` at home.")
@click.option("--back", required=True, help="Name of the home cluster in `remotes` at the active.")
@click.option("--discard", is_flag=True, help="Delete what only the old stream at home has.")
@wait_option
def failback(
    *, stream: str, active: str, home: str, remote: str, back: str, discard: bool, wait: float
) -> None:
    """Copy the stream home, switch over to it, and protect it again."""

    async def work(here: Site, there: Site) -> int:
        await _clear(here, there, discard=discard)
        await _protect(here, there, remote)
        await _level(here, there, wait)
        last = await _switch(here, there, wait)
        await here.change("DELETE")  # fenced, and the other side has all of it
        await _protect(there, here, back)
        await _level(there, here, wait)
        return last

    last = _run(stream, active, home, work)
    click.echo(f"{stream} is active at home, last sequence {last}, and protected again")


# -- the steps


async def _known(site: Site) -> dict[str, Any]:
    info = await site.info()
    if info is None:
        raise NotReady(f"there is no stream {site.stream} at the {site.name} side")
    return info


async def _protect(active: Site, standby: Site, remote: str) -> None:
    """Create the copy, unless it is there already."""
    config: Config = (await _known(active))["config"]
    if config.get("mirror"):
        raise NotReady(f"{active.stream} at the {active.name} side is itself a copy")
    found = await standby.info()
    if found is not None:
        if not found["config"].get("mirror"):
            raise NotReady(f"{standby.stream} at the {standby.name} side is not a copy")
        return
    copy = {key: config[key] for key in COPIED if key in config}
    metadata = {SUBJECTS_KEY: json.dumps(config.get("subjects", []))}
    mirror = {"name": active.stream, "external": {"api": f"$JS.{remote}.API", "deliver": ""}}
    new = copy | {"name": standby.stream, "mirror": mirror, "metadata": metadata}
    await standby.change("CREATE", new)


async def _level(active: Site, standby: Site, wait: float) -> None:
    """Until the copy has all that the stream has."""
    deadline = time.monotonic() + wait
    while True:
        first, second = await _known(active), await _known(standby)
        ends = first["state"], second["state"]
        mirror = second.get("mirror") or {}
        if ends[0]["last_seq"] == ends[1]["last_seq"]:
            return
        if time.monotonic() > deadline:
            reason = (mirror.get("error") or {}).get("description", "it did not catch up in time")
            raise NotReady(
                f"the copy has sequence {ends[1]['last_seq']} of {ends[0]['last_seq']}: {reason}"
            )
        await asyncio.sleep(POLL_EVERY_S)


async def _switch(active: Site, standby: Site, wait: float) -> int:
    """Fence the stream, wait for its copy, promote that. If the copy cannot follow, the fence is
    removed again."""
    config: Config = (await _known(active))["config"]
    if not (await _known(standby))["config"].get("mirror"):
        raise NotReady(f"{standby.stream} at the {standby.name} side is not a copy")
    await active.change("UPDATE", config | {"subjects": [FENCE + active.stream]})
    try:
        await _level(active, standby, wait)
        return await _promote(standby)
    except BaseException:
        if (await _known(standby))["config"].get("mirror"):
            await active.change("UPDATE", config)
        raise


async def _promote(standby: Site) -> int:
    """Returns the last sequence."""
    config: Config = (await _known(standby))["config"]
    if not config.get("mirror"):
        raise NotReady(f"{standby.stream} at the {standby.name} side is not a copy")
    metadata = dict(config.get("metadata") or {})
    subjects = json.loads(metadata.pop(SUBJECTS_KEY, "[]"))
    if not subjects:
        raise NotReady(f"{standby.stream} has no {SUBJECTS_KEY} in its metadata: see protect")
    promoted = {key: value for key, value in config.items() if key != "mirror"}
    promoted |= {"subjects": subjects, "metadata": metadata, "mirror_direct": False}
    answer = await standby.change("UPDATE", promoted)
    return int(answer["state"]["last_seq"])


async def _clear(active: Site, home: Site, *, discard: bool) -> None:
    """Delete the old stream at home. What only it has must be given up explicitly."""
    old = await home.info()
    if old is None or old["config"].get("mirror"):
        return
    new = await _known(active)
    more = old["state"]["last_seq"] - new["state"]["first_seq"] + 1
    if not discard:
        raise NotReady(
            f"the old stream at home is at sequence {old['state']['last_seq']}, the active one at "
            f"{new['state']['last_seq']}; it is deleted with all that it has ({more} messages or "
            "less are also in the active one, or differ there). Save it (nats stream backup), then "
            "repeat with --discard"
        )
    await home.change("DELETE")


def _run(stream: str, active: str, standby: str, work: Callable[[Site, Site], Awaitable[T]]) -> T:
    problems: list[Exception] = []

    async def run() -> T:
        async with (
            connection(active, problems) as first,
            connection(standby, problems) as second,
        ):
            return await work(Site(first, stream, "active"), Site(second, stream, "standby"))

    return with_errors(f"{active}, {standby}", run, problems)
