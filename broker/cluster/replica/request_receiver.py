"""Pulls and acks that arrive at the node that leads their stream.

Owns: passing each request to its Leadership, and answering clients whose pull requests were lost
with another node.
May not touch: the meaning of requests (leadership.py), how they travel (consumer_requests)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker.cluster.consumer_requests.forwarding import ForwardedAcks, ForwardedRequest, is_pull
from broker.cluster.publish.pub_acks import ReplyRouter
from broker.cluster.replica.replica_table import ReplicaTable
from broker.jetstream.delivery.pull_queue import LEADERSHIP_CHANGE, status

if TYPE_CHECKING:
    from broker.accounts import Account

LOST_AFTER_S = 0.25


@dataclass(slots=True)
class RequestReceiver:
    """While a leader is elected but does not serve yet, `hold` and `hold_acks` keep requests."""

    replicas: ReplicaTable
    router: ReplyRouter
    account_of: Callable[[int], Account | None]  # by group
    hold: Callable[[ForwardedRequest], object]
    hold_acks: Callable[[ForwardedAcks], object]

    def take(self, request: ForwardedRequest) -> None:
        replica = self.replicas.get(request[0])
        leading = None if replica is None else replica.leading
        if leading is not None and not leading.closed:
            leading.take_request(request)
        elif replica is not None and replica.elected:
            self.hold(request)
        else:
            self.lost(request)

    def take_acks(self, acks: ForwardedAcks) -> None:
        replica = self.replicas.get(acks[0])
        if replica is None:
            return
        if replica.leading is not None:
            replica.leading.take_acks(acks)
        elif replica.elected:
            self.hold_acks(acks)

    def lost(self, request: ForwardedRequest) -> None:
        """No leader has the request or will get it. A lost ack leads to a redelivery. The client of
        a lost pull is answered with a delay: it retries immediately, and until its node knows the
        leader, that request would be lost as well."""
        if is_pull(request):
            loop = asyncio.get_running_loop()
            loop.call_later(LOST_AFTER_S, self.pulls_lost, [(request[0], request[2])])

    def pulls_lost(self, pulls: list[tuple[int, bytes]]) -> None:
        """Group and reply subject of pull requests that waited at a leader whose node is
        disconnected: answer them as that leader would have done when it stepped down."""
        header = status(LEADERSHIP_CHANGE)
        for group, reply in pulls:
            account = self.account_of(group)
            if account is not None:
                self.router.publish(account, reply, b"", header, b"")
