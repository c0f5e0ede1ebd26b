"""A key-value bucket is a stream: how keys, values and revisions are found in it.

Owns: names of streams and subjects, marks of deletion, and watching.
May not touch: what is printed.
Spec: ADR-8. A mirror of a bucket is written at its origin."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from broker.cli.connect import api
from broker.cli.connect.client_shape import CommandClient, Headers
from broker.cli.connect.failures import ApiRefused, CommandFailed, NoAnswerInTime
from broker.cli.streams.reading import (
    FORGOTTEN_AFTER_NS,
    NO_MESSAGE,
    StreamMessage,
    delivered,
    stored_of,
)

Document = dict[str, Any]
PREFIX: Final = "KV_"
_BUCKET: Final = re.compile(r"[A-Za-z0-9_-]+")
_KEY: Final = re.compile(r"[-/_=A-Za-z0-9]+(\.[-/_=A-Za-z0-9]+)*")
DELETED: Final = ("DEL", "PURGE")
_MARKERS: Final = {"MaxAge": "PURGE", "Purge": "PURGE", "Remove": "DEL"}
HEARTBEAT_S: Final = 5.0
PATIENCE_S: Final = 60.0
AGAIN_AFTER_S: Final = 0.25
WATCH_BATCH: Final = 200
TWO_MINUTES_NS: Final = 120_000_000_000


@dataclass(frozen=True, slots=True)
class KeyValueEntry:
    """One revision of a key."""

    key: str
    revision: int
    time_ns: int
    operation: str  # PUT, DEL or PURGE
    value: bytes


def stream_of(bucket: str) -> str:
    if not _BUCKET.fullmatch(bucket):
        raise CommandFailed(f'"{bucket}" cannot be the name of a bucket')
    return PREFIX + bucket


def key_checked(key: str) -> str:
    if not _KEY.fullmatch(key):
        raise CommandFailed(f'"{key}" cannot be a key: letters, digits and -/_=. are allowed')
    return key


def bucket_config(
    bucket: str, *, replicas: int, history: int, ttl_ns: int, storage: str
) -> Document:
    return {
        "name": stream_of(bucket), "subjects": [f"$KV.{bucket}.>"], "retention": "limits",
        "discard": "new", "max_msgs_per_subject": history, "max_age": ttl_ns,
        "duplicate_window": min(ttl_ns or TWO_MINUTES_NS, TWO_MINUTES_NS), "storage": storage,
        "num_replicas": replicas, "allow_rollup_hdrs": True, "deny_delete": True,
        "allow_direct": True, "max_msgs": -1, "max_bytes": -1, "max_consumers": -1,
        "max_msg_size": -1,
    }  # fmt: skip


def bucket_info(client: CommandClient, bucket: str) -> Document:
    found = api.stream_or_none(client, stream_of(bucket))
    if found is None:
        raise CommandFailed(f"there is no bucket {bucket}")
    return found


def entry(
    client: CommandClient, bucket: str, key: str, revision: int | None = None
) -> KeyValueEntry | None:
    """The last revision, or this one; None if there is none. A deletion is an entry, too."""
    info = bucket_info(client, bucket)
    subject = subject_of(info, key_checked(key))
    wanted: Document = {"last_by_subj": subject} if revision is None else {"seq": revision}
    try:
        answer = api.call(client, f"STREAM.MSG.GET.{stream_of(bucket)}", wanted)
    except ApiRefused as refused:
        if refused.err_code == NO_MESSAGE:
            return None
        raise
    message = stored_of(answer["message"])
    return entry_of(message) if message.subject == subject else None


def put(
    client: CommandClient, bucket: str, key: str, value: bytes = b"", *, headers: Headers = ()
) -> int:
    """Returns the revision."""
    info = bucket_info(client, bucket)
    prefix = client.to.api_prefix + "." if client.to.api_prefix != "$JS.API" else ""
    external = ((info["config"].get("mirror") or {}).get("external") or {}).get("api")
    prefix = f"{external}." if external else prefix
    limit = int(client.info.get("max_payload") or 0)
    if limit and len(value) > limit:
        raise CommandFailed(f"a value of {len(value):,} bytes; the server takes {limit:,}")
    answer = client.request(prefix + subject_of(info, key_checked(key)), value, headers=headers)
    if answer.status == 503:
        raise CommandFailed(f"nobody stores the keys of {bucket}")
    ack = json.loads(answer.data)
    if "error" in ack:
        raise ApiRefused(ack["error"])
    return int(ack["seq"])


def subject_of(info: Document, pattern: str) -> str:
    """Of a key, or of keys. Those of a mirror are the subjects of its origin."""
    mirror = (info["config"].get("mirror") or {}).get("name")
    bucket = str(mirror or info["config"]["name"]).removeprefix(PREFIX)
    return f"$KV.{bucket}.{pattern}"


def entry_of(message: StreamMessage) -> KeyValueEntry:
    headers = dict(message.headers)
    operation = headers.get("KV-Operation") or _MARKERS.get(headers.get("Nats-Marker-Reason", ""))
    key = message.subject.split(".", 2)[2]
    return KeyValueEntry(key, message.seq, message.time_ns, operation or "PUT", message.data)


def watched(client: CommandClient, info: Document, pattern: str) -> Iterator[KeyValueEntry]:
    """The last value of every key, then every change, for ever. A consumer that is lost is replaced
    by one that begins behind what was seen."""
    stream, seen = str(info["config"]["name"]), 0
    while True:
        consumer = _watcher(client, stream, subject_of(info, pattern), seen)
        for message in _while_it_lives(client, stream, consumer):
            seen = message.seq
            yield entry_of(message)
        time.sleep(AGAIN_AFTER_S)


def _watcher(client: CommandClient, stream: str, subject: str, seen: int) -> str:
    config: Document = {
        "ack_policy": "none", "filter_subject": subject, "deliver_policy": "last_per_subject",
        "inactive_threshold": FORGOTTEN_AFTER_NS, "num_replicas": 1, "mem_storage": True,
    }  # fmt: skip
    if seen:
        config |= {"deliver_policy": "by_start_sequence", "opt_start_seq": seen + 1}
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            body = {"stream_name": stream, "config": config}
            return str(api.call(client, f"CONSUMER.CREATE.{stream}", body)["name"])
        except NoAnswerInTime:
            if not seen or time.monotonic() > deadline:
                raise


def _while_it_lives(client: CommandClient, stream: str, consumer: str) -> Iterator[StreamMessage]:
    """Ends when the server says so, or says nothing at all."""
    subject = f"{client.to.api_prefix}.CONSUMER.MSG.NEXT.{stream}.{consumer}"
    sid = client.subscribe(reply := f"{client.new_reply()}.watch")
    body = {
        "batch": WATCH_BATCH, "expires": 30_000_000_000,
        "idle_heartbeat": round(HEARTBEAT_S * 1e9),
    }  # fmt: skip
    left = 0
    try:
        while True:
            if left <= 0:
                client.publish(subject, json.dumps(body).encode(), reply=reply)
                left = WATCH_BATCH
            message = client.next(3 * HEARTBEAT_S)
            if message is None:
                return
            if message.sid != sid or message.status == 100:
                continue
            if message.status in (404, 408):  # the end of this pull
                left = 0
                continue
            if message.status:
                return
            left -= 1
            yield delivered(message)
    finally:
        client.unsubscribe(sid)
