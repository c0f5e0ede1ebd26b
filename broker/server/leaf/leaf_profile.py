"""What all leaf node connections of one server share, and the INFO line of the leaf node port.

Owns: the fields of that line, and which users may connect there.
May not touch: connections.
Spec: leaf node protocol, INFO; nats-server, `leafnodes.authorization`."""

from __future__ import annotations

import ssl

import msgspec

from broker.accounts.authentication import Authenticator
from broker.config.options import Authorization, LeafNodeOptions, Options, Permissions, TlsOptions
from broker.server.client.listener_profile import ClientContext, ListenerProfile
from broker.server.client.tls import load_context
from broker.server.process import listening
from broker.server.process.identity import ServerIdentity
from broker.server.services import Document

LEAFNODE = "LEAFNODE"  # the connection type that users may be bound to
LINE_MAX = 1 << 20  # of a control line: a message for many queue groups
FIRST_LINE_MAX = 1 << 16  # before the other side is admitted: a CONNECT with a JWT
DEFAULT_AUTH_SECONDS = 2.0


class LeafProfile(ListenerProfile):
    """Do not cache what its methods return: a reload may change it."""

    kind = "leafnode"
    mark = "lid"
    connection_type = LEAFNODE

    def __init__(
        self, context: ClientContext, identity: ServerIdentity, options: LeafNodeOptions
    ) -> None:
        super().__init__(context)
        self.identity = identity
        self.options = options
        self.port = 0  # of the leaf node listener, once it is bound
        self.peer_urls: list[str] = []  # of the other nodes of our cluster
        self._authenticator: Authenticator | None = None
        self._tls_context: ssl.SSLContext | None = None

    def load_certificates(self) -> None:
        """Raises StartFailed."""
        if self.options.tls is not None:
            self._tls_context = load_context(self.options.tls)

    def reconfigure(self, options: Options) -> None:
        """Raises StartFailed."""
        new = options.leafnodes or LeafNodeOptions()
        if new.tls is not None:  # the same files may have other contents
            self._tls_context = load_context(new.tls)
        self.options = new
        own = self.options.authorization
        self._authenticator = None if own is None else Authenticator(own)

    # -- what connections ask ---------------------------------------------------------------

    @property
    def server_options(self) -> Options:
        return self.context.settings.options

    @property
    def cluster(self) -> str:
        """Our cluster name, as sent to the other side; without a cluster, the server name."""
        cluster = self.server_options.cluster
        return cluster.name if cluster is not None and cluster.name else self.identity.name

    @property
    def domain(self) -> str:
        jetstream = self.server_options.jetstream
        return "" if jetstream is None else jetstream.domain

    @property
    def authenticator(self) -> Authenticator:
        return self._authenticator or self.context.settings.authenticator

    @property
    def auth_timeout_s(self) -> float:
        own: Authorization | None = self.options.authorization
        if own is not None and own.timeout_ns is not None:
            return own.timeout_ns / 1e9
        tls = self.options.tls
        return DEFAULT_AUTH_SECONDS if tls is None else tls.timeout_ns / 1e9 + 1.0

    @property
    def tls(self) -> tuple[TlsOptions, ssl.SSLContext] | None:
        options, context = self.options.tls, self._tls_context
        return None if options is None or context is None else (options, context)

    def urls(self) -> list[str]:
        """Where leaf nodes can connect (host:port): to this server, and to its peers."""
        own = self.own_urls()
        return own + [url for url in self.peer_urls if url not in own]

    def own_urls(self) -> list[str]:
        if not self.port:
            return []
        return listening.advertised(self.options.host, self.port, self.options.advertise)

    def leaf_info_line(
        self,
        *,
        cid: int,
        nonce: str = "",
        compression: str = "",
        account: str = "",
        permissions: Permissions | None = None,
    ) -> bytes:
        """`account` is sent once the leaf node has connected, with the permissions, which the leaf
        node then enforces as well."""
        document: Document = self.info()
        for name in ("tls_available", "tls_required", "tls_verify", "cluster"):
            document.pop(name, None)
        document["proto"] = 1
        document["host"], document["port"] = self.options.host, self.port
        document["auth_required"] = document["info_on_connect"] = True
        document["client_id"] = cid
        cluster = self.server_options.cluster
        if cluster is not None and cluster.name:
            document["cluster"] = cluster.name
        if self.options.tls is not None:
            document["tls_required"] = True
            if self.options.tls.verify:
                document["tls_verify"] = True
        document["leafnode_urls"] = self.urls()
        own = {"ws_connect_urls": self.context.urls.all_websocket(), "compression": compression}
        document |= {name: value for name, value in own.items() if value}
        if nonce:
            document["nonce"] = nonce
        if account:
            document["connect_info"] = True
            document["remote_account"] = account
            if account == self.server_options.system_account:
                document["acc_is_sys"] = True
        if permissions is not None:
            document |= _told(permissions)
        return b"INFO " + msgspec.json.encode(document) + b" \r\n"


def _told(permissions: Permissions) -> Document:
    """What the leaf node may subscribe to (import) and publish to (export)."""
    found: Document = {}
    for name, rules in (("import", permissions.subscribe), ("export", permissions.publish)):
        if rules is not None:
            allow = [entry.decode() for entry in rules.allow or ()]
            deny = [entry.decode() for entry in rules.deny]
            lists = {"allow": allow, "deny": deny}
            found[name] = {key: value for key, value in lists.items() if value}
    return found
