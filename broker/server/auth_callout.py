"""Asks the authorization service about clients that want to connect.

Owns: the requests in flight, and this server's keys for them.
May not touch: the format of requests and answers (broker/accounts/callout.py), connections.
The service may be connected to any node: request and answer are ordinary messages in its account.
Spec: NATS authorization callout (ADR-26)."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from typing import Any, Protocol

from broker.accounts import Account, callout
from broker.accounts.identity import Credentials, Identity
from broker.accounts.tokens import TokenRefused
from broker.config.options import VERSION, CalloutOptions
from broker.credentials import jwt, nkeys
from broker.server.client.listener_profile import Caller, OnRefusal
from broker.server.client.settings import ServerSettings
from broker.server.process.identity import ServerIdentity
from broker.server.process.log import logger
from broker.server.process.printable import printable
from broker.server.process.private_keys import BadSeal, SealingKey, is_sealed
from broker.server.routing.internal_subscription import InterestTable, InternalSubscription
from broker.wire import headers as wire_headers

XKEY_HEADER = b"Nats-Server-Xkey"


class CalloutRouter(InterestTable, Protocol):
    """The router, as far as requests need it."""

    def publish(
        self, account: Account, subject: bytes, reply: bytes, headers: bytes, payload: bytes, /
    ) -> int: ...


class Accounts(Protocol):
    def is_configured(self, name: str) -> bool: ...

    def open(self, name: str) -> Account: ...


class AuthCallout:
    """One per server. The client is refused if the service is absent, does not answer in time, or
    sends an answer that cannot be verified."""

    def __init__(
        self,
        router: CalloutRouter,
        accounts: Accounts,
        settings: ServerSettings,
        identity: ServerIdentity,
    ) -> None:
        self._router = router
        self._accounts = accounts
        self._settings = settings
        self._identity = identity
        self.on_refusal: OnRefusal = _unheard
        self._sealing: SealingKey | None = None
        self._inbox: tuple[str, InternalSubscription] | None = None  # and its account
        self._prefix = b"$SYS._INBOX.%b." % secrets.token_hex(8).encode()
        self._waiting: dict[bytes, asyncio.Future[bytes]] = {}

    async def identify(self, given: Credentials, caller: Caller) -> Identity | None:
        """None: the client is refused."""
        authenticator = self._settings.authenticator
        options = authenticator.judge_of(given)
        if options is None:  # a reload has just removed it
            return None
        user_key = nkeys.encode(nkeys.KeyKind.USER, os.urandom(nkeys.KEY_BYTES))
        try:
            answer = await self._ask(options, self._request(options, given, caller, user_key))
            return callout.judge(
                options,
                given,
                answer,
                server_id=self._identity.id,
                user_key=user_key,
                has_account=self._accounts.is_configured,
                accounts=authenticator.tokens,
                now=time.time(),
            )
        except TokenRefused as refused:
            logger.warning("%s", printable(str(refused)))
            account, claimed = self._accounts.open(options.account), authenticator.claimed(given)
            self.on_refusal(caller.client["id"], account, claimed, str(refused))
            return None

    def _request(
        self, options: CalloutOptions, given: Credentials, caller: Caller, user_key: str
    ) -> str:
        identity, server_options = self._identity, self._settings.options
        server: dict[str, Any] = {"name": identity.name, "host": identity.host, "id": identity.id}
        server["version"] = VERSION
        if server_options.cluster is not None and server_options.cluster.name:
            server["cluster"] = server_options.cluster.name
        if server_options.server_tags:
            server["tags"] = list(server_options.server_tags)
        if options.xkey:
            server["xkey"] = self._keys().public
        claims = callout.request_claims(
            options,
            given,
            server=server,
            client=caller.client,
            connect=caller.connect,
            tls=caller.tls,
            user_key=user_key,
            now=int(time.time()),
            timeout_s=self._settings.auth_timeout_s,
        )
        return jwt.encode(claims, identity.sign)

    async def _ask(self, options: CalloutOptions, request: str) -> str:
        """Raises TokenRefused."""
        account = self._accounts.open(options.account)
        self._listen(account)
        payload, headers = request.encode(), b""
        if options.xkey:
            payload = self._keys().seal(payload, options.xkey)
            headers = wire_headers.add(b"", [(XKEY_HEADER, self._keys().public.encode())])
        token = secrets.token_hex(8).encode()
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[token] = future
        try:
            async with asyncio.timeout(self._settings.auth_timeout_s):
                self._router.publish(
                    account, callout.REQUEST_SUBJECT, self._prefix + token, headers, payload
                )
                answer = await future
        except TimeoutError as late:
            raise TokenRefused("Auth callout: the service has not answered in time") from late
        finally:
            del self._waiting[token]
        try:
            if options.xkey and is_sealed(answer):  # the signature is checked either way
                answer = self._keys().open(answer, options.xkey)
            return answer.decode()
        except (BadSeal, UnicodeDecodeError) as bad:
            raise TokenRefused(f"Auth callout: the answer is unreadable: {bad}") from bad

    def _keys(self) -> SealingKey:
        if self._sealing is None:
            self._sealing = SealingKey()
        return self._sealing

    def _listen(self, account: Account) -> None:
        if self._inbox is not None:
            name, before = self._inbox
            if name == account.name:
                return
            before.close()
        inbox = InternalSubscription(self._router, account, self._prefix + b"*", self._answered)
        self._inbox = (account.name, inbox)

    def _answered(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes) -> None:
        future = self._waiting.get(subject[len(self._prefix) :])
        if future is not None and not future.done():
            future.set_result(payload)


def _unheard(_cid: int, _account: Account, _claimed: Identity | None, _reason: str) -> None:
    """Does nothing: used until the system account is served."""
