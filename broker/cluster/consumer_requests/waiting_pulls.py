"""Pull requests of this node's clients that wait at a leader on another node.

Owns: whose requests would be lost with which node.
May not touch: the requests themselves; the leader reads and serves them.
A leader that steps down tells those who wait; one that dies cannot. Then the node they are
connected to says the same, so that they ask again at once and not when their time is over.
Spec: JetStream sheet 5.8 (409 Leadership Change)."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

import msgspec

from raft import NodeId

WAITING_MAX = 8192  # per peer; who asks beyond it learns by its own expiry


class _Body(msgspec.Struct):
    expires: int = 0
    no_wait: bool = False


_decode = msgspec.json.Decoder(_Body).decode


@dataclass(slots=True)
class Pulls:
    # By node and reply subject: the group that was asked, and when the request ends by itself.
    _waiting: dict[NodeId, dict[bytes, tuple[int, float]]] = field(default_factory=dict)

    def sent(self, to: NodeId, group: int, reply: bytes, payload: bytes) -> None:
        """Some may be served meanwhile: being told once too often makes a client ask again."""
        try:
            body = _decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return  # the leader will say what is wrong with it
        now = time.monotonic()
        until = now + body.expires / 1e9 if body.expires else math.inf
        if body.no_wait and not body.expires:
            return
        waiting = self._waiting.setdefault(to, {})
        if len(waiting) >= WAITING_MAX:
            over = [reply for reply, (_, end) in waiting.items() if end <= now]
            for ended in over:
                del waiting[ended]
            if not over:
                return
        waiting[reply] = (group, until)

    def lost(self, node: NodeId) -> list[tuple[int, bytes]]:
        """The node is gone: group and reply subject of each request that still waited there."""
        now = time.monotonic()
        waiting = self._waiting.pop(node, {})
        return [(group, reply) for reply, (group, until) in waiting.items() if until > now]
