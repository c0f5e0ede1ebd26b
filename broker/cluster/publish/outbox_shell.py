"""The outbox of one stream on one node: collects publishes, forwards them, acknowledges them.

Owns: the loop, the retry timer, the block being built, the pausing of connections.
May not touch: the stream's state; every replica decides the result of a publish at apply. The core
(outbox_core.py) decides when batches are sent, retried and dropped.
Spec: docs/decisions/0001-one-publish-through-all-layers.md."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from broker.accounts import Account
from broker.cluster.publish.held_bytes import LEAST_BYTES, AccountPublishes
from broker.cluster.publish.outbox_core import (
    AcknowledgeBatch,
    AnswerNoResponders,
    OutboxCore,
    OutboxEffect,
    PausePublisher,
    ResultLost,
    ResumePublisher,
    SessionRefused,
    TransmitBatch,
)
from broker.cluster.publish.outbox_turns import OutboxTurns
from broker.cluster.publish.pub_acks import PubAcks, ReplyRouter
from broker.cluster.publish.publish_batch import BatchAnswer, PublishBatch
from broker.jetstream.api.responses import encode_pub_error
from broker.jetstream.commands.publish_entry import FAST_SUFFIX, fast_spans
from broker.jetstream.errors import ErrCode, JetStreamError
from broker.jetstream.publish.checks import HEADER_BYTES_MAX
from broker.store.block.codec import BlockBuilder
from broker.subjects import PublishingConnection, SinkKind, Subscription
from broker.wire import PubRun, ReplyColumn

logger = logging.getLogger("jetraft.cluster")

BATCH_BYTES_MAX = 1 << 20  # of a block; a larger message makes a batch of its own
BATCH_ROWS_MAX = 8192
HURRY_BYTES = 32 << 10  # with this much collected for a stream, do not wait for a flush to end
# Messages with headers may have to be checked one by one when their entry is applied.
HEADER_ROWS_MAX = 48
TOO_MANY = b"NATS/1.0 429 Too Many Requests\r\n\r\n"
ROW_BYTES = 20  # what the columns of a block add to the bytes of a row
PADDING_BYTES = 48
LONG_SUBJECT_BYTES = 4096  # the default maximum length of a subject

# Sends a batch (group, session, number, batch) to the leader, if one is known. It may be lost.
Transmit = Callable[[int, int, int, PublishBatch], None]


@dataclass(slots=True)
class Outbox:
    """The sink that the router delivers a stream's publishes to."""

    stream: bytes
    group: int
    core: OutboxCore
    account: Account
    router: ReplyRouter
    transmit: Transmit
    publishes: AccountPublishes
    turns: OutboxTurns
    silent: bool  # no_ack: publishers get no answer
    disk_refuses: Callable[[int], bool] = lambda _group: False
    stored_as: Callable[[bytes], tuple[bytes, bool]] = lambda subject: (subject, False)
    ack_extra: bytes = b""
    buffered: tuple[int, int] | None = None  # max_buffered_msgs, max_buffered_size; 0: no bound
    kind: SinkKind = SinkKind.STREAM
    _builder: BlockBuilder = field(default_factory=BlockBuilder)
    _replies: ReplyColumn = field(default_factory=ReplyColumn)
    _spans: list[tuple[int, int, bool]] = field(default_factory=list)
    _last_publisher: PublishingConnection | None = None  # the connection of the last span
    _with_headers: bool = False  # some rows of the current batch may have headers
    _scheduled: bool = False
    _counted: int = 0  # bytes reported to the account
    _timer: asyncio.TimerHandle | None = None
    _timer_at_s: float | None = None
    _loop: asyncio.AbstractEventLoop | None = None  # cached: get_running_loop() does a system call
    _acks: PubAcks = field(init=False)

    def __post_init__(self) -> None:
        self._acks = PubAcks(self.stream, self.account, self.router, extra=self.ack_extra)

    @property
    def unanswered(self) -> bool:
        return self.core.unanswered or bool(self._builder.rows)

    def answers(self, reply: bytes) -> bool:
        """Whether every message with this reply subject is answered. In a fast batch not every
        one is."""
        return not self.silent and not reply.endswith(FAST_SUFFIX)

    # -- collecting -----------------------------------------------------------------------------

    def deliver_run(
        self,
        sub: Subscription,
        run: PubRun,
        start: int,
        stop: int,
        publisher: PublishingConnection | None,
    ) -> bool:
        core = self.core
        if core.closed:
            return False
        if run.has_headers and run.size(start, stop) > HEADER_BYTES_MAX:
            run, start, stop = self._without_long_headers(run, start, stop)
            if start == stop:
                return True
        if not self._scheduled or self.buffered is not None:
            stop = self._admit(run, start, stop)
            if stop == start:
                return True
        rows, builder = stop - start, self._builder
        most = run.size(start, stop) + rows * (ROW_BYTES + LONG_SUBJECT_BYTES) + PADDING_BYTES
        rows_max = HEADER_ROWS_MAX if self._with_headers or run.has_headers else BATCH_ROWS_MAX
        if builder.nbytes + most <= BATCH_BYTES_MAX and builder.rows + rows <= rows_max:
            self._append(run, start, stop, publisher)
        else:
            self._append_sliced(run, start, stop, publisher)
        if not self._scheduled:
            self._scheduled = True
            self.turns.add(self.group, self._turn)
        if self._builder.nbytes > HURRY_BYTES:
            self.turns.hurry()
        self._count()
        if publisher is not None:
            self._hold_back(publisher)
        return True

    def _hold_back(self, publisher: PublishingConnection) -> None:
        if self.core.overfull:
            self._perform(self.core.pause(publisher))
        if self.publishes.held > LEAST_BYTES:
            self.publishes.wait(publisher)

    def _without_long_headers(self, run: PubRun, start: int, stop: int) -> tuple[PubRun, int, int]:
        """The range without messages with too long headers, which are answered here. Every replica
        would refuse them, but only after parsing tens of thousands of lines."""
        kept = []
        for row in range(start, stop):
            message = run.message(row)
            if len(message[2]) > HEADER_BYTES_MAX:
                self._refuse(run, row, row + 1, ErrCode.STREAM_HEADER_EXCEEDS_MAXIMUM)
            else:
                kept.append(message)
        if len(kept) == stop - start:
            return run, start, stop
        return PubRun.of(kept), 0, len(kept)

    def _count(self) -> None:
        held = self.core.held_bytes + (self._builder.nbytes if self._builder.rows else 0)
        if held != self._counted:
            more, self._counted = held - self._counted, held
            self.publishes.changed(more)

    def deliver(
        self, sub: Subscription, subject: bytes, reply: bytes, headers: bytes, payload: bytes
    ) -> bool:
        return self.deliver_run(sub, PubRun.of([(subject, reply, headers, payload)]), 0, 1, None)

    def _rows_max(self, run: PubRun) -> int:
        """Maximum number of rows of the current batch, if rows of this run are added."""
        return HEADER_ROWS_MAX if self._with_headers or run.has_headers else BATCH_ROWS_MAX

    def _admit(self, run: PubRun, start: int, stop: int) -> int:
        """The row up to which messages are accepted; the publishers of the others get an error. The
        disk is checked once for all messages that are sent together."""
        if not self._scheduled and self.disk_refuses(self.group):
            self._refuse(run, start, stop, ErrCode.INSUFFICIENT_RESOURCES)
            return start
        if self.buffered is None:
            return stop
        room = self._room(run, start, stop, *self.buffered)
        self._refuse(run, room, stop, ErrCode.STREAM_TOO_MANY_REQUESTS)
        return room

    def _room(self, run: PubRun, start: int, stop: int, msgs: int, size: int) -> int:
        """The row up to which there is room, approximately."""
        if msgs:
            stop = min(stop, start + max(0, msgs - self.core.held_rows - self._builder.rows))
        if size:
            held = self.core.held_bytes + (self._builder.nbytes if self._builder.rows else 0)
            while stop > start and held + run.size(start, stop) > size:
                stop = start + (stop - start) // 2
        return stop

    def _refuse(self, run: PubRun, start: int, stop: int, why: ErrCode) -> None:
        """Answer with an error. The error is definite: the publishes get no batch number, so they
        are never proposed and cannot be stored later."""
        if self.silent:
            return
        body = encode_pub_error(self.stream.decode(), JetStreamError(why))
        headers = TOO_MANY if why is ErrCode.STREAM_TOO_MANY_REQUESTS else b""
        for row in range(start, stop):
            reply = run.message(row)[1]
            if reply:
                self.router.publish(self.account, reply, b"", headers, body)

    def _append(
        self, run: PubRun, start: int, stop: int, publisher: PublishingConnection | None
    ) -> None:
        builder = self._builder
        first = builder.rows
        self._with_headers = self._with_headers or run.has_headers
        builder.append_run(run, start, stop)
        self._replies.append_run(run, start, stop)
        answered = not self.silent and run.any_reply(start, stop)
        spans = self._spans
        if spans and self._last_publisher is publisher and spans[-1][2] == answered:
            spans[-1] = (spans[-1][0], builder.rows, answered)
        else:
            spans.append((first, builder.rows, answered))
            self._last_publisher = publisher

    def _append_sliced(
        self, run: PubRun, start: int, stop: int, publisher: PublishingConnection | None
    ) -> None:
        """Append the rows to as many batches as needed, so that none exceeds its bounds."""
        longest = max(len(subject) for subject, _, _ in run.segments(start, stop))
        per_row = ROW_BYTES + longest
        while start < stop:
            room = BATCH_BYTES_MAX - self._builder.nbytes - PADDING_BYTES
            end = max(min(stop, start + self._rows_max(run) - self._builder.rows), start)
            fits = start
            while fits < end:  # bisect for the last row that fits
                middle = (fits + end + 1) // 2
                if run.size(start, middle) + per_row * (middle - start) <= room:
                    fits = middle
                else:
                    end = middle - 1
            if fits == start and self._builder.rows:
                self._seal()
                continue
            fits = max(fits, start + 1)
            self._append(run, start, fits, publisher)
            start = fits

    def _seal(self) -> None:
        replies = self._replies
        marked = replies.ending(FAST_SUFFIX)
        batch = PublishBatch(
            block=self._builder.build(seal=False),
            replies=replies,
            spans=self._spans,
            rows=self._builder.rows,
            fast=fast_spans((row, replies.get(row)) for row in marked) if marked else [],
        )
        self._start_block()
        self.core.enqueue(batch)

    def _start_block(self) -> None:
        self._builder = BlockBuilder()
        self._replies = ReplyColumn()
        self._spans = []
        self._last_publisher = None
        self._with_headers = False

    # -- inputs of the core ---------------------------------------------------------------------

    def _now_s(self) -> float:
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        return loop.time()

    def _turn(self) -> None:
        """Send what was collected in this turn of the loop."""
        self._scheduled = False
        core = self.core
        if core.closed:
            return
        if self._builder.rows and core.window_open:
            self._seal()
        self._perform(core.send(self._now_s()))

    def answered(self, answer: BatchAnswer) -> None:
        """The leader's answer to a batch."""
        core = self.core
        now_s = self._now_s()
        effects = core.answered(answer, now_s)
        if self._builder.rows and core.window_open and not (core.closed or self._scheduled):
            self._seal()
            effects += core.send(now_s)
        self._count()
        self._perform(effects)

    def resend(self) -> None:
        """The leader changed, or the link to it was restored."""
        self._perform(self.core.resend(self._now_s()))

    def removed(self) -> None:
        """The stream was deleted."""
        if self._builder.rows:
            self._seal()
        effects = self.core.removed()
        self._count()
        self._perform(effects)

    def left(self) -> None:
        """This node was removed from the cluster."""
        if self._builder.rows:
            self._seal()
        effects = self.core.left()
        self._count()
        self._perform(effects)

    def close(self) -> None:
        self._start_block()
        effects = self.core.close()
        self._count()
        self._perform(effects)

    def _due(self) -> None:
        deadline_s = self._timer_at_s
        assert deadline_s is not None
        self._timer = self._timer_at_s = None
        # A loop may call a timer up to one clock tick early; for the core the deadline has passed.
        self._perform(self.core.tick(max(deadline_s, self._now_s())))

    # -- effects of the core --------------------------------------------------------------------

    def _perform(self, effects: Iterable[OutboxEffect]) -> None:
        for effect in effects:
            match effect:
                case TransmitBatch():
                    self.transmit(self.group, effect.session, effect.number, effect.batch)
                case AcknowledgeBatch():
                    if not self.silent:
                        self._acks.acknowledge(effect.batch, effect.answer)
                case _:
                    self._perform_rare(effect)
        if self.core.deadline_s != self._timer_at_s:
            self._arm()

    def _perform_rare(self, effect: OutboxEffect) -> None:
        match effect:
            case AnswerNoResponders():
                if not self.silent:
                    self._acks.no_responders(effect.batch)
            case PausePublisher():
                effect.publisher.pause_reading()
            case ResumePublisher():
                effect.publisher.resume_reading()
            case ResultLost():
                self._log_result_lost(effect)
            case SessionRefused():
                self._start_block()
                self._count()
                self._log_session_refused(effect)

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline_s = self._timer_at_s = self.core.deadline_s
        if deadline_s is not None:
            self._timer = asyncio.get_running_loop().call_at(deadline_s, self._due)

    def _log_result_lost(self, fact: ResultLost) -> None:
        logger.error(
            "stream %s: the result of batch %d is no longer known, %d publishes stay unanswered",
            self.stream.decode(errors="replace"),
            fact.number,
            fact.rows,
        )

    def _log_session_refused(self, fact: SessionRefused) -> None:
        logger.error(
            "stream %s: publishes of this server are refused, a later run of the same server "
            "name has published; %d batches are dropped unanswered",
            self.stream.decode(errors="replace"),
            fact.batches,
        )
