"""Values of options as the user writes them: numbers, sizes, durations, times, flags, choices.

Owns: reading one value, and the sentence that says what is wrong with it.
May not touch: which options there are (options.py).
Spec: docs/spark.md."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final, TypeVar

_SIZE: Final = re.compile(r"(\d+)\s*([kmgt]?)i?b?", re.IGNORECASE)
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|min|h|d)?", re.IGNORECASE)
_SECONDS: Final = {"ms": 0.001, "s": 1, "": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_POWERS: Final = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}

Choice = TypeVar("Choice", bound=StrEnum)


class OptionError(ValueError):
    """An option of the user is wrong; the text says what is allowed."""


@dataclass(frozen=True, slots=True)
class Values:
    """By name as documented. Every method raises OptionError."""

    texts: Mapping[str, str]

    def get(self, name: str) -> str:
        return self.texts.get(name, "")

    def positive(self, name: str) -> int | None:
        text = self.texts.get(name)
        if text is None:
            return None
        if not text.isdecimal() or int(text) < 1:
            raise OptionError(f"{name} is a whole number from 1 on, not {text!r}")
        return int(text)

    def size(self, name: str) -> int | None:
        """Bytes: 1048576, 1024k or 1m."""
        text = self.texts.get(name)
        if text is None:
            return None
        match = _SIZE.fullmatch(text)
        size = int(match[1]) << _POWERS[match[2].lower()] if match else 0
        if size < 1:
            raise OptionError(
                f"{name} is a number of bytes such as 134217728 or 128m, not {text!r}"
            )
        return size

    def duration_s(self, name: str, default: float) -> float:
        text = self.texts.get(name)
        if text is None:
            return default
        match = _DURATION.fullmatch(text)
        if match is None:
            raise OptionError(f"{name} is a duration such as 500ms, 30s or 15m, not {text!r}")
        return float(match[1]) * _SECONDS[(match[2] or "").lower()]

    def time_ns(self, name: str) -> int | None:
        """Milliseconds since 1970, as Kafka's option, or ISO 8601; without a zone it is UTC."""
        text = self.texts.get(name)
        if text is None:
            return None
        if text.isdecimal():
            return int(text) * 1_000_000
        try:
            moment = datetime.fromisoformat(text)
        except ValueError as error:
            raise OptionError(
                f"{name} is milliseconds since 1970 or a time such as 2026-01-31T08:00:00Z, "
                f"not {text!r}"
            ) from error
        return nanoseconds(moment if moment.tzinfo else moment.replace(tzinfo=UTC))

    def flag(self, name: str, *, default: bool) -> bool:
        text = self.texts.get(name)
        if text is None:
            return default
        if text.lower() not in {"true", "false"}:
            raise OptionError(f"{name} is true or false, not {text!r}")
        return text.lower() == "true"

    def choice(self, name: str, default: Choice) -> Choice:
        text = self.texts.get(name)
        if text is None:
            return default
        try:
            return type(default)(text.lower())
        except ValueError as error:
            allowed = ", ".join(type(default))
            raise OptionError(f"{name} is one of {allowed}, not {text!r}") from error


def nanoseconds(moment: datetime) -> int:
    """Since 1970, without the rounding of a float."""
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return ((since.days * 86400 + since.seconds) * 1_000_000 + since.microseconds) * 1000
