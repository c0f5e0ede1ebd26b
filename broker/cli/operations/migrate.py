"""`jetraft migrate`: all streams of one server or cluster to another, with their consumers.

Owns: the order of the steps, and what is checked between them.
May not touch: the server's internals; every step is a JetStream API request.

With --remote, a mirror follows the stream while it is written (live_copy.py). Otherwise, and where
a mirror cannot be a copy, the stream is copied as an archive (STREAM.SNAPSHOT, STREAM.RESTORE),
which keeps all that consumers know. Either is compared with its origin by digest. Without
--cut-over the origin is not touched, so that a migration can be rehearsed. With it, the stream is
fenced, for the end of a live copy or for all of an archive: its subjects are replaced, and a
publish gets no ack, so that nothing is acknowledged that the copy lacks. The fence keeps the
subjects in the metadata; --undo removes it."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click

from broker.cli.connect import api
from broker.cli.connect.blocking import connected
from broker.cli.connect.client_shape import CommandClient
from broker.cli.connect.failures import ApiRefused, CommandFailed, NoAnswerInTime
from broker.cli.connect.options import Destination, at, connects, of_context
from broker.cli.operations.live_copy import LiveCopy, NotLive, check_live
from broker.cli.output.questions import confirm, yes_option
from broker.cli.output.tables import show, show_json, table
from broker.cli.output.units import size
from broker.cli.streams.archives import download, upload
from broker.cli.streams.verification import checked_stream

SUBJECTS_KEY: Final = "jetraft.migrate.subjects"
COPY_KEY: Final = "jetraft.migrate.copy"
FENCE: Final = "jetraft.migrate.fenced."
FOLLOWS: Final = "follows"
Config = dict[str, Any]


@click.command()
@click.argument("old", metavar="[OLD-URL]", required=False)
@click.option("--to", "new", help="Servers to copy to (URLs).")
@click.option("--to-context", help="Servers to copy to, as a saved context.")
@click.option("--stream", "only", multiple=True, help="Only this stream; may be repeated.")
@click.option(
    "--remote", help="Copy live. The name of the old servers in `remotes` of the new ones."
)
@click.option(
    "--replicas",
    type=click.IntRange(1, 5),
    help="Number of replicas on the new servers; by default as on the old ones.",
)
@click.option("--replace", is_flag=True, help="First delete copies made by an earlier run.")
@click.option(
    "--cut-over", is_flag=True, help="Fence the old streams and let the copies take over."
)
@click.option(
    "--undo", is_flag=True, help="Remove the fences of an earlier cut-over, and do nothing else."
)
@yes_option
@connects
def migrate(
    *, old: str | None, new: str | None, to_context: str | None, only: tuple[str, ...],
    remote: str | None, replicas: int | None, replace: bool, cut_over: bool, undo: bool, yes: bool,
    to: Destination, as_json: bool,
) -> None:  # fmt: skip
    """Copy all streams with their consumers' positions to other servers, and compare every copy
    with its origin. Without --cut-over the origin is not touched. With --remote the copies follow
    their streams, and the cut-over refuses publishers for a moment only.

    OLD-URL or the options of the connection say where the streams are; its login is used for both
    sides, unless --to-context has another one."""
    here = at(old, to) if old else to
    with connected(here) as origin:
        names = [name for name in api.stream_names(origin) if not only or name in only]
        if missing := set(only) - set(names):
            raise CommandFailed(f"there is no stream {', '.join(sorted(missing))}")
        if undo:
            _undo(origin, names, as_json=as_json)
            return
        if bool(new) == bool(to_context):
            raise click.UsageError("say where to: --to URLS or --to-context NAME")
        there = of_context(to_context) if to_context else at(new or "", here)
        with connected(there) as target:
            if origin.info.get("server_id") == target.info.get("server_id"):
                raise CommandFailed("both sides are the same server")
            if cut_over:
                confirm(f"Fence {len(names)} streams: publishers are refused?", yes=yes)
            done = [
                _Move(origin, target, name, replicas, remote).run(
                    replace=replace, cut_over=cut_over
                )
                for name in names
            ]
    _report(done, cut_over=cut_over, as_json=as_json)


def _report(done: list[Config], *, cut_over: bool, as_json: bool) -> None:
    if as_json:
        show_json(done)
    else:
        rows = [
            (one["stream"], one.get("messages", 0), size(one.get("bytes", 0)),
             one.get("consumers", 0), one.get("sha256", "")[:12], one["result"])
            for one in done
        ]  # fmt: skip
        headings = ("stream", "messages", "size", "consumers", "sha256", "result")
        table(headings, rows, empty="no streams")
    failed = [one["stream"] for one in done if not one["ok"]]
    if failed:
        raise CommandFailed(f"not migrated: {', '.join(failed)}")
    if not as_json and done:
        show("publishers may use the new servers now" if cut_over else "nothing was fenced")
        if any(one["result"] == FOLLOWS for one in done):
            show("the copies follow; --cut-over makes them the streams")


class _Move:
    """One stream on its way."""

    def __init__(
        self, origin: CommandClient, target: CommandClient, name: str, replicas: int | None,
        remote: str | None,
    ) -> None:  # fmt: skip
        self._origin = origin
        self._target = target
        self._name = name
        self._replicas = replicas
        self._remote = remote
        self._reason = ""  # why it was not copied live

    def run(self, *, replace: bool, cut_over: bool) -> Config:
        config: Config = api.stream_info(self._origin, self._name)["config"]
        result: Config = {"stream": self._name, "ok": False}
        try:
            live = self._live(config) if self._remote else None
            if live is not None:
                result |= live.follow()
            else:
                self._make_room(replace=replace)
            if cut_over:
                with self._fenced(config) as begun_s:
                    result |= self._finished(live, config)
                    result["refused_s"] = round(time.monotonic() - begun_s, 3)
            elif live is None:
                result |= self._copy(config)
            done = "moved" if cut_over else FOLLOWS if live is not None else "copied"
            result |= {"ok": True, "result": done + self._reason}
        except (ApiRefused, CommandFailed, NoAnswerInTime) as failed:
            result["result"] = failed.message
        return result

    @contextmanager
    def _fenced(self, config: Config) -> Iterator[float]:
        """Gives the time at which it began. After a failure or Ctrl-C the stream is open again:
        publishers must not be refused because of it."""
        begun_s = time.monotonic()
        if not config.get("subjects"):
            yield begun_s
            return
        _fence(self._origin, config)
        try:
            yield begun_s
        except BaseException:
            _unfence(self._origin, self._name)
            raise

    def _live(self, config: Config) -> LiveCopy | None:
        """None if it must be an archive, or if an archive of an earlier run is there."""
        found = api.stream_or_none(self._target, self._name)
        if found is not None and not (_is_copy(found) and found["config"].get("mirror")):
            return None
        try:
            check_live(config, api.consumers(self._origin, self._name))
        except NotLive as reason:
            self._reason = f", not live: {reason}"
            return None
        wanted = self._wanted(config)
        return LiveCopy(self._origin, self._target, wanted, remote=self._remote or "")

    def _finished(self, live: LiveCopy | None, config: Config) -> Config:
        if live is not None:
            try:
                return live.finish()
            except NotLive as reason:
                self._reason = f", not live: {reason}"
                api.call(self._target, f"STREAM.DELETE.{self._name}")
        return self._copy(config)

    def _wanted(self, config: Config) -> Config:
        new = _without_fence(config)
        new["metadata"] = dict(new.get("metadata") or {}) | {COPY_KEY: self._origin.url}
        if self._replicas:
            new["num_replicas"] = self._replicas
        return new

    def _make_room(self, *, replace: bool) -> None:
        found = api.stream_or_none(self._target, self._name)
        if found is None:
            return
        ours = _is_copy(found)
        if not (ours and replace):
            hint = "it is a copy of an earlier run: --replace" if ours else "it is not a copy"
            raise CommandFailed(f"there is a stream of this name already; {hint}")
        api.call(self._target, f"STREAM.DELETE.{self._name}")

    def _copy(self, config: Config) -> Config:
        with tempfile.TemporaryDirectory(prefix="jetraft-migrate-") as place:
            folder = Path(place)
            facts = download(self._origin, self._name, folder, consumers=True, check=False)
            new = self._wanted(config)
            archive = folder / "stream.tar.s2"
            with archive.open("rb") as data:
                upload(self._target, new, facts["state"], data, archive.stat().st_size)
        try:
            return self._compared(facts)
        except BaseException:
            api.call(self._target, f"STREAM.DELETE.{self._name}")
            raise

    def _compared(self, facts: Config) -> Config:
        last = int(facts["state"].get("last_seq", 0))
        here, faults = checked_stream(self._origin, self._name, last=last)
        there, more = checked_stream(self._target, self._name, last=last)
        if faults or more or here.sha256 != there.sha256:
            reason = "; ".join([*faults, *more]) or "the digests differ"
            raise CommandFailed(f"the copy was deleted: {reason}")
        return {
            "messages": there.messages, "bytes": facts["bytes"], "sha256": there.sha256,
            "consumers": len(api.consumers(self._target, self._name)), "last_seq": last,
        }  # fmt: skip


def _is_copy(info: Config) -> bool:
    return COPY_KEY in (info["config"].get("metadata") or {})


def _fence(client: CommandClient, config: Config) -> None:
    metadata = dict(config.get("metadata") or {})
    if SUBJECTS_KEY in metadata:
        return  # of an earlier run
    metadata[SUBJECTS_KEY] = json.dumps(config["subjects"])
    fenced = config | {"subjects": [FENCE + config["name"]], "metadata": metadata}
    api.call(client, f"STREAM.UPDATE.{config['name']}", fenced)


def _unfence(client: CommandClient, name: str) -> bool:
    config: Config = api.stream_info(client, name)["config"]
    if SUBJECTS_KEY not in (config.get("metadata") or {}):
        return False
    api.call(client, f"STREAM.UPDATE.{name}", _without_fence(config))
    return True


def _without_fence(config: Config) -> Config:
    metadata = dict(config.get("metadata") or {})
    subjects = metadata.pop(SUBJECTS_KEY, None)
    if subjects is None:
        return dict(config)
    return config | {"subjects": json.loads(subjects), "metadata": metadata}


def _undo(client: CommandClient, names: list[str], *, as_json: bool) -> None:
    opened = [name for name in names if _unfence(client, name)]
    if as_json:
        show_json(opened)
        return
    show(f"open again: {', '.join(opened)}" if opened else "nothing was fenced")
