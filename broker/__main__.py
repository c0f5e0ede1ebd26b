"""`python -m broker` is the jetraft command."""

from broker.cli.main import main

if __name__ == "__main__":
    main()
