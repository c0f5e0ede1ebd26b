"""/healthz: whether JetStream on this node has started, and whether it can serve clients.

Owns: the answers, and the order of the checks.
May not touch: live state beyond reading it.
Spec: nats-server monitoring, /healthz: `account`, `stream`, `consumer`, `details`,
`js-enabled-only`, `js-server-only`, `js-meta-only`. Startup, liveness and readiness are separate
questions, as Kubernetes probes ask them: `startup`, `live`, and `ready`, the default."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from broker.cluster.meta.assignments import META_GROUP, Assignment
from broker.config.options import JetStreamOptions
from broker.server.services import Document, Query, has_flag
from broker.subjects import STEP_ITEMS, Steps
from raft import GroupId, NodeId
from raft.types import Index, Members

UNREACHABLE_SHOWN = 5  # routes
# Under load, a replica is always a few entries behind. It counts as current while it advances.
BEHIND_MAX = 100
ADVANCES_WITHIN_S = 1.0
REPORTED_MAX = 100  # problems in one answer; the rest is counted
DISK_FULL = "the disk is full: no messages are stored until space is freed"
STRANGERS = "refused, of another cluster that was founded under the same name: {}"


class HealthReplica(Protocol):
    """A replica of this node, as far as this module uses it."""

    @property
    def group(self) -> GroupId: ...

    def has_consumer(self, name: str) -> bool: ...


class HealthCore(Protocol):
    @property
    def asleep(self) -> bool: ...
    @property
    def recovering(self) -> bool: ...
    @property
    def commit(self) -> Index: ...
    @property
    def applied_index(self) -> Index: ...
    @property
    def members(self) -> Members: ...


class HealthGroup(Protocol):
    """A Raft group of this node. Read directly, because building the status of thousands of groups
    takes too long."""

    @property
    def stopped(self) -> str | None: ...
    @property
    def installing(self) -> bool: ...
    @property
    def core(self) -> HealthCore: ...


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with one stream on this node, or that an object of the query does not exist."""

    kind: str  # ACCOUNT, STREAM or CONSUMER
    error: str
    account: str
    stream: str = ""
    consumer: str = ""

    def document(self) -> Document:
        named = {"account": self.account, "stream": self.stream, "consumer": self.consumer}
        shown = {name: value for name, value in named.items() if value}
        return {"type": self.kind, **shown, "error": self.error}


@dataclass(slots=True)
class JetStreamHealth:
    """One per node."""

    node: NodeId
    options: JetStreamOptions
    founded: Callable[[], bool]
    learned: Callable[[], bool]  # the table of streams was current at some time since the start
    removed: Callable[[], bool]  # from the cluster
    unreachable: Callable[[], list[str]]  # routes, each with the reason
    leaving: Callable[[], bool]  # it has no vote any more, and serves until its replicas have moved
    leader: Callable[[int], NodeId | None]  # of a group
    trouble: Callable[[], str | None]  # why the store takes no writes
    disk_full: Callable[[], bool]  # no messages are stored, all else works
    clock_trouble: Callable[[], str | None]
    # Messages about replicas that no node can take (at the meta leader) and damage that cannot be
    # repaired.
    stuck: Callable[[], list[str]]
    strangers: Callable[[], list[str]]  # refused servers of another cluster with the same name
    lame_duck: Callable[[], bool]
    has_account: Callable[[str], bool]
    assignments: Callable[[], Iterable[Assignment]]  # of the streams that this node must hold
    assignment: Callable[[str, str], Assignment | None]  # by account and stream
    replica: Callable[[int], HealthReplica | None]  # of a group
    held: Callable[[GroupId], HealthGroup | None]
    now_s: Callable[[], float] = time.monotonic
    # Per group that is behind: its applied index, and when. Removed when it has caught up.
    _behind: dict[GroupId, tuple[Index, float]] = field(default_factory=dict)

    def healthz(self, query: Query) -> Steps[tuple[int, Document]]:
        """`live`: always ok, since the event loop runs if this is answered. `startup`: the log is
        replayed and the meta group has a leader. `ready`: this node can serve its clients, and
        every stream that it holds works here. A full disk is an error, but such a node stays
        ready: clients must reach it to read and to free space."""
        if has_flag(query, "live", "js-enabled-only", "js-enabled"):
            return 200, {"status": "ok"}
        if (wrong := _wrong_query(query)) is not None:
            return 400, {"status": "error", "error": wrong}
        if (reason := self._not_started()) is not None:
            return 503, _unavailable(reason)
        if has_flag(query, "startup"):
            return 200, {"status": "ok"}
        if self.lame_duck():
            return 503, _unavailable("lame duck mode")
        if (reason := self._meta_reason() or self.clock_trouble()) is not None:
            return 503, _unavailable(reason)
        if has_flag(query, "js-server-only", "js-meta-only"):
            return 200, self._ok()
        status, report = yield from self._assets(query)
        if status == 200 and self.disk_full() and not has_flag(query, "ready"):
            return 503, _unavailable(DISK_FULL)
        return status, report

    def _not_started(self) -> str | None:
        if (trouble := self.trouble()) is not None:
            return f"the store takes no writes: {trouble}"
        if self.removed():
            return "this node was removed from the cluster"
        if not self.founded() and self.held(META_GROUP) is not None:
            return "this node does not know the streams of its cluster yet"
        if not self.founded():
            missing = self.unreachable()
            why = f": {'; '.join(missing[:UNREACHABLE_SHOWN])}" if missing else ""
            return f"JetStream is still waiting for its cluster to form{why}"
        if self.leader(META_GROUP) is None:
            return "JetStream has not established contact with a meta leader"
        if not self.learned():
            return "JetStream is not current with the meta leader"
        return None

    def _meta_reason(self) -> str | None:
        """Why this node does not take part in the meta group; None if it does."""
        meta = self.held(META_GROUP)
        if meta is None:
            return None
        if not meta.core.members.has_voter(self.node) and not self.leaving():
            return "this node has no vote in the meta group yet"
        if meta.stopped is not None:
            return f"the meta group is stopped on this node: {meta.stopped}"
        if meta.core.recovering or meta.installing:
            return "this node has lost the log of the meta group: catching up"
        return None

    # -- streams and consumers ------------------------------------------------------------------

    def _assets(self, query: Query) -> Steps[tuple[int, Document]]:
        missing = self._missing(query)
        if missing is not None:
            return 404, _report([missing], query)
        account, stream = query.get("account", ""), query.get("stream", "")
        found = []
        for position, assignment in enumerate(list(self.assignments())):
            if account in ("", assignment.account) and stream in ("", assignment.name):
                problem = self._problem(assignment)
                if problem is not None and self._still_exists(assignment):
                    found.append(problem)
            if position % STEP_ITEMS == STEP_ITEMS - 1:
                yield
        return (503, _report(found, query)) if found else (200, self._ok())

    def _missing(self, query: Query) -> Problem | None:
        """The object named in the query that does not exist, if any."""
        account, stream = query.get("account", ""), query.get("stream", "")
        consumer = query.get("consumer", "")
        if account and not self.has_account(account):
            return Problem("ACCOUNT", f'JetStream account "{account}" not found', account)
        if not stream:
            return None
        assignment = self.assignment(account, stream)
        if assignment is None:
            sentence = f'JetStream stream "{stream}" not found on account "{account}"'
            return Problem("STREAM", sentence, account, stream)
        replica = self.replica(assignment.group)
        if consumer and (replica is None or not replica.has_consumer(consumer)):
            sentence = (
                f'JetStream consumer "{consumer}" not found for stream "{stream}" on account '
                f'"{account}"'
            )
            return Problem("CONSUMER", sentence, account, stream, consumer)
        return None

    def _still_exists(self, assignment: Assignment) -> bool:
        """It may have been deleted since the first step."""
        current = self.assignment(assignment.account, assignment.name)
        return current is not None and current.group == assignment.group

    def _problem(self, assignment: Assignment) -> Problem | None:
        reason = self._reason(assignment)
        if reason is None:
            return None
        account, name = assignment.account, assignment.name
        return Problem("STREAM", f"JetStream stream '{account} > {name}' {reason}", account, name)

    def _reason(self, assignment: Assignment) -> str | None:
        """Why this node's replica of a stream is unhealthy; None if it is healthy."""
        replica = self.replica(assignment.group)
        if replica is None:
            return "is not on this node, which should hold a replica"
        group = self.held(replica.group)
        if group is None or group.stopped is not None:
            return f"is stopped on this node: {group.stopped if group else 'it has no group'}"
        core = group.core
        if not core.members.has_voter(self.node):
            # New or rebuilt. The others may need every vote, so no other node should stop now.
            return "is not current: this replica is being built and has no vote yet"
        if core.asleep:
            return None  # idle: every reachable member has everything
        if core.recovering or group.installing:
            # If another node restarted now, the last copy could be unavailable.
            return "is not current: it has lost its log and is catching up"
        if self.leader(assignment.group) is None:
            return "has no leader"
        return None if self._advances(replica.group, core) else "is not current"

    def _advances(self, group: GroupId, core: HealthCore) -> bool:
        """Whether committed entries are applied, or the applied index is advancing."""
        applied, now_s = core.applied_index, self.now_s()
        if applied >= core.commit:
            self._behind.pop(group, None)
            return True
        if core.commit - applied > BEHIND_MAX:
            return False
        before, since_s = self._behind.get(group, (None, now_s))
        if applied != before:
            self._behind[group] = (applied, now_s)
            return True
        return now_s - since_s < ADVANCES_WITHIN_S

    def _ok(self) -> Document:
        warnings = [DISK_FULL] if self.disk_full() else []
        if strangers := self.strangers():
            warnings.append(STRANGERS.format(", ".join(strangers)))
        warnings.extend(self.stuck())
        if self.options.flush_interval_s is not None:
            warnings.append(self.options.sync_sentence)
        return {"status": "ok", "warnings": warnings} if warnings else {"status": "ok"}


def _wrong_query(query: Query) -> str | None:
    account, stream, consumer = (query.get(name) for name in ("account", "stream", "consumer"))
    if consumer and not stream:
        return '"stream" must not be empty when checking consumer health'
    if stream and not account:
        return '"account" must not be empty when checking stream health'
    return None


def _report(problems: list[Problem], query: Query) -> Document:
    if has_flag(query, "details"):
        shown = [problem.document() for problem in problems[:REPORTED_MAX]]
        return {"status": "error", "errors": shown}
    first = problems[0].error
    more = f" ({len(problems) - 1} more streams)" if len(problems) > 1 else ""
    return _unavailable(first + more)


def _unavailable(reason: str) -> Document:
    return {"status": "unavailable", "error": reason}
