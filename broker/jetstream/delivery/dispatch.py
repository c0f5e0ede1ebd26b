"""What goes out next, and to whom.

Owns: the order (redeliveries before new messages), the stall at max_ack_pending, the bound on one
pump, the sharing between receivers.
May not touch: acknowledgements, timers; receivers and cursor keep their own books.
Spec: JetStream delivery mechanics; pull distribution: one message each in turn."""

from __future__ import annotations

from dataclasses import dataclass

from broker.jetstream.consumer.consumer import Consumer
from broker.jetstream.delivery.cursor import Cursor, RowGroups
from broker.jetstream.delivery.effects import Deliver, Effect
from broker.jetstream.delivery.receivers import UNLIMITED, Receivers
from broker.jetstream.delivery.replay_pace import Replay
from broker.store.block.block import Rows


@dataclass(frozen=True, slots=True)
class PumpLimits:
    """How much one pump may send before it must give way to others."""

    messages: int = 1000
    size: int = 1 << 20
    # With this many messages at hand, requests take turns in runs rather than one by one.
    runs_from: int = 256
    rate_burst_bytes: int = 1 << 20


class Dispatch:
    """`more_work`: the last run ended because of its limits only."""

    def __init__(
        self, consumer: Consumer, cursor: Cursor, effects: list[Effect], limits: PumpLimits
    ) -> None:
        self._consumer = consumer
        self._cursor = cursor
        self._effects = effects
        self._limits = limits
        self._replay = Replay(consumer)
        self.more_work = False

    @property
    def ready_at(self) -> int:
        """When a replay goes on; 0 when it does not wait."""
        return self._replay.ready_at

    def run(self, receivers: Receivers, now: int) -> int:
        """Deliver what may go, within the limits; how many messages went."""
        self.more_work = False
        budget = self._limits.messages
        sent = self._again(receivers, now, budget)
        if not self._cursor.redelivery.queued:
            sent += self._new(receivers, now, budget - sent)
        return sent

    def _again(self, receivers: Receivers, now: int, budget: int) -> int:
        """The redelivery queue, oldest entry first."""
        cursor, sent = self._cursor, 0
        while sent < budget:
            seq = cursor.redelivery.peek()
            if not seq:
                return sent
            located = self._consumer.stream.store.rows(seq)
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

    def _new(self, receivers: Receivers, now: int, budget: int) -> int:
        """New messages, as far as max_ack_pending and the receivers allow."""
        if budget <= 0 or receivers.next(now) is None:
            return 0
        limit = min(budget, self._room(), receivers.wanted())
        if limit <= 0:
            return 0
        groups = self._replay.take(self._cursor, limit, self._limits.size, now)
        rows_taken = sum(len(indices) for _, indices in groups)
        sent = self._hand_out(receivers, groups, rows_taken, now)
        self.more_work = (
            0 < sent == rows_taken
            and self._room() > 0
            and not self._replay.ready_at
            and self._cursor.count(now) > 0
            and receivers.next(now) is not None
        )
        return sent

    def _hand_out(self, receivers: Receivers, groups: RowGroups, total: int, now: int) -> int:
        """Requests take turns, one message each; in runs when there is plenty, which saves most
        of the work and is as fair over the whole."""
        turns = receivers.turns
        run = total
        if turns > 1:
            run = max(total // (8 * turns), 1) if total >= self._limits.runs_from else 1
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
        at = noted = 0  # rows given away, rows of them that the cursor knows of
        consumer_seq, pending = cursor.upcoming(now)
        while at < len(indices):
            receiver = receivers.next(now)
            if receiver is None:
                break
            part = indices[at : at + min(run, max(receiver.batch, 1))]
            count = receivers.fit(receiver, rows, part, now, ahead=at - noted)
            if count == 0:
                continue
            if count < len(part):
                part = part[:count]
            to, ahead = receiver.reply, at - noted
            effects.append(
                Deliver(
                    to, rows, part, consumer_seq + ahead, None, pending - ahead,
                    cursor.headers_only, receiver.pin_id,
                )
            )  # fmt: skip
            receivers.served(receiver, count, now)
            at += count
            if receiver.conditional:  # the next verdict on it depends on the numbers
                cursor.first_deliveries(rows, indices[noted:at], now)
                noted = at
                consumer_seq, pending = cursor.upcoming(now)
        if noted < at:
            cursor.first_deliveries(rows, indices[noted:at], now)
        return at

    def _room(self) -> int:
        most = self._consumer.config.max_ack_pending
        if most <= 0 or not self._cursor.tracked:
            return UNLIMITED
        return most - len(self._cursor.live.pending)
