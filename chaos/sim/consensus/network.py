"""A network that drops, delays, duplicates and reorders messages, and can be cut in one direction.

Owns: which links are cut, when a message arrives.
May not touch: the content of messages.
Spec: Raft section 5: messages may be lost, delayed, duplicated and reordered, but not altered."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random

from chaos.sim.consensus.faults import Faults
from chaos.sim.consensus.schedule import EventQueue
from raft.types import NodeId


class SimNetwork:
    """Carries messages between nodes. `calm` stops random faults; cuts stay until healed."""

    def __init__(self, schedule: EventQueue, faults: Faults, rng: Random) -> None:
        self._schedule = schedule
        self._faults = faults
        self._rng = rng
        self._cut: set[tuple[NodeId, NodeId]] = set()
        self._last_arrival: dict[tuple[NodeId, NodeId], int] = {}
        self.calm = False
        self.dropped = 0

    def cut(self, senders: Iterable[NodeId], receivers: Iterable[NodeId]) -> None:
        """Drop everything from senders to receivers from now on."""
        receivers = tuple(receivers)
        self._cut.update((a, b) for a in senders for b in receivers if a != b)

    def heal(self) -> None:
        self._cut.clear()

    def is_cut(self, sender: NodeId, receiver: NodeId) -> bool:
        return (sender, receiver) in self._cut

    def send(
        self, sender: NodeId, receiver: NodeId, arrive: Callable[..., None], *arguments: object
    ) -> bool:
        """Schedule the arrival. Returns False when the message is dropped at once."""
        rng, faults = self._rng, self._faults
        if (sender, receiver) in self._cut or (not self.calm and rng.random() < faults.loss):
            self.dropped += 1
            return False
        copies = 2 if not self.calm and rng.random() < faults.duplicate else 1
        for _ in range(copies):
            self._schedule.after(
                self._delay(sender, receiver), self._arrive, sender, receiver, arrive, arguments
            )
        return True

    def _arrive(
        self,
        sender: NodeId,
        receiver: NodeId,
        arrive: Callable[..., None],
        arguments: tuple[object, ...],
    ) -> None:
        if (sender, receiver) in self._cut:  # cut while the message was in flight
            self.dropped += 1
        else:
            arrive(*arguments)

    def _delay(self, sender: NodeId, receiver: NodeId) -> int:
        rng, faults = self._rng, self._faults
        delay = faults.delay_us
        if faults.jitter_us:
            delay += rng.randrange(faults.jitter_us)
        if not self.calm and rng.random() < faults.straggle:
            delay += rng.randrange(faults.straggle_us)
        if faults.ordered:
            link = (sender, receiver)
            now = self._schedule.now_us
            arrival = max(now + delay, self._last_arrival.get(link, 0))
            self._last_arrival[link] = arrival
            delay = arrival - now
        return delay
