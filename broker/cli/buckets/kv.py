"""`jetraft kv`: key-value buckets.

Owns: the options and output of these commands.
May not touch: the server's internals; key_value.py knows how a bucket is stored."""

from __future__ import annotations

import sys
from typing import Any

import click

from broker.cli.buckets.key_value import (
    DELETED,
    PATIENCE_S,
    PREFIX,
    KeyValueEntry,
    bucket_config,
    bucket_info,
    entry,
    entry_of,
    key_checked,
    put,
    stream_of,
    subject_of,
    watched,
)
from broker.cli.connect import api
from broker.cli.connect.blocking import connected
from broker.cli.connect.failures import CommandFailed
from broker.cli.connect.options import AT_LEAST_ONE, Destination, connects
from broker.cli.lazy import CommandGroup
from broker.cli.output.message_text import payload_fields, payload_text
from broker.cli.output.questions import confirm, yes_option
from broker.cli.output.tables import facts, show, show_json, show_json_line, table
from broker.cli.output.times import rfc3339
from broker.cli.output.units import DURATION, duration, size
from broker.cli.streams.reading import stored_messages

bucket_argument = click.argument("bucket")
key_argument = click.argument("key")


@click.group(cls=CommandGroup)
def kv() -> None:
    """Key-value buckets: put, get, watch."""


@kv.command("add")
@bucket_argument
@click.option(
    "--replicas",
    default=1,
    show_default=True,
    type=click.IntRange(1, 5),
    help="Number of replicas.",
)
@click.option(
    "--history", default=1, show_default=True, type=click.IntRange(1, 64),
    help="How many values to keep per key.",
)  # fmt: skip
@click.option(
    "--ttl", "ttl_ns", type=DURATION, default=0, help="Delete values that are older than this."
)
@click.option(
    "--storage", type=click.Choice(["file", "memory"]), default="file", show_default=True,
    help="Keep values in files or in memory.",
)  # fmt: skip
@connects
def kv_add(
    *, bucket: str, replicas: int, history: int, ttl_ns: int, storage: str, to: Destination,
    as_json: bool,
) -> None:  # fmt: skip
    """Create a bucket."""
    config = bucket_config(
        bucket, replicas=replicas, history=history, ttl_ns=ttl_ns, storage=storage
    )
    with connected(to) as client:
        made = api.call(client, f"STREAM.CREATE.{config['name']}", config)
    show_json(made) if as_json else show(f"created bucket {bucket}")


@kv.command("ls")
@connects
def kv_ls(*, to: Destination, as_json: bool) -> None:
    """List buckets."""
    with connected(to) as client:
        found = [one for one in api.streams(client) if one["config"]["name"].startswith(PREFIX)]
    if as_json:
        show_json(found)
        return
    rows = [
        (
            one["config"]["name"].removeprefix(PREFIX), one["config"]["num_replicas"],
            one["state"]["messages"], size(one["state"]["bytes"]),
            one["config"]["max_msgs_per_subject"],
        )
        for one in found
    ]  # fmt: skip
    headings = ("bucket", "replicas", "values", "size", "history")
    table(headings, rows, empty="no buckets; `jetraft kv add` creates one")


@kv.command("info")
@bucket_argument
@connects
def kv_info(*, bucket: str, to: Destination, as_json: bool) -> None:
    """Show a bucket."""
    with connected(to) as client:
        found = bucket_info(client, bucket)
    if as_json:
        show_json(found)
        return
    config, state = found["config"], found["state"]
    facts(f"bucket {bucket}", [
        ("values", state["messages"]),
        ("size", size(state["bytes"])),
        ("history", config["max_msgs_per_subject"]),
        ("ttl", duration(config["max_age"]) if config.get("max_age") else "none"),
        ("replicas", config["num_replicas"]),
        ("storage", config["storage"]),
        ("leader", (found.get("cluster") or {}).get("leader")),
    ])  # fmt: skip


@kv.command("keys")
@bucket_argument
@connects
def kv_keys(*, bucket: str, to: Destination, as_json: bool) -> None:
    """List the keys of a bucket."""
    with connected(to) as client:
        info = bucket_info(client, bucket)
        last = stored_messages(
            client, info, subject=subject_of(info, ">"), newest_only=True, headers_only=True
        )
        entries = map(entry_of, last)
        keys = sorted(one.key for one in entries if one.operation not in DELETED)
    if as_json:
        show_json(keys)
        return
    for key in keys:
        show(key)


@kv.command("put")
@bucket_argument
@key_argument
@click.argument("value", required=False)
@click.option(
    "--revision",
    type=click.IntRange(0),
    help="Write only if this is the key's last revision; 0: only a new key.",
)
@connects
def kv_put(
    *, bucket: str, key: str, value: str | None, revision: int | None, to: Destination,
    as_json: bool,
) -> None:  # fmt: skip
    """Store a value; without VALUE, what standard input has. `--revision 0`: only a new key."""
    data = sys.stdin.buffer.read() if value is None else value.encode(errors="surrogateescape")
    expected = [] if revision is None else [("Nats-Expected-Last-Subject-Sequence", str(revision))]
    with connected(to) as client:
        stored = put(client, bucket, key, data, headers=expected)
    if as_json:
        show_json({"bucket": bucket, "key": key, "revision": stored})
    else:
        show(f"revision {stored}")


@kv.command("get")
@bucket_argument
@key_argument
@click.option("--revision", type=AT_LEAST_ONE, help="Get this revision instead of the last one.")
@click.option("--raw", is_flag=True, help="Print the bytes unchanged, without a line end.")
@connects
def kv_get(
    *, bucket: str, key: str, revision: int | None, raw: bool, to: Destination, as_json: bool
) -> None:
    """Print the value of a key."""
    with connected(to) as client:
        found = entry(client, bucket, key, revision)
    if found is None or found.operation in DELETED:
        raise CommandFailed(f"{bucket} has no key {key}")
    if raw:
        sys.stdout.buffer.write(found.value)
    elif as_json:
        show_json(_fields(bucket, found))
    else:
        click.echo(payload_text(found.value))


@kv.command("history")
@bucket_argument
@key_argument
@connects
def kv_history(*, bucket: str, key: str, to: Destination, as_json: bool) -> None:
    """Print the values of a key that are kept, oldest first."""
    with connected(to) as client:
        info = bucket_info(client, bucket)
        found = stored_messages(client, info, subject=subject_of(info, key_checked(key)))
        entries = [entry_of(one) for one in found]
    if not entries:
        raise CommandFailed(f"{bucket} has no key {key}")
    for one in entries:
        _print(bucket, one, as_json=as_json)


@kv.command("del")
@bucket_argument
@key_argument
@connects
def kv_del(*, bucket: str, key: str, to: Destination, as_json: bool) -> None:
    """Delete a key; its history stays until limits remove it."""
    _mark(bucket, key, [("KV-Operation", "DEL")], to, as_json=as_json)


@kv.command("purge")
@bucket_argument
@key_argument
@connects
def kv_purge(*, bucket: str, key: str, to: Destination, as_json: bool) -> None:
    """Delete a key and its history."""
    _mark(bucket, key, [("KV-Operation", "PURGE"), ("Nats-Rollup", "sub")], to, as_json=as_json)


@kv.command("watch")
@bucket_argument
@click.argument("key", default=">")
@click.option("--count", type=AT_LEAST_ONE, help="Stop after this many changes.")
@connects
def kv_watch(*, bucket: str, key: str, count: int | None, to: Destination, as_json: bool) -> None:
    """Print the values, then every change. Ctrl-C ends it. A lost connection is tried again for a
    minute, and no last value is missed."""
    with connected(to, patience_s=PATIENCE_S) as client:
        info = bucket_info(client, bucket)
        for number, one in enumerate(watched(client, info, key), 1):
            _print(bucket, one, as_json=as_json)
            sys.stdout.flush()
            if number == count:
                return


@kv.command("rm")
@bucket_argument
@yes_option
@connects
def kv_rm(*, bucket: str, yes: bool, to: Destination, as_json: bool) -> None:
    """Delete a bucket and everything in it."""
    confirm(f"Delete bucket {bucket} and all its values?", yes=yes)
    with connected(to) as client:
        bucket_info(client, bucket)
        done = api.call(client, f"STREAM.DELETE.{stream_of(bucket)}")
    show_json(done) if as_json else show(f"deleted bucket {bucket}")


def _mark(
    bucket: str, key: str, headers: list[tuple[str, str]], to: Destination, *, as_json: bool
) -> None:
    with connected(to) as client:
        revision = put(client, bucket, key, headers=headers)
    if as_json:
        show_json({"bucket": bucket, "key": key, "revision": revision})
    else:
        show(f"deleted {key}")


def _print(bucket: str, one: KeyValueEntry, *, as_json: bool) -> None:
    if as_json:
        show_json_line(_fields(bucket, one))
        return
    done = "deleted" if one.operation in DELETED else payload_text(one.value)
    show(f"[{one.revision}] {one.key}: {done}")


def _fields(bucket: str, one: KeyValueEntry) -> dict[str, Any]:
    return {
        "bucket": bucket, "key": one.key, "revision": one.revision, "time": rfc3339(one.time_ns),
        "operation": one.operation, **payload_fields(one.value),
    }  # fmt: skip
