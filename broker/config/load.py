"""From a command line to Options: the file first, then flags, then the checks.

Owns: that order, and the digest of the file.
May not touch: the process."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

from msgspec.structs import replace

from broker.config.draft import BadOptions, Draft
from broker.config.file.apply import BadConfiguration, apply
from broker.config.file.parser import ParseError, parse_file
from broker.config.flags import CommandLine, UsageError, parse_flags
from broker.config.options import Options

__all__ = ["BadSettings", "CommandLine", "Loaded", "UsageError", "load", "parse_flags"]


class BadSettings(Exception):
    """The server cannot start; str() is the message for the operator (one fault per line)."""


@dataclass(frozen=True, slots=True)
class Loaded:
    options: Options
    warnings: tuple[str, ...]
    included: tuple[str, ...] = ()  # paths


def load(line: CommandLine) -> Loaded:
    """Raises BadSettings."""
    draft = Draft()
    digest = ""
    included: list[str] = []
    try:
        if line.config_file:
            tree, raw = parse_file(line.config_file, included)
            digest = f"sha256:{sha256(raw).hexdigest()}"
            if not tree:
                draft.warnings.append(f"configuration file {line.config_file} is empty")
            apply(tree, draft, path=line.config_file)
        line.apply(draft)
        options = draft.build()
    except (ParseError, BadConfiguration, BadOptions) as error:
        raise BadSettings(str(error)) from error
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise BadSettings(f"error opening config file: open {error.filename}: {reason}") from error
    if line.config_file:
        options = replace(options, config_file=line.config_file, config_digest=digest)
    return Loaded(options, tuple(draft.warnings), tuple(included))
