"""Dispatch: which message is delivered next, and to which receiver.

Owns: the order (redeliveries before new messages), the bound on one pump, how receivers share.
May not touch: acknowledgements, timers, the state of receivers and cursor.
Spec: JetStream delivery; pull requests are served in turn, one message each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from broker.jetstream.delivery.cursor import Cursor, RowGroups
from broker.jetstream.delivery.effects import Deliver, Effect
from broker.jetstream.delivery.flow_control import ReplayPace
from broker.jetstream.delivery.receivers import Receivers
from broker.store.block.codec import Rows


@dataclass(frozen=True, slots=True)
class PumpLimits:
    """How much one pump may send before other consumers get their turn."""

    messages: int = 1000
    size: int = 1 << 20
    # With at least this many messages to deliver, requests are served in runs, not one by one.
    runs_from: int = 64
    rate_burst_bytes: int = 1 << 20


PUMP_S: Final = 0.003  # a pump that takes longer is followed by one of half as many messages
PUMP_MESSAGES_MIN: Final = 32


class Dispatch:
    """`more_work`: the last run stopped only because of its limits."""

    def __init__(
        self, cursor: Cursor, replay: ReplayPace, effects: list[Effect], limits: PumpLimits
    ) -> None:
        self._cursor = cursor
        self._replay = replay
        self._effects = effects
        self._limits = limits
        self._messages = limits.messages
        self.more_work = False

    @property
    def ready_at(self) -> int:
        """When a replay continues; 0 if it does not wait."""
        return self._replay.ready_at

    def run(self, receivers: Receivers, now: int) -> int:
        """Deliver as much as the limits allow. Returns the number of messages sent."""
        self.more_work = False
        budget, redelivery = self._messages, self._cursor.redelivery
        sent = self._redeliver(receivers, now, budget) if redelivery.queued else 0
        if not redelivery.queued:
            sent += self._deliver_new(receivers, now, budget - sent)
        return sent

    def took(self, used_s: float) -> None:
        """How long it took to deliver what the last run handed out. For clients it is encoded in
        one go; for streams, services and other accounts it is routed one by one, and a thousand
        messages took 15 ms."""
        if used_s > PUMP_S:
            self._messages = max(self._messages // 2, PUMP_MESSAGES_MIN)
        elif used_s < PUMP_S / 4 and self._messages < self._limits.messages:
            self._messages = min(2 * self._messages, self._limits.messages)

    def _redeliver(self, receivers: Receivers, now: int, budget: int) -> int:
        """The redelivery queue, oldest entry first."""
        cursor, sent = self._cursor, 0
        while sent < budget:
            seq = cursor.redelivery.peek()
            if not seq:
                return sent
            located = cursor.store.rows(seq)
            if located is None:
                cursor.removed((seq,))
                cursor.redelivery.forget((seq,))
                continue
            receiver = receivers.next(now)
            if receiver is None:
                return sent
            rows, index = located
            if receivers.fit(receiver, rows, [index], now):
                cursor.redelivery.pop()
                effect = cursor.send_again(receiver.reply, rows, index, now)
                effect.pin_id = receiver.pin_id
                self._effects.append(effect)
                receivers.served(receiver, 1, now)
                sent += 1
        self.more_work = True
        return sent

    def _deliver_new(self, receivers: Receivers, now: int, budget: int) -> int:
        """New messages, as far as max_ack_pending and the receivers allow."""
        if budget <= 0 or receivers.next(now) is None:
            return 0
        limit = min(budget, self._cursor.room(), receivers.wanted())
        if limit <= 0:
            return 0
        groups = self._replay.take(self._cursor, limit, self._limits.size, now)
        rows_taken = 0
        for _, indices in groups:
            rows_taken += len(indices)
        if self._cursor.searching:
            self.more_work = True
            return 0
        sent = self._hand_out(receivers, groups, rows_taken, now)
        self.more_work = (
            0 < sent == rows_taken
            and receivers.turns > 0
            and self._cursor.room() > 0
            and not self._replay.ready_at
            and self._cursor.count(now) > 0
            and receivers.next(now) is not None
        )
        return sent

    def _hand_out(self, receivers: Receivers, groups: RowGroups, total: int, now: int) -> int:
        """Serve the requests in turn, one message each. With many messages, each request gets four
        turns of longer runs: that saves most of the work, and all get the same share."""
        turns = receivers.turns
        run = total
        if turns > 1:
            run = max(total // (4 * turns), 1) if total >= self._limits.runs_from else 1
        sent = 0
        for rows, indices in groups:
            taken = self._hand_out_rows(receivers, rows, indices, run, now)
            sent += taken
            if taken < len(indices):
                break
        return sent

    def _hand_out_rows(
        self, receivers: Receivers, rows: Rows, indices: list[int], run: int, now: int
    ) -> int:
        cursor, effects = self._cursor, self._effects
        at = recorded = 0  # rows handed out, and how many of them the cursor has recorded
        consumer_seq, pending = cursor.upcoming(now)
        conditional = receivers.conditional
        while at < len(indices):
            receiver = receivers.next(now)
            if receiver is None:
                break
            most = 1 if receiver.conditional else min(run, max(receiver.batch, 1))
            part = indices[at : at + most]
            count = receivers.fit(receiver, rows, part, now, ahead=at - recorded)
            if count == 0:
                continue
            if count < len(part):
                part = part[:count]
            to, ahead = receiver.reply, at - recorded
            effects.append(
                Deliver(
                    to, rows, part, consumer_seq + ahead, None, pending - ahead,
                    cursor.headers_only, receiver.pin_id,
                )
            )  # fmt: skip
            receivers.served(receiver, count, now)
            at += count
            if conditional:  # a request's eligibility depends on the counts after this run
                cursor.first_deliveries(rows, indices[recorded:at], now)
                recorded = at
                consumer_seq, pending = cursor.upcoming(now)
        if recorded < at:
            cursor.first_deliveries(rows, indices[recorded:at], now)
        return at
