"""Advisories and metrics: what they are called, where they go, what they say.

Owns: the subject, the type and the fields of every event this broker tells.
May not touch: who listens, ids and times; the sender adds those (cluster/advising.py).
Spec: JetStream advisories and metrics. The published schemas differ from the reference server in a
few places (consumer_seq as text, replicas as one object); what the server sends is followed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from broker.jetstream.api.info import PeerInfo, StreamState
from broker.jetstream.delivery.effects import Advisory
from broker.jetstream.strict_json import encode, to_wire
from broker.jetstream.times import rfc3339

ADVISORY_PREFIX: Final = "$JS.EVENT.ADVISORY."
METRIC_PREFIX: Final = "$JS.EVENT.METRIC."
ADVISORY_TYPE: Final = "io.nats.jetstream.advisory.v1."
METRIC_TYPE: Final = "io.nats.jetstream.metric.v1."
AUDIT_SUBJECT: Final = b"$JS.EVENT.ADVISORY.API"

# What delivery tells of single messages: its word, the subject, the type.
_OF_MESSAGES: Final = {
    "max_deliver": (f"{ADVISORY_PREFIX}CONSUMER.MAX_DELIVERIES.", f"{ADVISORY_TYPE}max_deliver"),
    "nak": (f"{ADVISORY_PREFIX}CONSUMER.MSG_NAKED.", f"{ADVISORY_TYPE}nak"),
    "terminated": (f"{ADVISORY_PREFIX}CONSUMER.MSG_TERMINATED.", f"{ADVISORY_TYPE}terminated"),
    "ack": (f"{METRIC_PREFIX}CONSUMER.ACK.", f"{METRIC_TYPE}consumer_ack"),
}
_ABOUT_PINS: Final = {"pinned": "pinned_id", "unpinned": "reason"}
_STREAM_ACTIONS: Final = {"create": "CREATED", "modify": "UPDATED", "delete": "DELETED"}


@dataclass(frozen=True, slots=True)
class Event:
    """One advisory or metric, before anybody was found to want it."""

    subject: bytes
    type: str
    fields: Mapping[str, object]


def encode_event(event: Event, *, event_id: str, now_ns: int, domain: str) -> bytes:
    """The body that goes out."""
    body = {"type": event.type, "id": event_id, "timestamp": rfc3339(now_ns), **event.fields}
    if domain:
        body["domain"] = domain
    return encode(body)


def of_delivery(fact: Advisory, *, account: str, stream: str, consumer: str) -> Event:
    """What happened to one message of a consumer, or to the pin of its clients."""
    if fact.kind in ("pinned", "unpinned"):
        pin: dict[str, object] = {"account": account, "stream": stream, "consumer": consumer}
        pin |= {"group": fact.group, _ABOUT_PINS[fact.kind]: fact.reason}
        subject = f"CONSUMER.{fact.kind.upper()}.{stream}.{consumer}"
        return _advisory(subject, f"consumer_group_{fact.kind}", pin)
    place, kind = _OF_MESSAGES[fact.kind]
    fields: dict[str, object] = {"stream": stream, "consumer": consumer}
    if fact.kind != "max_deliver":
        fields["consumer_seq"] = fact.consumer_seq
    fields["stream_seq"] = fact.stream_seq
    if fact.kind == "ack":
        fields["ack_time"] = fact.elapsed_ns
    fields["deliveries"] = fact.deliveries
    if fact.reason:
        fields["reason"] = fact.reason
    return Event(f"{place}{stream}.{consumer}".encode(), kind, fields)


def stream_action(stream: str, action: str) -> Event:
    """`action` is `create`, `modify` or `delete`."""
    subject = f"STREAM.{_STREAM_ACTIONS[action]}.{stream}"
    return _advisory(subject, "stream_action", {"stream": stream, "action": action})


def batch_abandoned(stream: str, batch: str, reason: str) -> Event:
    """`reason` is `timeout`, `large`, `incomplete` or `unsupported`."""
    fields = {"stream": stream, "batch": batch, "reason": reason}
    return _advisory(f"STREAM.BATCH_ABANDONED.{stream}", "stream_batch_abandoned", fields)


def consumer_action(stream: str, consumer: str, action: str) -> Event:
    """`action` is `create` or `delete`; a changed consumer is not told."""
    subject = f"CONSUMER.{_STREAM_ACTIONS[action]}.{stream}.{consumer}"
    fields = {"stream": stream, "consumer": consumer, "action": action}
    return _advisory(subject, "consumer_action", fields)


def consumer_pause(stream: str, consumer: str, *, paused: bool, until_ns: int) -> Event:
    fields = {
        "stream": stream,
        "consumer": consumer,
        "paused": paused,
        "pause_until": rfc3339(until_ns),
    }
    return _advisory(f"CONSUMER.PAUSE.{stream}.{consumer}", "consumer_pause", fields)


def api_audit(
    *, server: str, client: Mapping[str, object], subject: bytes, request: bytes, response: bytes
) -> Event:
    """Somebody used the API. Bodies are shown as they were, unparsed."""
    fields: dict[str, object] = {"server": server, "client": client, "subject": _text(subject)}
    if request:
        fields["request"] = _text(request)
    fields["response"] = _text(response)
    return Event(AUDIT_SUBJECT, f"{ADVISORY_TYPE}api_audit", fields)


def leader_elected(
    *, account: str, stream: str, consumer: str, leader: str, replicas: Sequence[PeerInfo]
) -> Event:
    """`consumer` empty: of the stream."""
    fields: dict[str, object] = {"account": account, "stream": stream}
    if consumer:
        fields["consumer"] = consumer
    fields |= {"leader": leader, "replicas": to_wire(tuple(replicas))}
    return _of_asset("LEADER_ELECTED", "leader_elected", fields)


def quorum_lost(*, account: str, stream: str, consumer: str, replicas: Sequence[PeerInfo]) -> Event:
    """Told by a member that led and can reach no majority any more."""
    fields: dict[str, object] = {"account": account, "stream": stream}
    if consumer:
        fields["consumer"] = consumer
    fields["replicas"] = to_wire(tuple(replicas))
    return _of_asset("QUORUM_LOST", "quorum_lost", fields)


def snapshot_create(stream: str, state: StreamState, client: Mapping[str, object]) -> Event:
    fields = {"stream": stream, "state": to_wire(state), "client": client}
    return _advisory(f"STREAM.SNAPSHOT_CREATE.{stream}", "snapshot_create", fields)


def snapshot_complete(
    stream: str, client: Mapping[str, object], *, start_ns: int, end_ns: int, error: str = ""
) -> Event:
    fields: dict[str, object] = {
        "stream": stream,
        "start": rfc3339(start_ns),
        "end": rfc3339(end_ns),
        "client": client,
    }
    if error:
        fields["error"] = error
    return _advisory(f"STREAM.SNAPSHOT_COMPLETE.{stream}", "snapshot_complete", fields)


def restore_create(stream: str, client: Mapping[str, object]) -> Event:
    fields = {"stream": stream, "client": client}
    return _advisory(f"STREAM.RESTORE_CREATE.{stream}", "restore_create", fields)


def restore_complete(
    stream: str, client: Mapping[str, object], *, start_ns: int, end_ns: int, size: int
) -> Event:
    fields = {
        "stream": stream,
        "start": rfc3339(start_ns),
        "end": rfc3339(end_ns),
        "bytes": size,
        "client": client,
    }
    return _advisory(f"STREAM.RESTORE_COMPLETE.{stream}", "restore_complete", fields)


def _of_asset(subject: str, kind: str, fields: Mapping[str, object]) -> Event:
    stream, consumer = fields["stream"], fields.get("consumer")
    if consumer:
        return _advisory(f"CONSUMER.{subject}.{stream}.{consumer}", f"consumer_{kind}", fields)
    return _advisory(f"STREAM.{subject}.{stream}", f"stream_{kind}", fields)


def _advisory(subject: str, kind: str, fields: Mapping[str, object]) -> Event:
    return Event(f"{ADVISORY_PREFIX}{subject}".encode(), f"{ADVISORY_TYPE}{kind}", fields)


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace")
