"""`jetraft consumer`: create, change, list, show, pause, delete.

Owns: the options and output of these commands.
May not touch: the server's internals."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from broker.cli.connect import api
from broker.cli.connect.blocking import connected
from broker.cli.connect.client_shape import CommandClient
from broker.cli.connect.failures import CommandFailed
from broker.cli.connect.options import Destination, connects
from broker.cli.consumers.configuration import configured_consumer, consumer_options
from broker.cli.consumers.description import filters, print_consumer
from broker.cli.lazy import LazyGroup
from broker.cli.output.questions import ask, can_ask, confirm, yes_option
from broker.cli.output.tables import show, show_json, table
from broker.cli.output.times import rfc3339, time_ns
from broker.cli.output.units import duration, duration_ns
from broker.cli.streams.configuration import Config, differences

_OTHERS = {
    "next": ("broker.cli.consumers.delivery", "Fetch messages, print and acknowledge them."),
    "sub": ("broker.cli.consumers.delivery", "Print messages as the consumer delivers them."),
}
stream_argument = click.argument("stream_name", metavar="STREAM")


@click.group(cls=LazyGroup, lazy=_OTHERS)
def consumer() -> None:
    """Create, list, show and delete consumers; fetch messages."""


@consumer.command("add")
@click.argument("stream_name", metavar="STREAM", required=False)
@click.argument("name", required=False)
@consumer_options
@click.option("--pull", is_flag=True, help="Clients fetch messages (the default without --target).")
@click.option("--ephemeral", is_flag=True, help="Delete the consumer when nobody uses it.")
@connects
def consumer_add(
    *, stream_name: str | None, name: str | None, file: Path | None, pull: bool, ephemeral: bool,
    to: Destination, as_json: bool, **given: Any,
) -> None:  # fmt: skip
    """Create a consumer: durable, pull and with explicit acks, unless options say otherwise. At a
    terminal, what is missing is asked for."""
    stream_name = api.name(ask(stream_name, "Stream", option="STREAM"))
    asks = can_ask() and name is None
    config = configured_consumer({"ack_policy": "explicit", "deliver_policy": "all"}, file, given)
    if not ephemeral:
        known = name or config.get("name") or config.get("durable_name")
        name = api.name(ask(known, "Durable name", option="NAME"), "consumer")
        config |= {"durable_name": name, "name": name}
    if pull and config.get("deliver_subject"):
        raise click.UsageError("--pull and --target exclude each other")
    if asks and not pull and not config.get("deliver_subject"):
        config |= _asked()
    with connected(to) as client:
        made = _create(client, stream_name, config, "create")
    show_json(made) if as_json else print_consumer(made)


def _asked() -> Config:
    found: Config = {}
    if ask(None, "Push or pull", option="", default="pull").lower() == "push":
        found["deliver_subject"] = ask(None, "Delivery subject", option="--target")
        found["ack_policy"] = ask(None, "Acks (none, all, explicit)", option="", default="none")
    if not click.confirm("Deliver all?", default=True):
        found["deliver_policy"] = "new"
    found["replay_policy"] = ask(None, "Replay (instant, original)", option="", default="instant")
    return found


def _create(client: CommandClient, stream: str, config: Config, action: str) -> Config:
    name = config.get("name") or config.get("durable_name") or ""
    single = config.get("filter_subject")
    place = f".{name}" + (f".{single}" if single else "") if name else ""
    body = {"stream_name": stream, "config": config, "action": action if name else ""}
    return api.call(client, f"CONSUMER.CREATE.{api.name(stream)}{place}", body)


@consumer.command("edit")
@stream_argument
@click.argument("name")
@consumer_options
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
@yes_option
@connects
def consumer_edit(
    *, stream_name: str, name: str, file: Path | None, dry_run: bool, yes: bool, to: Destination,
    as_json: bool, **given: Any,
) -> None:  # fmt: skip
    """Change the configuration of a consumer."""
    with connected(to) as client:
        before: Config = api.consumer_info(client, stream_name, name)["config"]
        after = configured_consumer(before, file, given)
        changes = differences(before, after)
        if not as_json:
            table(("field", "now", "new"), changes, empty="nothing changes")
        if dry_run or not changes:
            if as_json:
                show_json([dict(zip(("field", "now", "new"), one, strict=True)) for one in changes])
            return
        confirm(f"Change {stream_name} > {name}?", yes=yes)
        changed = _create(client, stream_name, after | {"name": name}, "update")
    if as_json:
        show_json(changed)


@consumer.command("copy")
@stream_argument
@click.argument("name")
@click.argument("new_name", metavar="NEW")
@consumer_options
@connects
def consumer_copy(
    *, stream_name: str, name: str, new_name: str, file: Path | None, to: Destination,
    as_json: bool, **given: Any,
) -> None:  # fmt: skip
    """Create a consumer with the configuration of another one; it begins where that began."""
    api.name(new_name, "consumer")
    with connected(to) as client:
        base = api.consumer_info(client, stream_name, name)["config"]
        config = configured_consumer(base, file, given)
        made = _create(
            client, stream_name, config | {"name": new_name, "durable_name": new_name}, "create"
        )
    show_json(made) if as_json else print_consumer(made)


@consumer.command("ls")
@stream_argument
@click.option("--names", is_flag=True, help="Print the names only.")
@connects
def consumer_ls(*, stream_name: str, names: bool, to: Destination, as_json: bool) -> None:
    """List the consumers of a stream."""
    with connected(to) as client:
        found = api.consumers(client, stream_name)
    if as_json:
        show_json([one["name"] for one in found] if names else found)
        return
    if names:
        for one in found:
            show(str(one["name"]))
        return
    rows = [
        (
            info["name"], "push" if info["config"].get("deliver_subject") else "pull",
            filters(info["config"]) or ">", info["config"].get("ack_policy", ""),
            int((info.get("delivered") or {}).get("stream_seq", 0)),
            int(info.get("num_pending", 0)), int(info.get("num_ack_pending", 0)),
            int(info.get("num_redelivered", 0)),
        )
        for info in found
    ]  # fmt: skip
    headings = (
        "name", "mode", "filter", "acks", "last delivered", "to deliver", "unacked", "redelivered",
    )  # fmt: skip
    table(headings, rows, empty=f"{stream_name} has no consumers")


@consumer.command("report")
@stream_argument
@connects
def consumer_report(*, stream_name: str, to: Destination, as_json: bool) -> None:
    """Show how far the consumers of a stream are, the furthest behind first."""
    with connected(to) as client:
        state = api.stream_info(client, stream_name)["state"]
        found = api.consumers(client, stream_name)
    if as_json:
        show_json(found)
        return
    found.sort(key=lambda info: -int(info.get("num_pending", 0)))
    total = int(state.get("messages", 0))
    rows = [
        (
            info["name"], int((info.get("ack_floor") or {}).get("stream_seq", 0)),
            int(info.get("num_ack_pending", 0)), int(info.get("num_redelivered", 0)),
            int(info.get("num_waiting", 0)), int(info.get("num_pending", 0)),
            f"{100 * int(info.get('num_pending', 0)) / total:.0f} %" if total else "",
            (info.get("cluster") or {}).get("leader", ""),
        )
        for info in found
    ]  # fmt: skip
    headings = (
        "name", "ack floor", "unacked", "redelivered", "pulls", "to deliver", "of all", "leader",
    )  # fmt: skip
    table(headings, rows, empty=f"{stream_name} has no consumers")


@consumer.command("info")
@stream_argument
@click.argument("name")
@connects
def consumer_info(*, stream_name: str, name: str, to: Destination, as_json: bool) -> None:
    """Show a consumer."""
    with connected(to) as client:
        found = api.consumer_info(client, stream_name, name)
    show_json(found) if as_json else print_consumer(found)


@consumer.command("pause")
@stream_argument
@click.argument("name")
@click.argument("until")
@connects
def consumer_pause(
    *, stream_name: str, name: str, until: str, to: Destination, as_json: bool
) -> None:
    """Stop the delivery UNTIL a time (2030-01-01T12:00:00Z) or for a duration (1h30m)."""
    moment = time_ns(until)
    if moment is None and (pause := duration_ns(until)):
        moment = time.time_ns() + pause
    if moment is None:
        raise click.BadParameter(f'"{until}" is neither a time nor a duration', param_hint="UNTIL")
    _pause(to, stream_name, name, rfc3339(moment), as_json=as_json)


@consumer.command("resume")
@stream_argument
@click.argument("name")
@connects
def consumer_resume(*, stream_name: str, name: str, to: Destination, as_json: bool) -> None:
    """End a pause."""
    _pause(to, stream_name, name, None, as_json=as_json)


def _pause(to: Destination, stream: str, name: str, until: str | None, *, as_json: bool) -> None:
    with connected(to) as client:
        verb = f"CONSUMER.PAUSE.{api.name(stream)}.{api.name(name, 'consumer')}"
        done = api.call(client, verb, {"pause_until": until} if until else {})
    if as_json:
        show_json(done)
        return
    if until is not None and not done.get("paused"):
        raise CommandFailed(f"{stream} > {name} is not paused: is {until} in the past?")
    left = duration(int(done.get("pause_remaining", 0)) // 10**9 * 10**9)
    show(f"{stream} > {name} is paused for {left}" if until else f"{stream} > {name} goes on")


@consumer.command("rm")
@stream_argument
@click.argument("name")
@yes_option
@connects
def consumer_rm(*, stream_name: str, name: str, yes: bool, to: Destination, as_json: bool) -> None:
    """Delete a consumer."""
    confirm(f"Delete {stream_name} > {name}?", yes=yes)
    with connected(to) as client:
        verb = f"CONSUMER.DELETE.{api.name(stream_name)}.{api.name(name, 'consumer')}"
        done = api.call(client, verb)
    show_json(done) if as_json else show(f"deleted {stream_name} > {name}")
