"""`jetraft kv`: key-value buckets.

Owns: the options and output of these commands.
May not touch: the server's internals; a bucket is a stream, and the client library knows how."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import click
import nats.errors
import nats.js.errors
from nats.js.api import KeyValueConfig, StorageType

from broker.cli.client import SECONDS, server_option, with_connection
from broker.cli.connect.options import AT_LEAST_ONE
from broker.cli.output.tables import show, table
from broker.cli.output.units import size
from broker.server.process.printable import printable_lines

bucket_argument = click.argument("bucket")


@click.group()
def kv() -> None:
    """Key-value buckets: put, get, watch."""


@kv.command("add")
@bucket_argument
@click.option("--replicas", default=1, show_default=True, type=click.IntRange(1, 5), help="Copies.")
@click.option(
    "--history", default=1, show_default=True, type=click.IntRange(1, 64),
    help="Values kept of every key.",
)  # fmt: skip
@click.option("--ttl", type=SECONDS, help="Seconds after which a value goes.")
@click.option(
    "--storage", type=click.Choice(["file", "memory"]), default="file", show_default=True,
    help="Where values are kept.",
)  # fmt: skip
@server_option
def kv_add(
    *, bucket: str, replicas: int, history: int, ttl: float | None, storage: str, server: str
) -> None:
    """Create a bucket."""
    config = KeyValueConfig(
        bucket=bucket, replicas=replicas, history=history, ttl=ttl, storage=StorageType(storage)
    )
    with_connection(server, lambda nc: nc.jetstream().create_key_value(config))
    show(f"created bucket {bucket}")


@kv.command("ls")
@server_option
def kv_ls(*, server: str) -> None:
    """List buckets."""
    found = with_connection(server, lambda nc: nc.jetstream().streams_info())
    rows = [
        (
            info.config.name.removeprefix("KV_"), info.config.num_replicas, info.state.messages,
            size(info.state.bytes), info.config.max_msgs_per_subject,
        )
        for info in sorted(found, key=lambda info: info.config.name)
        if info.config.name.startswith("KV_")
    ]  # fmt: skip
    headings = ("bucket", "replicas", "values", "size", "history")
    table(headings, rows, empty="no buckets; `jetraft kv add` creates one")


@kv.command("keys")
@bucket_argument
@server_option
def kv_keys(*, bucket: str, server: str) -> None:
    """List the keys of a bucket."""

    async def work(nc: Any) -> list[str]:
        store = await nc.jetstream().key_value(bucket)
        try:
            return sorted(await store.keys())
        except nats.js.errors.NoKeysError:
            return []

    for key in with_connection(server, work):
        show(key)


@kv.command("put")
@bucket_argument
@click.argument("key")
@click.argument("value", required=False)
@click.option("--revision", type=click.IntRange(0), help="Only if this is the key's last revision.")
@server_option
def kv_put(*, bucket: str, key: str, value: str | None, revision: int | None, server: str) -> None:
    """Store a value; without VALUE, what standard input has."""
    data = sys.stdin.buffer.read() if value is None else value.encode()

    async def work(nc: Any) -> int:
        store = await nc.jetstream().key_value(bucket)
        if revision is None:
            return int(await store.put(key, data))
        return int(await store.update(key, data, last=revision))

    show(f"revision {with_connection(server, work)}")


@kv.command("get")
@bucket_argument
@click.argument("key")
@click.option("--revision", type=AT_LEAST_ONE, help="This revision instead of the last one.")
@click.option("--raw", is_flag=True, help="The bytes as they are, without a line end.")
@server_option
def kv_get(*, bucket: str, key: str, revision: int | None, raw: bool, server: str) -> None:
    """Print the value of a key."""

    async def work(nc: Any) -> Any:
        store = await nc.jetstream().key_value(bucket)
        return await store.get(key, revision=revision)

    try:
        entry = with_connection(server, work)
    except click.ClickException as error:
        if error.message == "no such key":
            raise click.ClickException(f"{bucket} has no key {key}") from error
        raise
    if raw:
        sys.stdout.buffer.write(entry.value or b"")
    else:
        click.echo(printable_lines((entry.value or b"").decode(errors="replace")))


@kv.command("del")
@bucket_argument
@click.argument("key")
@server_option
def kv_del(*, bucket: str, key: str, server: str) -> None:
    """Delete a key; its history stays until limits remove it."""

    async def work(nc: Any) -> None:
        store = await nc.jetstream().key_value(bucket)
        await store.delete(key)

    with_connection(server, work)
    show(f"deleted {key}")


@kv.command("watch")
@bucket_argument
@click.argument("key", default=">")
@click.option("--count", type=AT_LEAST_ONE, help="Stop after this many changes.")
@server_option
def kv_watch(*, bucket: str, key: str, count: int | None, server: str) -> None:
    """Print the values, then every change. Ctrl-C ends it."""

    async def work(nc: Any) -> None:
        store = await nc.jetstream().key_value(bucket)
        watcher = await store.watch(key)
        seen = 0
        while count is None or seen < count:
            try:
                entry = await watcher.updates(timeout=3600)
            except nats.errors.TimeoutError:
                continue
            if entry is None:  # everything that was there has been shown
                continue
            seen += 1
            value = printable_lines((entry.value or b"").decode(errors="replace"))
            done = "deleted" if entry.operation in ("DEL", "PURGE") else value
            show(f"[{entry.revision}] {entry.key}: {done}")

    try:
        with_connection(server, work)
    except (KeyboardInterrupt, asyncio.CancelledError):
        click.echo("", err=True)


@kv.command("rm")
@bucket_argument
@server_option
def kv_rm(*, bucket: str, server: str) -> None:
    """Delete a bucket and everything in it."""
    with_connection(server, lambda nc: nc.jetstream().delete_key_value(bucket))
    show(f"deleted bucket {bucket}")
