"""A network that loses, delays, repeats and reorders, and can be cut in either direction.

Owns: which links are cut, when a message arrives.
May not touch: what a message says.
Spec: Raft assumes nothing but that a message is not altered (section 5)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random

from chaos.sim.faults import Faults
from chaos.sim.schedule import EventQueue
from raft.types import NodeId


class Network:
    """Carries anything from node to node; `calm` switches chance off, cuts stay until healed."""

    def __init__(self, schedule: EventQueue, faults: Faults, luck: Random) -> None:
        self._schedule = schedule
        self._faults = faults
        self._luck = luck
        self._cut: set[tuple[NodeId, NodeId]] = set()
        self._last_arrival: dict[tuple[NodeId, NodeId], int] = {}
        self.calm = False
        self.lost = 0

    def cut(self, senders: Iterable[NodeId], receivers: Iterable[NodeId]) -> None:
        """Nothing passes from senders to receivers any more."""
        receivers = tuple(receivers)
        self._cut.update((a, b) for a in senders for b in receivers if a != b)

    def heal(self) -> None:
        self._cut.clear()

    def is_cut(self, sender: NodeId, receiver: NodeId) -> bool:
        return (sender, receiver) in self._cut

    def send(
        self, sender: NodeId, receiver: NodeId, arrive: Callable[..., None], *arguments: object
    ) -> bool:
        """Plan the arrival. False when it is lost at once."""
        luck, faults = self._luck, self._faults
        if (sender, receiver) in self._cut or (not self.calm and luck.random() < faults.loss):
            self.lost += 1
            return False
        copies = 2 if not self.calm and luck.random() < faults.duplicate else 1
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
        if (sender, receiver) in self._cut:  # cut while it was on its way
            self.lost += 1
        else:
            arrive(*arguments)

    def _delay(self, sender: NodeId, receiver: NodeId) -> int:
        luck, faults = self._luck, self._faults
        delay = faults.delay_us
        if faults.jitter_us:
            delay += luck.randrange(faults.jitter_us)
        if not self.calm and luck.random() < faults.straggle:
            delay += luck.randrange(faults.straggle_us)
        if faults.ordered:
            link = (sender, receiver)
            now = self._schedule.now_us
            arrival = max(now + delay, self._last_arrival.get(link, 0))
            self._last_arrival[link] = arrival
            delay = arrival - now
        return delay
