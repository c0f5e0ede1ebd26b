"""Decisions of an outbox: when a batch is sent, resent, acknowledged or dropped.

Owns: the session, batch numbers, the in-flight window, the queue behind it, the retry back-off and
the bound on held bytes.
May not touch: asyncio, clocks, sockets, the router. Inputs and `now_s` come in as arguments,
effects go out as values, and `deadline_s` says when `tick` is next needed. The work is per batch,
never per message.
Spec: the stream applies the batches of a (node, session) in number order, once each, and answers a
repeated batch with the stored result (broker/jetstream/publish/sessions.py). So a batch is resent,
in order, until it is answered, and a change of leader stores nothing twice."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from broker.cluster.publish.publish_batch import STALE_SESSION, BatchAnswer, PublishBatch
from broker.subjects import PublishingConnection
from broker.wire import ReplyColumn

# Batches in flight, counted from the oldest unanswered one. More would only queue behind the same
# fsync. The stream remembers more results than this, so a repeated batch always finds its own.
IN_FLIGHT_MAX: Final = 4
# Bytes of sealed batches without an answer. Beyond it publishers are paused, until half is left.
HELD_BYTES_MAX: Final = 64 << 20
RESEND_AFTER_S: Final = 1.0  # doubled with every retry, until a batch is answered
RESEND_AFTER_MAX_S: Final = 8.0
# A probe asks the stream which number it expects. It is an empty batch whose number is this plus
# the highest answered one: real batches never reach such numbers, so the stream never applies it.
PROBE_BASE: Final = 1 << 62
_PROBE: Final = PublishBatch(block=b"", replies=ReplyColumn(), spans=[], rows=0)


@dataclass(slots=True)
class TransmitBatch:
    """Send the batch to the leader. Session and number were copied when this was decided: the
    batch may be renumbered before the effect is performed."""

    session: int
    number: int
    batch: PublishBatch


@dataclass(slots=True)
class AcknowledgeBatch:
    batch: PublishBatch
    answer: BatchAnswer


@dataclass(slots=True)
class AnswerNoResponders:
    """The stream was removed while the batch waited."""

    batch: PublishBatch


@dataclass(slots=True)
class PausePublisher:
    publisher: PublishingConnection


@dataclass(slots=True)
class ResumePublisher:
    publisher: PublishingConnection


@dataclass(slots=True)
class ResultLost:
    """To be logged: the batch was applied, but the stream no longer has its result."""

    number: int
    rows: int


@dataclass(slots=True)
class SessionRefused:
    """To be logged: a later run of this node publishes to the stream. The core has closed and
    dropped this many batches."""

    batches: int


OutboxEffect = (
    TransmitBatch
    | AcknowledgeBatch
    | AnswerNoResponders
    | PausePublisher
    | ResumePublisher
    | ResultLost
    | SessionRefused
)


class OutboxCore:
    """The publishes of one node for one stream. Every input returns the effects to perform, in
    order."""

    __slots__ = (
        "_answered_max",
        "_held_bytes_max",
        "_next_number",
        "_oldest_at_deadline",
        "_paused",
        "_resend_after_s",
        "_waiting",
        "closed",
        "deadline_s",
        "held_bytes",
        "in_flight",
        "overfull",
        "session",
    )

    def __init__(self, session: int, *, held_bytes_max: int = HELD_BYTES_MAX) -> None:
        self.session = session
        self.in_flight: deque[PublishBatch] = deque()  # sent and not answered, ascending
        self.held_bytes = 0  # of the batches in flight and waiting
        self.overfull = False  # Invariant: overfull == (held_bytes > held_bytes_max)
        self.closed = False
        self.deadline_s: float | None = None  # call `tick` then; None: nothing to wait for
        self._oldest_at_deadline = 0  # the oldest batch in flight when the deadline was set
        self._waiting: deque[PublishBatch] = deque()  # numbered, outside of the window
        self._next_number = 1
        self._answered_max = 0  # the stream has applied every batch up to this one
        self._paused: dict[PublishingConnection, None] = {}
        self._resend_after_s = RESEND_AFTER_S
        self._held_bytes_max = held_bytes_max

    @property
    def held_rows(self) -> int:
        """Of the batches in flight and waiting."""
        return sum(batch.rows for batch in (*self.in_flight, *self._waiting))

    @property
    def unanswered(self) -> bool:
        return bool(self.in_flight or self._waiting)

    @property
    def window_open(self) -> bool:
        """Whether a batch that is sealed now could be sent immediately. If not, it is better to
        collect more rows: a long wait should make batches larger, not more numerous."""
        unanswered = self.in_flight or self._waiting
        return not unanswered or self._next_number < unanswered[0].number + IN_FLIGHT_MAX

    # -- sending --------------------------------------------------------------------------------

    def enqueue(self, batch: PublishBatch) -> None:
        """Number a sealed batch and queue it. `send` follows."""
        batch.number = self._next_number
        self._next_number += 1
        self._waiting.append(batch)
        self.held_bytes += len(batch.block)
        self.overfull = self.held_bytes > self._held_bytes_max

    def send(self, now_s: float) -> list[OutboxEffect]:
        """Move waiting batches into the window."""
        effects: list[OutboxEffect] = []
        if self._waiting:
            self._fill_window(effects, now_s)
        return effects

    def resend(self, now_s: float) -> list[OutboxEffect]:
        """The leader changed or a link was restored: send everything in flight again, in order."""
        effects: list[OutboxEffect] = []
        self._resend_all(effects, now_s)
        return effects

    def tick(self, now_s: float) -> list[OutboxEffect]:
        """The time is `now_s`. Retry if nothing was answered since the deadline was set."""
        effects: list[OutboxEffect] = []
        if self.deadline_s is None or now_s < self.deadline_s:
            return effects
        if self.in_flight and self.in_flight[0].number == self._oldest_at_deadline:
            self._resend_after_s = min(self._resend_after_s * 2, RESEND_AFTER_MAX_S)
            self._send_in_flight(effects, now_s)
        else:
            self._set_deadline(now_s)
        return effects

    def _fill_window(self, effects: list[OutboxEffect], now_s: float) -> None:
        waiting, in_flight = self._waiting, self.in_flight
        while waiting:
            if in_flight and waiting[0].number >= in_flight[0].number + IN_FLIGHT_MAX:
                break
            batch = waiting.popleft()
            in_flight.append(batch)
            effects.append(TransmitBatch(self.session, batch.number, batch))
        if self.deadline_s is None:
            self._set_deadline(now_s)

    def _resend_before(self, effects: list[OutboxEffect], number: int) -> None:
        """Resend the unanswered batches before `number`. A leader answers in order, so they were
        dropped by a replica that did not lead yet, or an old leader's answers were lost."""
        effects += [
            TransmitBatch(self.session, batch.number, batch)
            for batch in self.in_flight
            if batch.number < number
        ]

    def _resend_all(self, effects: list[OutboxEffect], now_s: float) -> None:
        self._resend_after_s = RESEND_AFTER_S
        self._send_in_flight(effects, now_s)

    def _send_in_flight(self, effects: list[OutboxEffect], now_s: float) -> None:
        effects += [TransmitBatch(self.session, batch.number, batch) for batch in self.in_flight]
        self._set_deadline(now_s)

    def _set_deadline(self, now_s: float) -> None:
        if self.in_flight:
            self.deadline_s = now_s + self._resend_after_s
            self._oldest_at_deadline = self.in_flight[0].number
        else:
            self.deadline_s = None

    # -- answers --------------------------------------------------------------------------------

    def answered(self, answer: BatchAnswer, now_s: float) -> list[OutboxEffect]:
        """The leader's answer to a batch. It may be late, repeated or from an earlier leader."""
        effects: list[OutboxEffect] = []
        if self.closed or answer.session != self.session:
            return effects
        if answer.expected:
            self._refused(effects, answer, now_s)
            return effects
        batch = self._find(answer.number)
        if batch is None:
            return effects  # answered before
        if not answer.first_seq and len(answer.exceptions) < batch.rows:
            return effects  # it has no sequence: nothing was stored, so nothing may be acked
        overtaken = batch is not self.in_flight[0]
        self._release(batch)
        self._answered_max = max(self._answered_max, answer.number)
        if self._resend_after_s > RESEND_AFTER_S:  # the leader answers again: back to fast retries
            self._resend_after_s = RESEND_AFTER_S
            self._set_deadline(now_s)
        effects.append(AcknowledgeBatch(batch, answer))
        if overtaken:
            self._resend_before(effects, answer.number)
        if self._waiting:
            self._fill_window(effects, now_s)
        if self._paused:
            self._resume(effects)
        return effects

    def _refused(self, effects: list[OutboxEffect], answer: BatchAnswer, now_s: float) -> None:
        """The leader did not apply the batch because it expects another one."""
        if answer.expected == STALE_SESSION:
            effects.append(SessionRefused(len(self.in_flight) + len(self._waiting)))
            effects += self.close()
        elif answer.number >= PROBE_BASE:
            self._probed(effects, answer, now_s)
        elif answer.expected > answer.number:
            self._result_lost(effects, answer.number, now_s)
        elif self.in_flight and answer.number == self.in_flight[-1].number:
            # Every batch after a lost one is refused. The last refusal shows that the leader has
            # seen them all; acting on each refusal would resend every batch several times.
            if self.in_flight[0].number <= answer.expected:
                self._resend_all(effects, now_s)
            else:
                # It expects a batch that it has answered. Either the refusal is late, or the
                # stream was kept in memory only and has lost its state.
                number = PROBE_BASE + self._answered_max
                effects.append(TransmitBatch(self.session, number, _PROBE))

    def _probed(self, effects: list[OutboxEffect], answer: BatchAnswer, now_s: float) -> None:
        """The answer to a probe. The number of a probe carries `_answered_max`: the stream had
        applied every batch up to it. If the stream now expects one of those, it has lost its
        state, and what is unanswered needs a new session. If not, the refusal that caused the
        probe was late: a new session would store batches twice."""
        if answer.expected > answer.number - PROBE_BASE:
            return
        self.session += 1  # answers to the former numbers are ignored from now on
        self._next_number = 1
        self._answered_max = 0
        for unanswered in (*self.in_flight, *self._waiting):
            unanswered.number = self._next_number
            self._next_number += 1
        self._resend_all(effects, now_s)

    def _result_lost(self, effects: list[OutboxEffect], number: int, now_s: float) -> None:
        """The batch was applied long ago and its result is forgotten: a retry cannot help."""
        batch = self._find(number)
        if batch is None:
            return  # a refused repeat of a batch that is answered
        effects.append(ResultLost(number, batch.rows))
        self._release(batch)
        self._fill_window(effects, now_s)
        self._resume(effects)

    def _find(self, number: int) -> PublishBatch | None:
        for batch in self.in_flight:
            if batch.number == number:
                return batch
        return None

    # -- backpressure ---------------------------------------------------------------------------

    def pause(self, publisher: PublishingConnection) -> list[OutboxEffect]:
        """Stop reading from this publisher until the held bytes fall to half of their bound."""
        if publisher in self._paused:
            return []
        self._paused[publisher] = None
        return [PausePublisher(publisher)]

    def _resume(self, effects: list[OutboxEffect]) -> None:
        if self.held_bytes <= self._held_bytes_max // 2:
            effects += [ResumePublisher(publisher) for publisher in self._paused]
            self._paused.clear()

    def _release(self, batch: PublishBatch) -> None:
        self.in_flight.remove(batch)
        self.held_bytes -= len(batch.block)
        self.overfull = self.held_bytes > self._held_bytes_max

    # -- the end --------------------------------------------------------------------------------

    def removed(self) -> list[OutboxEffect]:
        """The stream was deleted, together with what it had stored of these batches."""
        unanswered = (*self.in_flight, *self._waiting)
        effects = self.close()
        effects += [AnswerNoResponders(batch) for batch in unanswered]
        return effects

    def left(self) -> list[OutboxEffect]:
        """This node was removed from the cluster; the stream still exists. Batches that were sent
        may be stored, so they get no answer; those not sent are refused, which is definite."""
        waiting = tuple(self._waiting)
        effects = self.close()
        effects += [AnswerNoResponders(batch) for batch in waiting]
        return effects

    def close(self) -> list[OutboxEffect]:
        """Send nothing more. Publishers that wait for an ack time out."""
        self.closed = True
        self.deadline_s = None
        self.in_flight.clear()
        self._waiting.clear()
        self.held_bytes = 0
        self.overfull = False
        effects: list[OutboxEffect] = []
        self._resume(effects)
        return effects
