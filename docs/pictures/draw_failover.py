"""A picture of a failover: a leader is killed under load, and every ack is a dot.

Owns: docs/pictures/failover.svg. `python docs/pictures/draw_failover.py` starts three nodes of its
own, kills the one that leads, and draws what a client of another node saw.
May not touch: other nodes of this machine."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import nats

from broker.local import free_ports

PICTURE = Path(__file__).with_name("failover.svg")
EVERY_S = 0.01
BEFORE_S, AFTER_S = 2.0, 3.0
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 860, 300, 66, 50, 46
Acks = list[tuple[float, float]]  # seconds after the kill: published, acked


def jetraft(folder: str, *words: str) -> str:
    """Run the command and return what it prints."""
    command = [sys.executable, "-m", "broker", *words]
    done = subprocess.run(  # noqa: S603 - our own command
        command, cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout


async def measure(folder: str) -> tuple[Acks, int]:
    """The acks, and how many publishes failed."""
    first = next(p for p in iter(lambda: free_ports(1)[0], 0) if p < 50_000)
    told = jetraft(folder, "up", "--detach", "--port", str(first))
    try:
        client = await nats.connect(f"nats://127.0.0.1:{first}")  # noqa: TID251 - not a test
        info = await client.jetstream().add_stream(
            name="ORDERS", subjects=["orders"], num_replicas=3
        )
        leader = str(info.cluster.leader) if info.cluster else ""
        if leader.endswith("-1"):  # publish through a node that stays
            await client.close()
            client = await nats.connect(f"nats://127.0.0.1:{first + 1}")  # noqa: TID251
        (line,) = [line for line in told.splitlines() if line.startswith(leader)]
        pid = int(line.split("pid ")[1].split()[0])
        found = await _publish(client, pid)
        await client.close()
        return found
    finally:
        jetraft(folder, "down")


async def _publish(client: Any, victim: int) -> tuple[Acks, int]:
    js = client.jetstream(timeout=20)
    acks: Acks = []
    failed = 0

    async def one() -> None:
        nonlocal failed
        begun = time.monotonic()
        try:
            await js.publish("orders", b"x" * 128)
            acks.append((begun, time.monotonic()))
        except nats.errors.Error:
            failed += 1

    tasks: list[asyncio.Task[None]] = []
    started, killed = time.monotonic(), 0.0
    while time.monotonic() < started + BEFORE_S + AFTER_S:
        if not killed and time.monotonic() > started + BEFORE_S:
            killed = time.monotonic()
            os.kill(victim, signal.SIGKILL)
        tasks.append(asyncio.create_task(one()))
        await asyncio.sleep(EVERY_S)
    await asyncio.gather(*tasks)
    return [(begun - killed, acked - killed) for begun, acked in acks], failed


def picture(acks: Acks, failed: int) -> str:
    """SVG that can be read on a light and on a dark page."""
    times = sorted(acked for _, acked in acks)
    gap, gap_from = max((later - earlier, earlier) for earlier, later in pairwise(times))
    slowest = max(acked - begun for begun, acked in acks)
    top_s = max(0.5, slowest * 1.1)

    def x(moment: float) -> float:
        return LEFT + (moment + BEFORE_S) / (BEFORE_S + AFTER_S) * (WIDTH - LEFT - 20)

    def y(took: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - took / top_s)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="system-ui, sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="10" fill="#fff" stroke="#d5dae1"/>',
        f'<rect x="{x(gap_from):.0f}" y="{TOP}" width="{x(gap_from + gap) - x(gap_from):.0f}" '
        f'height="{HEIGHT - TOP - BOTTOM}" fill="#fde7d3"/>',
    ]
    for step in range(6):
        took = top_s * step / 5
        parts.append(
            f'<path d="M{LEFT} {y(took):.0f}H{WIDTH - 20}" stroke="#e8ebef"/>'
            f'<text x="{LEFT - 8}" y="{y(took) + 4:.0f}" text-anchor="end" fill="#5b6573">'
            f"{took:.1f} s</text>"
        )
    for second in range(-int(BEFORE_S), int(AFTER_S) + 1):
        parts.append(
            f'<text x="{x(second):.0f}" y="{HEIGHT - 26}" text-anchor="middle" fill="#5b6573">'
            f"{second:+d} s</text>"
        )
    dots = "".join(f"M{x(begun):.0f} {y(acked - begun):.0f}h0" for begun, acked in acks)
    parts += [
        f'<path d="{dots}" stroke="#2563eb" stroke-width="4" stroke-linecap="round"/>',
        f'<path d="M{x(0):.0f} {TOP}V{HEIGHT - BOTTOM}" stroke="#b42318" stroke-width="2"/>',
        f'<text x="{x(0) - 6:.0f}" y="{TOP + 14}" text-anchor="end" fill="#b42318">kill -9 of the '
        "leader</text>",
        '<text x="16" y="28" font-size="15" font-weight="600" fill="#1a2230">'
        f"{len(acks)} publishes, {failed} failed; {gap:.2f} s without an ack</text>",
        f'<text x="{WIDTH - 20}" y="{HEIGHT - 8}" text-anchor="end" fill="#5b6573">when it was '
        "published; height: how long its ack took</text>",
        "</svg>\n",
    ]
    return "\n".join(parts)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="failover-") as place:
        PICTURE.write_text(picture(*asyncio.run(measure(place))))
