"""Advisories and metrics: their subjects, types and fields.

Owns: the subject, the type and the fields of every event this broker publishes.
May not touch: subscriptions, ids and times; the sender adds those (broker/cluster/observe).
Spec: JetStream advisories and metrics. Where the published schemas differ from nats-server
(consumer_seq as text, replicas as one object), this follows nats-server."""

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

# Events about single messages: kind of delivery/effects.Advisory -> subject prefix, type.
_MESSAGE_EVENTS: Final = {
    "max_deliver": (f"{ADVISORY_PREFIX}CONSUMER.MAX_DELIVERIES.", f"{ADVISORY_TYPE}max_deliver"),
    "nak": (f"{ADVISORY_PREFIX}CONSUMER.MSG_NAKED.", f"{ADVISORY_TYPE}nak"),
    "terminated": (f"{ADVISORY_PREFIX}CONSUMER.MSG_TERMINATED.", f"{ADVISORY_TYPE}terminated"),
    "ack": (f"{METRIC_PREFIX}CONSUMER.ACK.", f"{METRIC_TYPE}consumer_ack"),
}
_PIN_FIELDS: Final = {"pinned": "pinned_id", "unpinned": "reason"}
_STREAM_ACTIONS: Final = {"create": "CREATED", "modify": "UPDATED", "delete": "DELETED"}


@dataclass(frozen=True, slots=True)
class Event:
    """One advisory or metric. It is encoded only if its subject has a subscriber."""

    subject: bytes
    type: str
    fields: Mapping[str, object]


def encode_event(event: Event, *, event_id: str, now_ns: int, domain: str) -> bytes:
    """The body as published."""
    body = {"type": event.type, "id": event_id, "timestamp": rfc3339(now_ns), **event.fields}
    if domain:
        body["domain"] = domain
    return encode(body)


def of_delivery(fact: Advisory, *, account: str, stream: str, consumer: str) -> Event:
    """An event about one message of a consumer, or about its pinned client."""
    if fact.kind in ("pinned", "unpinned"):
        pin: dict[str, object] = {"account": account, "stream": stream, "consumer": consumer}
        pin |= {"group": fact.group, _PIN_FIELDS[fact.kind]: fact.reason}
        subject = f"CONSUMER.{fact.kind.upper()}.{stream}.{consumer}"
        return _advisory(subject, f"consumer_group_{fact.kind}", pin)
    place, kind = _MESSAGE_EVENTS[fact.kind]
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
    """`action` is `create` or `delete`; nats-server sends nothing when a consumer is updated."""
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
    """A client used the API. Bodies are included as they were sent."""
    fields: dict[str, object] = {"server": server, "client": client, "subject": _text(subject)}
    if request:
        fields["request"] = _text(request)
    fields["response"] = _text(response)
    return Event(AUDIT_SUBJECT, f"{ADVISORY_TYPE}api_audit", fields)


def leader_elected(
    *, account: str, stream: str, consumer: str, leader: str, replicas: Sequence[PeerInfo]
) -> Event:
    """The leader of a stream, or of `consumer` if it is not empty."""
    fields: dict[str, object] = {"account": account, "stream": stream}
    if consumer:
        fields["consumer"] = consumer
    fields |= {"leader": leader, "replicas": to_wire(tuple(replicas))}
    return _of_asset("LEADER_ELECTED", "leader_elected", fields)


def quorum_lost(*, account: str, stream: str, consumer: str, replicas: Sequence[PeerInfo]) -> Event:
    """Sent by the leader that can no longer reach a quorum."""
    fields: dict[str, object] = {"account": account, "stream": stream}
    if consumer:
        fields["consumer"] = consumer
    fields["replicas"] = to_wire(tuple(replicas))
    return _of_asset("QUORUM_LOST", "quorum_lost", fields)


_SERVER_EVENTS: Final = {
    "removed": ("SERVER.REMOVED", "server_removed"),
    "out_of_storage": ("SERVER.OUT_OF_STORAGE", "server_out_of_space"),
}


def server_event(kind: str, server: tuple[str, str], cluster: str) -> Event:
    """`server`: name and id."""
    subject, named = _SERVER_EVENTS[kind]
    fields = {"server": server[0], "server_id": server[1], "cluster": cluster}
    return _advisory(subject, named, fields)


def domain_leader(cluster: str, leader: str, replicas: Sequence[Mapping[str, object]]) -> Event:
    """The leader of the meta group; `replicas` as /jsz shows them."""
    fields = {"leader": leader, "replicas": list(replicas), "cluster": cluster}
    return _advisory("DOMAIN.LEADER_ELECTED", "domain_leader_elected", fields)


def limit_reached(server: str, dropped: int) -> Event:
    """`dropped` API requests were dropped."""
    fields = {"server": server, "dropped": dropped}
    return _advisory("API.LIMIT_REACHED", "api_limit_reached", fields)


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
