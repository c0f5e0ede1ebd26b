"""$SYS.REQ.USER.INFO: a client asks for its own user, account and permissions.

Owns: the service in every account, and its document.
May not touch: other system services; permissions are shown, not checked.
Spec: NATS system account, $SYS.REQ.USER.INFO. Answered by the server the client is connected to."""

from __future__ import annotations

import time

import msgspec

from broker.accounts import Account
from broker.accounts.identity import Identity
from broker.config.options import SubjectRules
from broker.monitor.observed import Observed
from broker.server.services import Document
from broker.subjects import PublishingConnection, SinkKind, Subscription
from broker.wire import PubRun

SUBJECT = b"$SYS.REQ.USER.INFO"


class UserInfo:
    """A SERVICE sink; one serves all accounts."""

    kind = SinkKind.SERVICE

    def __init__(self, observed: Observed) -> None:
        self._observed = observed

    def serve(self, account: Account) -> None:
        account.subs.insert(Subscription(self, account, SUBJECT))

    def deliver_run(
        self,
        sub: Subscription,
        run: PubRun,
        start: int,
        stop: int,
        publisher: PublishingConnection | None,
    ) -> bool:
        connection = (
            None if publisher is None else self._observed.server.connections.get(publisher.cid)
        )
        if connection is None:
            return False
        publish = self._observed.server.router.publish
        for row in range(start, stop):
            reply = run.message(row)[1]
            if reply:
                document = {
                    "server": self._observed.stamp(),
                    "data": about_user(connection.identity, now=time.time()),
                }
                body = msgspec.json.encode(document)
                publish(connection.account, reply, b"", b"", body)
        return True

    def deliver(
        self, sub: Subscription, subject: bytes, reply: bytes, headers: bytes, payload: bytes
    ) -> bool:
        """Without a connection there is no user to describe."""
        return False


def about_user(identity: Identity, *, now: float) -> Document:
    account, permissions = identity.account, identity.permissions
    document: Document = {"user": identity.user, "account": account}
    document["account_name"] = identity.account_name or account
    if identity.name:
        document["user_name"] = identity.name
    if identity.expires:
        document["expires"] = max(int((identity.expires - now) * 1e9), 0)  # nanoseconds left
    if permissions is not None:
        shown: Document = {}
        if permissions.publish is not None:
            shown["publish"] = _rules(permissions.publish)
        if permissions.subscribe is not None:
            shown["subscribe"] = _rules(permissions.subscribe)
        if permissions.responses is not None:
            responses = permissions.responses
            shown["responses"] = {"max": responses.max_msgs, "ttl": responses.expires_ns}
        document["permissions"] = shown
    return document


def _rules(rules: SubjectRules) -> Document:
    lists = {"allow": rules.allow, "deny": rules.deny}
    return {
        name: [subject.decode(errors="backslashreplace") for subject in subjects]
        for name, subjects in lists.items()
        if subjects
    }
