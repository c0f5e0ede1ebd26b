"""Account JWTs that are fetched when a user logs in: `resolver: URL(...)` and `type: cache`.

Owns: the fetches under way, and which accounts were not found a moment ago.
May not touch: what a JWT grants; claims.py checks it and puts it into force.
Bounds: FETCHES_MAX at once, for addresses in turn, and only for clients that still wait; a client
whose account was not found is refused without asking again for MISSED_FOR_S: anybody can make up an
account.
Spec: nats-server, account resolvers. An account that has to be fetched again and cannot be goes on
with what is known of it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from broker.config.account_directory import AccountDirectory
from broker.config.options import ResolverOptions, TlsOptions
from broker.monitor.system.address_turns import AddressTurns
from broker.monitor.system.responder import Responder
from broker.server.client.tls import client_context
from broker.server.process.log import logger
from broker.server.process.printable import printable

FETCHES_MAX: Final = 16
MISSED_MAX: Final = 4096
MISSED_FOR_S: Final = 5.0
JWT_BYTES_MAX: Final = 1 << 20


class ClaimsRefused(Exception):
    """str() is the reason that the client gets."""

    def __init__(self, reason: str, account: str = "n/a") -> None:
        super().__init__(reason)
        self.account = account


class AccountFetching:
    """One per server with such a resolver."""

    def __init__(self, responder: Responder, install: Callable[[str, str], None]) -> None:
        """`install` raises ClaimsRefused."""
        self._responder = responder
        self._observed = responder.observed
        self._install = install
        self._turns = AddressTurns(FETCHES_MAX)
        # Their own: anybody can start fetches from a URL that is slow, and checkpoints, backups and
        # name lookups wait for the threads that all share.
        self._threads = ThreadPoolExecutor(FETCHES_MAX, "account fetch")
        self._under_way: dict[str, asyncio.Event] = {}
        self._missed: dict[str, float] = {}  # account: when it may be asked for again
        self._inbox = f"$SYS._INBOX.{secrets.token_hex(8)}."
        self._waiting: dict[bytes, asyncio.Future[str]] = {}
        responder.listen(f"{self._inbox}*", self._answered)

    @property
    def _options(self) -> ResolverOptions:
        options = self._observed.server.options.resolver
        assert options is not None, "only started with a resolver"
        return options

    def lacks(self, account: str) -> bool:
        """Whether the account has to be fetched before its user can be judged."""
        server, now = self._observed.server, asyncio.get_running_loop().time()
        if self._missed.get(account, now) > now:
            return False
        known = server.options.authorization.tokens or {}
        return account not in known or self._is_old(account)

    def _is_old(self, account: str) -> bool:
        options = self._options
        if not options.ttl_ns or account in options.preload:
            return False
        try:
            return AccountDirectory(options.directory).age_s(account) > options.ttl_ns / 1e9
        except OSError:
            return True

    async def fetch(self, account: str, address: str, *, wanted: Callable[[], bool]) -> None:
        """Fetch for a client at this address, if it is still connected when its turn comes. Clients
        of one account wait for the same fetch."""
        while (under_way := self._under_way.get(account)) is not None:
            await under_way.wait()
            if not self.lacks(account):
                return  # otherwise the one that it was for has gone
        done = self._under_way[account] = asyncio.Event()
        try:
            async with self._turns.taken(address):
                if wanted():
                    await self._fetch(account)
        finally:
            del self._under_way[account]
            done.set()

    async def _fetch(self, account: str) -> None:
        options = self._options
        timeout_s = options.timeout_ns / 1e9
        try:
            if options.url:
                loop = asyncio.get_running_loop()
                url = options.url + account
                tls = options.tls or TlsOptions()
                text = await loop.run_in_executor(self._threads, _downloaded, url, tls, timeout_s)
            else:
                text = await self._looked_up(account, timeout_s)
            self._install(account, text)
        except (ClaimsRefused, OSError, ValueError, TimeoutError) as failed:
            reason = str(failed) or "timeout"
            logger.warning("%s", printable(f"Account [{account}] fetch failed: {reason}"))
            if len(self._missed) >= MISSED_MAX:
                self._missed.clear()
            self._missed[account] = asyncio.get_running_loop().time() + MISSED_FOR_S

    async def _looked_up(self, account: str, timeout_s: float) -> str:
        """Ask the servers that keep every account. Raises TimeoutError."""
        token = secrets.token_hex(8).encode()
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._waiting[token] = future
        observed = self._observed
        try:
            async with asyncio.timeout(timeout_s):
                observed.server.router.publish(
                    observed.system_account,
                    f"$SYS.REQ.ACCOUNT.{account}.CLAIMS.LOOKUP".encode(),
                    self._inbox.encode() + token,
                    b"",
                    b"",
                )
                return await future
        finally:
            del self._waiting[token]

    def _answered(self, subject: bytes, _reply: bytes, _headers: bytes, payload: bytes) -> None:
        """A server that does not know the account answers with nothing: another one may."""
        future = self._waiting.get(subject[len(self._inbox) :])
        if future is not None and not future.done() and payload:
            future.set_result(payload.decode(errors="replace"))


def _downloaded(url: str, tls: TlsOptions, timeout_s: float) -> str:
    """Raises OSError or ValueError."""
    import http.client  # here: most servers never need them
    import urllib.error
    import urllib.request

    try:
        context = client_context(tls) if url.startswith("https:") else None
        with urllib.request.urlopen(  # noqa: S310 - http or https
            url, timeout=timeout_s, context=context
        ) as answer:
            body: bytes = answer.read(JWT_BYTES_MAX)
    except urllib.error.HTTPError as error:
        raise ValueError(f"could not fetch <{url}>: {error.code} {error.reason}") from error
    except http.client.HTTPException as error:
        raise ValueError(f"could not fetch <{url}>: {type(error).__name__}") from error
    return body.decode().strip()
