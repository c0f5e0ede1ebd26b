"""`jetraft object`: files in an object store.

Owns: the options and output of these commands, and the progress bar of a transfer.
May not touch: the server's internals. A file that is fetched appears under its name only when it is
complete."""

from __future__ import annotations

import io
import os
import tempfile
from pathlib import Path
from typing import Any

import click
import nats.js.errors
from nats.js.api import ObjectMeta, ObjectStoreConfig
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from broker.cli.client import server_option, with_connection
from broker.cli.output.tables import show, table
from broker.cli.output.units import size

bucket_argument = click.argument("bucket")


@click.group(name="object")
def object() -> None:
    """Object stores: put and get files of any size."""


@object.command("add")
@bucket_argument
@click.option("--replicas", default=1, show_default=True, type=click.IntRange(1, 5), help="Copies.")
@server_option
def object_add(*, bucket: str, replicas: int, server: str) -> None:
    """Create an object store."""
    config = ObjectStoreConfig(bucket=bucket, replicas=replicas)
    with_connection(server, lambda nc: nc.jetstream().create_object_store(bucket, config))
    show(f"created object store {bucket}")


@object.command("ls")
@bucket_argument
@server_option
def object_ls(*, bucket: str, server: str) -> None:
    """List the files of an object store."""

    async def work(nc: Any) -> list[Any]:
        store = await nc.jetstream().object_store(bucket)
        try:
            return [one for one in await store.list() if not one.deleted]
        except nats.js.errors.NotFoundError:
            return []

    found = sorted(with_connection(server, work), key=lambda one: one.name)
    rows = [(one.name, size(one.size or 0), one.chunks or 0, one.mtime or "") for one in found]
    table(("name", "size", "chunks", "time"), rows, empty=f"{bucket} is empty")


@object.command("put")
@bucket_argument
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--name", help="Its name in the store; the path of the file if not given.")
@server_option
def object_put(*, bucket: str, file: Path, name: str | None, server: str) -> None:
    """Store a file."""
    called, total = name or str(file), file.stat().st_size

    async def work(nc: Any) -> Any:
        store = await nc.jetstream().object_store(bucket)
        with _progress() as progress, file.open("rb") as data:
            task = progress.add_task(called, total=total)
            reader = _CountedReader(data, lambda count: progress.advance(task, count))
            return await store.put(called, reader, meta=ObjectMeta(name=called))

    info = with_connection(server, work)
    show(f"stored {info.name}: {size(info.size)} in {info.chunks} chunks, {info.digest}")


@object.command("get")
@bucket_argument
@click.argument("name")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Where to.")
@server_option
def object_get(*, bucket: str, name: str, output: Path | None, server: str) -> None:
    """Fetch a file; its digest is checked before it appears under its name."""
    target = output or Path(Path(name).name)

    async def work(nc: Any) -> int:
        store = await nc.jetstream().object_store(bucket)
        info = await store.get_info(name)
        with (
            tempfile.TemporaryDirectory(dir=target.parent, prefix=".jetraft-") as place,
            _progress() as progress,
        ):
            partial = os.path.join(place, "partial")
            with open(partial, "wb") as data:  # noqa: ASYNC230 - nothing else runs here
                task = progress.add_task(name, total=info.size)
                await store.get(
                    name,
                    writeinto=_CountedWriter(data, lambda count: progress.advance(task, count)),
                )
            os.replace(partial, target)
        return int(info.size)

    try:
        fetched = with_connection(server, work)
    except click.ClickException as error:
        if error.message == "not found":
            raise click.ClickException(f"{bucket} has no object {name}") from error
        raise
    show(f"fetched {name} to {target} ({size(fetched)})")


@object.command("rm")
@bucket_argument
@click.argument("name", required=False)
@server_option
def object_rm(*, bucket: str, name: str | None, server: str) -> None:
    """Delete a file, or without NAME the whole store."""

    async def work(nc: Any) -> None:
        if name is None:
            await nc.jetstream().delete_object_store(bucket)
        else:
            store = await nc.jetstream().object_store(bucket)
            await store.delete(name)

    with_connection(server, work)
    show(f"deleted {name or bucket}")


def _progress() -> Progress:
    """Shown at a terminal only."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    return Progress(*columns, TransferSpeedColumn(), transient=True)


class _CountedReader(io.RawIOBase):
    """A file that reports how much was read."""

    def __init__(self, data: Any, taken: Any) -> None:
        super().__init__()
        self._data = data
        self._taken = taken

    def readable(self) -> bool:
        return True

    def read(self, count: int = -1) -> bytes:
        found: bytes = self._data.read(count)
        self._taken(len(found))
        return found

    def readinto(self, buffer: Any) -> int:
        found = self.read(len(buffer))
        buffer[: len(found)] = found
        return len(found)


class _CountedWriter(io.RawIOBase):
    """A file that reports how much was written."""

    def __init__(self, data: Any, taken: Any) -> None:
        super().__init__()
        self._data = data
        self._taken = taken

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        count: int = self._data.write(data)
        self._taken(count)
        return count
