"""`jetraft stream backup|restore`: a stream as a folder, in the form of the official tool.

Owns: the folder (backup.json and stream.tar.s2) and the transfer.
May not touch: what the archive contains.
A backup appears under its name when it is complete; an interrupted one leaves nothing.
Spec: JetStream API, STREAM.SNAPSHOT and STREAM.RESTORE."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, BinaryIO

import click

from broker.cli.connect import api
from broker.cli.connect.blocking import connected
from broker.cli.connect.client_shape import CommandClient
from broker.cli.connect.failures import ApiRefused, CommandFailed, NoAnswerInTime
from broker.cli.connect.options import Destination, connects
from broker.cli.output.progress import progress_bar
from broker.cli.output.tables import show, show_json
from broker.cli.output.units import size
from broker.cli.streams.configuration import Config, configured, stream_options
from broker.cli.streams.description import print_stream

CHUNK_BYTES = 128 * 1024
SILENCE_MAX_S = 60.0
DIGEST_KEY = "jetraft_sha256"  # of the archive; the official tool skips it


@click.command()
@click.argument("name")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--consumers/--no-consumers", default=True, help="Include the consumers.")
@click.option("--check", is_flag=True, help="Let the server verify the messages first.")
@connects
def backup(
    *, name: str, folder: Path, consumers: bool, check: bool, to: Destination, as_json: bool
) -> None:
    """Save a stream to a new folder, which `stream restore` of this or the official tool reads."""
    if folder.exists():
        raise CommandFailed(f"{folder} exists already")
    partial = Path(_new_folder(folder))
    try:
        with connected(to) as client:
            facts = download(client, name, partial, consumers=consumers, check=check)
        os.replace(partial, folder)
    except OSError as error:
        raise CommandFailed(f"{folder}: {error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    if as_json:
        show_json(facts | {"folder": str(folder)})
        return
    messages = int(facts["state"].get("messages", 0))
    show(f"saved {name} to {folder}: {messages:,} messages, {size(facts['bytes'])}")


def _new_folder(folder: Path) -> str:
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        return tempfile.mkdtemp(dir=folder.parent, prefix=".jetraft-")
    except OSError as error:
        raise CommandFailed(f"{folder}: {error}") from error


def download(
    client: CommandClient, name: str, place: Path, *, consumers: bool, check: bool
) -> dict[str, Any]:
    inbox = f"{client.new_reply()}.chunks"
    sid = client.subscribe(inbox)
    wanted = {
        "deliver_subject": inbox, "no_consumers": not consumers, "chunk_size": CHUNK_BYTES,
        "jsck": check,
    }  # fmt: skip
    answer = api.call(client, f"STREAM.SNAPSHOT.{api.name(name)}", wanted, timeout_s=SILENCE_MAX_S)
    total = int((answer.get("state") or {}).get("bytes", 0))
    got, digest = 0, hashlib.sha256()
    with (place / "stream.tar.s2").open("wb") as file, progress_bar(name, total) as advance:
        while True:
            chunk = client.next(SILENCE_MAX_S)
            if chunk is None:
                raise NoAnswerInTime(f"the backup of {name} stopped after {size(got)}")
            if chunk.sid != sid:
                continue
            if chunk.status >= 400:
                raise CommandFailed(f"the server ended the backup: {chunk.description}")
            if not chunk.data:
                break
            file.write(chunk.data)
            digest.update(chunk.data)
            got += len(chunk.data)
            advance(len(chunk.data))
            if chunk.reply:
                client.publish(chunk.reply)
                client.send()
        file.flush()
        os.fsync(file.fileno())
    facts = {"config": answer["config"], "state": answer["state"], DIGEST_KEY: digest.hexdigest()}
    (place / "backup.json").write_text(json.dumps(facts, indent=2) + "\n")
    return facts | {"bytes": got}


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--name", help="Restore under another name; no other stream may have its subjects.")
@stream_options
@connects
def restore(
    *, folder: Path, name: str | None, file: Path | None, to: Destination, as_json: bool,
    **given: Any,
) -> None:  # fmt: skip
    """Create a stream from a backup. Options change its configuration."""
    facts = _manifest(folder)
    config: Config = configured(facts["config"], file, given)
    if name is not None:
        config["name"] = api.name(name)
    archive = folder / "stream.tar.s2"
    with connected(to) as client:
        if api.stream_or_none(client, api.name(str(config["name"]))) is not None:
            raise CommandFailed(f"there is a stream {config['name']} already")
        with archive.open("rb") as data:
            done = upload(client, config, facts["state"], data, archive.stat().st_size)
    show_json(done) if as_json else print_stream(done)


def _manifest(folder: Path) -> dict[str, Any]:
    """Checked against the archive, if it has our digest."""
    archive = folder / "stream.tar.s2"
    try:
        facts = json.loads((folder / "backup.json").read_text())
        if not isinstance(facts, dict) or not {"config", "state"} <= facts.keys():
            raise ValueError("it has no config and state")
        with archive.open("rb") as data:
            found = hashlib.file_digest(data, "sha256").hexdigest()
    except (OSError, ValueError) as error:
        raise CommandFailed(f"{folder} is not a backup: {error}") from error
    if facts.get(DIGEST_KEY, found) != found:
        raise CommandFailed(f"{archive} is damaged: its digest is not that of the backup")
    return facts


def upload(
    client: CommandClient, config: Config, state: Config, data: BinaryIO, total: int
) -> dict[str, Any]:
    name = str(config["name"])
    begun = api.call(client, f"STREAM.RESTORE.{name}", {"config": config, "state": state})
    subject = str(begun["deliver_subject"])
    with progress_bar(name, total) as advance:
        while chunk := data.read(CHUNK_BYTES):
            answer = client.request(subject, chunk, timeout_s=SILENCE_MAX_S)
            if answer.data:
                _refused(answer.data)
            advance(len(chunk))
    last = client.request(subject, b"", timeout_s=SILENCE_MAX_S)
    return _refused(last.data)


def _refused(data: bytes) -> dict[str, Any]:
    """The answer, if it is not an error."""
    try:
        found = json.loads(data)
    except ValueError as error:
        raise CommandFailed("the answer to a restore is not JSON") from error
    if "error" in found:
        raise ApiRefused(found["error"])
    return dict(found)
