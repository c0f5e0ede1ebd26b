"""The hubs that this server connects to as a leaf node: dial and retry.

Owns: one task per remote, which connects, waits until the connection has ended, and retries.
May not touch: the protocol on the connection (dialed_leaf.py).
Spec: nats-server, `leafnodes.remotes`: URLs are tried one by one in random order, including those
discovered from the hub's INFO; a second between two attempts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from urllib.parse import SplitResult, urlsplit

from broker.config.options import LeafRemote
from broker.server.client.close_reason import Reason
from broker.server.leaf.dialed_leaf import DialedLeaf
from broker.server.leaf.http_tunnel import tunnel
from broker.server.leaf.leaf_nodes import LeafNodes
from broker.server.leaf.leaf_profile import LeafProfile
from broker.server.leaf.leaf_websocket import SCHEMES, LeafWebSocket
from broker.server.process.log import logger
from broker.server.process.remote_login import LoginFailed, tls_context

JITTER = 0.25  # of the pause between two attempts
DEFAULT_PORT = 7422
HTTP_PORT, HTTPS_PORT = 80, 443
DISCOVERED_MAX = 64  # URLs of the hub's cluster that are remembered


class RemoteHub:
    """One remote of the configuration."""

    def __init__(
        self,
        remote: LeafRemote,
        profile: LeafProfile,
        table: LeafNodes,
        *,
        shuffle: Callable[[list[str]], None],
        draw: Callable[[], float],
    ) -> None:
        """`draw` returns a random number from 0 to 1."""
        self.remote = remote
        self.connection: DialedLeaf | None = None
        self.attempts = 0
        self.last_pause_s = 0.0  # the pause that the last connection asked for
        self._profile = profile
        self._table = table
        self._draw = draw
        self._urls = list(remote.urls)
        if not remote.no_randomize:
            shuffle(self._urls)
        self._discovered: list[str] = []
        self._stopped = False
        self._was_connected = False
        self._failed = 0  # attempts since the last connection

    async def run(self) -> None:
        """Runs until `stop`. Cancellation closes the connection as well."""
        try:
            for url in self._next_url():
                if self._stopped:
                    return
                self.last_pause_s = await self._connect(_split(url))
                self.attempts += 1
                base_s = self.last_pause_s or self._profile.options.reconnect_ns / 1e9
                await asyncio.sleep(base_s * (1 + JITTER * self._draw()))
        finally:
            self.stop()

    def _next_url(self) -> Iterator[str]:
        """Cycles through the configured URLs and those discovered from the hub."""
        while True:
            known = {_place(url) for url in self._urls}
            yield from [*self._urls, *(one for one in self._discovered if _place(one) not in known)]

    async def _connect(self, url: SplitResult) -> float:
        """One connection, from dialing to its end. Returns the pause that it asks for."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()

        def end(_: object = None) -> None:
            if not ended.done():
                ended.set_result(None)

        connection = DialedLeaf(self._profile, self._table, loop, remote=self.remote, url=url)
        connection.on_end = end
        try:
            async with asyncio.timeout(self._dial_within_s):
                await self._open(connection, url, end)
        except (OSError, TimeoutError, LoginFailed) as error:
            self._failed += 1
            if self._failed % self._report_every == 1 or self._report_every == 1:
                reason = str(error) or "timeout"
                logger.error("Error trying to connect as leafnode to remote server: %s", reason)
            return 0.0
        self.connection, self._was_connected, self._failed = connection, True, 0
        await ended
        self.connection = None
        if not self.remote.ignore_discovered_servers:
            self._discovered = self._usable(connection.discovered, url)
        return connection.pause_s

    @property
    def _report_every(self) -> int:
        """Failed attempts between two log lines, after the first."""
        logging = self._profile.server_options.logging
        if self._was_connected:
            return logging.reconnect_error_reports
        return logging.connect_error_reports

    @property
    def _dial_within_s(self) -> float:
        dial_ns = self.remote.dial_timeout_ns or self._profile.options.dial_timeout_ns
        proxy = self.remote.proxy
        return (dial_ns if proxy is None else proxy.timeout_ns or dial_ns) / 1e9

    async def _open(
        self, connection: DialedLeaf, url: SplitResult, end: Callable[[], None]
    ) -> None:
        """Raises OSError, LoginFailed."""
        loop, host = connection.loop, url.hostname or ""
        if url.scheme not in SCHEMES:
            await loop.create_connection(lambda: connection, host, url.port or DEFAULT_PORT)
            return
        secure = url.scheme == "wss" or self.remote.tls is not None
        websocket = LeafWebSocket(
            connection,
            self.remote,
            url,
            loop=loop,
            turns=self._profile.context.turns,
            max_payload=self._profile.server_options.limits.max_payload,
            refused=end,
        )
        port = url.port or (HTTPS_PORT if secure else HTTP_PORT)
        context = tls_context(self.remote.tls) if secure else None
        name = host if secure else None
        if self.remote.proxy is None:
            await loop.create_connection(
                lambda: websocket, host, port, ssl=context, server_hostname=name
            )
            return
        through = await tunnel(self.remote.proxy, host, port)
        try:
            await loop.create_connection(
                lambda: websocket, sock=through, ssl=context, server_hostname=name
            )
        except BaseException:
            through.close()
            raise

    def _usable(self, found: Sequence[str], url: SplitResult) -> list[str]:
        """Discovered URLs, with the scheme and credentials of the URL we had dialed."""
        user = url.netloc.rpartition("@")[0]
        prefix = f"{url.scheme}://{user}@" if user else f"{url.scheme}://"
        return [prefix + one for one in found[:DISCOVERED_MAX]]

    def stop(self) -> None:
        self._stopped = True
        if self.connection is not None:
            self.connection.close(Reason.SERVER_SHUTDOWN)


def _split(url: str) -> SplitResult:
    return urlsplit(url if "//" in url else f"nats-leaf://{url}")


def _place(url: str) -> str:
    return _split(url).netloc.rpartition("@")[2]
