"""/healthz: whether JetStream on this node has started, and whether it can serve clients.

Owns: the answers, and the order of the checks.
May not touch: live state beyond reading it.
Spec: nats-server monitoring, /healthz. Startup, liveness and readiness are separate questions, as
Kubernetes probes ask them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from broker.cluster.meta.assignments import META_GROUP
from broker.cluster.meta.members import ClusterMembers
from broker.config.options import JetStreamOptions
from broker.server.services import Document, Query, has_flag
from raft import NodeId
from raft.host.statistics import HostStatistics


@dataclass(slots=True)
class JetStreamHealth:
    """One per node."""

    options: JetStreamOptions
    members: ClusterMembers
    leader: Callable[[int], NodeId | None]  # of a group
    trouble: Callable[[], str | None]  # why the store takes no writes
    statistics: Callable[[], HostStatistics]
    lame_duck: Callable[[], bool]

    def healthz(self, query: Query) -> tuple[int, Document]:
        """`live`: the event loop runs, or this would not be answered. `startup`: the log is
        replayed and the meta group has a leader. `ready`, the default: this node can serve its
        clients."""
        if has_flag(query, "live", "js-enabled-only"):
            return 200, {"status": "ok"}
        if (trouble := self.trouble()) is not None:
            return 503, _unavailable(f"the store takes no writes: {trouble}")
        if not self.members.founded.is_set():
            return 503, _unavailable("JetStream is still waiting for its cluster to form")
        if self.leader(META_GROUP) is None:
            return 503, _unavailable("JetStream has not established contact with a meta leader")
        if has_flag(query, "startup"):
            return 200, {"status": "ok"}
        if self.lame_duck():
            return 503, _unavailable("lame duck mode")
        if recovering := self.statistics().recovering:
            # Another node that restarts now would take the last copy with it.
            return 503, _unavailable(f"{recovering} streams without their log are catching up")
        return 200, self._ok()

    def _ok(self) -> Document:
        if self.options.flush_interval_s is None:
            return {"status": "ok"}
        return {"status": "ok", "warnings": [self.options.sync_sentence]}


def _unavailable(reason: str) -> Document:
    return {"status": "unavailable", "error": reason}
