"""The answer to API requests of accounts without JetStream.

Owns: that one error.
May not touch: streams.
Spec: NATS JetStream API, error 10039 (JetStream not enabled for account)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker.cluster.publish.pub_acks import ReplyRouter
from broker.jetstream.api.responses import encode_error
from broker.jetstream.api.subjects import ApiKind, parse_api_subject
from broker.jetstream.errors import ErrCode, JetStreamError
from broker.server.routing.service_sink import ServiceSink
from broker.subjects import PublishingConnection, SinkKind, Subscription, collides

if TYPE_CHECKING:
    from broker.accounts import Account

SUBJECTS = b"$JS.API.>"
_UNSERVED = (ApiKind.CONSUMER_MSG_NEXT, ApiKind.DIRECT_GET)  # these report no responders


@dataclass(slots=True)
class NoJetStream(ServiceSink):
    """A SERVICE sink in every such account."""

    router: ReplyRouter
    account: Callable[[str], Account]
    domain: bytes
    kind: SinkKind = SinkKind.SERVICE

    def subscriptions(self, account: Account) -> list[Subscription]:
        """Empty if the account imports the API of another account, which then answers."""
        imported = (rule.local for rule in account.options.imports if rule.service)
        if any(collides(local, SUBJECTS) for local in imported):
            return []
        return [Subscription(self, account, SUBJECTS)]

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
        request = parse_api_subject(subject, domain=self.domain)
        if request is None or request.kind in _UNSERVED:
            return False
        if reply:
            body = encode_error(request.kind, JetStreamError(ErrCode.NOT_ENABLED_FOR_ACCOUNT))
            self.router.publish(self.account(sub.account.name), reply, b"", b"", body)
        return True
