"""Priority policy pinned_client: one client of a priority group is served at a time.

Owns: which client is pinned, since when and until when; which waiting requests that excludes.
May not touch: messages, sockets, random numbers; a pin id is the hash of a unique text.
Spec: JetStream priority groups, pinned_client; statuses 423.

The first request that can be served and has no pin id gets pinned; its messages carry the new pin
id. Requests with this id are served, requests without an id wait. A request with an outdated id
is ended as soon as there is a message to deliver."""

from __future__ import annotations

from hashlib import sha256
from typing import Final

from broker.jetstream.config.names import nuid
from broker.jetstream.delivery.effects import Advisory, Effect
from broker.jetstream.delivery.pull_queue import PullQueue, PullRequest, status

PIN_MISMATCH: Final = status("423 Nats-Pin-Id mismatch")
WRONG_PIN: Final = "423 Nats-Wrong-Pin-Id"


class Pin:
    """The pin of one consumer, on its leader. It is not replicated: a new leader starts without."""

    __slots__ = ("_count", "_effects", "_outdated_checked", "_seed", "expires_at", "group", "id",
                 "since_ns", "timeout_ns")  # fmt: skip

    def __init__(self, seed: str, *, group: str, timeout_ns: int, effects: list[Effect]) -> None:
        """`seed` is different for every consumer that ever existed."""
        self.id = ""
        self.since_ns = 0
        self.expires_at = 0
        self.group = group
        self.timeout_ns = timeout_ns
        self._seed = seed
        self._count = 0
        self._effects = effects
        self._outdated_checked = True  # no waiting request has an outdated id

    def refuses(self, request: PullRequest, now: int) -> bool:
        """Whether a new request has a wrong pin id. The right one extends the pin."""
        if not request.pin_id:
            return False
        if not self.id:
            self._outdated_checked = False
            return False
        if request.pin_id != self.id:
            return True
        self._extend(now)
        return False

    def admits(self, request: PullRequest) -> bool:
        """Whether the request may be served. Old clients name no group; they are always served."""
        return not request.grouped or request.pin_id == self.id

    def served(self, request: PullRequest, now: int) -> None:
        """The request gets messages: if no client is pinned, pin this one."""
        if not request.grouped:
            return
        if not self.id:
            self._count += 1
            seed = f"{self._seed} {now} {self._count}".encode()
            self.id = request.pin_id = nuid(sha256(seed).digest())
            self.since_ns = now
            self._effects.append(Advisory("pinned", reason=self.id, group=self.group))
        self._extend(now)

    def end_outdated(self, waiting: PullQueue) -> None:
        """There is a message to deliver: end the requests with an outdated id."""
        if self._outdated_checked:
            return
        self._outdated_checked = True
        for request in list(waiting):
            if request.pin_id and request.pin_id != self.id:
                waiting.close(request)
                self._effects.append(request.rest(WRONG_PIN))

    def unpin(self, reason: str) -> None:
        """`reason` is `admin` or `timeout`."""
        if self.id:
            self.id, self.since_ns, self.expires_at = "", 0, 0
            self._outdated_checked = False
            self._effects.append(Advisory("unpinned", reason=reason, group=self.group))

    def due(self, now: int) -> None:
        if self.id and self.expires_at <= now:
            self.unpin("timeout")

    def _extend(self, now: int) -> None:
        self.expires_at = now + self.timeout_ns
