"""Clock frames: nodes tell each other their wall clocks, so that each knows the cluster's time.

Owns: the frames, when they are sent, reading our own clocks.
May not touch: what follows from the samples (raft/clock/cluster_time.py).
Spec: docs/decisions/0020-cluster-time.md, docs/peer-protocol.md. A frame answers the last one of
its receiver, as in NTP: what has passed since that one was sent, without the time that it lay
here, is the round trip."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from struct import Struct
from typing import Final, NamedTuple, Protocol

from raft.clock.boot_clock import boot_ns
from raft.clock.cluster_time import DRIFT_PPM, ClockSample, ClockVerdict, ClusterTime
from raft.transport.codec import CodecError
from raft.transport.transport import CLOCK
from raft.types import NodeId

EVERY_TICKS: Final = 10  # half a second
_FRAME: Final = Struct("<qqqqq")


class ClockFrame(NamedTuple):
    """Times in nanoseconds. Boot-time clocks are only compared on the node that reads them."""

    sent_ns: int  # by the boot-time clock of the sender
    echo_ns: int  # `sent_ns` of the last frame from the receiver; 0: none has arrived
    waited_ns: int  # for how long the sender has had that frame
    wall_ns: int  # the wall clock of the sender
    time_ns: int  # the time of the cluster that the sender holds; 0: none

    @classmethod
    def decode(cls, view: memoryview) -> ClockFrame:
        if len(view) != _FRAME.size:
            raise CodecError(f"a clock frame of {len(view)} bytes")
        return cls(*_FRAME.unpack(view))

    def encode(self) -> bytes:
        return _FRAME.pack(*self)


class ClockLinks(Protocol):
    """The links to the other nodes, as far as clocks use them."""

    def connected_peers(self) -> set[NodeId]: ...

    def send(self, to: NodeId, channel: int, payload: bytes, *, control: bool = False) -> bool: ...


class ClusterClock:
    """The clock of the cluster on this node. A host gives it ticks and frames."""

    def __init__(
        self,
        node: NodeId,
        *,
        links: ClockLinks,
        members: Callable[[], Collection[NodeId]],
    ) -> None:
        """`members` of the cluster; none before it is known."""
        self._links = links
        self._members = members
        self._began_ns = now = boot_ns()
        self._time = ClusterTime(node, boot_ns=now, wall_ns=time.time_ns())
        self._ticks = 0
        self._linked: set[NodeId] = set()
        self._arrived: dict[NodeId, tuple[int, int]] = {}  # peer: its stamp, and when it came

    # -- what it says

    def now_ns(self) -> int:
        """The time of the cluster. It never goes back once it is known."""
        return self._time.now_ns(boot_ns())

    @property
    def is_guess(self) -> bool:
        """Whether the time is only that of the own clock, although there are other members."""
        return self._time.is_guess

    @property
    def verdict(self) -> ClockVerdict:
        return self._time.verdict

    @property
    def own_error_ns(self) -> int:
        """How far the wall clock of this node is ahead of the time of the cluster."""
        return self._time.own_error_ns

    def in_doubt(self) -> bool:
        """Whether the time of the cluster should be known by now, and is not."""
        return self._time.in_doubt(boot_ns())

    def is_wrong(self, node: NodeId) -> bool:
        """Whether the clock of a node is known to disagree with the majority."""
        return self._time.is_wrong(node)

    def may_lead(self, alone: bool) -> bool:  # noqa: FBT001 - as cores ask
        """Whether this node should lead a group. `alone`: nobody else can; then it is enough to
        know the time."""
        if self._time.verdict is ClockVerdict.UNKNOWN:
            self._update()
        verdict = self._time.verdict
        return verdict is ClockVerdict.AGREES or (alone and verdict is ClockVerdict.DISAGREES)

    # -- inputs

    def tick(self) -> None:
        connected = self._links.connected_peers()
        for peer in self._linked - connected:
            self._arrived.pop(peer, None)
        new, self._linked = connected - self._linked, set(connected)
        self._ticks += 1
        due = self._ticks % EVERY_TICKS == 0
        for peer in sorted(connected if due else new):
            self._send(peer)
        if due:
            self._time.forget(connected)
        if due or not self._time.is_held:
            self._update()

    def received(self, sender: NodeId, view: memoryview) -> None:
        """Raises CodecError, which ends that connection."""
        frame, now = ClockFrame.decode(view), boot_ns()
        first = sender not in self._arrived
        self._arrived[sender] = (frame.sent_ns, now)
        if first or not frame.echo_ns:
            self._send(sender)  # at once: without an answer it cannot measure anything
        round_trip_ns = now - frame.echo_ns - frame.waited_ns
        if frame.echo_ns < self._began_ns or round_trip_ns < 0 or frame.waited_ns < 0:
            return  # it answers nothing that this process has sent
        one_way_ns = round_trip_ns // 2
        here_ns = now - one_way_ns
        error_ns = one_way_ns + frame.waited_ns * DRIFT_PPM // 1_000_000
        sample = ClockSample(frame.wall_ns - here_ns, error_ns, now)
        held_offset_ns = frame.time_ns - here_ns if frame.time_ns else None
        if self._time.sampled(sender, sample, held_offset_ns):
            self._update()

    def _send(self, peer: NodeId) -> None:
        now = boot_ns()
        echo_ns, arrived_ns = self._arrived.get(peer, (0, now))
        held_ns = self._time.now_ns(now) if self._time.is_held else 0
        frame = ClockFrame(now, echo_ns, now - arrived_ns, time.time_ns(), held_ns)
        self._links.send(peer, CLOCK, frame.encode(), control=True)

    def _update(self) -> None:
        self._time.update(boot_ns=boot_ns(), wall_ns=time.time_ns(), members=self._members())
