"""The timers of one connection: handshake, authentication, pings.

Owns: when to ask whether the client is still there, and when to give up on it.
May not touch: the protocol; it tells the connection what to send.
Spec: core contract 1.9, 3.8 and 4."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from random import random
from typing import TYPE_CHECKING

from broker.server.client.close_reason import Reason
from broker.server.process.log import logger

if TYPE_CHECKING:
    from broker.server.client.endpoint import Endpoint

FIRST_PING_SECONDS = 2.0


class ConnectionTimers:
    """One timer at a time: handshake, then CONNECT, then pings until the end."""

    __slots__ = (
        "_connection",
        "_end",
        "_fallback",
        "_last_heard",
        "_loop",
        "_outstanding",
        "_ping_sent",
        "_timer",
        "rtt_s",
    )

    def __init__(self, connection: Endpoint, loop: asyncio.AbstractEventLoop) -> None:
        self._connection = connection
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._fallback: asyncio.TimerHandle | None = None
        self._end: asyncio.TimerHandle | None = None
        self._outstanding = 0
        self._ping_sent = 0.0
        self._last_heard = 0.0
        self.rtt_s = 0.0

    def stop(self) -> None:
        self._quiet()
        self.end_at(0, "")

    def _quiet(self) -> None:
        for timer in (self._timer, self._fallback):
            if timer is not None:
                timer.cancel()
        self._timer = self._fallback = None

    def _arm(self, seconds: float, action: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, action)

    # -- TLS handshake ----------------------------------------------------------------------

    def await_handshake(self, seconds: float) -> None:
        self._arm(seconds, self._handshake_timeout)

    def await_first_bytes(self, seconds: float) -> None:
        self._fallback = self._loop.call_later(seconds, self._connection.clear_info)

    def first_bytes_seen(self) -> None:
        if self._fallback is not None:
            self._fallback.cancel()
            self._fallback = None

    def handshake_done(self) -> None:
        self._quiet()

    def _handshake_timeout(self) -> None:
        logger.error("%s - TLS handshake timeout", self._connection.label)
        self._connection.fail("Secure Connection - TLS Required", Reason.TLS_HANDSHAKE_ERROR)

    # -- CONNECT ----------------------------------------------------------------------------

    def await_connect(self) -> None:
        """Only a server that wants credentials waits for them with a clock."""
        connection = self._connection
        if connection.authorized:
            self.start_pings()
            return
        self._arm(connection.entrance.auth_timeout_s, self._look_once_more)

    def connect_seen(self) -> None:
        self._quiet()

    def end_at(self, moment: float, farewell: str) -> None:
        """The time of the user is over then (seconds since 1970); 0 = never."""
        if self._end is not None:
            self._end.cancel()
            self._end = None
        if moment:
            self._end = self._loop.call_later(max(0.0, moment - time.time()), self._over, farewell)

    def _over(self, farewell: str) -> None:
        logger.debug("%s - %s", self._connection.label, farewell)
        self._connection.fail(farewell, Reason.AUTHENTICATION_EXPIRED)

    def _look_once_more(self) -> None:
        """Bytes that are already in the socket beat the clock: let the loop read first."""
        self._arm(0.0, self._auth_timeout)

    def _auth_timeout(self) -> None:
        connection = self._connection
        if connection.connect_received:
            return
        logger.error("%s - Authentication Timeout", connection.label)
        connection.fail("Authentication Timeout", Reason.AUTHENTICATION_TIMEOUT)

    # -- pings ------------------------------------------------------------------------------

    def start_pings(self) -> None:
        interval = self._connection.entrance.ping_interval_s
        first = min(interval, FIRST_PING_SECONDS)
        self._arm(first * (1 + 0.2 * random()), self._ping_due)

    def activity(self) -> None:
        """A PING, SUB or UNSUB of the client: it lives, no need to ask."""
        self._last_heard = self._loop.time()

    def pong(self) -> None:
        if self._outstanding:
            # The loop's clock counts milliseconds; a round trip here is often shorter.
            self.rtt_s = time.perf_counter() - self._ping_sent
        self._outstanding = 0

    def _ping_due(self) -> None:
        connection = self._connection
        ping = connection.server.options.ping
        interval = connection.entrance.ping_interval_s
        now = self._loop.time()
        quiet = now - self._last_heard >= interval or not self.rtt_s
        if quiet and connection.pingable:
            if self._outstanding + 1 > ping.outstanding_max:
                logger.debug("%s - Stale Client Connection - Closing", connection.label)
                connection.server.counters.stale_connections += 1
                connection.fail("Stale Connection", Reason.STALE_CONNECTION)
                return
            self._outstanding += 1
            self._ping_sent = time.perf_counter()
            connection.queue(b"PING\r\n")
        self._arm(interval, self._ping_due)
