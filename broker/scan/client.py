"""Read a range of a stream from any replica, each sequence exactly once.

Owns: the cursor, the detection of lost messages, and requests for plans. When a replica fails, lags
or is busy, the next one continues after the last row that was returned.
May not touch: asyncio, Spark, Arrow.
Bounds: the read fails after FETCH_ROUNDS rounds over all endpoints without a new row, with growing
pauses between them.
Spec: broker/scan/protocol.py."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from broker.scan.columns import BlockColumns, read_columns
from broker.scan.link import Login, LoginRefused, ReplicaAddress, ScanLink, parse_endpoint
from broker.scan.protocol import (
    RETRIABLE,
    PlanRefused,
    ScanPlan,
    ScanProtocolError,
    ScanRefused,
    ScanRequest,
)
from broker.store.block.block_format import BlockDamaged

logger = logging.getLogger("jetraft.scan")

FETCH_ROUNDS: Final = 6
PAUSE_S: Final = 0.1  # after the first round; doubled after each, up to PAUSE_MAX_S
PAUSE_MAX_S: Final = 2.0

__all__ = [
    "DataLost",
    "Login",
    "Planner",
    "ReplicaAddress",
    "ScanFailed",
    "ScanRange",
    "Slice",
    "endpoints_of",
    "parse_endpoint",
    "read_range",
]


@dataclass(frozen=True, slots=True)
class ScanRange:
    """The range that one task reads. Endpoints are in order of preference."""

    stream: str
    id: str
    first: int
    last: int
    endpoints: tuple[ReplicaAddress, ...]
    subjects: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Slice:
    """A block, and which of its sequences belong to the range of the reader."""

    columns: BlockColumns
    low: int
    high: int


@dataclass(eq=False)
class DataLost(Exception):
    """Messages that were asked for are no longer in the stream."""

    stream: str
    first: int
    last: int

    def __str__(self) -> str:
        return (
            f"stream {self.stream} no longer has the messages {self.first} to {self.last}: "
            "retention or a purge removed them before they were read. "
            "Set failOnDataLoss=false to continue without them"
        )


@dataclass(eq=False)
class ScanFailed(Exception):
    """Every replica was tried several times."""

    stream: str
    cursor: int
    reasons: dict[str, str] = field(default_factory=dict)  # endpoint -> its last answer

    def __str__(self) -> str:
        answers = "; ".join(f"{where}: {why}" for where, why in self.reasons.items())
        return f"no replica of {self.stream} sends messages from {self.cursor} on. {answers}"


def read_range(
    wanted: ScanRange,
    login: Login,
    *,
    fail_on_data_loss: bool = True,
    verify: bool = True,
    pause: Callable[[float], None] = time.sleep,
) -> Iterator[Slice]:
    """Yield slices in ascending order, no row twice. Raises DataLost, ScanFailed, LoginRefused."""
    cursor = wanted.first
    failures = 0  # since the last block
    reasons: dict[str, str] = {}
    while cursor <= wanted.last:
        endpoint = wanted.endpoints[failures % len(wanted.endpoints)]
        rest = replace(wanted, first=cursor)
        try:
            for piece in _from_replica(
                endpoint, rest, login, fail_on_data_loss=fail_on_data_loss, verify=verify
            ):
                cursor = piece.high + 1  # before the yield: a failure later must not repeat it
                failures = 0
                yield piece
        except LoginRefused:
            raise
        except ScanRefused as refusal:
            if refusal.code not in RETRIABLE:
                raise
            reasons[str(endpoint)] = str(refusal)
        except (OSError, ScanProtocolError, BlockDamaged) as error:
            reasons[str(endpoint)] = str(error) or type(error).__name__
        else:
            return
        logger.warning(
            "scan of %s: %s at sequence %d: %s; trying the next replica",
            wanted.stream, endpoint, cursor, reasons[str(endpoint)],
        )  # fmt: skip
        failures += 1
        rounds, others_left = divmod(failures, len(wanted.endpoints))
        if others_left == 0:
            if rounds >= FETCH_ROUNDS:
                raise ScanFailed(wanted.stream, cursor, reasons)
            pause(min(PAUSE_S * 2 ** (rounds - 1), PAUSE_MAX_S))


def _from_replica(
    endpoint: ReplicaAddress,
    wanted: ScanRange,
    login: Login,
    *,
    fail_on_data_loss: bool,
    verify: bool,
) -> Iterator[Slice]:
    """One attempt at one replica. Returns normally only after the whole range was sent."""
    with ScanLink(endpoint, login) as link:
        scan = link.scan(_request(wanted))
        cursor = _skip_lost(wanted, scan.head.first_seq, fail=fail_on_data_loss)
        for raw in scan.blocks():
            columns = read_columns(raw, verify=verify)
            if columns.last_seq < cursor or columns.first_seq > wanted.last:
                raise ScanProtocolError(f"{endpoint} sent a block outside the requested range")
            low, high = max(columns.first_seq, cursor), min(columns.last_seq, wanted.last)
            cursor = high + 1
            yield Slice(columns, low, high)
        if scan.end is None or scan.end.last_sent < wanted.last:
            raise ScanProtocolError(f"{endpoint} ended before {wanted.last}")


class Planner:
    """Asks any of the servers for plans; the connection is kept between requests."""

    def __init__(
        self,
        servers: Sequence[ReplicaAddress],
        login: Login,
        *,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._servers = tuple(servers)
        self._login = login
        self._pause = pause
        self._link: ScanLink | None = None
        self._next = 0

    def plan(self, stream: str) -> ScanPlan:
        """Raises PlanRefused for a definite error, ScanFailed if no server answers."""
        reasons: dict[str, str] = {}
        for round_number in range(FETCH_ROUNDS):
            for _ in self._servers:
                endpoint = self._servers[self._next % len(self._servers)]
                try:
                    if self._link is None:
                        self._link = ScanLink(endpoint, self._login)
                    return self._link.plan(stream)
                except LoginRefused:
                    self.close()
                    raise
                except PlanRefused as refusal:
                    if refusal.code != 503:  # 503: no leader at the moment
                        raise
                    reasons[str(endpoint)] = str(refusal)
                except (OSError, ScanProtocolError) as error:
                    reasons[str(endpoint)] = str(error) or type(error).__name__
                self.close()
                self._next += 1
            if round_number + 1 < FETCH_ROUNDS:
                self._pause(min(PAUSE_S * 2**round_number, PAUSE_MAX_S))
        raise ScanFailed(stream, 0, reasons)

    def close(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None


def endpoints_of(servers: str) -> tuple[ReplicaAddress, ...]:
    """The comma-separated addresses of the `servers` option."""
    found = tuple(parse_endpoint(part.strip()) for part in servers.split(",") if part.strip())
    if not found:
        raise ValueError("no servers given")
    return found


def _request(wanted: ScanRange) -> ScanRequest:
    return ScanRequest(
        stream=wanted.stream,
        id=wanted.id,
        first=wanted.first,
        last=wanted.last,
        subjects=wanted.subjects,
    )


def _skip_lost(wanted: ScanRange, first_seq: int, *, fail: bool) -> int:
    if first_seq <= wanted.first:
        return wanted.first
    lost = DataLost(wanted.stream, wanted.first, min(first_seq - 1, wanted.last))
    if fail:
        raise lost
    logger.warning("%s (as configured)", lost)
    return lost.last + 1
