"""`jetraft object`: files in an object store.

Owns: the options and output of these commands.
May not touch: the server's internals. A file that is fetched appears under its name only when it is
complete; one that was not stored completely is not there."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import click

from broker.cli.buckets.objects import (
    PREFIX,
    delete_object,
    existing_object,
    get_object,
    objects_of,
    put_object,
    store_config,
    store_info,
    store_stream,
)
from broker.cli.connect import api
from broker.cli.connect.blocking import connected
from broker.cli.connect.failures import CommandFailed
from broker.cli.connect.options import Destination, connects
from broker.cli.interrupts import end_between_steps
from broker.cli.lazy import CommandGroup
from broker.cli.output.progress import progress_bar
from broker.cli.output.questions import confirm, yes_option
from broker.cli.output.tables import facts, show, show_json, table
from broker.cli.output.units import DURATION, counted, size

bucket_argument = click.argument("bucket")


@click.group(name="object", cls=CommandGroup)
def object() -> None:
    """Object stores: put and get files of any size."""


@object.command("add")
@bucket_argument
@click.option(
    "--replicas",
    default=1,
    show_default=True,
    type=click.IntRange(1, 5),
    help="Number of replicas.",
)
@click.option(
    "--ttl", "ttl_ns", type=DURATION, default=0, help="Delete files that are older than this."
)
@click.option(
    "--storage", type=click.Choice(["file", "memory"]), default="file", show_default=True,
    help="Keep the store on disk or in memory.",
)  # fmt: skip
@connects
def object_add(
    *, bucket: str, replicas: int, ttl_ns: int, storage: str, to: Destination, as_json: bool
) -> None:
    """Create an object store."""
    config = store_config(bucket, replicas=replicas, storage=storage, ttl_ns=ttl_ns)
    with connected(to) as client:
        made = api.call(client, f"STREAM.CREATE.{config['name']}", config)
    show_json(made) if as_json else show(f"created object store {bucket}")


@object.command("ls")
@click.argument("bucket", required=False)
@connects
def object_ls(*, bucket: str | None, to: Destination, as_json: bool) -> None:
    """List object stores, or with BUCKET the files of one."""
    with connected(to) as client:
        if bucket is None:
            _print_stores(api.streams(client), as_json=as_json)
            return
        found = objects_of(client, bucket)
    if as_json:
        show_json(found)
        return
    rows = [
        (one["name"], size(one.get("size", 0)), one.get("chunks", 0), one["mtime"]) for one in found
    ]
    table(("name", "size", "chunks", "time"), rows, empty=f"{bucket} is empty")


def _print_stores(infos: list[api.Document], *, as_json: bool) -> None:
    found = [one for one in infos if one["config"]["name"].startswith(PREFIX)]
    if as_json:
        show_json(found)
        return
    rows = [
        (one["config"]["name"].removeprefix(PREFIX), one["config"]["num_replicas"],
         size(one["state"]["bytes"]))
        for one in found
    ]  # fmt: skip
    empty = "no object stores; `jetraft object add` creates one"
    table(("bucket", "replicas", "size"), rows, empty=empty)


@object.command("info")
@bucket_argument
@click.argument("name")
@connects
def object_info(*, bucket: str, name: str, to: Destination, as_json: bool) -> None:
    """Show a file."""
    with connected(to) as client:
        found = existing_object(client, bucket, name)
    if as_json:
        show_json(found)
        return
    exact = int(found.get("size", 0))
    facts(f"object {name} of {bucket}", [
        ("description", found.get("description")),
        ("size", size(exact) + (f" ({exact:,} bytes)" if exact >= 1024 else "")),
        ("chunks", found.get("chunks", 0)),
        ("digest", found.get("digest")),
        ("time", found["mtime"]),
    ])  # fmt: skip


@object.command("put")
@bucket_argument
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--name", help="Name of the object; by default the path of the file.")
@connects
def object_put(
    *, bucket: str, file: Path, name: str | None, to: Destination, as_json: bool
) -> None:
    """Store a file. Ctrl-C takes back what was stored of it."""
    called = name or str(file)
    try:
        with (
            file.open("rb") as data,
            connected(to) as client,
            progress_bar(called, file.stat().st_size) as advance,
            end_between_steps() as may_end,
        ):
            done = put_object(client, bucket, called, data, advance=advance, may_end=may_end)
    except OSError as error:
        raise CommandFailed(f"{file}: {error.strerror or error}") from error
    if as_json:
        show_json(done)
        return
    chunks = counted(done["chunks"], "chunk")
    show(f"stored {called}: {size(done['size'])} in {chunks}, {done['digest']}")


@object.command("get")
@bucket_argument
@click.argument("name")
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path),
    help="File to write; by default the name of the object, in this directory.",
)  # fmt: skip
@yes_option
@connects
def object_get(
    *, bucket: str, name: str, output: Path | None, yes: bool, to: Destination, as_json: bool
) -> None:
    """Fetch a file; its digest is checked before it appears under its name."""
    target = output or Path(Path(name).name)
    if target.exists():
        confirm(f"Replace {target}?", yes=yes)
    try:
        with (
            connected(to) as client,
            tempfile.TemporaryDirectory(dir=target.parent, prefix=".jetraft-") as place,
        ):
            total = int(existing_object(client, bucket, name).get("size", 0))
            partial = Path(place) / "partial"
            with partial.open("wb") as data, progress_bar(name, total) as advance:
                done = get_object(client, bucket, name, data, advance=advance)
            os.replace(partial, target)
    except OSError as error:
        raise CommandFailed(f"{target}: {error.strerror or error}") from error
    if as_json:
        show_json(done | {"file": str(target)})
        return
    show(f"fetched {name} to {target} ({size(done.get('size', 0))})")


@object.command("rm")
@bucket_argument
@click.argument("name", required=False)
@yes_option
@connects
def object_rm(*, bucket: str, name: str | None, yes: bool, to: Destination, as_json: bool) -> None:
    """Delete a file, or without NAME the whole store."""
    what = f"object {name} of {bucket}" if name else f"object store {bucket} and all its files"
    confirm(f"Delete {what}?", yes=yes)
    with connected(to) as client:
        if name is None:
            store_info(client, bucket)
            done = api.call(client, f"STREAM.DELETE.{store_stream(bucket)}")
        else:
            done = delete_object(client, bucket, name)
    show_json(done) if as_json else show(f"deleted {name or bucket}")
