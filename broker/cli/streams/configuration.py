"""The options of a stream's configuration, for `add`, `edit` and `copy`.

Owns: which option becomes which field.
May not touch: servers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click

from broker.cli.connect.failures import CommandFailed
from broker.cli.output.units import DURATION_OR_ZERO, SIZE

Config = dict[str, Any]
COUNT = click.IntRange(-1)

Option = tuple[str, str, dict[str, Any]]  # flag, field, settings of click

_OPTIONS: tuple[Option, ...] = (
    ("--subjects", "subjects", {"help": "Subjects to capture, separated by commas."}),
    ("--replicas", "num_replicas",
     {"type": click.IntRange(1, 5), "help": "Number of replicas, each on a different node."}),
    ("--storage", "storage",
     {"type": click.Choice(["file", "memory"]), "help": "Keep messages in files or in memory."}),
    ("--retention", "retention",
     {"type": click.Choice(["limits", "interest", "workqueue"]),
      "help": "When messages are removed: by limits, or when consumers have acked them."}),
    ("--discard", "discard",
     {"type": click.Choice(["old", "new"]),
      "help": "When the stream is full: remove old messages, or refuse new ones."}),
    ("--max-msgs", "max_msgs",
     {"type": COUNT, "help": "Keep at most this many messages; -1: no limit."}),
    ("--max-bytes", "max_bytes", {"type": SIZE, "help": "Keep at most this many bytes (10GiB)."}),
    ("--max-age", "max_age",
     {"type": DURATION_OR_ZERO, "help": "Keep messages this long (1h30m); 0: no limit."}),
    ("--max-msgs-per-subject", "max_msgs_per_subject",
     {"type": COUNT, "help": "Keep at most this many messages per subject."}),
    ("--max-msg-size", "max_msg_size", {"type": SIZE, "help": "Refuse larger messages."}),
    ("--max-consumers", "max_consumers",
     {"type": COUNT, "help": "Allow at most this many consumers."}),
    ("--dupe-window", "duplicate_window",
     {"type": DURATION_OR_ZERO, "help": "Remember message ids for this long, to drop duplicates."}),
    ("--compression", "compression",
     {"type": click.Choice(["none", "s2"]), "help": "Compress the files."}),
    ("--description", "description", {"help": "Description."}),
    ("--mirror", "mirror", {"help": "Mirror this stream; a mirror has no subjects of its own."}),
    ("--source", "sources",
     {"multiple": True, "help": "Copy messages from this stream; may be repeated."}),
    ("--tag", "tags",
     {"multiple": True, "help": "Place replicas only on servers with this tag; may be repeated."}),
    ("--metadata", "metadata", {"multiple": True, "help": "Name=value, may be repeated."}),
    ("--allow-direct/--no-allow-direct", "allow_direct",
     {"default": None, "help": "Let every replica answer direct gets."}),
    ("--allow-rollup/--no-allow-rollup", "allow_rollup_hdrs",
     {"default": None, "help": "Allow messages that replace all earlier ones (Nats-Rollup)."}),
    ("--allow-msg-ttl/--no-allow-msg-ttl", "allow_msg_ttl",
     {"default": None, "help": "Allow a TTL per message (Nats-TTL)."}),
    ("--deny-delete/--no-deny-delete", "deny_delete",
     {"default": None, "help": "Refuse to delete single messages."}),
    ("--deny-purge/--no-deny-purge", "deny_purge", {"default": None, "help": "Refuse purges."}),
)  # fmt: skip


def stream_options(command: Callable[..., Any]) -> Callable[..., Any]:
    return with_options(_OPTIONS, command)


def with_options(options: tuple[Option, ...], command: Callable[..., Any]) -> Callable[..., Any]:
    """The command, with these options of a configuration and with `--config`."""
    for flag, name, settings in reversed(options):
        command = click.option(flag, name, **settings)(command)
    return click.option(
        "--config", "file", type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="Read the configuration from this JSON file; options override it.",
    )(command)  # fmt: skip


def configured(base: Config, file: Path | None, given: dict[str, Any]) -> Config:
    """`base`, then the file, then the options."""
    config = base | (from_file(file) if file else {})
    for name, value in given.items():
        if value is None or value == ():
            continue
        if name == "subjects":
            config["subjects"] = words(value)
        elif name == "mirror":
            config["mirror"] = {"name": value}
        elif name == "sources":
            config["sources"] = [{"name": one} for one in value]
        elif name == "tags":
            config["placement"] = dict(config.get("placement") or {}) | {"tags": list(value)}
        elif name == "metadata":
            config["metadata"] = dict(config.get("metadata") or {}) | pairs(value)
        else:
            config[name] = value
    return config


def from_file(file: Path) -> Config:
    """A configuration, or an info that has one (as `--json` prints it)."""
    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise CommandFailed(f"{file}: {error}") from error
    if not isinstance(found, dict):
        raise CommandFailed(f"{file}: not a JSON object")
    config = found.get("config", found)
    if not isinstance(config, dict):
        raise CommandFailed(f"{file}: config is not a JSON object")
    return dict(config)


def words(text: str) -> list[str]:
    """Separated by commas or blanks."""
    return [word for word in text.replace(",", " ").split() if word]


def pairs(given: Iterable[str]) -> dict[str, str]:
    found = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not equals or not name:
            raise click.BadParameter(f'"{one}" is not name=value', param_hint="--metadata")
        found[name] = value
    return found


def differences(before: Config, after: Config) -> list[tuple[str, str, str]]:
    """Fields that change, with their old and new text."""
    return [
        (name, _text(before.get(name)), _text(after.get(name)))
        for name in sorted({*before, *after})
        if before.get(name) != after.get(name)
    ]


def _text(value: Any) -> str:
    return "-" if value is None else value if isinstance(value, str) else json.dumps(value)
