"""`jetraft stream`: create, change, list, show, delete.

Owns: the options and output of these commands.
May not touch: the server's internals."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from broker.cli.connect import api
from broker.cli.connect.blocking import connected
from broker.cli.connect.failures import CommandFailed
from broker.cli.connect.options import AT_LEAST_ONE, Destination, connects
from broker.cli.lazy import LazyGroup
from broker.cli.output.questions import ask, can_ask, confirm, yes_option
from broker.cli.output.tables import show, show_json, table
from broker.cli.output.times import seconds_ago
from broker.cli.output.units import DURATION, NS, duration_ns, size
from broker.cli.streams.configuration import (
    Config,
    configured,
    differences,
    stream_options,
    words,
)
from broker.cli.streams.description import print_stream

DEFAULTS: Config = {
    "num_replicas": 1, "storage": "file", "retention": "limits", "allow_direct": True,
    "max_msgs": -1, "max_bytes": -1, "max_age": 0,
}  # fmt: skip

_OTHERS = {
    "view": ("broker.cli.streams.stored", "Print stored messages, page by page."),
    "get": ("broker.cli.streams.stored", "Print one stored message."),
    "rm-msg": ("broker.cli.streams.stored", "Delete one message."),
    "verify": ("broker.cli.streams.verification", "Read a whole stream and check it."),
    "backup": ("broker.cli.streams.archives", "Save a stream to a folder."),
    "restore": ("broker.cli.streams.archives", "Create a stream from a backup."),
    "cluster": ("broker.cli.streams.replicas", "Leaders and replicas of a stream."),
}


@click.group(cls=LazyGroup, lazy=_OTHERS)
def stream() -> None:
    """Create, list, show, purge and delete streams."""


@stream.command("add")
@click.argument("name", required=False)
@stream_options
@connects
def stream_add(
    *, name: str | None, file: Path | None, to: Destination, as_json: bool, **given: Any
) -> None:
    """Create a stream. At a terminal, what is missing is asked for."""
    if name is None and file is not None:
        name = configured({}, file, {}).get("name")
    config = configured(DEFAULTS, file, given)
    config["name"] = api.name(ask(name, "Name", option="NAME"))
    copies = config.get("mirror") or config.get("sources")
    if not config.get("subjects") and not copies:
        config["subjects"] = words(ask(None, "Subjects", option="--subjects"))
        if can_ask() and not any(given[one] for one in ("max_msgs", "max_bytes", "max_age")):
            config |= _asked_limits()
        if can_ask() and given["storage"] is None:
            config["storage"] = ask(None, "Storage (file, memory)", option="", default="file")
    with connected(to) as client:
        made = api.call(client, f"STREAM.CREATE.{config['name']}", config)
    show_json(made) if as_json else print_stream(made)


def _asked_limits() -> Config:
    answer = ask(None, "Limits (msgs, bytes, age)", option="", default="-1 -1 0")
    parts = [*words(answer), "-1", "-1", "0"][:3]
    age_ns = duration_ns(parts[2])
    if age_ns is None or not all(part.lstrip("-").isdigit() for part in parts[:2]):
        raise click.UsageError(f'"{answer}" is not three limits, such as: -1 -1 1h')
    return {"max_msgs": int(parts[0]), "max_bytes": int(parts[1]), "max_age": age_ns}


@stream.command("edit")
@click.argument("name")
@stream_options
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
@yes_option
@connects
def stream_edit(
    *, name: str, file: Path | None, dry_run: bool, yes: bool, to: Destination, as_json: bool,
    **given: Any,
) -> None:  # fmt: skip
    """Change the configuration of a stream."""
    with connected(to) as client:
        before: Config = api.stream_info(client, name)["config"]
        after = configured(before, file, given) | {"name": name}
        changes = differences(before, after)
        if not as_json:
            rows = [(field, old, new) for field, old, new in changes]
            table(("field", "now", "new"), rows, empty="nothing changes")
        if dry_run or not changes:
            if as_json:
                show_json([dict(zip(("field", "now", "new"), one, strict=True)) for one in changes])
            return
        confirm(f"Change {name}?", yes=yes)
        changed = api.call(client, f"STREAM.UPDATE.{name}", after)
    if as_json:
        show_json(changed)


@stream.command("copy")
@click.argument("name")
@click.argument("new_name", metavar="NEW")
@stream_options
@connects
def stream_copy(
    *, name: str, new_name: str, file: Path | None, to: Destination, as_json: bool, **given: Any
) -> None:
    """Create a stream with the configuration of another one. Messages are not copied: use --source
    for that. Subjects must be given, since two streams cannot have the same."""
    with connected(to) as client:
        base = api.stream_info(client, name)["config"]
        for field in ("subjects", "mirror", "sources", "sealed"):
            base.pop(field, None)
        config = configured(base, file, given) | {"name": api.name(new_name)}
        if not config.get("subjects") and not config.get("mirror") and not config.get("sources"):
            config["subjects"] = words(ask(None, "Subjects", option="--subjects"))
        made = api.call(client, f"STREAM.CREATE.{new_name}", config)
    show_json(made) if as_json else print_stream(made)


@stream.command("ls")
@click.option("--subject", default="", help="Only streams that store this subject.")
@click.option("--names", is_flag=True, help="Print the names only.")
@connects
def stream_ls(*, subject: str, names: bool, to: Destination, as_json: bool) -> None:
    """List streams."""
    with connected(to) as client:
        if names:
            listed = api.stream_names(client, subject)
            if as_json:
                show_json(listed)
            for name in [] if as_json else listed:
                show(name)
            return
        found = api.streams(client, subject)
    if as_json:
        show_json(found)
        return
    _print_list(found, empty="no streams; `jetraft stream add` creates one")


def _print_list(found: list[Config], *, empty: str) -> None:
    rows = [
        (
            info["config"]["name"], info["config"].get("storage", ""),
            int(info["config"].get("num_replicas", 1)),
            (info.get("cluster") or {}).get("leader", ""),
            int(info["state"].get("consumer_count", 0)), int(info["state"].get("messages", 0)),
            size(int(info["state"].get("bytes", 0))),
            ",".join(info["config"].get("subjects") or []),
        )
        for info in found
    ]  # fmt: skip
    headings = (
        "name", "storage", "replicas", "leader", "consumers", "messages", "size", "subjects",
    )  # fmt: skip
    table(headings, rows, empty=empty)


@stream.command("report")
@click.option(
    "--sort", type=click.Choice(["name", "messages", "bytes", "consumers"]), default="bytes",
    show_default=True, help="Sort by this column, largest first.",
)  # fmt: skip
@connects
def stream_report(*, sort: str, to: Destination, as_json: bool) -> None:
    """Show all streams with their replicas, what they lack and how far copies are behind."""
    with connected(to) as client:
        found = api.streams(client)
    if as_json:
        show_json(found)
        return
    field = "consumer_count" if sort == "consumers" else sort
    if sort != "name":
        found.sort(key=lambda info: -int(info["state"].get(field, 0)))
    rows = [
        (
            info["config"]["name"], info["config"].get("storage", ""),
            int(info["state"].get("consumer_count", 0)), int(info["state"].get("messages", 0)),
            size(int(info["state"].get("bytes", 0))), int(info["state"].get("num_deleted", 0)),
            int((info["state"].get("lost") or {}).get("bytes", 0)), _members(info),
        )
        for info in found
    ]  # fmt: skip
    headings = ("name", "storage", "consumers", "messages", "size", "deleted", "lost", "replicas")
    table(headings, rows, empty="no streams")
    copies = [
        (info["config"]["name"], kind, origin.get("name", ""), int(origin.get("lag", 0)),
         (origin.get("error") or {}).get("description", ""))
        for info in found
        for kind, origins in (("mirror", [info.get("mirror")]), ("source", info.get("sources")))
        for origin in origins or []
        if origin
    ]  # fmt: skip
    if copies:
        click.echo()
        table(("stream", "kind", "of", "behind", "error"), copies, empty="")


def _members(info: Config) -> str:
    cluster = info.get("cluster") or {}
    followers = [
        str(peer.get("name")) + ("!" if peer.get("offline") or not peer.get("current") else "")
        for peer in cluster.get("replicas") or []
    ]
    leader = cluster.get("leader")
    return ", ".join([f"{leader}*" if leader else "no leader", *followers]) if cluster else ""


@stream.command("find")
@click.option("--subject", default="", help="Streams that store this subject.")
@click.option("--empty", is_flag=True, help="Streams without messages.")
@click.option("--unused", is_flag=True, help="Streams without consumers.")
@click.option("--idle", "idle_ns", type=DURATION, help="Streams that got no message for this long.")
@click.option("--replicas", type=AT_LEAST_ONE, help="Streams with this many replicas.")
@click.option("--leader", default="", help="Streams led by this server.")
@click.option("--messages", type=AT_LEAST_ONE, help="Streams with at least this many messages.")
@click.option("--invert", is_flag=True, help="Streams that do not match all conditions.")
@connects
def stream_find(
    *, subject: str, empty: bool, unused: bool, idle_ns: int | None, replicas: int | None,
    leader: str, messages: int | None, invert: bool, to: Destination, as_json: bool,
) -> None:  # fmt: skip
    """Find streams that match all conditions."""
    now = time.time()
    with connected(to) as client:
        on_subject = set(api.stream_names(client, subject)) if subject else None
        found = api.streams(client)

    def fits(info: Config) -> bool:
        state, config = info["state"], info["config"]
        idle_s = seconds_ago(str(state.get("last_ts", "")), now)
        return (
            (on_subject is None or config["name"] in on_subject)
            and (not empty or not state.get("messages"))
            and (not unused or not state.get("consumer_count"))
            and (idle_ns is None or idle_s is None or idle_s >= idle_ns / NS)
            and (replicas is None or int(config.get("num_replicas", 1)) == replicas)
            and (not leader or (info.get("cluster") or {}).get("leader") == leader)
            and (messages is None or int(state.get("messages", 0)) >= messages)
        )

    found = [info for info in found if fits(info) is not invert]
    show_json(found) if as_json else _print_list(found, empty="no stream fits")


@stream.command("info")
@click.argument("name")
@click.option(
    "--subjects",
    "pattern",
    help="Count the messages per subject, for subjects that match (wildcards work).",
)
@connects
def stream_info(*, name: str, pattern: str | None, to: Destination, as_json: bool) -> None:
    """Show a stream: its configuration, contents and replicas."""
    body = None if pattern is None else {"subjects_filter": pattern}
    with connected(to) as client:
        found = api.stream_info(client, name, body)
    if as_json:
        show_json(found)
        return
    print_stream(found)
    if pattern is not None:
        click.echo()
        counts = sorted((found["state"].get("subjects") or {}).items())
        table(("subject", "messages"), counts, empty=f"no messages on {pattern}")


@stream.command("purge")
@click.argument("name")
@click.option("--subject", help="Only messages on this subject (wildcards work).")
@click.option("--seq", type=AT_LEAST_ONE, help="Only messages before this sequence.")
@click.option("--keep", type=AT_LEAST_ONE, help="Keep this many of the newest messages.")
@yes_option
@connects
def stream_purge(
    *, name: str, subject: str | None, seq: int | None, keep: int | None, yes: bool,
    to: Destination, as_json: bool,
) -> None:  # fmt: skip
    """Remove messages, keep the stream."""
    if seq and keep:
        raise click.UsageError("--seq and --keep exclude each other")
    body = {"filter": subject, "seq": seq, "keep": keep}
    confirm(f"Remove messages of {name}?", yes=yes)
    with connected(to) as client:
        wanted = {key: value for key, value in body.items() if value}
        done = api.call(client, f"STREAM.PURGE.{api.name(name)}", wanted or None)
    if as_json:
        show_json(done)
        return
    show(f"purged {name}: {int(done.get('purged', 0)):,} messages")


@stream.command("seal")
@click.argument("name")
@yes_option
@connects
def stream_seal(*, name: str, yes: bool, to: Destination, as_json: bool) -> None:
    """Make a stream read-only for good: no message can be added or removed."""
    confirm(f"Seal {name}? This cannot be undone.", yes=yes)
    with connected(to) as client:
        config = api.stream_info(client, name)["config"]
        if config.get("sealed"):
            raise CommandFailed(f"{name} is sealed already")
        done = api.call(client, f"STREAM.UPDATE.{name}", config | {"sealed": True})
    show_json(done) if as_json else show(f"sealed {name}")


@stream.command("rm")
@click.argument("name")
@yes_option
@connects
def stream_rm(*, name: str, yes: bool, to: Destination, as_json: bool) -> None:
    """Delete a stream and everything in it."""
    confirm(f"Delete {name} and all its messages?", yes=yes)
    with connected(to) as client:
        done = api.call(client, f"STREAM.DELETE.{api.name(name)}")
    show_json(done) if as_json else show(f"deleted {name}")
