"""`jetraft serve`: run one node with nats-server's flags.

Owns: the hand-over of the words to the server.
May not touch: anything else; start-up time is counted here, so imports stay few.
Spec: core contract 6.1."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def serve(argv: Sequence[str] | None = None) -> int:
    """Runs until the server ends; returns the exit code."""
    from broker.main import main

    return main(sys.argv[1:] if argv is None else argv)


if __name__ == "__main__":
    sys.exit(serve())
