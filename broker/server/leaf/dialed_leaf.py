"""Our connection to a hub whose leaf node we are: INFO, TLS, CONNECT, and what the hub answers.

Owns: the handshake, and how long to wait before the next attempt when the hub has refused us.
May not touch: when to dial (leaf_remotes.py).
Spec: leaf node protocol: the hub answers CONNECT with a second INFO, which names its account and
the permissions that hold here too; after a loop, or in the same cluster, it retries after 30 s."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any
from urllib.parse import SplitResult, unquote

import msgspec

from broker.config.options import VERSION, LeafRemote, LinkCompression, Permissions, SubjectRules
from broker.server import link_compression
from broker.server.client.close_reason import Reason
from broker.server.leaf.accepted_leaf import SAME_CLUSTER
from broker.server.leaf.leaf_connection import LOOP_PAUSE_S, LeafConnection, LeafTable
from broker.server.leaf.leaf_profile import LeafProfile
from broker.server.leaf.leaf_rules import LeafRules, spoke_rules
from broker.server.process.log import logger
from broker.server.process.remote_login import LoginFailed, creds_login, seed_login, tls_context
from broker.subjects import SinkKind

CONNECT_WITHIN_S = 2.0  # from our CONNECT to the hub's second INFO
VERSION_PAUSE_S = 5.0


class _Lists(msgspec.Struct):
    allow: list[str] | None = None
    deny: list[str] | None = None


class HubInfo(msgspec.Struct):
    """The fields of a hub's INFO; unknown ones are ignored."""

    server_id: str = ""
    server_name: str = ""
    client_id: int = 0
    headers: bool = False
    nonce: str = ""
    tls_required: bool = False
    cluster: str = ""
    domain: str = ""
    info_on_connect: bool = False
    connect_info: bool = False
    remote_account: str = ""
    leafnode_urls: list[str] | None = None
    ws_connect_urls: list[str] | None = None
    compression: str = ""
    import_: _Lists | None = msgspec.field(default=None, name="import")
    export: _Lists | None = None


class DialedLeaf(LeafConnection):
    """The leaf node's side of a connection."""

    def __init__(
        self,
        profile: LeafProfile,
        table: LeafTable,
        loop: asyncio.AbstractEventLoop,
        *,
        remote: LeafRemote,
        url: SplitResult,
    ) -> None:
        super().__init__(profile, table, loop)
        self.remote = remote
        self.isolated = self.isolated or remote.isolated
        self.pause_s = 0.0  # before the next attempt, if the hub gave a reason to wait
        self.discovered: list[str] = []
        self._url = url
        self._info = HubInfo()
        self._greeted = False  # the hub's first INFO was received
        self._patience: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        self._wait(self.remote.first_info_timeout_ns / 1e9, "first INFO")
        tls = self.remote.tls
        if tls is not None and tls.handshake_first and not self.framed:
            self._start_tls()

    @property
    def wanted_compression(self) -> LinkCompression:
        return self.remote.compression

    def _wait(self, seconds: float, what: str) -> None:
        self._patience = self.loop.call_later(seconds, self._too_late, what)

    def _waited(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _too_late(self, what: str) -> None:
        logger.error("%s - Leafnode: no %s from the hub in time", self.label, what)
        self.fail("Stale Leaf Node Connection - Closing", Reason.STALE_CONNECTION)

    # -- TLS --------------------------------------------------------------------------------

    def _start_tls(self) -> None:
        try:
            context = tls_context(self.remote.tls)
            self.socket.dial_tls(context, self._url.hostname or "")
        except (LoginFailed, ssl.SSLError, ValueError) as error:
            logger.error("%s - TLS leafnode handshake error: %s", self.label, error)
            self.close(Reason.TLS_HANDSHAKE_ERROR)

    def secured(self) -> None:
        if self._greeted:
            self._agree()

    # -- the handshake ----------------------------------------------------------------------

    def received_info(self, text: bytes) -> None:
        try:
            info = msgspec.json.decode(text, type=HubInfo)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            logger.error("%s - INFO: %s", self.label, error)
            self.close(Reason.PROTOCOL_VIOLATION)
            return
        found = info.ws_connect_urls if self.framed else info.leafnode_urls
        if found:
            self.discovered = found
        if self._greeted:
            self._info_again(info)
            return
        if not info.client_id or info.leafnode_urls is None:
            logger.error("%s - attempted to connect to wrong port", self.label)
            self.close(Reason.WRONG_PORT)
            return
        self._info = info
        self.remote_name, self.remote_id = info.server_name or info.server_id, info.server_id
        self._waited()
        if self.compression:  # this INFO came compressed
            self._greeted = True
            self._connect()
            return
        secure = info.tls_required or self.remote.tls is not None or self._url.scheme == "tls"
        if secure and self.socket.tls is None and not self.framed:
            self._greeted = True
            self._wait(CONNECT_WITHIN_S, "TLS handshake")
            self._start_tls()
        else:
            self._agree()

    def _agree(self) -> None:
        """Negotiate compression. If it is used, the hub repeats its INFO, and that one counts."""
        self._waited()
        try:
            compressed = self.choose_compression(self._info.compression)
        except link_compression.UnknownCompression as unknown:
            logger.error("%s - %s", self.label, unknown)
            self.fail(str(unknown), Reason.PROTOCOL_VIOLATION)
            return
        self._greeted = not compressed
        if not compressed:
            self._connect()
            return
        mode = link_compression.named(self.wanted_compression, self.compression)
        self.queue(self.profile.leaf_info_line(cid=self.cid, compression=mode))
        self.start_compression()
        self._wait(CONNECT_WITHIN_S, "compressed INFO")

    def _connect(self) -> None:
        self._waited()
        try:
            login = self._login()
        except LoginFailed as failed:
            logger.error("%s - %s", self.label, failed)
            self.close(Reason.AUTHENTICATION_VIOLATION)
            return
        profile = self.profile
        options = profile.server_options
        document: dict[str, Any] = {
            "version": VERSION,
            "server_id": profile.identity.id,
            "domain": profile.domain,
            "name": profile.identity.name,
            "cluster": profile.cluster,
            "headers": self._info.headers and options.headers,
            "jetstream": options.jetstream is not None,
            "deny_pub": [subject.decode() for subject in self.remote.deny_imports],
            "remote_account": self.remote.account,
            "compress_mode": self.compression,
            "is_hub": self.remote.hub,
            "isolate": self.remote.request_isolation,
            "protocol": 1,
        }
        said = {key: value for key, value in (document | login).items() if value}
        self.queue(b"CONNECT " + msgspec.json.encode(said) + b"\r\n")
        if self._info.info_on_connect:
            self._wait(CONNECT_WITHIN_S, "answer to CONNECT")
        else:
            self._finish(self._info)

    def _login(self) -> dict[str, str]:
        """Raises LoginFailed."""
        found: dict[str, str] = {}
        nonce = self._info.nonce
        if self.remote.credentials:
            found = creds_login(self.remote.credentials, nonce)
        elif self.remote.nkey:
            found = seed_login(self.remote.nkey, nonce, source="leafnode remote, nkey")
        user, password = self._url.username, self._url.password
        if user:
            found["user"] = unquote(user)
            if password is None:
                found["auth_token"] = found["user"]  # a user without a password is a token
            else:
                found["pass"] = unquote(password)
        return found

    def _info_again(self, info: HubInfo) -> None:
        if self.sink is None:
            if info.connect_info:
                self._finish(info)
        elif info.import_ is not None or info.export is not None:
            self.sink.limits = self._rules(info)
            self.sink.guarded = self.sink.limits.guarded

    def _rules(self, info: HubInfo) -> LeafRules:
        options, remote = self.profile.server_options, self.remote
        return spoke_rules(
            Permissions(
                publish=_subject_rules(info.export), subscribe=_subject_rules(info.import_)
            ),
            deny_imports=remote.deny_imports,
            deny_exports=remote.deny_exports,
            domain=self.profile.domain,
            system=remote.account == options.system_account,
        )

    def _finish(self, info: HubInfo) -> None:
        self._waited()
        self.remote_account = info.remote_account
        self.enter(
            self.profile.context.account(self.remote.account),
            kind=SinkKind.LEAF if self.remote.hub else SinkKind.HUB,
            cluster=self._info.cluster,
            limits=self._rules(info),
            headers=self._info.headers and self.profile.server_options.headers,
        )
        logger.info(
            '%s - JetStream using domains: local "%s", remote "%s"',
            self.label, self.profile.domain, self._info.domain,
        )  # fmt: skip
        self.tell_interest()

    # -- refusals ---------------------------------------------------------------------------

    def received_connect(self, text: bytes) -> None:
        self.close(Reason.PROTOCOL_VIOLATION)

    def received_error(self, text: str) -> None:
        logger.error("%s - Leafnode Error '%s'", self.label, text)
        if "Loop detected" in text or SAME_CLUSTER in text or "Permissions Violation" in text:
            self.pause_s = LOOP_PAUSE_S
        elif "minimum version" in text:
            self.pause_s = VERSION_PAUSE_S
        self.close(Reason.CLIENT_CLOSED)

    def loop_found(self) -> None:
        self.pause_s = LOOP_PAUSE_S
        super().loop_found()

    def _end(self, reason: Reason) -> None:
        self._waited()
        super()._end(reason)


def _subject_rules(lists: _Lists | None) -> SubjectRules | None:
    if lists is None:
        return None
    allow = tuple(one.encode() for one in lists.allow or ())
    return SubjectRules(allow or None, tuple(one.encode() for one in lists.deny or ()))
