"""The orders of one run, made from a seed: what is published, and which sums must come out.

Owns: the data. The same seed gives the same orders, so the result can be checked exactly.
May not touch: the cluster, Spark."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

SHOPS: Final = ("berlin", "lagos", "lima", "osaka", "oslo")
BEGIN: Final = datetime(2026, 1, 31, 8, tzinfo=UTC)
BAD_PERCENT: Final = 1  # not JSON
LATE_PERCENT: Final = 5
LATE_SECONDS_MAX: Final = 300  # the query must wait for so late ones
CLOSING_SHOP: Final = "closed"  # its one order ends the day: every window before it is complete


@dataclass(frozen=True, slots=True)
class PlannedOrder:
    number: int
    subject: str
    data: bytes
    shop: str
    minute: str  # "" for a bad one
    cents: int


def orders(count: int, *, minutes: int, seed: int) -> Iterator[PlannedOrder]:
    """`count` orders over so many minutes of event time, then one that closes the day."""
    dice = random.Random(seed)
    for number in range(count):
        at = BEGIN + timedelta(minutes=minutes * number / count)
        if dice.randrange(100) < LATE_PERCENT:
            at = max(BEGIN, at - timedelta(seconds=dice.randrange(LATE_SECONDS_MAX)))
        shop, cents = dice.choice(SHOPS), dice.randrange(1, 50_000)
        if dice.randrange(100) < BAD_PERCENT:
            yield PlannedOrder(
                number, f"orders.{shop}", b"{order " + str(number).encode(), shop, "", 0
            )
        else:
            yield _order(number, shop, at, cents)
    yield _order(count, CLOSING_SHOP, BEGIN + timedelta(minutes=minutes + 60), 0)


def _order(number: int, shop: str, at: datetime, cents: int) -> PlannedOrder:
    document = {"order": number, "shop": shop, "at": at.isoformat(), "cents": cents}
    minute = at.replace(second=0, microsecond=0).strftime("%H:%M")
    return PlannedOrder(
        number, f"orders.{shop}", json.dumps(document).encode(), shop, minute, cents
    )


@dataclass(slots=True)
class Expected:
    """What the pipeline has to deliver."""

    sums: Counter[tuple[str, str]]  # cents by minute and shop
    bad: Counter[bytes]

    @classmethod
    def of(cls, planned: list[PlannedOrder]) -> Expected:
        found = cls(Counter(), Counter())
        for order in planned:
            if not order.minute:
                found.bad[order.data] += 1
            elif order.shop != CLOSING_SHOP:
                found.sums[order.minute, order.shop] += order.cents
        return found
