"""Publishes for one stream on their way to its leader, and their acks on the way back.

Owns: the batches this node has collected from its clients, until the leader has answered each.
May not touch: the stream's state; what a publish leads to is decided at apply, on every replica.
A batch is numbered within this node's session and re-sent, in order, until it is answered: the
stream drops repeats by (node, session, number), so a change of leader stores nothing twice.
Spec: DESIGN section 4; JetStream sheet 3.1 (PubAck)."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from broker.accounts import Account
from broker.cluster.publish.pub_acks import PubAcks, ReplyRouter
from broker.cluster.publish.publish_batch import STALE_SESSION, BatchAnswer, PublishBatch
from broker.jetstream.api.responses import encode_pub_error
from broker.jetstream.commands.publish_notes import FAST_SUFFIX, fast_spans
from broker.jetstream.errors import ErrCode, JetStreamError
from broker.store.block.block import BlockBuilder
from broker.subjects import PublishingConnection, SinkKind, Subscription
from broker.wire import PubRun, ReplyColumn

logger = logging.getLogger("jetraft.cluster")

# Batches from the oldest unanswered one on; more only queue behind the same fsync. The stream
# remembers the results of more than these, so a repeat always finds its own.
IN_FLIGHT_MAX = 4
BATCH_BYTES_MAX = 1 << 20  # of a block; a single message that is larger makes its own batch
BATCH_ROWS_MAX = 8192
HELD_BYTES_MAX = 64 << 20  # beyond it, the connections that feed us are not read
RESEND_AFTER_S = 1.0  # and twice as long each time, while nothing is answered
RESEND_AFTER_MAX_S = 8.0
ROW_BYTES = 20  # what the columns of a block add to a row's own bytes
PADDING_BYTES = 48
LONG_SUBJECT_BYTES = 4096  # no subject is longer, by default

# Group, session, batch: to the leader, if one is known. What is lost on the way is sent again.
Transmit = Callable[[int, int, PublishBatch], None]


@dataclass(slots=True)
class Outbox:
    """The sink of a stream's subjects on one node."""

    stream: bytes
    group: int
    session: int
    account: Account
    router: ReplyRouter
    transmit: Transmit
    silent: bool  # no_ack: nothing is ever answered
    disk_refuses: Callable[[int], bool] = lambda _group: False
    stored_as: Callable[[bytes], tuple[bytes, bool]] = lambda subject: (subject, False)
    ack_extra: bytes = b""
    kind: SinkKind = SinkKind.STREAM
    closed: bool = False
    held_bytes: int = 0
    in_flight: deque[PublishBatch] = field(default_factory=deque)
    _waiting: deque[PublishBatch] = field(default_factory=deque)  # sealed, not sent yet
    _builder: BlockBuilder = field(default_factory=BlockBuilder)
    _replies: ReplyColumn = field(default_factory=ReplyColumn)
    _spans: list[tuple[int, int, bool]] = field(default_factory=list)
    _next_number: int = 1
    _known: bool = False  # the stream has answered a batch of this session
    _scheduled: bool = False
    _last_origin: PublishingConnection | None = None  # whose rows the last span holds
    _paused: dict[PublishingConnection, None] = field(default_factory=dict)
    _resend_timer: asyncio.TimerHandle | None = None
    _resend_after_s: float = RESEND_AFTER_S
    _acks: PubAcks = field(init=False)

    def __post_init__(self) -> None:
        self._acks = PubAcks(self.stream, self.account, self.router, extra=self.ack_extra)

    @property
    def unanswered(self) -> bool:
        return bool(self.in_flight or self._waiting or self._builder.rows)

    def answers(self, reply: bytes) -> bool:
        """Of a fast batch not every message is answered."""
        return not self.silent and not reply.endswith(FAST_SUFFIX)

    # -- collecting -----------------------------------------------------------------------------

    def deliver_run(
        self,
        sub: Subscription,
        run: PubRun,
        start: int,
        stop: int,
        origin: PublishingConnection | None,
    ) -> bool:
        if self.closed:
            return False
        if self.disk_refuses(self.group):
            self._refuse(run, start, stop)
            return True
        rows = stop - start
        most = run.size(start, stop) + rows * (ROW_BYTES + LONG_SUBJECT_BYTES) + PADDING_BYTES
        if (
            self._builder.nbytes + most <= BATCH_BYTES_MAX
            and self._builder.rows + rows <= BATCH_ROWS_MAX
        ):
            self._append(run, start, stop, origin)
        else:
            self._append_sliced(run, start, stop, origin)
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._turn)
        if self.held_bytes + self._builder.nbytes > HELD_BYTES_MAX and origin is not None:
            self._pause(origin)
        return True

    def _refuse(self, run: PubRun, start: int, stop: int) -> None:
        """Not even numbered: what is refused here was never proposed and cannot be stored later."""
        if self.silent:
            return
        refused = JetStreamError(ErrCode.INSUFFICIENT_RESOURCES)
        body = encode_pub_error(self.stream.decode(), refused)
        for row in range(start, stop):
            reply = run.message(row)[1]
            if reply:
                self.router.publish(self.account, reply, b"", b"", body)

    def _append(
        self, run: PubRun, start: int, stop: int, origin: PublishingConnection | None
    ) -> None:
        builder = self._builder
        first = builder.rows
        builder.append_run(run, start, stop)
        self._replies.append_run(run, start, stop)
        answered = not self.silent and run.any_reply(start, stop)
        spans = self._spans
        if spans and self._last_origin is origin and spans[-1][2] == answered:
            spans[-1] = (spans[-1][0], builder.rows, answered)
        else:
            spans.append((first, builder.rows, answered))
            self._last_origin = origin

    def _append_sliced(
        self, run: PubRun, start: int, stop: int, origin: PublishingConnection | None
    ) -> None:
        """As many rows as fit, then the next batch: no batch outgrows its bounds."""
        longest = max(len(subject) for subject, _, _ in run.segments(start, stop))
        per_row = ROW_BYTES + longest
        while start < stop:
            room = BATCH_BYTES_MAX - self._builder.nbytes - PADDING_BYTES
            end = min(stop, start + BATCH_ROWS_MAX - self._builder.rows)
            fits = start
            while fits < end:  # the last row that fits, by halving
                middle = (fits + end + 1) // 2
                if run.size(start, middle) + per_row * (middle - start) <= room:
                    fits = middle
                else:
                    end = middle - 1
            if fits == start and self._builder.rows:
                self._seal()
                continue
            fits = max(fits, start + 1)
            self._append(run, start, fits, origin)
            start = fits

    def deliver(
        self, sub: Subscription, subject: bytes, reply: bytes, headers: bytes, payload: bytes
    ) -> bool:
        return self.deliver_run(sub, PubRun.of([(subject, reply, headers, payload)]), 0, 1, None)

    def _turn(self) -> None:
        self._scheduled = False
        if not self.closed:
            self._send_waiting()

    def _send_waiting(self) -> None:
        while True:
            upcoming = self._waiting[0].number if self._waiting else self._next_number
            if self.in_flight and upcoming >= self.in_flight[0].number + IN_FLIGHT_MAX:
                break
            if not self._waiting:
                if not self._builder.rows:
                    break
                self._seal()
            batch = self._waiting.popleft()
            self.in_flight.append(batch)
            self._send(batch)
        if self._resend_timer is None:
            self._arm()

    def _seal(self) -> None:
        replies = self._replies
        marked = replies.ending(FAST_SUFFIX)
        batch = PublishBatch(
            number=self._next_number,
            block=self._builder.build(seal=False),
            replies=replies,
            spans=self._spans,
            rows=self._builder.rows,
            fast=fast_spans((row, replies.get(row)) for row in marked) if marked else [],
        )
        self._next_number += 1
        self._builder = BlockBuilder()
        self._replies = ReplyColumn()
        self._spans = []
        self._last_origin = None
        self.held_bytes += len(batch.block)
        self._waiting.append(batch)

    # -- answers --------------------------------------------------------------------------------

    def answered(self, answer: BatchAnswer) -> None:
        """The leader's answer; answers of an earlier leader may come late or twice."""
        if answer.session != self.session:
            return
        if answer.expected:
            self._out_of_order(answer)
            return
        batch = next((b for b in self.in_flight if b.number == answer.number), None)
        if batch is None:
            return
        if not answer.first_seq and len(answer.exceptions) < batch.rows:
            return  # names no sequence: nothing was stored, so nothing may be acked
        self._known = True
        overtaken = batch is not self.in_flight[0]
        self._let_go(batch)
        if self._resend_after_s > RESEND_AFTER_S:  # the timer was set when nobody answered
            self._resend_after_s = RESEND_AFTER_S
            self._arm()
        if not self.silent:
            self._acks.acknowledge(batch, answer)
        if overtaken:
            # A leader answers in order. What comes before was dropped by a replica that did not
            # lead yet, or its answer was lost with a leader that did no more.
            for earlier in [b for b in self.in_flight if b.number < answer.number]:
                self._send(earlier)
        self._send_waiting()
        self._resume()

    def _let_go(self, batch: PublishBatch) -> None:
        self.in_flight.remove(batch)
        self.held_bytes -= len(batch.block)

    def _out_of_order(self, answer: BatchAnswer) -> None:
        """The leader expects another batch first: send everything again, in order.

        Every batch behind a lost one is answered so. The last of these answers shows that the
        leader has seen them all; sending again for each would send all of them many times."""
        if answer.expected == STALE_SESSION:
            self._give_up()
            return
        if answer.expected > answer.number:
            self._forgotten(answer.number)
            return
        if not self.in_flight or self.in_flight[0].number > answer.expected:
            self._asked_again(answer)
            return
        if answer.number == self.in_flight[-1].number:
            self.resend()

    def _asked_again(self, answer: BatchAnswer) -> None:
        """It asks for what is answered already: the refusal is late, or the stream was kept in
        memory only and has forgotten us. It is late only if it refuses a sending from before we
        were known; each sending is refused once at most."""
        batch = next((b for b in self.in_flight if b.number == answer.number), None)
        if batch is None or answer.expected != 1:
            return
        if batch.unconfirmed_sends:
            batch.unconfirmed_sends -= 1
            return
        self.session += 1  # answers to the numbers of before mean nothing any more
        self._known = False
        self._next_number = 1
        for unanswered in (*self.in_flight, *self._waiting):
            unanswered.number, unanswered.unconfirmed_sends = self._next_number, 0
            self._next_number += 1
        self.resend()

    def _forgotten(self, number: int) -> None:
        """It was applied, and what became of it is known to nobody: asking again is no use."""
        batch = next((b for b in self.in_flight if b.number == number), None)
        if batch is None:
            return  # a repeat of one that is answered
        logger.error(
            "stream %s: the result of batch %d is no longer known, %d publishes stay unanswered",
            self.stream.decode(errors="replace"),
            number,
            batch.rows,
        )
        self._let_go(batch)
        self._send_waiting()
        self._resume()

    def _give_up(self) -> None:
        """Another process runs under this node's name, and it is the later one."""
        logger.error(
            "stream %s: publishes of this server are refused, a later run of the same server "
            "name has published; %d batches are dropped unanswered",
            self.stream.decode(errors="replace"),
            len(self.in_flight) + len(self._waiting),
        )
        self.close()

    # -- leaders come and go --------------------------------------------------------------------

    def resend(self) -> None:
        """Send every unanswered batch again, in order: the leader changed or a link broke."""
        self._resend_after_s = RESEND_AFTER_S
        self._send_again()

    def _send_again(self) -> None:
        for batch in list(self.in_flight):
            self._send(batch)
        self._arm()

    def _send(self, batch: PublishBatch) -> None:
        batch.unconfirmed_sends += not self._known
        self.transmit(self.group, self.session, batch)

    def _arm(self) -> None:
        if self._resend_timer is not None:
            self._resend_timer.cancel()
            self._resend_timer = None
        if self.in_flight and not self.closed:
            oldest = self.in_flight[0].number
            loop = asyncio.get_running_loop()
            self._resend_timer = loop.call_later(self._resend_after_s, self._overdue, oldest)

    def _overdue(self, oldest: int) -> None:
        self._resend_timer = None
        if self.in_flight and self.in_flight[0].number == oldest:
            self._resend_after_s = min(self._resend_after_s * 2, RESEND_AFTER_MAX_S)
            self._send_again()
        else:
            self._arm()

    # -- back-pressure --------------------------------------------------------------------------

    def _pause(self, origin: PublishingConnection) -> None:
        if origin not in self._paused:
            origin.pause_reading()
            self._paused[origin] = None

    def _resume(self) -> None:
        if self._paused and self.held_bytes + self._builder.nbytes <= HELD_BYTES_MAX // 2:
            paused, self._paused = self._paused, {}
            for connection in paused:
                connection.resume_reading()

    def removed(self) -> None:
        """The stream is gone, and with it whatever of this it had stored."""
        if self._builder.rows:
            self._seal()
        unanswered = [*self.in_flight, *self._waiting]
        self.close()
        if not self.silent:
            for batch in unanswered:
                self._acks.no_responders(batch)

    def close(self) -> None:
        """No more is sent; publishers that wait learn by their own timeouts."""
        self.closed = True
        if self._resend_timer is not None:
            self._resend_timer.cancel()
            self._resend_timer = None
        self.in_flight.clear()
        self._waiting.clear()
        self.held_bytes = 0
        self._builder = BlockBuilder()
        self._replies = ReplyColumn()
        self._spans = []
        self._resume()
