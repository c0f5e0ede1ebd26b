"""A leaf node that has connected to our port: INFO, TLS, CONNECT, authentication.

Owns: the decision whether its CONNECT is accepted.
May not touch: how credentials are checked (broker.accounts).
Spec: leaf node protocol, CONNECT; nats-server refuses a client on this port, a server of its own
cluster, a version below `min_version`, and replaces an older connection of the same server."""

from __future__ import annotations

from typing import Any

import msgspec

from broker.accounts.identity import Credentials, Identity
from broker.config.options import LinkCompression, Permissions
from broker.server import link_compression
from broker.server.client.close_reason import Reason
from broker.server.leaf.leaf_connection import LeafConnection
from broker.server.leaf.leaf_profile import LEAFNODE
from broker.server.leaf.leaf_rules import hub_rules
from broker.server.process.identity import nonce
from broker.server.process.log import logger
from broker.subjects import SinkKind

SAME_CLUSTER = "remote leafnode has same cluster name"


class LeafConnect(msgspec.Struct):
    """The fields of CONNECT; unknown ones are ignored."""

    version: str = ""
    nkey: str = ""
    jwt: str = ""
    sig: str = ""
    user: str = ""
    password: str = msgspec.field(default="", name="pass")
    auth_token: str = ""
    server_id: str = ""
    domain: str = ""
    name: str = ""
    is_hub: bool = False
    cluster: str = ""
    headers: bool = False
    deny_pub: list[str] | None = None
    isolate: bool = False
    gateway: str = ""
    remote_account: str = ""
    lang: str = ""
    compress_mode: str = ""


class LeafInfo(msgspec.Struct):
    """The INFO that a leaf node sends before its CONNECT, if it wants compression."""

    compression: str = ""


class AcceptedLeaf(LeafConnection):
    """The hub's side of a connection."""

    nonce = ""
    said = LeafConnect()

    def begin(self) -> None:
        self.nonce = nonce()
        tls = None if self.framed else self.profile.tls
        if tls is None:
            self._send_info()
            self.timers.await_connect()
            return
        options, context = tls
        if not options.handshake_first:
            self._send_info()
        self.socket.start_tls(context)
        self.timers.await_handshake(options.timeout_ns / 1e9)

    def secured(self) -> None:
        tls = self.profile.tls
        if tls is not None and tls[0].handshake_first:
            self._send_info()
        self.timers.await_connect()

    @property
    def wanted_compression(self) -> LinkCompression:
        return self.profile.options.compression

    def _send_info(self) -> None:
        mode = "" if self.ws_compressed else self.wanted_compression.mode
        self._info(link_compression.offered(mode))
        self.outbound.flush()

    def _info(self, compression: str) -> None:
        self.queue(
            self.profile.leaf_info_line(cid=self.cid, nonce=self.nonce, compression=compression)
        )

    def update_info(self) -> None:
        self.queue(self.profile.leaf_info_line(cid=self.cid))

    def received_info(self, text: bytes) -> None:
        """A leaf node that wants compression sends INFO before its CONNECT."""
        if self.compression or self.sink is not None:
            return
        try:
            said = msgspec.json.decode(text, type=LeafInfo)
            compressed = self.choose_compression(said.compression)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            logger.debug("%s - INFO: %s", self.label, error)
            self.close(Reason.PROTOCOL_VIOLATION)
            return
        except link_compression.UnknownCompression as unknown:
            self.fail(str(unknown), Reason.PROTOCOL_VIOLATION)
            return
        if compressed:
            self.start_compression()
            self._info(link_compression.named(self.wanted_compression, self.compression))

    def received_error(self, text: str) -> None:
        logger.error("%s - Leafnode Error '%s'", self.label, text)
        self.close(Reason.CLIENT_CLOSED)

    # -- CONNECT ----------------------------------------------------------------------------

    def received_connect(self, text: bytes) -> None:
        if self.sink is not None:
            return
        try:
            said = msgspec.json.decode(text, type=LeafConnect)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            logger.debug("%s - CONNECT: %s", self.label, error)
            self.close(Reason.PROTOCOL_VIOLATION)
            return
        self.said = said
        refusal = self._refusal(said)
        if refusal:
            logger.error("%s - %s", self.label, refusal)
            self.fail(refusal, Reason.PROTOCOL_VIOLATION)
            return
        given = Credentials(
            user=said.user, password=said.password, token=said.auth_token, nkey=said.nkey,
            jwt=said.jwt, signature=said.sig, nonce=self.nonce, host=self.host,
            connection_type=LEAFNODE,
        )  # fmt: skip
        authenticator = self.profile.authenticator
        if authenticator.slow(given):
            self.operations.wait()
            self.profile.context.spawn(self._identify_slowly(given), name=f"auth lid={self.cid}")
        else:
            self._judge(authenticator.identify(given))

    def _refusal(self, said: LeafConnect) -> str:
        if said.lang:
            return "attempted to connect to leaf node port"
        if " " in said.cluster:
            return "cluster name cannot contain spaces"
        cluster = self.profile.server_options.cluster
        if said.cluster and cluster is not None and cluster.name == said.cluster:
            return SAME_CLUSTER
        if said.gateway:
            return f'Rejecting connection from gateway "{said.gateway}" on the leafnode port'
        least = self.profile.options.min_version
        if least and _version(said.version) < _version(least):
            return f'connection rejected since minimum version required is "{least}"'
        return ""

    async def _identify_slowly(self, given: Credentials) -> None:
        identify, passwords = self.profile.authenticator.identify, self.profile.context.passwords
        try:
            identity = await passwords.check(
                self.host, lambda: identify(given), wanted=lambda: not self.closed
            )
            if not self.closed:
                self._judge(identity)
        finally:
            self.operations.go_on()

    def _judge(self, identity: Identity | None) -> None:
        if identity is None:
            user = self.said.user or self.said.nkey or "N/A"
            logger.error('%s - authentication error - User "%s"', self.label, user)
            self.fail("Authorization Violation", Reason.AUTHENTICATION_VIOLATION)
            return
        said, profile = self.said, self.profile
        self.remote_name, self.remote_id = said.name, said.server_id
        self.remote_account, self.remote_version = said.remote_account, said.version
        self.user = identity.user
        self.isolated = self.isolated or said.isolate
        self.compression = self.compression or said.compress_mode or link_compression.NOT_SUPPORTED
        self.timers.connect_seen()
        self.timers.end_at(identity.expires, identity.farewell)
        options = profile.server_options
        limits = hub_rules(
            identity.permissions,
            tuple(one.encode() for one in said.deny_pub or ()),
            domain=profile.domain,
            system=identity.account == options.system_account,
        )
        self.enter(
            profile.context.account(identity.account),
            kind=SinkKind.HUB if said.is_hub else SinkKind.LEAF,
            cluster=said.cluster,
            limits=limits,
            headers=said.headers and options.headers,
        )
        logger.info(
            '%s - JetStream using domains: local "%s", remote "%s"',
            self.label, profile.domain, said.domain,
        )  # fmt: skip
        self._welcome(identity.account, identity.permissions)

    def _welcome(self, account: str, permissions: Permissions | None) -> None:
        self.queue(
            self.profile.leaf_info_line(cid=self.cid, account=account, permissions=permissions)
        )
        self.tell_interest()


def _version(text: str) -> tuple[int, ...]:
    """(2, 15, 1) for "2.15.1-preview". A part that is not a number counts as 0."""
    parts: list[Any] = text.lstrip("v").split("-", maxsplit=1)[0].split(".")
    return tuple(int(part) if part.isdigit() else 0 for part in parts[:3])
