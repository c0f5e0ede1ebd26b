"""JetStream API errors: a code, its text, and whether the outcome is definite.

Owns: the table read from errors.json, and the one exception type for all refused requests.
May not touch: sockets, replies, state; callers that answer requests encode the error.
Spec: nats-server's errors.json; error bodies `{"code","err_code","description"}`."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from typing import Final

import msgspec

from broker.jetstream.error_codes import ErrCode

__all__ = ["API_ERRORS", "ErrCode", "ErrorBody", "ErrorEntry", "JetStreamError"]


class ErrorEntry(msgspec.Struct, frozen=True):
    """One entry of errors.json. `{name}` placeholders in the description are filled by
    JetStreamError.of."""

    constant: str
    code: int
    error_code: int
    description: str


class ErrorBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """The `error` object of a failed response."""

    code: int
    err_code: int = 0
    description: str = ""


def _load() -> dict[int, ErrorEntry]:
    raw = files("broker.jetstream").joinpath("errors.json").read_bytes()
    entries = msgspec.json.decode(raw, type=list[ErrorEntry])
    return {entry.error_code: entry for entry in entries}


API_ERRORS: Final[dict[int, ErrorEntry]] = _load()


@dataclass(eq=False)
class JetStreamError(Exception):
    """The request is refused with `err_code`.

    It is raised, or returned as the result of applying a log entry. `definite` is False if the
    operation may still happen (leadership lost after append, timeout): then the answer must not
    claim that it failed.
    """

    err_code: ErrCode
    description: str = ""
    definite: bool = True

    def __post_init__(self) -> None:
        if not self.description:
            self.description = API_ERRORS[self.err_code].description

    @classmethod
    def of(cls, err_code: ErrCode, *, definite: bool = True, **facts: object) -> JetStreamError:
        """The error with the placeholders of its description filled from `facts`."""
        description = API_ERRORS[err_code].description
        for name, value in facts.items():
            description = description.replace("{" + name + "}", str(value))
        return cls(err_code, description, definite)

    @property
    def code(self) -> int:
        """The HTTP-like status that goes with the error code."""
        return API_ERRORS[self.err_code].code

    def body(self) -> ErrorBody:
        return ErrorBody(self.code, int(self.err_code), self.description)

    def __str__(self) -> str:
        return f"{self.description} ({self.err_code:d})"
