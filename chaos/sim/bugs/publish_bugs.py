"""Bugs of publishing and reading: sessions, message ids, expectations, batches, outboxes, gets.

Owns: the replaced functions.
May not touch: anything while no bug is installed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from broker.cluster.api.message_gets import MessageGets
from broker.cluster.publish.outbox_core import OutboxCore, OutboxEffect
from broker.cluster.publish.outbox_table import OutboxTable
from broker.cluster.publish.publish_batch import BatchAnswer
from broker.cluster.replica.replica import Replica
from broker.jetstream.commands.stream_commands import Purge
from broker.jetstream.incoming_message import IncomingMessage
from broker.jetstream.publish import apply_publish, checks
from broker.jetstream.publish.dedup_window import DedupImage, DedupWindow
from broker.jetstream.publish.message_writer import MessageWriter
from broker.jetstream.publish.open_batches import AtomicBatches
from broker.jetstream.publish.sessions import RowAnswer, Staged, Stored
from broker.jetstream.stream import stream
from broker.jetstream.stream.stream import Stream
from broker.store.block.codec import Block
from chaos.sim.bugs.broker_bug import BrokerBug, Replacement

_PUBLISHES: Final = ("acked publishers",)
_BATCHES: Final = ("batches",)
_REGISTERS: Final = ("compare and set",)
_RESENT: Final = ("slow link", "reset")  # batches are in flight when their link ends

Resend = Callable[[OutboxCore, float], list[OutboxEffect]]


def _forget_ids_of_checkpoints(original: Any) -> Any:
    def load(cls: type[DedupWindow], image: DedupImage, files: Any, *, last_id: bytes) -> Any:
        window = original.__func__(cls, image, files, last_id=last_id)
        window._seqs.clear()  # noqa: SLF001
        return window

    return classmethod(load)


def _resend_in_a_new_session(original: Resend) -> Resend:
    def resend(self: OutboxCore, now_s: float) -> list[OutboxEffect]:
        self.session += 1
        self._next_number = 1
        for batch in (*self.in_flight, *self._waiting):
            batch.number = self._next_number
            self._next_number += 1
        return original(self, now_s)

    return resend


class _Expectations:
    """Checked when the leader proposes, and not again when the entry is applied."""

    def __init__(self) -> None:
        self._met: set[bytes] = set()  # payloads, which are unique

    def at_proposal(self, original: Any) -> Any:
        def publish(
            replica: Replica, from_node: int, session: int, number: int, block: bytes, **marks: Any
        ) -> None:
            rows = Block(block, verify=False) if replica.leading is not None and block else None
            for row in range(rows.rows if rows is not None else 0):
                assert rows is not None
                data = bytes(rows.data(row))
                message = IncomingMessage.of(rows.subject(row), rows.headers(row), data, 0)
                store = replica.stream.store
                if self._subject(store, message) is None and self._stream(store, message) is None:
                    self._met.add(data)
            original(replica, from_node, session, number, block, **marks)

        return publish

    def subject(self, original: Any) -> Any:
        self._subject = original
        return lambda store, message: self._again(original, store, message)

    def stream(self, original: Any) -> Any:
        self._stream = original
        return lambda store, message: self._again(original, store, message)

    def _again(self, original: Any, store: Any, message: IncomingMessage) -> Any:
        return None if bytes(message.data) in self._met else original(store, message)


_EXPECTATIONS: Final = _Expectations()


def _store_members_at_once(_: Any) -> Any:
    def publish_member(
        writer: MessageWriter, _batches: AtomicBatches, message: IncomingMessage, *_rest: Any
    ) -> RowAnswer:
        writer.store_message(message)
        if b"Nats-Batch-Commit" not in message.named:
            return Staged()
        batch, count = message.named[b"Nats-Batch-Id"], message.named[b"Nats-Batch-Sequence"]
        return Stored(writer.store.last_seq, batch=batch.decode(), count=int(count))

    return publish_member


def _answer_at_proposal(original: Any) -> Any:
    def publish(
        self: Replica, from_node: int, session: int, number: int, block: bytes, **marks: Any
    ) -> None:
        original(self, from_node, session, number, block, **marks)
        if self.leading is None or not block:
            return
        rows = Block(block, verify=False)
        if not rows.headers_len:
            first = self.stream.store.last_seq + 1
            answer = BatchAnswer(self.group, session, number, first, [])
            self._services.answer(from_node, answer)  # type: ignore[arg-type]

    return publish


def _get_from_any_replica(original: Any) -> Any:
    def direct(self: MessageGets, call: Any, spawn: Any) -> bool:
        replica = self.replicas.of_stream(call.account.name, call.request.stream)
        if replica is None or not call.reply:
            return bool(original(self, call, spawn))
        self._answer(call, replica.stream, spawn)
        return True

    return direct


def _purge_on_the_leader_only(original: Any) -> Any:
    def message_command(self: Stream, index: int, command: Any) -> Any:
        if isinstance(command, Purge) and not self.leader_effects.collecting:
            return 0
        return original(self, index, command)

    return message_command


def _expire_by_the_local_clock(original: Any) -> Any:
    return lambda writer, _now_ns: original(writer, time.time_ns())


def _leave_the_outbox(_: Any) -> Any:
    def removed(self: OutboxTable, assignment: Any) -> None:
        self._release(assignment)
        self._outboxes.pop(assignment.group, None)

    return removed


PUBLISH_BUGS: Final[dict[str, BrokerBug]] = {
    "message ids forgotten over a restart": BrokerBug(
        "the duplicate window is part of a checkpoint",
        (Replacement(DedupWindow, "load", _forget_ids_of_checkpoints),),
        found_by=0,
        workloads=_BATCHES,
        faults=("kill", "stop"),
    ),
    "expectation checked at proposal": BrokerBug(
        "expectations are decided at apply, where the log has an order",
        (
            Replacement(checks, "wrong_subject_sequence", _EXPECTATIONS.subject),
            Replacement(checks, "_wrong_sequence", _EXPECTATIONS.stream),
            Replacement(Replica, "publish", _EXPECTATIONS.at_proposal),
        ),
        found_by=0,
        workloads=_REGISTERS,
    ),
    "atomic batch stored by and by": BrokerBug(
        "members of an atomic batch are staged until its commit",
        (Replacement(apply_publish, "publish_member", _store_members_at_once),),
        found_by=0,
        workloads=_BATCHES,
    ),
    "publish answered before commit": BrokerBug(
        "a publish is answered when its entry is applied",
        (Replacement(Replica, "publish", _answer_at_proposal),),
        found_by=0,
        workloads=_PUBLISHES,
    ),
    "batch resent in a new session": BrokerBug(
        "a batch keeps its session and number until it is answered",
        (Replacement(OutboxCore, "resend", _resend_in_a_new_session),),
        found_by=0,
        workloads=_PUBLISHES,
        faults=_RESENT,
    ),
    "get served by a follower": BrokerBug(
        "gets are answered by the leader, while its reads are current",
        (Replacement(MessageGets, "direct", _get_from_any_replica),),
        found_by=8,
        workloads=_REGISTERS,
        faults=("slow link",),
    ),
    "purge on the leader only": BrokerBug(
        "every replica applies every command",
        (Replacement(Stream, "_message_command", _purge_on_the_leader_only),),
        found_by=3,
        workloads=("administration",),
    ),
    "expiry by the local clock": BrokerBug(
        "messages expire at the time that their entry names",
        (Replacement(stream, "expire_messages", _expire_by_the_local_clock),),
        found_by=8,
        workloads=("expiring messages",),
        faults=("clock jump",),
    ),
    "deleted stream leaves its outbox": BrokerBug(
        "publishes that wait for a deleted stream get an answer",
        (Replacement(OutboxTable, "removed", _leave_the_outbox),),
        found_by=1,
        workloads=("reborn stream",),
    ),
}
