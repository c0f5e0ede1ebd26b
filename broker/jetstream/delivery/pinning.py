"""One client at a time: the pin of a priority group.

Owns: who is pinned, since when, until when; which waiting requests that leaves out.
May not touch: messages, sockets, dice; an id is derived from what no other pin has.
Spec: JetStream priority groups, pinned_client; statuses 423.

The first request without an id that can be served is pinned and told the id with its messages. A
request that names the id is served; one without waits; one with an id of the past is ended when
there is something it could have had."""

from __future__ import annotations

from hashlib import sha256
from typing import Final

from broker.jetstream.config.names import nuid
from broker.jetstream.delivery.effects import Advisory, Effect
from broker.jetstream.delivery.pull_queue import PullRequest, WaitingQueue, status

PIN_MISMATCH: Final = status("423 Nats-Pin-Id mismatch")
WRONG_PIN: Final = "423 Nats-Wrong-Pin-Id"


class Pin:
    """Of one consumer, on its leader; a new leader pins anew."""

    __slots__ = ("_count", "_effects", "_name", "_settled", "expires_at", "group", "id",
                 "since_ns", "timeout_ns")  # fmt: skip

    def __init__(self, name: str, *, group: str, timeout_ns: int, effects: list[Effect]) -> None:
        """`name` tells this life of this consumer from every other."""
        self.id = ""
        self.since_ns = 0
        self.expires_at = 0
        self.group = group
        self.timeout_ns = timeout_ns
        self._name = name
        self._count = 0
        self._effects = effects
        self._settled = True  # no waiting request has an id of the past

    def refuses(self, request: PullRequest, now: int) -> bool:
        """A new request with another's id. With the right one, the pin lasts longer."""
        if not request.pin_id:
            return False
        if not self.id:
            self._settled = False
            return False
        if request.pin_id != self.id:
            return True
        self._prolong(now)
        return False

    def admits(self, request: PullRequest) -> bool:
        """Requests that name no group, which old clients send, are always served."""
        return not request.grouped or request.pin_id == self.id

    def served(self, request: PullRequest, now: int) -> None:
        """It gets messages: if nobody was pinned, it is."""
        if not request.grouped:
            return
        if not self.id:
            self._count += 1
            seed = f"{self._name} {now} {self._count}".encode()
            self.id = request.pin_id = nuid(sha256(seed).digest())
            self.since_ns = now
            self._effects.append(Advisory("pinned", reason=self.id, group=self.group))
        self._prolong(now)

    def end_stale(self, waiting: WaitingQueue) -> None:
        """There is something to deliver: who waits with an id of the past is told."""
        if self._settled:
            return
        self._settled = True
        for request in list(waiting):
            if request.pin_id and request.pin_id != self.id:
                waiting.close(request)
                self._effects.append(request.rest(WRONG_PIN))

    def unpin(self, reason: str) -> None:
        """`reason` is `admin` or `timeout`."""
        if self.id:
            self.id, self.since_ns, self.expires_at = "", 0, 0
            self._settled = False
            self._effects.append(Advisory("unpinned", reason=reason, group=self.group))

    def due(self, now: int) -> None:
        if self.id and self.expires_at <= now:
            self.unpin("timeout")

    def _prolong(self, now: int) -> None:
        self.expires_at = now + self.timeout_ns
