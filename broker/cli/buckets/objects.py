"""An object store is a stream: how files are cut into chunks, described, found and deleted.

Owns: names of streams and subjects, the digest, and that an interrupted transfer leaves nothing.
May not touch: what is printed, files by name.
Spec: ADR-20. A file is there when its description is; chunks without one belong to nobody."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, BinaryIO, Final

from broker.cli.buckets.key_value import TWO_MINUTES_NS
from broker.cli.connect import api
from broker.cli.connect.client_shape import CommandClient, Headers
from broker.cli.connect.failures import ApiRefused, CommandFailed, NoAnswerInTime
from broker.cli.output.times import rfc3339
from broker.cli.streams.reading import NO_MESSAGE, StreamMessage, stored_messages, stored_of

Document = dict[str, Any]
Advance = Callable[[int], None]
PREFIX: Final = "OBJ_"
CHUNK_BYTES: Final = 128 * 1024
WINDOW: Final = 32  # chunks on their way
YEAR_ONE: Final = "0001-01-01T00:00:00Z"  # the time of a description is that of its message


def store_stream(bucket: str) -> str:
    return PREFIX + api.name(bucket, "object store")


def store_config(bucket: str, *, replicas: int, storage: str, ttl_ns: int) -> Document:
    return {
        "name": store_stream(bucket), "subjects": [f"$O.{bucket}.C.>", f"$O.{bucket}.M.>"],
        "retention": "limits", "discard": "new", "max_age": ttl_ns, "storage": storage,
        "duplicate_window": min(ttl_ns or TWO_MINUTES_NS, TWO_MINUTES_NS),
        "num_replicas": replicas, "allow_rollup_hdrs": True, "allow_direct": True, "max_msgs": -1,
        "max_bytes": -1, "max_consumers": -1, "max_msg_size": -1,
    }  # fmt: skip


def store_info(client: CommandClient, bucket: str) -> Document:
    found = api.stream_or_none(client, store_stream(bucket))
    if found is None:
        raise CommandFailed(f"there is no object store {bucket}")
    return found


def objects_of(client: CommandClient, bucket: str) -> list[Document]:
    """Descriptions, by name."""
    info = store_info(client, bucket)
    last = stored_messages(client, info, subject=f"$O.{bucket}.M.>", newest_only=True)
    found = [_description(message) for message in last]
    return sorted((one for one in found if not one.get("deleted")), key=lambda one: one["name"])


def object_info(client: CommandClient, bucket: str, name: str) -> Document | None:
    """None if it is not there, or deleted."""
    wanted = {"last_by_subj": _meta_subject(bucket, name)}
    try:
        answer = api.call(client, f"STREAM.MSG.GET.{store_stream(bucket)}", wanted)
    except ApiRefused as refused:
        if refused.err_code == NO_MESSAGE:
            return None
        if refused.err_code == api.STREAM_NOT_FOUND:
            raise CommandFailed(f"there is no object store {bucket}") from refused
        raise
    found = _description(stored_of(answer["message"]))
    return None if found.get("deleted") else found


def existing_object(client: CommandClient, bucket: str, name: str) -> Document:
    found = object_info(client, bucket, name)
    if found is None:
        raise CommandFailed(f"{bucket} has no object {name}")
    return found


def put_object(
    client: CommandClient, bucket: str, name: str, data: BinaryIO, *, advance: Advance,
    may_end: Callable[[], None],
) -> Document:  # fmt: skip
    """Store it, in place of an older one of this name. `may_end` is called between chunks and may
    raise: then the chunks are removed, and the older one stays."""
    before = object_info(client, bucket, name)
    described: Document = {
        "name": name, "bucket": bucket, "nuid": os.urandom(11).hex(), "size": 0, "chunks": 0,
        "mtime": YEAR_ONE, "options": {"max_chunk_size": CHUNK_BYTES},
    }  # fmt: skip
    chunks = _Publishes(client, f"$O.{bucket}.C.{described['nuid']}")
    digest = hashlib.sha256()
    try:
        while chunk := data.read(CHUNK_BYTES):
            digest.update(chunk)
            chunks.send(chunk)
            chunks.collect(WINDOW)
            described["size"] += len(chunk)
            described["chunks"] += 1
            advance(len(chunk))
            may_end()
        chunks.collect(0)
        may_end()
        described["digest"] = "SHA-256=" + base64.urlsafe_b64encode(digest.digest()).decode()
        _describe(client, described)
    except BaseException:
        with suppress(CommandFailed):  # what it fails with is what happened first
            chunks.give_up()
            _purge(client, described)
        raise
    if before is not None:
        _purge(client, before)
    return described


def get_object(
    client: CommandClient, bucket: str, name: str, data: BinaryIO, *, advance: Advance
) -> Document:
    """Write what is stored, and compare it with its digest."""
    described = existing_object(client, bucket, name)
    link = (described.get("options") or {}).get("link")
    if link:
        if not link.get("name"):
            raise CommandFailed(f"{name} is a link to the whole object store {link.get('bucket')}")
        described = existing_object(client, str(link["bucket"]), str(link["name"]))
        if (described.get("options") or {}).get("link"):
            raise CommandFailed(f"{name} is a link to a link")
    digest, got = hashlib.sha256(), 0
    if described.get("chunks"):
        info = store_info(client, described["bucket"])
        batch = max(WINDOW // 2, 1)
        for message in stored_messages(client, info, subject=_chunks(described), batch=batch):
            digest.update(message.data)
            data.write(message.data)
            got += len(message.data)
            advance(len(message.data))
    wanted = str(described.get("digest") or "").partition("=")[2].rstrip("=")
    found = base64.urlsafe_b64encode(digest.digest()).decode().rstrip("=")
    if got != int(described.get("size", 0)) or (wanted and wanted != found):
        text = f"{name}: {got:,} bytes came whose digest is not that of the object"
        raise CommandFailed(f"{text}; was it replaced meanwhile?")
    return described


def delete_object(client: CommandClient, bucket: str, name: str) -> Document:
    described = existing_object(client, bucket, name)
    gone = described | {
        "deleted": True, "size": 0, "chunks": 0, "digest": "", "mtime": YEAR_ONE,
    }  # fmt: skip
    _describe(client, gone)
    _purge(client, described)
    return gone


class _Publishes:
    """Messages on one subject, sent ahead of their acks."""

    def __init__(self, client: CommandClient, subject: str) -> None:
        self._client = client
        self._subject = subject
        self._waiting: deque[str] = deque()

    def send(self, data: bytes, headers: Headers = ()) -> None:
        reply = self._client.new_reply()
        # In this order: what was sent in part is waited for, too.
        self._waiting.append(reply)
        self._client.publish(self._subject, data, reply=reply, headers=headers)

    def collect(self, most: int) -> None:
        """Take acks until at most so many are missing."""
        while len(self._waiting) > most:
            reply = self._waiting.popleft()
            answer = self._client.answer(reply, self._client.to.timeout_s)
            if answer is None:
                raise NoAnswerInTime(f"no ack within {self._client.to.timeout_s:g} s")
            if answer.status == 503:
                raise CommandFailed("no stream stores it: the object store is gone")
            ack = json.loads(answer.data)
            if "error" in ack:
                raise ApiRefused(ack["error"])

    def give_up(self) -> None:
        """Wait for what is on its way, whatever becomes of it: what comes later is not purged."""
        while self._waiting:
            if self._client.answer(self._waiting.popleft(), self._client.to.timeout_s) is None:
                return


def _describe(client: CommandClient, described: Document) -> None:
    subject = _meta_subject(described["bucket"], described["name"])
    publish = _Publishes(client, subject)
    publish.send(json.dumps(described).encode(), [("Nats-Rollup", "sub")])
    publish.collect(0)


def _description(message: StreamMessage) -> Document:
    found: Document = json.loads(message.data)
    return found | {"mtime": rfc3339(message.time_ns)}


def _purge(client: CommandClient, described: Document) -> None:
    if described.get("nuid"):
        body = {"filter": _chunks(described)}
        api.call(client, f"STREAM.PURGE.{store_stream(described['bucket'])}", body)


def _chunks(described: Document) -> str:
    return f"$O.{described['bucket']}.C.{described['nuid']}"


def _meta_subject(bucket: str, name: str) -> str:
    if not name:
        raise CommandFailed("an object needs a name")
    return f"$O.{bucket}.M.{base64.urlsafe_b64encode(name.encode()).decode()}"
