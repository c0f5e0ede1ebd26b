"""A link that delays and loses packets: `python -m chaos.campaign.machines.lossy_link`.

Owns: the frames in flight from one interface to another.
May not touch: interfaces other than the two that it is given; network.py creates them.
Arguments: the interface of the node, that of the network, then the delay and its variation in
milliseconds, the share of lost frames, and a seed. It prints "ready" when it listens, and forwards
once it has read a line. Frames from the node are delayed or lost, in order; frames to the node are
forwarded immediately. A frame keeps its virtio header (packet(7), PACKET_VNET_HDR), because frames
between namespaces are large and have no checksum yet.
Implemented in user space, because many kernels have no netem."""

from __future__ import annotations

import random
import select
import socket
import sys
import time
from collections import deque
from dataclasses import dataclass, field

SOL_PACKET, PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING = 263, 15, 23  # linux/if_packet.h
ETH_P_ALL = 3
FRAME_MAX = 70_000  # a large segment and its headers
ON_THE_WAY_MAX = 5_000  # frames in flight; further ones are dropped, as in a full queue
READ_AT_ONCE = 64


@dataclass(slots=True)
class DelayedFrames:
    """Which frames leave when. `now` is an argument."""

    delay_s: float
    jitter_s: float
    loss: float
    dice: random.Random
    _waiting: deque[tuple[float, bytes]] = field(default_factory=deque)
    _last: float = 0.0

    def add(self, frame: bytes, now: float) -> None:
        if self.dice.random() < self.loss or len(self._waiting) >= ON_THE_WAY_MAX:
            return
        due = now + self.delay_s + self.dice.uniform(-self.jitter_s, self.jitter_s)
        self._last = max(due, self._last)  # a link does not change the order
        self._waiting.append((self._last, frame))

    def due(self, now: float) -> list[bytes]:
        found = []
        while self._waiting and self._waiting[0][0] <= now:
            found.append(self._waiting.popleft()[1])
        return found

    def next_in_s(self, now: float) -> float | None:
        return max(self._waiting[0][0] - now, 0.0) if self._waiting else None


def packet_socket(interface: str) -> socket.socket:
    """Raises OSError."""
    opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    opened.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    opened.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    opened.bind((interface, ETH_P_ALL))
    opened.setblocking(False)  # noqa: FBT003 - positional only
    return opened


def received(opened: socket.socket) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < READ_AT_ONCE:
        try:
            found.append(opened.recv(FRAME_MAX))
        except OSError:  # nothing more, or the interface is down
            break
    return found


def send(opened: socket.socket, frames: list[bytes]) -> None:
    for frame in frames:
        try:
            opened.send(frame)
        except OSError:
            continue  # lost, as on a link that is full


def forward(node: socket.socket, network: socket.socket, frames: DelayedFrames) -> None:
    """Runs forever."""
    while True:
        wait_s = frames.next_in_s(time.monotonic())
        readable, _, _ = select.select([node, network], [], [], wait_s)
        now = time.monotonic()
        if node in readable:
            for frame in received(node):
                frames.add(frame, now)
        if network in readable:
            send(node, received(network))
        send(network, frames.due(now))


def main() -> None:
    _, inner, outer, delay_ms, jitter_ms, loss, seed = sys.argv
    node, network = packet_socket(inner), packet_socket(outer)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    for opened in (node, network):
        while received(opened):  # from before
            continue
    forward(
        node, network,
        DelayedFrames(
            float(delay_ms) / 1e3, float(jitter_ms) / 1e3, float(loss), random.Random(seed)
        ),
    )  # fmt: skip


if __name__ == "__main__":
    main()
