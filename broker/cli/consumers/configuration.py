"""The options of a consumer's configuration, for `add`, `edit` and `copy`.

Owns: which option becomes which field.
May not touch: servers."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from broker.cli.output.times import rfc3339, time_ns
from broker.cli.output.units import DURATION, DURATION_OR_ZERO, duration_ns
from broker.cli.streams.configuration import (
    COUNT,
    Config,
    Option,
    from_file,
    pairs,
    with_options,
    words,
)

_POLICIES = {
    "all": "all", "last": "last", "new": "new", "last_per_subject": "last_per_subject",
    "subject": "last_per_subject",
}  # fmt: skip

_OPTIONS: tuple[Option, ...] = (
    ("--filter", "filters",
     {"multiple": True, "help": "Only messages on this subject; may be repeated."}),
    ("--deliver", "deliver",
     {"help": "Where to start: all (the default), last, new, last_per_subject, a sequence, "
      "a duration ago (1h) or a time."}),
    ("--ack", "ack_policy",
     {"type": click.Choice(["explicit", "all", "none"]),
      "help": "Ack policy: each message, all up to a message, or none."}),
    ("--ack-wait", "ack_wait",
     {"type": DURATION, "help": "Redeliver messages that are not acked in this time."}),
    ("--max-deliver", "max_deliver",
     {"type": COUNT, "help": "Deliver a message at most this often; -1: no limit."}),
    ("--max-pending", "max_ack_pending",
     {"type": COUNT, "help": "Maximum number of messages that are not acked."}),
    ("--max-waiting", "max_waiting",
     {"type": COUNT, "help": "Maximum number of waiting pull requests."}),
    ("--backoff", "backoff", {"help": "Delays before redeliveries, separated by commas (1s,5s)."}),
    ("--replay", "replay_policy",
     {"type": click.Choice(["instant", "original"]),
      "help": "Deliver at full speed, or as fast as it was published."}),
    ("--target", "deliver_subject", {"help": "Push messages to this subject."}),
    ("--deliver-group", "deliver_group", {"help": "Queue group of a push consumer."}),
    ("--heartbeat", "idle_heartbeat",
     {"type": DURATION_OR_ZERO, "help": "Send a heartbeat when idle for this long (push)."}),
    ("--flow-control/--no-flow-control", "flow_control",
     {"default": None, "help": "Wait for a slow subscriber (push)."}),
    ("--headers-only/--no-headers-only", "headers_only",
     {"default": None, "help": "Deliver no payloads."}),
    ("--inactive", "inactive_threshold",
     {"type": DURATION_OR_ZERO, "help": "Delete the consumer when unused for this long."}),
    ("--replicas", "num_replicas",
     {"type": click.IntRange(0, 5),
      "help": "Replicas of the consumer's state; 0: as many as the stream."}),
    ("--memory/--no-memory", "mem_storage", {"default": None, "help": "Keep its state in memory."}),
    ("--sample", "sample_freq", {"help": "Sample this percentage of acks."}),
    ("--description", "description", {"help": "Description."}),
    ("--metadata", "metadata", {"multiple": True, "help": "Name=value, may be repeated."}),
)  # fmt: skip


def consumer_options(command: Callable[..., Any]) -> Callable[..., Any]:
    return with_options(_OPTIONS, command)


def configured_consumer(base: Config, file: Path | None, given: dict[str, Any]) -> Config:
    """`base`, then the file, then the options."""
    config = base | (from_file(file) if file else {})
    for name, value in given.items():
        if value is None or value == ():
            continue
        if name == "filters":
            config.pop("filter_subject", None)
            config.pop("filter_subjects", None)
            config |= {"filter_subject": value[0]} if len(value) == 1 else {
                "filter_subjects": list(value)}  # fmt: skip
        elif name == "deliver":
            for old in ("opt_start_seq", "opt_start_time"):
                config.pop(old, None)
            config |= start(value)
        elif name == "backoff":
            config["backoff"] = [_wait(word) for word in words(value)]
        elif name == "metadata":
            config["metadata"] = dict(config.get("metadata") or {}) | pairs(value)
        else:
            config[name] = value
    filtered = config.get("filter_subject") or config.get("filter_subjects")
    if config.get("deliver_policy") == "last_per_subject" and not filtered:
        config["filter_subject"] = ">"  # which servers want to be said
    return config


def start(text: str) -> Config:
    """Where a consumer starts."""
    if text in _POLICIES:
        return {"deliver_policy": _POLICIES[text]}
    if text.isdigit() and int(text) > 0:
        return {"deliver_policy": "by_start_sequence", "opt_start_seq": int(text)}
    moment = time_ns(text)
    if moment is None and (ago := duration_ns(text)):
        moment = time.time_ns() - ago
    if moment is None:
        known = ", ".join(_POLICIES)
        raise click.BadParameter(
            f'"{text}" is not one of {known}, a sequence, a duration or a time',
            param_hint="--deliver",
        )
    return {"deliver_policy": "by_start_time", "opt_start_time": rfc3339(moment)}


def _wait(word: str) -> int:
    found = duration_ns(word)
    if not found:
        raise click.BadParameter(f'"{word}" is not a duration', param_hint="--backoff")
    return found
