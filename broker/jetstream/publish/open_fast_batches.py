"""Fast batches that are open: how far each has come, and how often its publisher is answered.

Owns: their sequences, the pace of flow acks, and when an idle one is forgotten.
May not touch: messages (fast_publish.py), clocks.
The messages themselves are stored as they come. This little state is replicated, so a batch goes
on under the next leader as if nothing had happened.
Spec: JetStream sheet 3.8."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import msgspec

from broker.jetstream.times import NS_PER_S

OPEN_MAX: Final = 1000
IDLE_NS: Final = 10 * NS_PER_S
SHARED_FLOW: Final = 500  # messages between two acks, of all open batches together


class FastBatch(msgspec.Struct, array_like=True):
    id: bytes
    touched_ns: int
    gap_ok: bool
    flow: int  # the most messages between two acks that the publisher allows
    every: int  # messages between two acks now
    last: int = 0  # the highest sequence of the batch
    acked: int = 0  # what the last flow ack said
    stored: int = 0  # the stream's sequence of its last message


@dataclass(slots=True)
class FastBatches:
    _open: dict[bytes, FastBatch] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._open)

    def get(self, batch_id: bytes) -> FastBatch | None:
        return self._open.get(batch_id)

    def begin(self, batch_id: bytes, *, flow: int, gap_ok: bool, now_ns: int) -> FastBatch:
        """One that is alone begins at its publisher's pace, others slowly."""
        every = 1 if self._open else min(SHARED_FLOW, flow)
        batch = self._open[batch_id] = FastBatch(batch_id, now_ns, gap_ok, flow, every)
        return batch

    def end(self, batch: FastBatch) -> None:
        self._open.pop(batch.id, None)

    def clear(self) -> None:
        self._open.clear()

    def flow_due(self, batch: FastBatch) -> bool:
        """Whether the publisher is owed an ack; `acked` and `every` are what it says.

        The pace doubles or halves towards an equal share of all open batches."""
        if batch.last < batch.acked + batch.every:
            return False
        batch.acked += (batch.last - batch.acked) // batch.every * batch.every
        share = min(max(SHARED_FLOW // len(self._open), 1), batch.flow)
        if batch.every < share:
            batch.every = min(batch.every * 2, share)
        else:
            batch.every = max(batch.every // 2, share)
        return True

    def next_expiry(self) -> int | None:
        return min((b.touched_ns for b in self._open.values()), default=-IDLE_NS) + IDLE_NS or None

    def expire(self, now_ns: int) -> None:
        """Idle ones are forgotten, and nobody is told."""
        for batch in [b for b in self._open.values() if b.touched_ns + IDLE_NS <= now_ns]:
            self.end(batch)

    def image(self) -> list[FastBatch]:
        return [msgspec.structs.replace(batch) for batch in self._open.values()]

    @classmethod
    def of(cls, images: list[FastBatch]) -> FastBatches:
        return cls({image.id: image for image in images})
