"""Read a range of a stream from any replica, each sequence exactly once.

Owns: the cursor, the detection of lost messages, and requests for plans. When a replica fails, lags
or is busy, the next one continues after the last row that was returned.
May not touch: asyncio, Spark, Arrow.
Bounds: the read fails after FETCH_ROUNDS failures per endpoint without a new row, with growing
pauses between the rounds. An endpoint that is busy has not failed: the reader waits for it, up to
`busy_timeout_s`.
Spec: broker/scan/protocol.py."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Protocol, TypeVar

from broker.scan.columns import BlockColumns, read_columns
from broker.scan.link import LoginRefused, ReplicaAddress, Scan, ScanLink, parse_endpoint
from broker.scan.login import Login
from broker.scan.protocol import (
    RETRIABLE,
    PlanRefused,
    PlanRequest,
    ScanCode,
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
BUSY_TIMEOUT_S: Final = 600.0
NAMES_SUBJECT: Final = "$JS.API.STREAM.NAMES"
NO_REQUEST: Final = PlanRequest()

T = TypeVar("T")


class ReceivedBlock(Protocol):
    """What the cursor needs to know of a block."""

    @property
    def first_seq(self) -> int: ...
    @property
    def last_seq(self) -> int: ...


B = TypeVar("B", bound=ReceivedBlock)

__all__ = [
    "BUSY_TIMEOUT_S",
    "DataLost",
    "Login",
    "NoServer",
    "Planner",
    "ReplicaAddress",
    "ScanFailed",
    "ScanRange",
    "Slice",
    "endpoints_of",
    "parse_endpoint",
    "read_blocks",
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
    columns: tuple[str, ...] = ()  # of a block; none means all of them


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


@dataclass(eq=False)
class NoServer(Exception):
    """None of the servers answered, in several rounds."""

    reasons: dict[str, str]  # address -> what happened

    def __str__(self) -> str:
        answers = "; ".join(f"{where}: {why}" for where, why in self.reasons.items())
        return f"no server answers: check the option servers. {answers}"


def read_range(
    wanted: ScanRange,
    login: Login,
    *,
    fail_on_data_loss: bool = True,
    verify: bool = True,
    busy_timeout_s: float = BUSY_TIMEOUT_S,
    pause: Callable[[float], None] = time.sleep,
) -> Iterator[Slice]:
    """Yield slices in ascending order, no row twice. Raises DataLost, ScanFailed, LoginRefused."""
    for columns, low, high in read_blocks(
        wanted, login, partial(read_columns, verify=verify),
        fail_on_data_loss=fail_on_data_loss, busy_timeout_s=busy_timeout_s, pause=pause,
    ):  # fmt: skip
        yield Slice(columns, low, high)


def read_blocks(
    wanted: ScanRange,
    login: Login,
    decode: Callable[[memoryview], B],
    *,
    fail_on_data_loss: bool = True,
    busy_timeout_s: float = BUSY_TIMEOUT_S,
    pause: Callable[[float], None] = time.sleep,
) -> Iterator[tuple[B, int, int]]:
    """As read_range, with another reader of blocks: each with its first and last sequence that
    belong to the range. `decode` raises BlockDamaged."""
    cursor = wanted.first
    retries = _Retries(len(wanted.endpoints), busy_timeout_s)
    reasons: dict[str, str] = {}
    while cursor <= wanted.last:
        endpoint = wanted.endpoints[retries.endpoint]
        rest, busy = replace(wanted, first=cursor), False
        try:
            for block, low, high in _from_replica(
                endpoint, rest, login, decode, fail_on_data_loss=fail_on_data_loss
            ):
                cursor = high + 1  # before the yield: a failure later must not repeat it
                retries.progress()
                yield block, low, high
        except LoginRefused:
            raise
        except ScanRefused as refusal:
            if refusal.code not in RETRIABLE:
                raise
            reasons[str(endpoint)] = str(refusal)
            busy = refusal.code is ScanCode.BUSY
        except (OSError, ScanProtocolError, BlockDamaged) as error:
            reasons[str(endpoint)] = str(error) or type(error).__name__
        else:
            return
        if retries.rounds == 0:  # later rounds would repeat it
            logger.warning(
                "scan of %s: %s at sequence %d: %s; trying the next replica",
                wanted.stream, endpoint, cursor, reasons[str(endpoint)],
            )  # fmt: skip
        if not retries.wait(pause, busy=busy):
            raise ScanFailed(wanted.stream, cursor, reasons)


class _Retries:
    """Attempts since the last block. A busy endpoint has not failed."""

    def __init__(self, endpoints: int, busy_timeout_s: float) -> None:
        self.endpoint = 0  # the one to try
        self._endpoints = endpoints
        self._busy_timeout_s = busy_timeout_s
        self.progress()

    def progress(self) -> None:
        """This endpoint has sent a block: it is tried first from now on."""
        self.rounds = 0  # over all endpoints
        self._begun_with = self.endpoint
        self._failures = 0
        self._waited_s = 0.0

    def wait(self, pause: Callable[[float], None], *, busy: bool) -> bool:
        """An attempt has failed: wait for the next one, after each round. False: give up."""
        self._failures += not busy
        self.endpoint = (self.endpoint + 1) % self._endpoints
        if self.endpoint != self._begun_with:
            return True
        too_many = self._failures >= FETCH_ROUNDS * self._endpoints
        if too_many or self._waited_s >= self._busy_timeout_s:
            return False
        pause_s = min(PAUSE_S * 2.0 ** min(self.rounds, 10), PAUSE_MAX_S)
        self.rounds += 1
        self._waited_s += pause_s
        pause(pause_s)
        return True


def _from_replica(
    endpoint: ReplicaAddress,
    wanted: ScanRange,
    login: Login,
    decode: Callable[[memoryview], B],
    *,
    fail_on_data_loss: bool,
) -> Iterator[tuple[B, int, int]]:
    """One attempt at one replica. Returns normally only after the whole range was sent."""
    with ScanLink(endpoint, login) as link:
        scan = _begin(link, wanted)
        cursor = _skip_lost(wanted, scan.head.first_seq, fail=fail_on_data_loss)
        for raw in scan.blocks():
            block = decode(raw)
            if block.last_seq < cursor or block.first_seq > wanted.last:
                raise ScanProtocolError(f"{endpoint} sent a block outside the requested range")
            low, high = max(block.first_seq, cursor), min(block.last_seq, wanted.last)
            cursor = high + 1
            yield block, low, high
        if scan.end is None or scan.end.last_sent < wanted.last:
            raise ScanProtocolError(f"{endpoint} ended before {wanted.last}")


def _begin(link: ScanLink, wanted: ScanRange) -> Scan:
    """A server of an earlier version does not know columns; it sends all of them."""
    try:
        return link.scan(_request(wanted))
    except ScanRefused as refusal:
        if refusal.code is not ScanCode.BAD or "`columns`" not in refusal.message:
            raise
        return link.scan(_request(replace(wanted, columns=())))


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

    def plan(self, stream: str, request: PlanRequest = NO_REQUEST) -> ScanPlan:
        """Raises PlanRefused for a definite error, NoServer if none answers."""
        try:
            plan = self._ask(lambda link: link.plan(stream, request))
        except PlanRefused as refusal:
            raise PlanRefused(refusal.code, refusal.description, stream) from refusal
        if len(plan.seqs) != len(request.times):
            raise PlanRefused(
                400, "the leader is of a version that cannot find times: upgrade it", stream
            )
        return plan

    def names(self) -> list[str]:
        """The names of all streams of the account."""
        found: list[str] = []
        while True:
            body = json.dumps({"offset": len(found)}).encode()
            page = json.loads(self.request(NAMES_SUBJECT, body))
            if "error" in page:
                raise PlanRefused(page["error"]["code"], page["error"]["description"])
            found += page.get("streams") or []
            if not page.get("streams") or len(found) >= page.get("total", 0):
                return found

    def request(self, subject: str, body: bytes = b"") -> bytes:
        """Any request to the cluster. Raises like `plan`."""
        return self._ask(lambda link: link.ask(subject, body))

    def on_link(self, work: Callable[[ScanLink], T]) -> T:
        """Do work that can be retried from the beginning on another server. Raises like `plan`."""
        return self._ask(work)

    def _ask(self, question: Callable[[ScanLink], T]) -> T:
        reasons: dict[str, str] = {}
        for round_number in range(FETCH_ROUNDS):
            for _ in self._servers:
                endpoint = self._servers[self._next % len(self._servers)]
                try:
                    if self._link is None:
                        self._link = ScanLink(endpoint, self._login)
                    return question(self._link)
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
        raise NoServer(reasons)

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
        columns=wanted.columns,
    )


def _skip_lost(wanted: ScanRange, first_seq: int, *, fail: bool) -> int:
    if first_seq <= wanted.first:
        return wanted.first
    lost = DataLost(wanted.stream, wanted.first, min(first_seq - 1, wanted.last))
    if fail:
        raise lost
    logger.warning("%s (as configured)", lost)
    return lost.last + 1
