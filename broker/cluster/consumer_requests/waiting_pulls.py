"""Pull requests of this node's clients that wait at a leader on another node.

Owns: which requests would be lost with which node.
May not touch: the requests, which the leader parses and serves; clocks (`now_s` is an argument).
A leader that steps down answers the pull requests that wait there; one that crashes cannot. Then
the client's node answers in its place, so that the client retries immediately, not only after its
request has expired.
Spec: NATS JetStream, pull consumers: status 409 "Leadership Change"."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import msgspec

from raft import NodeId

WAITING_MAX = 8192  # per peer; requests beyond it are not tracked and end with their own expiry


class _PullBody(msgspec.Struct):
    expires: int = 0
    no_wait: bool = False


_decode = msgspec.json.Decoder(_PullBody).decode


def pull_expiry_s(payload: bytes, *, now_s: float) -> float | None:
    """When a pull request ends by itself; None if it does not wait at all."""
    try:
        body = _decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None  # the leader answers it with an error
    if body.expires:
        return now_s + body.expires / 1e9
    return None if body.no_wait else math.inf


@dataclass(slots=True)
class WaitingPulls:
    # By node and reply subject: the group that was asked, and when the request expires.
    _waiting: dict[NodeId, dict[bytes, tuple[int, float]]] = field(default_factory=dict)
    _full_until: dict[NodeId, float] = field(default_factory=dict)  # no request expires earlier

    def sent(self, to: NodeId, group: int, reply: bytes, payload: bytes, *, now_s: float) -> None:
        """Track a request. Whether it was served is not tracked: an unneeded 409 only makes the
        client retry."""
        expiry_s = pull_expiry_s(payload, now_s=now_s)
        if expiry_s is None:
            return
        waiting = self._waiting.setdefault(to, {})
        if len(waiting) >= WAITING_MAX:
            if now_s < self._full_until.get(to, now_s):
                return
            expired = [reply for reply, (_, end) in waiting.items() if end <= now_s]
            for ended in expired:
                del waiting[ended]
            if not expired:
                self._full_until[to] = min(end for _, end in waiting.values())
                return
        waiting[reply] = (group, expiry_s)

    def lost(self, node: NodeId, *, now_s: float) -> list[tuple[int, bytes]]:
        """The node is disconnected: group and reply subject of each request that still waited
        there."""
        waiting = self._waiting.pop(node, {})
        self._full_until.pop(node, None)
        return [(group, reply) for reply, (group, expiry) in waiting.items() if expiry > now_s]
