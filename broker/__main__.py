"""`python -m broker <command>`: the jetraft command without its installed name."""

from __future__ import annotations

import sys


def run() -> int:
    """`serve` starts without importing the other commands: a server must start quickly."""
    if sys.argv[1:2] == ["serve"]:
        from broker.cli.serve import serve

        return serve(sys.argv[2:])
    from broker.cli.main import main

    main()
    return 0


if __name__ == "__main__":
    sys.exit(run())
