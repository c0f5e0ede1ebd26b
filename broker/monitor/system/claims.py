"""Account JWTs over the system account: push, list, lookup, delete, and synchronization.

Owns: the requests under $SYS.REQ.CLAIMS, and the comparison of this server with the others.
May not touch: what a JWT grants; a change takes effect by a reload.
A push reaches every server; one that was down asks the others for what it missed.
Spec: NATS account resolver; nats-server 2.15 also stores claims that are older than the stored
ones, or that no trusted operator signed: they are refused here."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Callable
from contextlib import suppress

from broker.config.account_directory import AccountDirectory
from broker.config.claims import BadClaims
from broker.config.options import ResolverOptions
from broker.config.trusted_accounts import signers, trusted_accounts
from broker.credentials import jwt
from broker.credentials.jwt import Token
from broker.monitor.system.account_fetching import AccountFetching, ClaimsRefused
from broker.monitor.system.responder import Responder
from broker.server.process.log import logger
from broker.server.process.printable import printable
from broker.server.services import Document

PREFIX = "$SYS.REQ.CLAIMS"
FAILED = 500


class ClaimsRequests:
    """Of a server with a FULL resolver; without one it is silent, as nats-server is."""

    def __init__(self, responder: Responder, reload: Callable[[], None]) -> None:
        """`reload` raises ValueError with the reason."""
        self._responder = responder
        self._observed = responder.observed
        self._reload = reload
        self._missed = 0  # stored, but not yet in effect
        self._inbox = f"$SYS._INBOX.{secrets.token_hex(8)}"
        self.fetching: AccountFetching | None = None

    @property
    def _options(self) -> ResolverOptions:
        options = self._observed.server.options.resolver
        assert options is not None, "only started with a resolver"
        return options

    @property
    def _directory(self) -> AccountDirectory:
        return AccountDirectory(self._options.directory)

    def start(self) -> None:
        if self._observed.server.options.resolver is None:
            return
        self._store_preloaded()
        listen = self._responder.listen
        if self._options.fetches:
            self.fetching = AccountFetching(self._responder, self._install)
            self._observed.server.clients.fetched = self.fetching
            if self._options.url:
                return  # others are told and asked by whoever serves the URL
            listen("$SYS.REQ.ACCOUNT.*.CLAIMS.UPDATE", self._update_cached)
            return
        listen(f"{PREFIX}.UPDATE", self._update)
        listen("$SYS.REQ.ACCOUNT.*.CLAIMS.UPDATE", self._update)
        listen("$SYS.REQ.ACCOUNT.*.CLAIMS.LOOKUP", self._lookup)
        listen(f"{PREFIX}.LIST", self._list)
        listen(f"{PREFIX}.DELETE", self._delete)
        listen(f"{PREFIX}.PACK", self._pack)
        listen(self._inbox, self._packed)
        self._observed.server.spawn(self._compare(), name="account resolver")

    def _store_preloaded(self) -> None:
        for public, text in self._options.preload.items():
            if not self._directory.text(public):
                self._directory.save(public, text)

    def _install(self, public: str, text: str) -> None:
        """Raises ClaimsRefused."""
        self._put_into_effect(text, public)

    def _update_cached(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes) -> None:
        """Only what is cached; the answer comes from a server that keeps everything."""
        if self._directory.text(subject.split(b".")[3].decode(errors="replace")):
            self._update(subject, b"", headers, payload)

    # -- requests -------------------------------------------------------------------------------

    def _update(self, subject: bytes, reply: bytes, _headers: bytes, payload: bytes) -> None:
        tokens = subject.split(b".")
        named = tokens[3].decode(errors="replace") if len(tokens) == 6 else ""
        try:
            public = self._put_into_effect(payload.decode(errors="replace").strip(), named)
        except ClaimsRefused as refused:
            reason = f"jwt update resulted in error - {refused}"
            logger.error("%s", printable(f"{reason} ({refused.account})"))
            self._answer(reply, error={"account": refused.account} | _failure(reason))
        else:
            self._answer(reply, data={"account": public, "code": 200, "message": "jwt updated"})

    def _put_into_effect(self, text: str, named: str) -> str:
        """The public key of the account. Raises ClaimsRefused; nothing has changed then."""
        public, before = self._store(text, named)
        try:
            self._reload()
        except ValueError as error:
            if before:
                self._directory.save(public, before)
            else:
                self._directory.delete(public)
            raise ClaimsRefused(str(error), public) from error
        return public

    def _store(self, text: str, named: str) -> tuple[str, str]:
        """The public key of the account, and its JWT before. Raises ClaimsRefused."""
        try:
            token = jwt.decode(text)
        except jwt.BadToken as bad:
            raise ClaimsRefused(str(bad), named or "n/a") from bad
        public = token.subject
        if token.kind != "account":
            raise ClaimsRefused("not account claim", named or "n/a")
        if named and public != named:
            raise ClaimsRefused("subject does not match jwt content", named)
        try:
            before = self._directory.text(public)
            self._check(token, before)
            self._directory.save(public, text)
        except OSError as error:
            raise ClaimsRefused(str(error), public) from error
        return public, before

    def _check(self, token: Token, before: str) -> None:
        options, public = self._options, token.subject
        if token.issuer not in signers(options.operators):
            raise ClaimsRefused("not signed by a trusted operator", public)
        try:
            trusted_accounts(options.operators, {public: token})
        except BadClaims as bad:
            raise ClaimsRefused(str(bad), public) from bad
        if before and _issued_at(before) > token.issued_at:
            raise ClaimsRefused("older than the stored one", public)
        if options.limit and not before and len(self._directory.names()) >= options.limit:
            raise ClaimsRefused(f"the limit of {options.limit} accounts is reached", public)

    def _lookup(self, subject: bytes, reply: bytes, _headers: bytes, _payload: bytes) -> None:
        """The bare JWT; empty if there is none."""
        public = subject.split(b".")[3].decode(errors="replace")
        self._send(reply, self._directory.text(public).encode())

    def _list(self, _subject: bytes, reply: bytes, _headers: bytes, _payload: bytes) -> None:
        self._answer(reply, data=self._directory.names())

    def _delete(self, _subject: bytes, reply: bytes, _headers: bytes, payload: bytes) -> None:
        by = ""
        try:
            token = jwt.decode(payload.decode(errors="replace").strip())
            by = token.issuer
            if token.kind != "generic" or by not in signers(self._options.operators):
                raise ClaimsRefused("not trusted")
            if not self._options.allow_delete:
                raise ClaimsRefused("not enabled (allow_delete)")
            wanted = [str(one) for one in token.claims.get("accounts") or ()]
            if self._observed.server.options.system_account in wanted:
                raise ClaimsRefused("the system account cannot be deleted")
            count = sum(self._directory.delete(public) for public in wanted)
            self._reload()
        except (ClaimsRefused, jwt.BadToken, OSError, ValueError) as refused:
            reason = f"delete accounts request by {by} failed - {refused}"
            logger.error("%s", printable(reason))
            self._answer(reply, error=_failure(reason))
        else:
            self._answer(reply, data={"code": 200, "message": f"deleted {count} accounts"})

    def _answer(self, reply: bytes, **content: Document | list[str]) -> None:
        if reply:
            self._responder.send(reply, {"server": self._observed.stamp(), **content})

    def _send(self, to: bytes, text: bytes) -> None:
        if to:
            server = self._observed.server
            server.router.publish(self._observed.system_account, to, b"", b"", text)

    # -- the other servers ----------------------------------------------------------------------

    async def _compare(self) -> None:
        while True:
            digest = _digest(self._directory.texts())
            self._observed.server.router.publish(
                self._observed.system_account,
                f"{PREFIX}.PACK".encode(),
                self._inbox.encode(),
                b"",
                digest,
            )
            await asyncio.sleep(self._options.interval_ns / 1e9)

    def _pack(self, _subject: bytes, reply: bytes, _headers: bytes, payload: bytes) -> None:
        """Send all accounts, unless the other server has the same ones."""
        texts = self._directory.texts()
        if payload == _digest(texts):
            return
        for public, text in texts.items():
            self._send(reply, f"{public}|{text}".encode())
        self._send(reply, b"")

    def _packed(self, _subject: bytes, _reply: bytes, _headers: bytes, payload: bytes) -> None:
        """One account of another server; at the end, nothing."""
        public, _, text = payload.decode(errors="replace").partition("|")
        try:
            if not text:
                self._put_missed_into_effect()
            elif self._directory.text(public) != text:
                gone = self._directory.deleted(public)
                if not gone or _issued_at(gone) < _issued_at(text):
                    self._store(text, public)
                    self._missed += 1
        except (ClaimsRefused, OSError) as refused:
            logger.debug("%s", printable(f"account {public} of another server: {refused}"))

    def _put_missed_into_effect(self) -> None:
        if self._missed:
            logger.info("%d accounts were changed while this server was away", self._missed)
            self._missed = 0
            with suppress(ValueError):  # the reload logs the reason
                self._reload()


def _issued_at(text: str) -> int:
    """0 for what is not a token."""
    try:
        return jwt.decode(text).issued_at
    except jwt.BadToken:
        return 0


def _digest(texts: dict[str, str]) -> bytes:
    lines = "\n".join(f"{public}|{text}" for public, text in sorted(texts.items()))
    return hashlib.sha256(lines.encode()).digest()


def _failure(reason: str) -> Document:
    return {"code": FAILED, "description": reason}
