"""Requests about one stream outside of the JSON API: plans of scans, blocks of writers.

Owns: receiving them from the router, and looking up the stream in a table that may lag.
May not touch: what the requests mean (broker/cluster/api/scan_plan.py, write_batches.py)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker.cluster.meta.assignments import Assignment, AssignmentTable
from broker.cluster.meta.members import ClusterMembers
from broker.jetstream.errors import ErrCode, JetStreamError
from broker.server.routing.service_sink import ServiceSink
from broker.subjects import PublishingConnection, PublishRules, SinkKind, Subscription

if TYPE_CHECKING:
    from broker.accounts import Account


@dataclass(slots=True)
class StreamRequest:
    account: str
    stream: str
    reply: bytes
    body: bytes
    rules: PublishRules | None  # None: the user's publishes are unrestricted


@dataclass(slots=True)
class StreamRequestSink(ServiceSink):
    """A SHARED sink: the last token of the subject names the stream."""

    prefix: str
    take: Callable[[StreamRequest], None]
    kind: SinkKind = SinkKind.SHARED

    def subscriptions(self, account: Account) -> list[Subscription]:
        subject = self.prefix.encode() + b"*"
        return [Subscription(sink=self, account=account, subject=subject)]

    def receive(
        self,
        sub: Subscription,
        subject: bytes,
        reply: bytes,
        headers: bytes,
        payload: bytes,
        *,
        publisher: PublishingConnection | None,
    ) -> bool:
        rules = None if publisher is None else publisher.rules
        stream = subject.rsplit(b".", 1)[1].decode(errors="replace")
        self.take(StreamRequest(sub.account.name, stream, reply, payload, rules))
        return True


@dataclass(slots=True)
class StreamLookup:
    assignments: AssignmentTable
    members: ClusterMembers
    barrier: Callable[[], Awaitable[None]]  # until the table here is current

    async def find(self, account: str, stream: str) -> Assignment:
        """Raises JetStreamError if there is no such stream. Checks that only after a barrier: the
        table of this node may lag, or be empty after a loss of its data."""
        if not self.members.founded.is_set():
            raise JetStreamError(ErrCode.CLUSTER_NOT_AVAIL)
        assignment = self.assignments.get(account, stream)
        if assignment is None:
            await self.barrier()
            assignment = self.assignments.get(account, stream)
        if assignment is None:
            raise JetStreamError(ErrCode.STREAM_NOT_FOUND)
        return assignment
