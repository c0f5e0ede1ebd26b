"""The options in force, and what is derived from them for clients.

Owns: the current options, the authenticator and the TLS context; a reload replaces all three.
May not touch: connections; the server applies a reload to them.
Spec: NATS server configuration, reload."""

from __future__ import annotations

import ssl
import time

from broker.accounts.authentication import Authenticator
from broker.config.options import Options
from broker.server.client.tls import load_context, renew

DEFAULT_AUTH_SECONDS = 2.0


class ServerSettings:
    """Do not cache `options`: a reload replaces the object."""

    __slots__ = ("authenticator", "loaded", "options", "tls_context")

    def __init__(self, options: Options) -> None:
        self.options = options
        self.authenticator = Authenticator(options.authorization)
        self.tls_context: ssl.SSLContext | None = None
        self.loaded = time.time()

    def load_certificates(self) -> None:
        """Raises StartFailed."""
        if self.options.tls is not None:
            self.tls_context = load_context(self.options.tls)

    def replace(self, options: Options) -> None:
        """Raises StartFailed when the certificates cannot be read; nothing has changed then."""
        context = None if options.tls is None else load_context(options.tls)
        if self.tls_context is not None and options.tls is not None:
            renew(self.tls_context, options.tls)  # in place: the monitoring port holds this context
        self.options = options
        self.authenticator = Authenticator(options.authorization)
        self.tls_context = context
        self.loaded = time.time()

    @property
    def auth_timeout_s(self) -> float:
        configured = self.options.authorization.timeout_ns
        if configured is not None:
            return configured / 1e9
        if self.options.tls is not None:
            return self.options.tls.timeout_ns / 1e9 + 1.0
        return DEFAULT_AUTH_SECONDS
