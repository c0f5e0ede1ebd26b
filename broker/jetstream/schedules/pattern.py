"""The patterns of message schedules, and when they are due.

Owns: `@at`, `@every`, the predefined names and six-field cron expressions.
May not touch: clocks; the time is an argument.
Spec: NATS ADR-51 (message scheduler).

Time zone rules come from the database of the machine and may differ between nodes, so results that
depend on them are hints, or times that the leader writes into a command."""

from __future__ import annotations

from calendar import monthrange
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from broker.jetstream.times import NS_MAX, NS_PER_S, parse_go_duration, parse_rfc3339

_PREDEFINED: Final = {
    "@yearly": "0 0 0 1 1 *",
    "@annually": "0 0 0 1 1 *",
    "@monthly": "0 0 0 1 * *",
    "@weekly": "0 0 0 * * 0",
    "@daily": "0 0 0 * * *",
    "@midnight": "0 0 0 * * *",
    "@hourly": "0 0 * * * *",
}
_MONTHS: Final = (
    "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
)  # fmt: skip
_DAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_FIELDS: Final = ((0, 59), (0, 59), (0, 23), (1, 31), (1, 12), (0, 6))
_NAMES: Final[tuple[dict[str, int], ...]] = (
    {},
    {},
    {},
    {},
    {name: at + 1 for at, name in enumerate(_MONTHS)},
    {name: at for at, name in enumerate(_DAYS)},
)
_YEARS_AHEAD: Final = 5
PATTERN_CHARS_MAX: Final = 1024  # every value of every field, named one by one, takes fewer
_CACHED_CHARS_MAX: Final = 128
_KNOWN_MAX: Final = 256
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class BadPattern(Exception):
    """The text is not a valid schedule."""


@dataclass(frozen=True, slots=True)
class _Cron:
    seconds: frozenset[int]
    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    either_day: bool  # both day fields are restricted: one match is enough

    def has_day(self, moment: datetime) -> bool:
        return self.takes_day(moment.day, moment.isoweekday() % 7)

    def takes_day(self, day: int, weekday: int) -> bool:
        """Sunday is weekday 0."""
        by_date = day in self.days
        by_weekday = weekday in self.weekdays
        return by_date or by_weekday if self.either_day else by_date and by_weekday


@dataclass(frozen=True, slots=True)
class Schedule:
    """A parsed pattern. Exactly one of the three is set."""

    at_ns: int = 0
    every_ns: int = 0
    cron: _Cron | None = None

    @property
    def repeats(self) -> bool:
        return not self.at_ns

    def following(self, from_ns: int, *, now_ns: int, zone: str = "") -> int:
        """When it is due next after `from_ns`; times before `now_ns` are skipped."""
        if self.at_ns:
            return self.at_ns
        if self.every_ns:
            due = _rounded(from_ns) + self.every_ns
            return min(due if due >= now_ns else _rounded(now_ns) + self.every_ns, NS_MAX)
        assert self.cron is not None
        due = _known_match(self.cron, from_ns, zone)
        return due if due >= now_ns else _known_match(self.cron, _rounded(now_ns), zone)


def parse_schedule(pattern: str) -> Schedule:
    """Raises BadPattern."""
    return _parsed(pattern) if len(pattern) <= _CACHED_CHARS_MAX else _parse(pattern)


@lru_cache(maxsize=1024)
def _parsed(pattern: str) -> Schedule:
    return _parse(pattern)


def _parse(pattern: str) -> Schedule:
    if len(pattern) > PATTERN_CHARS_MAX:
        raise BadPattern
    if pattern.startswith("@at "):
        try:
            return Schedule(at_ns=parse_rfc3339(pattern[4:]) or 1)
        except (ValueError, OverflowError):
            raise BadPattern from None
    if pattern.startswith("@every "):
        every = parse_go_duration(pattern[7:])
        if every is None or every < NS_PER_S:
            raise BadPattern
        return Schedule(every_ns=every)
    fields = _PREDEFINED.get(pattern, pattern).split()
    if len(fields) != len(_FIELDS):
        raise BadPattern
    read = [_field(text, at) for at, text in enumerate(fields)]
    seconds, minutes, hours, days, months, weekdays = (frozenset(chosen) for chosen, _ in read)
    either = not (read[3][1] or read[5][1])
    cron = _Cron(seconds, minutes, hours, days, months, weekdays, either_day=either)
    _next_match(cron, 0, UTC)  # raises for a date that does not exist, such as February 30
    return Schedule(cron=cron)


def _field(text: str, at: int) -> tuple[set[int], bool]:
    """The values a field allows, and whether it has a star."""
    chosen: set[int] = set()
    star = False
    for part in text.split(","):
        if part:
            values, has_star = _range(part, at)
            chosen.update(values)
            star = star or has_star
    return chosen, star


def _range(text: str, at: int) -> tuple[range, bool]:
    low, high = _FIELDS[at]
    bounds, slash, step_text = text.partition("/")
    first, dash, last = bounds.partition("-")
    star = first in ("*", "?")
    if not star:
        low = _number(first, at)
        if dash or not slash:
            high = _number(last, at) if dash else low
    step = _digits(step_text) if slash else 1
    if not step or not (_FIELDS[at][0] <= low <= high <= _FIELDS[at][1]):
        raise BadPattern
    return range(low, high + 1, step), star and step == 1


def _number(text: str, at: int) -> int:
    named = _NAMES[at].get(text.lower())
    return _digits(text) if named is None else named


def _digits(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise BadPattern
    return int(text)


# The last result for an expression and a zone: (from, due). It holds for all times between the
# two, so that a flood of messages with one schedule searches once.
_known: dict[tuple[_Cron, str], tuple[int, int]] = {}


def _known_match(cron: _Cron, from_ns: int, zone: str) -> int:
    since, due = _known.get((cron, zone), (0, 0))
    if not since <= from_ns < due:
        due = _next_match(cron, from_ns, _zone(zone))
        if len(_known) >= _KNOWN_MAX:
            _known.clear()
        _known[cron, zone] = (from_ns, due)
    return due


def _next_match(cron: _Cron, from_ns: int, zone: tzinfo) -> int:
    """The first second after `from_ns` that the expression matches in the zone."""
    moment = (_EPOCH + timedelta(seconds=from_ns // NS_PER_S + 1)).astimezone(zone)
    last_year = moment.year + _YEARS_AHEAD
    while moment.year <= last_year:
        if moment.month not in cron.months or not cron.has_day(moment):
            moment = _next_day(cron, moment, last_year)
        elif moment.hour not in cron.hours:
            moment = _forward(moment, 3600 - 60 * moment.minute - moment.second)
        elif moment.minute not in cron.minutes:
            moment = _forward(moment, 0)  # midnight may be a time that the zone leaves out
            minute = _next_of(cron.minutes, moment.minute - 1)
            moment = _forward(moment, max(60 * (minute - moment.minute) - moment.second, 0))
        elif moment.second not in cron.seconds:
            moment = _forward(moment, _next_of(cron.seconds, moment.second) - moment.second)
        else:
            return int((moment - _EPOCH).total_seconds()) * NS_PER_S
    raise BadPattern


def _next_day(cron: _Cron, moment: datetime, last_year: int) -> datetime:
    """The beginning of the next day that matches. Day by day through four years, February 29 took
    150 steps with three calls each; whole months are skipped with one comparison."""
    year, month, day = moment.year, moment.month, moment.day + 1
    while year <= last_year:
        if month in cron.months:
            first_weekday, days = monthrange(year, month)  # Monday is 0
            for at in range(day, days + 1):
                if cron.takes_day(at, (first_weekday + at) % 7):
                    return datetime(year, month, at, tzinfo=moment.tzinfo)
        year, month, day = (year, month + 1, 1) if month < len(_MONTHS) else (year + 1, 1, 1)
    raise BadPattern


def _next_of(allowed: frozenset[int], value: int) -> int:
    """The next allowed minute or second; the end of the hour or minute if there is none."""
    return min((one for one in allowed if one > value), default=60)


def _forward(moment: datetime, seconds: int) -> datetime:
    """Add elapsed seconds; local time may jump at a daylight saving change."""
    return (moment.astimezone(UTC) + timedelta(seconds=seconds)).astimezone(moment.tzinfo)


def _zone(name: str) -> tzinfo:
    """A zone this machine does not know counts as UTC, so that the schedule still runs."""
    try:
        return ZoneInfo(name) if name else UTC
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return UTC


def _rounded(ns: int) -> int:
    return (ns + NS_PER_S // 2) // NS_PER_S * NS_PER_S
