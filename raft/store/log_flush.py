"""Flushes of a node's log: one at a time, then the promises that they allow.

Owns: the flush in flight, and the failure after which nothing is accepted.
May not touch: which records are written (raft/store/node_log.py), the event loop, the threads that
flushes run on (raft/store/flush_thread.py).
Spec: docs/decisions/0019-a-log-of-our-own.md, "Promises"; docs/decisions/0028-small-rounds.md. One
at a time: the kernel reports a page that it could not write only once, so a second flush beside a
failing one might succeed without that page."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from raft.store.segments.files import LogFile, descriptors_of
from raft.store.segments.log import SegmentLog
from raft.store.segments.promises import KeptPromise, PromiseTable
from raft.types import GroupId

FILES_MAX: Final = 16  # that one flush outside of Python syncs

Promises = list[tuple[GroupId, KeptPromise]]


class SyncInFlight(Protocol):
    """A flush on a thread that needs no interpreter lock."""

    def start(self, descriptors: list[int], /) -> None:
        """Sync these files. None is in flight before."""

    def wait(self) -> int:
        """Blocking, on any thread: errno of the flush in flight, or of the last one."""


@dataclass(slots=True, eq=False)
class FlushJob:
    end: int  # of the log when the job was made
    files: list[LogFile]
    promises: Promises  # to remember when the files are on disk


class LogFlush:
    def __init__(
        self, segments: SegmentLog, promises: PromiseTable, take: Callable[[], Promises]
    ) -> None:
        """`take` returns what was promised since the last call; the segments are locked then."""
        self.failure: OSError | None = None
        self._segments = segments
        self._promises = promises
        self._take = take
        self._one = threading.Lock()
        self._beside: SyncInFlight | None = None  # a job of `begin` is in flight there
        self._unfinished: FlushJob | None = None  # that job, until its promises are noted
        self._finishing = threading.Lock()  # held while they are

    def run(self) -> None:
        """Blocking, on any thread. Raises OSError."""
        with self._one:
            beside, unfinished = self._beside, self._unfinished
            if beside is not None and unfinished is not None:
                # Its promises come first: those of this flush may be of the same groups.
                self._finish(unfinished, beside.wait())
            job = self._job()
            try:
                for file in job.files:
                    file.sync()
            except OSError as error:
                self.failure = error
                raise
            self._synced(job)

    def begin(self, beside: SyncInFlight) -> FlushJob | None:
        """Starts a flush on a thread outside of Python: then call `end` on the thread that called
        this. None: use `run`, because another flush is in flight or the files are not those of the
        operating system. Raises OSError."""
        if not self._one.acquire(blocking=False):
            return None
        try:
            descriptors = descriptors_of(self._segments.unflushed)
            if descriptors is None or len(descriptors) > FILES_MAX:
                return None
            job = self._job()
            self._beside, self._unfinished = beside, job
            beside.start(descriptors)  # before others can wait for it
            return job
        finally:
            self._one.release()

    def end(self, job: FlushJob, number: int) -> None:
        """The files of the job were synced, with this errno. Raises OSError."""
        self._finish(job, number)
        self.check()  # if another flush has noted the promises, and could not

    def wait(self) -> None:
        """Blocking: no file is being synced."""
        if self._beside is not None:
            self._beside.wait()

    def check(self) -> None:
        if self.failure is not None:
            raise self.failure

    def _job(self) -> FlushJob:
        self.check()
        with self._segments.lock:
            end, files = self._segments.begin_flush()
            return FlushJob(end, files, self._take())

    def _finish(self, job: FlushJob, number: int) -> None:
        """The sync of the job has ended. Whoever comes first notes its promises; whoever comes
        second returns when they are noted."""
        with self._finishing:
            if self._unfinished is not job:
                return
            self._beside = self._unfinished = None
            if number:
                self.failure = self.failure or OSError(number, os.strerror(number))
                raise self.failure
            self._synced(job)

    def _synced(self, job: FlushJob) -> None:
        """What it covers is on disk, and may be promised when it is noted here."""
        try:
            self._promises.note(job.promises)
        except OSError as error:
            self.failure = error
            raise
        self._segments.finish_flush(job.end)
