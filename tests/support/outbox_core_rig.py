"""The outbox core without an event loop: scripts, and a model leader behind faulty links."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from broker.cluster.publish.outbox_core import (
    PROBE_BASE,
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
from broker.cluster.publish.publish_batch import STALE_SESSION, BatchAnswer, PublishBatch
from broker.jetstream.publish.sessions import OutOfOrder, PublishResult, Sessions
from broker.subjects import PublishingConnection
from broker.wire import ReplyColumn

GROUP, SESSION = 7, 99 << 16


def make_batch(block: bytes = b"x", rows: int = 1) -> PublishBatch:
    return PublishBatch(block=block, replies=ReplyColumn(), spans=[(0, rows, True)], rows=rows)


class CoreScript:
    """Runs lines like `answer 1 -> ack 1, send 5`: an input, and the effects it must have."""

    def __init__(self, *, held_bytes_max: int) -> None:
        self.core = OutboxCore(SESSION, held_bytes_max=held_bytes_max)
        self.now_s = 1000.0

    def run(self, script: str) -> None:
        for line in script.strip().splitlines():
            action, _, expected = line.partition("->")
            if action.strip():
                got = ", ".join(self._rendered(effect) for effect in self._act(action.split()))
                assert got == expected.strip(), f"{action.strip()}: got {got or 'nothing'}"

    def _act(self, words: Sequence[str]) -> list[OutboxEffect]:
        verb, numbers = words[0], [int(word) for word in words[1:] if word.lstrip("-").isdigit()]
        core = self.core
        match verb:
            case "publish":  # so many bytes
                core.enqueue(make_batch(b"x" * (numbers or [1])[0]))
                return core.send(self.now_s)
            case "answer":
                return self._answer(numbers[0], first_seq=numbers[0])
            case "refuse":
                return self._answer(numbers[0], expected=numbers[1])
            case "probed":  # after which batch, and which one the stream expects
                return self._answer(PROBE_BASE + numbers[0], expected=numbers[1])
            case "stale-answer":  # of an earlier session of this node
                answer = BatchAnswer(GROUP, core.session - 1, numbers[0], 1, [])
                return core.answered(answer, self.now_s)
            case "leader-changed" | "link-restored":
                return core.resend(self.now_s)
            case "pause":
                return core.pause(cast(PublishingConnection, words[1]))
            case "remove":
                return core.removed()
            case "close":
                return core.close()
            case "wait":  # milliseconds
                self.now_s += numbers[0] / 1000
                return core.tick(self.now_s)
        raise AssertionError(f"unknown input {verb}")

    def _answer(self, number: int, *, first_seq: int = 0, expected: int = 0) -> list[OutboxEffect]:
        answer = BatchAnswer(GROUP, self.core.session, number, first_seq, [], expected=expected)
        return self.core.answered(answer, self.now_s)

    def _rendered(self, effect: OutboxEffect) -> str:
        match effect:
            case TransmitBatch():
                later = effect.session - SESSION
                number = effect.number
                probe = number >= PROBE_BASE
                sent = f"probe {number - PROBE_BASE}" if probe else f"send {number}"
                return sent + (f" in session +{later}" if later else "")
            case AcknowledgeBatch():
                return f"ack {effect.answer.number}"
            case AnswerNoResponders():
                return f"no-responders {effect.batch.number}"
            case PausePublisher():
                return f"pause {effect.publisher}"
            case ResumePublisher():
                return f"resume {effect.publisher}"
            case ResultLost():
                return f"result-lost {effect.number}"
            case SessionRefused():
                return f"session-refused {effect.batches}"


class ModelLeader:
    """A stream that applies batches by session and number, as broker/jetstream does, and links to
    it that a test may make lose, delay, reorder and repeat."""

    def __init__(self) -> None:
        self.core = OutboxCore(SESSION)
        self.now_s = 1000.0
        self.published = 0
        self.batches: list[tuple[int, int, bytes]] = []  # on the way: session, number, block
        self.answers: list[BatchAnswer] = []  # on the way back
        self.stored: list[bytes] = []
        self.acked: list[tuple[bytes, int]] = []  # block, sequence
        self.facts: list[OutboxEffect] = []
        self._sessions = Sessions()

    def publish(self) -> None:
        self.published += 1
        self.core.enqueue(make_batch(b"%d" % self.published))
        self.perform(self.core.send(self.now_s))

    def perform(self, effects: list[OutboxEffect]) -> None:
        for effect in effects:
            match effect:
                case TransmitBatch():
                    self.batches.append((effect.session, effect.number, effect.batch.block))
                case AcknowledgeBatch():
                    self.acked.append((effect.batch.block, effect.answer.first_seq))
                case _:
                    self.facts.append(effect)

    def apply(self, at: int) -> None:
        """The batch at this place on the link reaches the stream."""
        session, number, block = self.batches.pop(at)
        result = self._sessions.admit(from_node=1, session=session, batch_no=number)
        if result is None:
            self.stored.append(block)
            result = PublishResult(1, session, number, len(self.stored), 1, [])
            self._sessions.remember(result)
        if isinstance(result, OutOfOrder):
            expected = result.expected or STALE_SESSION
            answer = BatchAnswer(GROUP, session, number, 0, [], expected=expected)
        else:
            answer = BatchAnswer(GROUP, session, number, result.first_seq, [])
        self.answers.append(answer)

    def answer(self, at: int) -> None:
        self.perform(self.core.answered(self.answers.pop(at), self.now_s))

    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        self.perform(self.core.tick(self.now_s))

    def forget(self) -> None:
        """A memory stream whose replicas all restarted."""
        self._sessions, self.stored = Sessions(), []

    def heal(self) -> None:
        """Links keep their order and lose nothing, until everything is answered."""
        for _ in range(1000):
            while self.batches:
                self.apply(0)
            while self.answers:
                self.answer(0)
            if not self.core.unanswered:
                return
            self.wait(1.0)
        raise AssertionError("some batches are never answered")
