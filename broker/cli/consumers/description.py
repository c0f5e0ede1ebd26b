"""A consumer as text.

Owns: the words of `consumer info`.
May not touch: servers; it gets documents."""

from __future__ import annotations

from typing import Any

from broker.cli.output.tables import facts
from broker.cli.output.units import age, duration

Document = dict[str, Any]


def print_consumer(info: Document) -> None:
    config = info["config"]
    mode = f"push to {config['deliver_subject']}" if config.get("deliver_subject") else "pull"
    facts(
        f"consumer {info['stream_name']} > {info['name']}",
        [
            ("description", config.get("description")),
            ("mode", f"{mode}, ack {config.get('ack_policy')}, deliver {_start(config)}"),
            ("filter", filters(config) or "all subjects"),
            ("redelivers", _redelivery(config)),
            *((word, _position(info.get(field))) for word, field in
              (("delivered", "delivered"), ("ack floor", "ack_floor"))),
            ("pending", f"{info.get('num_pending', 0):,} to deliver, "
             f"{info.get('num_ack_pending', 0):,} unacked, "
             f"{info.get('num_redelivered', 0):,} redelivered"),
            ("waiting", f"{info.get('num_waiting', 0):,} pull requests"
             if not config.get("deliver_subject") else None),
            ("paused", f"{age(int(info.get('pause_remaining', 0)) / 1e9)} more"
             if info.get("paused") else None),
            ("leader", (info.get("cluster") or {}).get("leader")),
        ],
    )  # fmt: skip


def filters(config: Document) -> str:
    return str(config.get("filter_subject") or ",".join(config.get("filter_subjects") or []))


def _start(config: Document) -> str:
    policy = str(config.get("deliver_policy", "all"))
    if policy == "by_start_sequence":
        return f"from sequence {config.get('opt_start_seq')}"
    return str(config.get("opt_start_time")) if policy == "by_start_time" else policy


def _redelivery(config: Document) -> str:
    if config.get("ack_policy") == "none":
        return "never"
    most = int(config.get("max_deliver") or -1)
    waits = config.get("backoff") or [config.get("ack_wait") or 0]
    text = "after " + ", ".join(duration(int(one)) for one in waits)
    return text + (f", {most} deliveries at most" if most > 0 else "")


def _position(at: Document | None) -> str:
    found = at or {}
    last = f", {str(found['last_active'])[:19]}" if found.get("last_active") else ""
    consumer, stream = int(found.get("consumer_seq", 0)), int(found.get("stream_seq", 0))
    return f"{consumer:,} (stream sequence {stream:,}){last}"
