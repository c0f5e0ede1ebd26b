"""The errors of reading the origin of a mirror or source.

Owns: the exceptions that end one attempt to read an origin.
May not touch: when the next attempt is made (origin_reader.py)."""

from __future__ import annotations

from broker.jetstream.errors import ErrCode

SETUP_FAILED = int(ErrCode.MIRROR_CONSUMER_SETUP_FAILED)


class OriginLost(Exception):
    """The connection or the consumer was lost, or messages are missing: connect again and
    continue after the last stored message."""


class OriginRefused(Exception):
    """The origin answered with an API error."""

    def __init__(self, reason: str, *, code: int = 500, err_code: int = SETUP_FAILED) -> None:
        super().__init__(reason)
        self.code = code
        self.err_code = err_code


class WrongConsumer(Exception):
    """The durable consumer does not acknowledge by flow control."""
