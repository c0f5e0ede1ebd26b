"""CONNECT and authentication of one client: its user, account and limits.

Owns: the CONNECT options, the identity, and whether the client may do anything at all.
May not touch: operations other than CONNECT; how credentials are checked (broker.accounts).
Spec: NATS client protocol, CONNECT; authorization, accounts and permissions of a user."""

from __future__ import annotations

from typing import Protocol

from broker.accounts import Account
from broker.accounts.identity import Credentials, Identity
from broker.accounts.permissions import PermissionSet
from broker.config.options import CalloutOptions
from broker.server.client.client_sink import OK, ClientSink
from broker.server.client.close_reason import ClosableConnection, Reason
from broker.server.client.connect_options import BadConnect, ConnectOptions, parse_connect
from broker.server.client.connection_timers import ConnectionTimers
from broker.server.client.listener_profile import Caller, ListenerProfile
from broker.server.process.identity import nonce
from broker.server.process.log import TRACE, logger
from broker.server.services import Document
from broker.wire import ClientParser


class LoginConnection(ClosableConnection, Protocol):
    @property
    def host(self) -> str: ...

    def certificate_names(self) -> tuple[str, ...]:
        """The names in the client's certificate that are tried as user names."""

    def admitted_now(self) -> None:
        """The first CONNECT was accepted."""


class ClientLogin:
    """Starts as the anonymous user if the server allows it, otherwise as unauthorized."""

    __slots__ = (
        "_brought", "_client", "_connection", "_judged_by", "_parser", "_profile", "_proven",
        "_timers",
        "admitted", "authorized", "connect", "connect_received", "identity", "nonce",
    )  # fmt: skip

    def __init__(
        self,
        connection: LoginConnection,
        profile: ListenerProfile,
        client: ClientSink,
        timers: ConnectionTimers,
        *,
        brought: Credentials,
        parser: ClientParser,
    ) -> None:
        self._connection = connection
        self._profile = profile
        self._client = client
        self._timers = timers
        self._brought = brought  # credentials that came before CONNECT (cookies)
        self._parser = parser  # its payload limit is that of the user
        self.connect = ConnectOptions()
        self.identity = Identity()
        self._judged_by: CalloutOptions | None = None
        self._proven = ""  # the stored hash that this client's password was verified against
        self.nonce = nonce() if profile.authenticator.asks_for_signatures else ""
        self.authorized = False
        self.connect_received = False
        self.admitted = False  # once a CONNECT was accepted
        anonymous = profile.authenticator.anonymous()
        if anonymous is not None:
            self._enter(anonymous)

    # -- CONNECT ----------------------------------------------------------------------------

    def receive(self, text: bytes) -> Credentials | None:
        """Carry out a CONNECT. Returns credentials that are slow to check: the caller then calls
        `identify` off the event loop, or the authorization service if `delegates` is true, and
        passes the result to `admit`."""
        try:
            options = parse_connect(text).completed(self._brought)
        except BadConnect as bad:
            logger.debug("%s - %s", self._connection.label, bad)
            self._connection.close(Reason.PROTOCOL_VIOLATION)
            return None
        client = self._client
        for sub in list(client.subs.values()):
            client.drop_subscription(sub)
        self.connect = options
        self.connect_received = True
        self._timers.connect_seen()
        client.name, client.echo = options.name, options.echo
        client.verbose, client.pedantic = options.verbose, options.pedantic
        if options.protocol not in (0, 1):
            self._connection.fail("invalid client protocol", Reason.BAD_CLIENT_PROTOCOL)
            return None
        if options.account:
            self.refuse()
            return None
        given = self._credentials()
        authenticator = self._profile.authenticator
        if self.missing_account(given):
            return given
        if authenticator.slow(given) or authenticator.delegates(given):
            return given
        self.admit(self.identify(given))
        return None

    def _credentials(self) -> Credentials:
        kind, names = self._profile.connection_type, None
        if self._profile.maps_certificates:
            names = self._connection.certificate_names()
        return self.connect.credentials(self.nonce, self._connection.host, kind, names)

    def missing_account(self, given: Credentials) -> str:
        """The account of the client, if it has to be fetched first."""
        fetched = self._profile.context.fetched
        if fetched is None:
            return ""
        account = self._profile.authenticator.account_of(given)
        return account if account and fetched.lacks(account) else ""

    def delegates(self, given: Credentials) -> bool:
        return self._profile.authenticator.delegates(given)

    def caller(self, tls: Document | None) -> Caller:
        """This client, as the authorization service is told about it."""
        connect, kind = self.connect, self._profile.kind
        named = {"name": connect.name} if connect.name else {}
        client: Document = {"host": self._connection.host, "id": self._client.cid}
        if connect.user:
            client["user"] = connect.user
        said = {"lang": connect.lang, "version": connect.version}
        return Caller(
            client | named | {"kind": "Client", "type": kind},
            named
            | {key: value for key, value in said.items() if value}
            | {"protocol": connect.protocol},
            tls,
        )

    def identify(self, given: Credentials) -> Identity | None:
        authenticator = self._profile.authenticator
        self._proven = ""
        identity = authenticator.identify(given)
        if identity is not None:
            self._proven = authenticator.proof(given)
        return identity

    def admit(self, identity: Identity | None) -> None:
        """Complete a CONNECT as this user; None refuses it."""
        if identity is None:
            self.refuse()
            return
        client, options = self._client, self.connect
        if self._profile.internal:
            client.headers_ok = client.no_responders = True
            client.guarded = False
            self._timers.start_pings()
            return
        self._judged_by = self._profile.authenticator.judge_of(self._credentials())
        self._enter(identity)
        if 0 <= self.account.options.max_connections < len(self.account.connections):
            text = "maximum account active connections exceeded"
            logger.error("%s - %s", self._connection.label, text)
            self._connection.fail(text, Reason.MAX_ACCOUNT_CONNECTIONS)
            return
        headers = options.headers and self._profile.context.settings.options.headers
        if options.no_responders and not headers:
            text = "no responders requires headers support"
            self._connection.fail(text, Reason.NO_RESPONDERS_HEADERS)
            return
        client.headers_ok = headers
        client.no_responders = options.no_responders
        client.set_guard()
        if options.verbose:
            client.queue(OK)
        self._timers.start_pings()
        if not self.admitted:
            self.admitted = True
            self._connection.admitted_now()

    def refuse(self) -> None:
        connection = self._connection
        self._profile.context.connections.counters.auth_failures += 1
        logger.error("%s - authentication error - %s", connection.label, self.connect.shown_user)
        connection.fail("Authorization Violation", Reason.AUTHENTICATION_VIOLATION)

    # -- the account ------------------------------------------------------------------------

    @property
    def account(self) -> Account:
        return self._client.account

    def _enter(self, identity: Identity) -> None:
        """Apply the user's account, permissions and limits to this client."""
        client = self._client
        self.authorized = True
        self.identity = identity
        client.account.connections.pop(client.cid, None)
        client.enter(self._profile.context.account(identity.account))
        if not self._profile.internal:
            client.account.connections[client.cid] = client
        self._timers.end_at(identity.expires, identity.farewell)
        self._parser.max_payload = self.payload_max
        rules = identity.permissions
        client.permissions = None if rules is None else PermissionSet(rules)
        client.watchful = logger.isEnabledFor(TRACE) or client.permissions is not None

    @property
    def payload_max(self) -> int:
        """The smallest payload limit of the server, the account and the user."""
        if self._profile.internal:
            return -1
        server = self._profile.context.settings.options.limits.max_payload
        limits = (server, self.account.options.max_payload, self.identity.max_payload)
        return min((limit for limit in limits if limit >= 0), default=-1)

    def reauthenticate(self) -> None:
        """The configuration has changed: close the connection if the user is no longer valid, and
        drop the subscriptions that are no longer permitted. A login in progress is checked against
        the new configuration."""
        if not self.authorized:
            return
        given = self._credentials()
        judge = self._profile.authenticator.judge_of(given)
        if judge is not None:
            if self._judged_by != judge:
                self.refuse()
            return
        authenticator = self._profile.authenticator
        if authenticator.proof(given) != self._proven:
            self.refuse()  # the stored hash changed: the client must log in again to be checked
            return
        identity = authenticator.identify(given, proven=self._proven)
        if identity is None or identity.account != self.account.name:
            self.refuse()
            return
        self._enter(identity)
        client = self._client
        client.set_guard()
        for sub in list(client.subs.values()):
            allowed = client.permissions
            if allowed is None or allowed.may_subscribe(sub.subject, sub.queue):
                continue
            client.drop_subscription(sub)
            subject, sid = sub.subject.decode(errors="replace"), sub.sid.decode(errors="replace")
            group = f' using queue "{sub.queue.decode(errors="replace")}"' if sub.queue else ""
            place = f'"{subject}"{group} (sid "{sid}")'
            client.error(f"Permissions Violation for Subscription to {place}")
