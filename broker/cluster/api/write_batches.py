"""Blocks of writers: many messages for one stream in one request, each stored once.

Owns: the service on `$JS.API.STREAM.WRITE.<stream>`, and the checks before a block is proposed.
May not touch: watermarks, which every replica keeps (broker/jetstream/publish/writers.py).
Spec: docs/decisions/0034-writers.md. A request is a line of JSON (WriteHead), then a block without
sequences. The user needs permission to publish to every subject in it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from broker.cluster.api.leader_calls import LeaderCalls
from broker.cluster.meta.assignments import Assignment
from broker.cluster.meta.feature_level import WRITERS
from broker.cluster.peers.rpc import CallFailed, CallRefused
from broker.cluster.proposals import LostLeadership
from broker.cluster.publish.pub_acks import ReplyRouter
from broker.cluster.stream_requests import StreamLookup, StreamRequest, StreamRequestSink
from broker.jetstream.commands.publish_entry import NO_SPACE, Bounds
from broker.jetstream.commands.writer_entry import WriterMark, writer_entry
from broker.jetstream.errors import ErrCode, JetStreamError
from broker.jetstream.publish.writers import WriterAnswer
from broker.jetstream.stream.stream import Stream
from broker.jetstream.strict_json import SEQUENCE_MAX, to_wire
from broker.scan.protocol import WRITE_SUBJECT, WriteHead
from broker.server.routing.fair_queue import Turns
from broker.server.routing.reserved_subjects import closed_target
from broker.store.block.codec import Block, BlockDamaged
from broker.subjects import PublishRules, Steps, Subscription
from broker.subjects.grammar import valid_subject
from broker.subjects.patterns import Patterns
from broker.subjects.steps import STEP_ITEMS
from raft import NodeId, RaftError

if TYPE_CHECKING:
    from broker.accounts import Account

WRITE_WITHIN_S: Final = 10.0
WRITER_BYTES_MAX: Final = 256  # length of a name; a stream stores names (writers.py, WRITERS_MAX)
HELD_BYTES_MAX: Final = 64 << 20  # in flight per account and node; beyond it: 503, try again
HEAD_BYTES_MAX: Final = 4096  # of the line before a block
# Counted per request besides its body, so that an account has at most a thousand in flight: each
# may be a call to another node, and calls are bounded for all accounts together (peers/rpc.py).
REQUEST_BYTES: Final = 64 << 10
CAPTURED_BYTES_MAX: Final = 16 << 20  # of cached subjects; beyond it the cache is cleared
SUBJECT_BYTES: Final = 100  # overhead of a cached subject

_encode = msgspec.json.encode
_head = msgspec.json.Decoder(WriteHead)
_asked = msgspec.msgpack.Decoder(tuple[str, str, WriterMark, bytes])


class WrittenReplica(Protocol):
    """The replica of a stream on this node."""

    @property
    def is_leading(self) -> bool: ...
    @property
    def stream(self) -> Stream: ...

    def stamp(self) -> int: ...

    def propose_raw(self, data: bytes) -> asyncio.Future[object]: ...


@dataclass(slots=True)
class WriteService:
    router: ReplyRouter
    account: Callable[[str], Account]
    lookup: StreamLookup
    level: Callable[[], int]  # the feature level of the cluster
    replica: Callable[[str, str], WrittenReplica | None]
    calls: LeaderCalls
    bounds: Callable[[Any], Bounds | None]  # of such a replica
    disk_refuses: Callable[[str, str, int], bool]
    spawn: Callable[[Awaitable[None], str], object]
    turns: Turns
    captured: dict[tuple[int, int], set[bytes]] = field(default_factory=dict)
    captured_bytes: int = 0
    held: Counter[str] = field(default_factory=Counter)  # bytes in flight, by account
    order: dict[str, asyncio.Lock] = field(default_factory=dict)  # serializes checks, by account

    def start(self) -> None:
        self.calls.rpc.register("write", self._serve)

    def subscriptions(self, account: Account) -> list[Subscription]:
        return StreamRequestSink(WRITE_SUBJECT, self.take).subscriptions(account)

    def take(self, asked: StreamRequest) -> None:
        account, size = asked.account, len(asked.body) + REQUEST_BYTES
        if self.held[account] + size > HELD_BYTES_MAX:
            self._reply(account, asked.reply, _error(JetStreamError(ErrCode.CLUSTER_NOT_AVAIL)))
            return
        self.held[account] += size
        self.spawn(self._answer(asked), "write")

    async def _answer(self, asked: StreamRequest) -> None:
        account = asked.account
        try:
            answer = await self._write(asked)
        except JetStreamError as refused:
            answer = _error(refused)
        except (CallFailed, RaftError, TimeoutError):
            answer = _error(JetStreamError(ErrCode.CLUSTER_NOT_AVAIL))
        finally:
            self.held[account] -= len(asked.body) + REQUEST_BYTES
            if not self.held[account]:
                del self.held[account]
                self.order.pop(account, None)
        self._reply(account, asked.reply, answer)

    def _reply(self, account: str, reply: bytes, answer: bytes) -> None:
        if reply:
            self.router.publish(self.account(account), reply, b"", b"", answer)

    async def _write(self, asked: StreamRequest) -> bytes:
        """Retrying the call is safe: a writer's watermark makes repeats harmless."""
        account, stream = asked.account, asked.stream
        assignment = await self.lookup.find(account, stream)
        if self.level() < WRITERS:
            raise JetStreamError(ErrCode.CLUSTER_NOT_AVAIL)
        if assignment.config.mirror is not None:
            raise _refused(f"stream {stream} is a mirror")
        if self.disk_refuses(account, stream, assignment.group):
            raise JetStreamError(ErrCode.INSUFFICIENT_RESOURCES)
        # One at a time: the blocks of a writer must not overtake each other.
        async with self.order.setdefault(account, asyncio.Lock()):
            mark, block = await self.turns.run(_parsing(asked.body), account)
            await self.turns.run(self._check_subjects(block, assignment, asked.rules), account)
        replica = self.replica(account, stream)
        if replica is not None and replica.is_leading:  # avoids copying the block twice
            with suppress(CallRefused):
                async with asyncio.timeout(WRITE_WITHIN_S):
                    return await self._propose(replica, mark, block.raw)
        question = msgspec.msgpack.encode((account, stream, mark, block.raw))
        return await self.calls.call(
            assignment.group, "write", question, within_s=WRITE_WITHIN_S, timeout_s=WRITE_WITHIN_S
        )

    def _check_subjects(
        self, block: Block, assignment: Assignment, rules: PublishRules | None
    ) -> Steps[None]:
        """Raises JetStreamError that names the first subject that is wrong."""
        subjects = block.subject_summary()
        yield
        captured = self._captured(assignment)
        fresh = [subject for subject in subjects if subject not in captured]
        if fresh:
            yield from _check_fresh(fresh, assignment)
            captured = self._captured(assignment)
            captured.update(fresh)
            self.captured_bytes += sum(map(len, fresh)) + SUBJECT_BYTES * len(fresh)
        if rules is not None:
            yield from _check_rules(block, subjects, rules)

    def _captured(self, assignment: Assignment) -> set[bytes]:
        """Subjects that the stream is known to capture, as it is configured now."""
        key = (assignment.group, assignment.subjects_since)
        if self.captured_bytes > CAPTURED_BYTES_MAX:
            self.captured.clear()
            self.captured_bytes = 0
        if key not in self.captured:
            self.captured_bytes += SUBJECT_BYTES
            self.captured[key] = set()
        return self.captured[key]

    async def _serve(self, _peer: NodeId, body: bytes) -> bytes:
        account, stream, mark, block = _asked.decode(body)
        replica = self.replica(account, stream)
        if replica is None or not replica.is_leading:
            raise CallRefused(f"not the leader of {stream}")
        return await self._propose(replica, mark, block)

    async def _propose(
        self, replica: WrittenReplica, mark: WriterMark, block: bytes | memoryview
    ) -> bytes:
        """Raises CallRefused if this node is not the leader any more."""
        bounds = NO_SPACE if replica.stream.dedup.overfull else self.bounds(replica)
        entry = writer_entry(mark, block, time_ns=replica.stamp(), bounds=bounds)
        try:
            answer = await replica.propose_raw(entry)
        except (LostLeadership, RaftError) as lost:
            raise CallRefused(str(lost)) from lost  # retried; a repeat has no effect
        assert isinstance(answer, WriterAnswer)
        return _encode(answer)


def _check_rules(block: Block, subjects: Iterable[bytes], rules: PublishRules) -> Steps[None]:
    """Raises JetStreamError."""
    for at, subject in enumerate(subjects):
        if not rules.allows(subject):
            raise _closed(subject)
        if not at % STEP_ITEMS:
            yield
    for row in range(block.rows if block.headers_len and block.any_nats_header() else 0):
        target = closed_target(block.headers(row), rules)
        if target is not None:
            raise _closed(target)
        if not row % STEP_ITEMS:
            yield


def _closed(subject: bytes) -> JetStreamError:
    return _refused(f"no permission to publish to '{subject.decode(errors='replace')}'")


def _check_fresh(subjects: list[bytes], assignment: Assignment) -> Steps[None]:
    """Raises JetStreamError."""
    patterns = Patterns(())
    for at, pattern in enumerate(assignment.config.subject_patterns):
        patterns.add(pattern)
        if not at % STEP_ITEMS:
            yield
    for at, subject in enumerate(subjects):
        shown = subject.decode(errors="replace")
        if not valid_subject(subject, wildcards=False):
            raise _refused(f"subject '{shown}' is not valid")
        if not patterns.take(subject):
            raise _refused(f"stream {assignment.name} does not capture the subject '{shown}'")
        if not at % STEP_ITEMS:
            yield


def _parsing(body: bytes) -> Steps[tuple[WriterMark, Block]]:
    """In a turn of the account: the checksum of a megabyte takes a moment."""
    yield
    return _parsed(body)


def _parsed(body: bytes) -> tuple[WriterMark, Block]:
    """Raises JetStreamError."""
    end = body.find(b"\n", 0, HEAD_BYTES_MAX)
    try:
        head = _head.decode(body[: max(end, 0)])
        # Not a copy, if the line before the block is a multiple of eight bytes.
        block = Block(memoryview(body)[end + 1 :])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, BlockDamaged) as wrong:
        raise _refused(f"not a block of a writer: {wrong}") from wrong
    numbers = 0 <= head.epoch <= SEQUENCE_MAX and 0 <= head.row <= SEQUENCE_MAX
    if not head.writer or len(head.writer.encode()) > WRITER_BYTES_MAX or not numbers:
        raise _refused("a writer needs a name of at most 256 bytes, an epoch and a row")
    if block.first_seq or not block.rows:
        raise _refused("a block of a writer has rows, and no sequences")
    return WriterMark(head.writer, head.epoch, head.row), block


def _error(refused: JetStreamError) -> bytes:
    return _encode({"error": to_wire(refused.body())})


def _refused(text: str) -> JetStreamError:
    return JetStreamError.of(ErrCode.STREAM_INVALID_CONFIG, err=text)
