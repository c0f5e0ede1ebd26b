"""Flushes of a node's log, one at a time, and recording the promises that they allow.

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

FILES_MAX: Final = 16  # a flush of more files runs on a Python thread

Promises = list[tuple[GroupId, KeptPromise]]


class SyncInFlight(Protocol):
    """A flush on a thread that does not take the GIL."""

    def start(self, descriptors: list[int], /) -> None:
        """Start to sync these files. No other sync may be in flight."""

    def wait(self) -> int:
        """Blocking, on any thread: errno of the flush in flight, or of the last one."""


@dataclass(slots=True, eq=False)
class FlushJob:
    end: int  # the end of the log when the job was created
    files: list[LogFile]
    promises: Promises  # to record once the files are on disk


class LogFlush:
    def __init__(
        self, segments: SegmentLog, promises: PromiseTable, take: Callable[[], Promises]
    ) -> None:
        """`take` returns the new promises since the last call; it is called with the segments
        locked."""
        self.failure: OSError | None = None
        self._segments = segments
        self._promises = promises
        self._take = take
        self._one = threading.Lock()
        self._beside: SyncInFlight | None = None  # the thread on which a job of `begin` runs
        self._unfinished: FlushJob | None = None  # that job, until its promises are recorded
        self._finishing = threading.Lock()  # held while they are recorded

    def run(self) -> None:
        """Blocking, on any thread. Raises OSError."""
        with self._one:
            beside, unfinished = self._beside, self._unfinished
            if beside is not None and unfinished is not None:
                # Record its promises first: this flush may have newer ones of the same groups.
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
        """Start a flush on a thread without the GIL; when it is done, call `end` on the thread that
        called this. None: use `run`, because another flush is in flight, the files are too many, or
        they are not real files. Raises OSError."""
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
        """The sync of the job's files has ended with this errno. Raises OSError."""
        self._finish(job, number)
        self.check()  # another flush may have tried to record the promises, and failed

    def wait(self) -> None:
        """Blocks until no file is being synced."""
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
        """The sync of the job has ended. The first caller records its promises; the second caller
        returns when they are recorded."""
        with self._finishing:
            if self._unfinished is not job:
                return
            self._beside = self._unfinished = None
            if number:
                self.failure = self.failure or OSError(number, os.strerror(number))
                raise self.failure
            self._synced(job)

    def _synced(self, job: FlushJob) -> None:
        """What the job covers is on disk. Record its promises; after that they may be sent."""
        try:
            self._promises.note(job.promises)
        except OSError as error:
            self.failure = error
            raise
        self._segments.finish_flush(job.end)
