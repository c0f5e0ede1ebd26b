"""`jetraft serve`: run one node with nats-server's flags.

Owns: the call of the server with the command line.
May not touch: anything else. Start-up time matters here, so nothing is imported that the server
does not need, and garbage collection begins after the imports.
Spec: nats-server, command line."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence


def serve(argv: Sequence[str] | None = None) -> int:
    """Run until the server ends; returns the exit code."""
    gc.disable()  # imports allocate a lot and free nothing; main enables it again
    from broker.main import main

    return main(sys.argv[1:] if argv is None else argv)


if __name__ == "__main__":
    sys.exit(serve())
