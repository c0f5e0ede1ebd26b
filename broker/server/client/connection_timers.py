"""The timers of one connection: TLS handshake, authentication, pings, expiry of the user.

Owns: when to ping the client, and when to give up on it.
May not touch: the protocol; it tells the connection what to send.
Spec: NATS client protocol, PING and PONG; timeouts of `authorization` and `tls`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from random import random
from typing import Protocol

from broker.server.client.close_reason import ClosableConnection, Reason
from broker.server.client.listener_profile import ListenerProfile
from broker.server.process.log import logger

FIRST_PING_SECONDS = 2.0

TIMER_SLACK_S = 0.002  # a timer of the loop may fire a millisecond early


class TimedConnection(ClosableConnection, Protocol):
    @property
    def authorized(self) -> bool: ...
    @property
    def connect_received(self) -> bool: ...
    @property
    def pingable(self) -> bool: ...
    def queue(self, data: bytes | memoryview) -> None: ...
    def clear_info(self) -> None:
        """Send INFO unencrypted: the client has not begun a TLS handshake."""


class ConnectionTimers:
    """One timer at a time: TLS handshake, then CONNECT, then pings until the close."""

    __slots__ = (
        "_begun",
        "_connection",
        "_end",
        "_fallback",
        "_last_heard",
        "_loop",
        "_outstanding",
        "_ping_sent",
        "_profile",
        "_timer",
        "rtt_s",
    )

    def __init__(
        self,
        connection: TimedConnection,
        profile: ListenerProfile,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._connection = connection
        self._profile = profile
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._fallback: asyncio.TimerHandle | None = None
        self._end: asyncio.TimerHandle | None = None
        self._outstanding = 0
        self._ping_sent = 0.0
        self._last_heard = 0.0
        self.rtt_s = 0.0
        self._begun = time.perf_counter()

    def stop(self) -> None:
        self._cancel()
        self.end_at(0, "")

    def _cancel(self) -> None:
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
        self._cancel()

    def _handshake_timeout(self) -> None:
        logger.error("%s - TLS handshake timeout", self._connection.label)
        self._connection.fail("Secure Connection - TLS Required", Reason.TLS_HANDSHAKE_ERROR)

    # -- CONNECT ----------------------------------------------------------------------------

    def await_connect(self) -> None:
        """Start the authentication timeout, if this server requires credentials."""
        connection = self._connection
        if connection.authorized:
            self.start_pings()
            return
        self._arm(self._profile.auth_timeout_s, self._read_first)

    def connect_seen(self) -> None:
        self._cancel()

    def end_at(self, moment: float, farewell: str) -> None:
        """Close when the user expires, at `moment` (seconds since 1970; 0: never)."""
        if self._end is not None:
            self._end.cancel()
            self._end = None
        if moment:
            delay_s = max(0.0, moment - time.time()) + TIMER_SLACK_S
            self._end = self._loop.call_later(delay_s, self._expired, farewell)

    def _expired(self, farewell: str) -> None:
        logger.debug("%s - %s", self._connection.label, farewell)
        self._connection.fail(farewell, Reason.AUTHENTICATION_EXPIRED)

    def _read_first(self) -> None:
        """Let the loop read once more: a CONNECT already in the socket buffer is in time."""
        self._arm(0.0, self._auth_timeout)

    def _auth_timeout(self) -> None:
        connection = self._connection
        if connection.connect_received:
            return
        logger.error("%s - Authentication Timeout", connection.label)
        connection.fail("Authentication Timeout", Reason.AUTHENTICATION_TIMEOUT)

    # -- pings ------------------------------------------------------------------------------

    def start_pings(self) -> None:
        """The client has logged in. The time that took is the first estimate of its RTT."""
        self.rtt_s = self.rtt_s or time.perf_counter() - self._begun
        interval = self._profile.ping_interval_s
        first = min(interval, FIRST_PING_SECONDS)
        self._arm(first * (1 + 0.2 * random()), self._ping_due)

    def activity(self) -> None:
        """The client sent PUB, PING, SUB or UNSUB: it is alive, so no ping is due."""
        self._last_heard = self._loop.time()

    def pong(self) -> None:
        if self._outstanding:
            # Not the loop's clock: it counts milliseconds, and an RTT is often shorter.
            self.rtt_s = time.perf_counter() - self._ping_sent
        self._outstanding = 0

    def _ping_due(self) -> None:
        connection = self._connection
        context = self._profile.context
        ping = context.settings.options.ping
        interval = self._profile.ping_interval_s
        now = self._loop.time()
        quiet = now - self._last_heard >= interval or not self.rtt_s
        if quiet and connection.pingable:
            if self._outstanding + 1 > ping.outstanding_max:
                logger.debug("%s - Stale Client Connection - Closing", connection.label)
                context.connections.counters.stale_connections += 1
                connection.fail("Stale Connection", Reason.STALE_CONNECTION)
                return
            self._outstanding += 1
            self._ping_sent = time.perf_counter()
            connection.queue(b"PING\r\n")
        self._arm(interval, self._ping_due)
