"""The timeline of a run: throughput, latency, faults, and one lane per node.

Owns: the drawing (SVG).
May not touch: the run; it reads a finished record."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from html import escape
from statistics import median

from chaos.campaign.record import CampaignRecord, Seen
from chaos.history import Publish

WIDTH, LEFT, RIGHT, CHART, LANE, GAP = 1000, 130, 10, 110, 16, 6  # pixels
TOP = 34  # above the first chart: two rows for the names of faults
BUCKETS = 200
NAMED_MAX = 60  # faults; of more than that, few names would fit
LETTER = 6.2  # approximate width of a letter
RATE_SHOWN = 2.5  # times the median; higher peaks (clients resend after a fault) are cut off
SLOWEST_MS = (1, 10, 100, 1_000, 10_000, 100_000)
COLORS = {
    "leader": "var(--leader)", "follower": "var(--follower)", "unhealthy": "var(--unhealthy)",
    "no answer": "var(--silent)", "down": "var(--down)",
}  # fmt: skip
Place = Callable[[int], float]


def drawing(record: CampaignRecord) -> str:
    begin, end = record.begin_ns, max(record.end_ns, record.begin_ns + 1)
    lanes_top = TOP + 2 * (CHART + 28)
    bottom = lanes_top + len(record.nodes) * (LANE + GAP)
    height = bottom + 24

    def x(at_ns: int) -> float:
        inside = min(max((at_ns - begin) / (end - begin), 0.0), 1.0)
        return LEFT + (WIDTH - LEFT - RIGHT) * inside

    parts = [
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="timeline" font-size="11">'
    ]
    parts += _bands(record, x, bottom)
    counts, middle, slowest = _buckets(record.history.acked(), begin, end)
    rates = [count / ((end - begin) / BUCKETS / 1e9) for count in counts]
    parts += _throughput(rates, TOP)
    parts += _latency(middle, slowest, TOP + CHART + 28)
    for position, node in enumerate(record.nodes):
        y = lanes_top + position * (LANE + GAP)
        parts.append(f'<text x="0" y="{y + 12}">{escape(node)}</text>')
        parts += _lane([one for one in record.seen if one.node == node], x, y, end)
        hit = "".join(
            _box(x(fault.begin_ns), x(fault.end_ns or end), y, least=2)
            for fault in record.faults
            if node in fault.nodes
        )
        parts.append(f'<path d="{hit}" fill="none" stroke="var(--hit)" stroke-width="1.5"/>')
    parts += _times(begin, end, x, height - 6)
    return "".join([*parts, "</svg>"])


def _bands(record: CampaignRecord, x: Place, bottom: int) -> Iterator[str]:
    """The faults, with their names in two rows where they fit; no names if only a few would."""
    free = [0.0, 0.0]  # where the next name may begin, by row
    named = len(record.faults) <= NAMED_MAX
    for number, one in enumerate(record.faults, 1):
        left, right = x(one.begin_ns), x(one.end_ns or record.end_ns)
        yield (
            f'<rect x="{left:.1f}" y="{TOP - 6}" width="{max(right - left, 2):.1f}" '
            f'height="{bottom - TOP + 6}" fill="var(--band)"><title>{number} {escape(one.kind)}'
            "</title></rect>"
        )
        for text in (f"{number} {one.kind}", str(number)) if named else ():
            row = next((row for row in (0, 1) if free[row] <= left), None)
            if row is not None and left + len(text) * LETTER < WIDTH:
                free[row] = left + len(text) * LETTER + 4
                place = f'x="{left:.1f}" y="{10 + 13 * row}"'
                yield f'<text {place} font-size="10">{escape(text)}</text>'
                break


def _buckets(
    acked: list[Publish], begin: int, end: int
) -> tuple[list[int], list[float], list[float]]:
    """Acks, and their median and longest latency in milliseconds, by time of the ack."""
    taken: list[list[float]] = [[] for _ in range(BUCKETS)]
    for one in acked:
        at = min(int((one.done_ns - begin) * BUCKETS / (end - begin)), BUCKETS - 1)
        taken[at].append((one.done_ns - one.sent_ns) / 1e6)
    return (
        [len(one) for one in taken],
        [median(one) if one else 0.0 for one in taken],
        [max(one, default=0.0) for one in taken],
    )


def _throughput(rates: list[float], top: int) -> Iterator[str]:
    usual = median(rates) or max(rates) or 1.0
    highest = min(max(rates), usual * RATE_SHOWN) or 1.0
    yield from _name("acks per second", "", top)
    for value in (0.0, usual):
        yield from _level(top, value / highest, f"{value:,.0f}")
    yield _polyline(
        [min(rate, highest) / highest for rate in rates], top, "var(--leader)", filled=True
    )


def _latency(middle: list[float], slowest: list[float], top: int) -> Iterator[str]:
    """On a logarithmic scale, so that both a millisecond and ten seconds are visible."""
    highest = next((one for one in SLOWEST_MS if one >= max(slowest)), SLOWEST_MS[-1])
    span = max(math.log10(highest), 1.0)

    def share(milliseconds: float) -> float:
        return min(max(math.log10(max(milliseconds, 1.0)) / span, 0.0), 1.0)

    yield from _name("ack latency", "worst, median", top)
    for value in SLOWEST_MS:
        if value <= highest:
            text = f"{value} ms" if value < SLOWEST_MS[3] else f"{value // 1000} s"
            yield from _level(top, share(value), text)
    for values, color in ((slowest, "var(--slow)"), (middle, "var(--leader)")):
        yield _polyline([share(one) if one else None for one in values], top, color)


def _name(text: str, more: str, top: int) -> Iterator[str]:
    yield f'<text x="0" y="{top + 10}">{text}</text>'
    if more:
        yield f'<text x="0" y="{top + 24}" class="soft" font-size="10">{more}</text>'


def _level(top: int, share: float, text: str) -> Iterator[str]:
    y = top + CHART - CHART * share
    yield (
        f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="var(--line)" '
        f'stroke-width="0.7"/><text x="{LEFT - 4}" y="{y + 3:.1f}" text-anchor="end" class="soft" '
        f'font-size="10">{text}</text>'
    )


def _polyline(shares: Sequence[float | None], top: int, color: str, *, filled: bool = False) -> str:
    """None: nothing was measured, the line has a gap."""
    width = (WIDTH - LEFT - RIGHT) / (BUCKETS - 1)
    runs: list[list[str]] = [[]]
    for number, share in enumerate(shares):
        if share is None:
            runs.append([])
        else:
            runs[-1].append(f"{LEFT + number * width:.1f},{top + CHART - CHART * share:.1f}")
    line = "".join(
        f'<polyline points="{" ".join(run)}" fill="none" stroke="{color}" stroke-width="1.4"/>'
        for run in runs
        if run
    )
    if not filled:
        return line
    points = " ".join(runs[0])
    ends = f"{LEFT},{top + CHART} {points} {WIDTH - RIGHT},{top + CHART}"
    return f'<polygon points="{ends}" fill="{color}" opacity="0.15"/>{line}'


def _lane(seen: list[Seen], x: Place, y: int, end: int) -> Iterator[str]:
    boxes: dict[str, str] = {}
    for position, one in enumerate(seen):
        until = seen[position + 1].at_ns if position + 1 < len(seen) else end
        boxes[one.state] = boxes.get(one.state, "") + _box(x(one.at_ns), x(until), y, least=0.5)
    for state in sorted(boxes, key=list(COLORS).index, reverse=True):  # a leader is on top
        yield f'<path d="{boxes[state]}" fill="{COLORS[state]}"><title>{state}</title></path>'


def _box(left: float, right: float, y: int, *, least: float) -> str:
    """A rectangle of a lane, as a part of a path."""
    return f"M{left:.1f} {y}H{max(right, left + least):.1f}v{LANE}H{left:.1f}z"


def _times(begin: int, end: int, x: Place, y: int) -> Iterator[str]:
    seconds = (end - begin) / 1e9
    step = next((one for one in (5, 10, 30, 60, 300, 600) if seconds / one <= 12), 3600)
    for at in range(0, int(seconds) + 1, step):
        text = f"{at} s" if step < 60 else f"{at // 60} min"
        place = min(x(begin + at * 10**9), WIDTH - len(text) * LETTER / 2)
        yield f'<text x="{place:.0f}" y="{y}" text-anchor="middle">{text}</text>'
