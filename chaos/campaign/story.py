"""The part of the history around a violation, as text.

Owns: which operations are shown, and how.
May not touch: the record; it only reads it."""

from __future__ import annotations

import re

from chaos.campaign.record import CampaignRecord
from chaos.history import Publish
from chaos.sim.promises.journal import Journal, Operation, Result

LINES_MAX = 40
TIMES = re.compile(r"\((\d+\.\d+)-(\d+\.\d+) s")
WORDS = re.compile(r"[\w$.-]+")


def around(record: CampaignRecord, journal: Journal | None, violation: str) -> list[str]:
    """Operations and their answers around the violation, in order of time, with the faults in
    between. `journal` None: the publishers."""
    if not violation:
        return []
    begin = record.begin_ns
    lines: list[tuple[int, str]]
    if journal is None:
        chosen = _publishes(record.history.publishes, violation)
        lines = [(one.sent_ns, _publish(one, begin)) for one in chosen]
    else:
        lines = [(one.invoked_ns, _told(one, begin)) for one in _operations(journal, violation)]
    if not lines:
        return []
    first, last = min(lines)[0], max(lines)[0]
    for fault in record.faults:
        end = fault.end_ns or record.end_ns
        if fault.begin_ns <= last and end >= first:
            text = f"{fault.kind} of {', '.join(fault.nodes)}"
            lines.append((fault.begin_ns, f"{_at(fault.begin_ns, begin)} --- {text} begins"))
            lines.append((end, f"{_at(end, begin)} --- {text} is over"))
    return [line for _, line in sorted(lines)]


def _publishes(publishes: list[Publish], violation: str) -> list[Publish]:
    """Those that are named, and their neighbors."""
    words = set(re.split(r"[^\w-]+", violation))
    places = [place for place, one in enumerate(publishes) if one.ident in words][:4]
    near = {near for place in places for near in range(place - 4, place + 5)}
    return [publishes[place] for place in sorted(near) if 0 <= place < len(publishes)]


def _operations(journal: Journal, violation: str) -> list[Operation]:
    times = [float(text) for pair in TIMES.findall(violation) for text in pair]
    if times:
        low, high = (min(times) - 0.2) * 1e9, (max(times) + 0.2) * 1e9
        known = [
            one
            for one in journal.operations
            if one.invoked_ns <= high and (one.completed_ns or one.invoked_ns) >= low
        ]
    else:
        words = set(WORDS.findall(violation))
        known = [
            one
            for one in journal.operations
            if words & {str(value) for name, value in one.fields.items() if name != "number"}
        ]
    return (known or journal.operations)[-LINES_MAX:]


def _publish(one: Publish, begin: int) -> str:
    told = f"{one.outcome.value} at {_at(one.done_ns, begin)}" if one.done_ns else "no answer"
    place = f", sequence {one.seq}" if one.seq else ""
    return f"{_at(one.sent_ns, begin)} publish {one.ident}: {told}{place} {one.error}".rstrip()


def _told(one: Operation, begin: int) -> str:
    asked = ", ".join(f"{name} {_short(value)}" for name, value in one.fields.items())
    told = ", ".join(f"{name} {_short(value)}" for name, value in one.answer.items())
    until = f" at {_at(one.completed_ns, begin)}" if one.result is not Result.UNKNOWN else ""
    head = f"{_at(one.invoked_ns, begin)} {one.client} {one.kind} ({asked})"
    return f"{head}: {one.result.value}{until} {told}".rstrip()


def _at(when_ns: int, begin: int) -> str:
    return f"{(when_ns - begin) / 1e9:8.3f} s"


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
