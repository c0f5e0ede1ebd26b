"""A stream as text.

Owns: the words of `stream info`.
May not touch: servers; it gets documents."""

from __future__ import annotations

from typing import Any

from broker.cli.output.tables import facts
from broker.cli.output.units import age, duration, size

Document = dict[str, Any]


def print_stream(info: Document) -> None:
    config, state = info["config"], info.get("state", {})
    replicas = int(config.get("num_replicas", 1))
    kept = [str(config.get("storage")), f"{replicas} replica{'s' if replicas > 1 else ''}",
            f"retention {config.get('retention')}"]  # fmt: skip
    if config.get("compression") not in (None, "", "none"):
        kept.append(str(config["compression"]))
    if config.get("sealed"):
        kept.append("sealed")
    facts(
        f"stream {config['name']}",
        [
            ("description", config.get("description")),
            ("subjects", ", ".join(config.get("subjects") or [])),
            ("storage", ", ".join(kept)),
            ("limits", ", ".join(limits(config))),
            ("mirror of", _origin(info.get("mirror") or config.get("mirror"))),
            *(("source", _origin(one)) for one in info.get("sources") or []),
            ("messages", _messages(state)),
            ("deleted", state.get("num_deleted") or None),
            ("subjects in use", state.get("num_subjects") or None),
            ("consumers", int(state.get("consumer_count", 0))),
            *_replicas(info.get("cluster")),
            *(("mirrored by", str(one.get("name"))) for one in info.get("alternates") or []
              if one.get("name") != config["name"]),
        ],
    )  # fmt: skip


def _messages(state: Document) -> str:
    count = int(state.get("messages", 0))
    text = f"{count:,} ({size(int(state.get('bytes', 0)))})"
    if count:
        return f"{text}, sequences {state.get('first_seq', 0)} to {state.get('last_seq', 0)}"
    last = state.get("last_seq", 0)
    return f"{text}, the last sequence was {last}" if last else "none"


def limits(config: Document) -> list[str]:
    found = []
    for name, words, shown in (
        ("max_msgs", "messages", "{:,}".format),
        ("max_bytes", "", size),
        ("max_age", "", duration),
        ("max_msgs_per_subject", "messages per subject", "{:,}".format),
        ("max_msg_size", "per message", size),
        ("max_consumers", "consumers", "{:,}".format),
    ):
        value = int(config.get(name) or 0)
        if value > 0:
            found.append(f"{shown(value)} {words}".rstrip())
    if found and config.get("discard") == "new":
        found.append("publishes beyond that are refused")
    return found


def _origin(origin: Document | None) -> str:
    if not origin:
        return ""
    text = str(origin.get("name"))
    if "lag" in origin:
        seen = int(origin.get("active", -1))
        text += f", {origin['lag']:,} behind" + (
            f", seen {age(seen / 1e9)} ago" if seen >= 0 else ""
        )
    if origin.get("error"):
        text += f", {origin['error'].get('description')}"
    return text


def _replicas(cluster: Document | None) -> list[tuple[str, str]]:
    if not cluster:
        return []
    rows = [("leader", str(cluster.get("leader") or "none"))]
    for peer in cluster.get("replicas") or []:
        condition = "current" if peer.get("current") else f"{peer.get('lag', 0)} log entries behind"
        if peer.get("offline"):
            condition = "offline"
        seen = f", seen {age(peer['active'] / 1e9)} ago" if peer.get("active") else ""
        rows.append(("follower", f"{peer.get('name')} ({condition}{seen})"))
    return rows
