"""A workload: one kind of work that clients do, and the promises that it can check.

Owns: what workloads are given (Scene, WorkClient) and what they must have (SimWorkload).
May not touch: nodes, faults.
To add one: a module beside this one, a class with these four members, a line in
chaos/sim/broker/workloads.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, Protocol

from broker.scan.protocol import ScanRequest
from chaos.sim.clients.client import ClientMessage, ConnectTarget
from chaos.sim.promises.dispatches import Dispatches
from chaos.sim.promises.journal import Journal
from chaos.sim.promises.seen_replica import SeenReplica


class WorkClient(Protocol):
    """A client (chaos/sim/clients/client.py), as workloads use it."""

    name: str
    connects: int

    @property
    def node(self) -> ConnectTarget | None: ...
    @property
    def connected(self) -> bool: ...
    async def until_connected(self) -> None: ...
    def disconnect(self) -> None: ...
    def close(self) -> None: ...
    def subscribe(
        self, subject: bytes, on_message: Callable[[ClientMessage], None], queue: bytes = b""
    ) -> int: ...
    def unsubscribe(self, sid: int) -> None: ...
    def publish(
        self, subject: bytes, data: bytes, *, reply: bytes = b"", headers: bytes = b""
    ) -> None: ...
    async def request(
        self, subject: bytes, data: bytes = b"", *, headers: bytes = b"", timeout_s: float = 5.0
    ) -> ClientMessage: ...
    def new_inbox(self) -> bytes: ...
    async def scan(self, request: ScanRequest, *, timeout_s: float) -> list[tuple[int, bytes]]: ...
    async def api(self, subject: str, request: Any = None, *, timeout_s: float = 5.0) -> Any: ...


class Scene(Protocol):
    """The run, as a workload sees it."""

    @property
    def journal(self) -> Journal: ...
    @property
    def rng(self) -> Random: ...
    @property
    def replicas_max(self) -> int:
        """How many replicas a stream can have."""

    @property
    def dispatches(self) -> Dispatches:
        """Watches all deliveries of leaders."""

    @property
    def healed_ns(self) -> int:
        """When the faults ended; 0 before that."""

    @property
    def links_stay_up(self) -> bool:
        """Whether no fault of this run cuts or silences a link without both sides noticing."""

    @property
    def clock_error_ns(self) -> int:
        """The largest error of message times in this run."""

    @property
    def time_in_doubt(self) -> bool:
        """Whether the cluster could not know the time: it has one clock only, or a node said so."""

    def now_ns(self) -> int:
        """The time of the world."""

    def client(self, name: str) -> WorkClient:
        """A new client, connecting to any node."""

    def replicas(self, stream: str) -> Mapping[str, SeenReplica]:
        """The replica of a stream on every node that has one and is up."""

    def mark(self, branch: str) -> None:
        """This run has reached a rare branch: counted for the report on coverage."""


class SimWorkload(Protocol):
    """Built for one run with its Scene."""

    def streams(self) -> Sequence[dict[str, Any]]:
        """The configurations of the streams that must exist; called before the start and after the
        end."""

    async def run(self) -> None:
        """Runs until the work is done. Faults happen meanwhile, so every request may fail or stay
        unanswered; it must end soon after the faults are over."""

    def check(self) -> None:
        """After the faults, when all replicas agree. Raises BrokenPromise."""
