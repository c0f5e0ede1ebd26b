"""The TLS settings of a command; a module of its own because `ssl` is slow to import.

Owns: the context.
May not touch: sockets."""

from __future__ import annotations

import ssl

from broker.cli.connect.failures import CommandFailed
from broker.cli.connect.options import Destination


def client_context(to: Destination) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=to.ca or None)
        if to.cert:
            context.load_cert_chain(to.cert, to.key or None)
    except (OSError, ssl.SSLError) as error:
        raise CommandFailed(f"cannot use the certificates: {error}") from error
    return context
