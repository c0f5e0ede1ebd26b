"""Reads stored messages in order, without changing anything in the stream.

Owns: which way of reading fits: a temporary consumer, or one request per message.
May not touch: what is done with the messages.
A stream with `limits` is read through a consumer without acks that the server forgets by itself. In
streams with `interest` or `workqueue` a consumer would change what is kept, so their messages are
asked for one by one."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from broker.cli.connect import api
from broker.cli.connect.client_shape import CommandClient, ReceivedMessage
from broker.cli.connect.failures import ApiRefused, CommandFailed, NoAnswerInTime
from broker.cli.output.times import rfc3339, time_ns

BATCH = 500
NO_MESSAGE = 10037
FORGOTTEN_AFTER_NS = 60_000_000_000


@dataclass(slots=True)
class StreamMessage:
    """One message of a stream."""

    seq: int
    time_ns: int
    subject: str
    head: bytes
    data: bytes

    @property
    def headers(self) -> list[tuple[str, str]]:
        return ReceivedMessage("", 0, "", self.head, b"").headers


def stored_messages(
    client: CommandClient, info: dict[str, Any], *, first: int = 1, since_ns: int = 0,
    subject: str = "", newest_only: bool = False, headers_only: bool = False, batch: int = BATCH,
) -> Iterator[StreamMessage]:  # fmt: skip
    """From a sequence or a time on, to the end that the stream has now. `newest_only`: the last
    message of every subject; it and `headers_only` need a stream with `limits`. Two batches are
    asked for at a time: large messages need small ones."""
    state, config = info["state"], info["config"]
    last = int(state.get("last_seq", 0))
    first = max(first, int(state.get("first_seq", 0)))
    if not int(state.get("messages", 0)) or first > last:
        return
    if config.get("retention", "limits") == "limits":
        wanted: dict[str, Any] = {"deliver_policy": "by_start_sequence", "opt_start_seq": first}
        if since_ns:
            wanted = {"deliver_policy": "by_start_time", "opt_start_time": rfc3339(since_ns)}
        elif newest_only:
            wanted = {"deliver_policy": "last_per_subject"}
        wanted |= {"filter_subject": subject} if subject else {}
        wanted |= {"headers_only": True} if headers_only else {}
        yield from _consumed(client, config["name"], wanted, last=last, batch=batch)
        return
    seq = first
    while seq <= last and (message := next_message(client, config["name"], seq, subject)):
        if message.seq > last:
            return
        if message.time_ns >= since_ns:
            yield message
        seq = message.seq + 1


def next_message(
    client: CommandClient, stream: str, seq: int, subject: str
) -> StreamMessage | None:
    """The first one on the subject that has this sequence or a later one."""
    try:
        answer = api.call(
            client, f"STREAM.MSG.GET.{stream}", {"seq": seq, "next_by_subj": subject or ">"}
        )
    except ApiRefused as refused:
        if refused.err_code == NO_MESSAGE:
            return None
        raise
    return stored_of(answer["message"])


def stored_of(message: dict[str, Any]) -> StreamMessage:
    """As STREAM.MSG.GET has it."""
    return StreamMessage(
        int(message["seq"]), time_ns(str(message.get("time", ""))) or 0, str(message["subject"]),
        base64.b64decode(message.get("hdrs") or ""), base64.b64decode(message.get("data") or ""),
    )  # fmt: skip


def _consumed(
    client: CommandClient, stream: str, wanted: dict[str, Any], *, last: int, batch: int
) -> Iterator[StreamMessage]:
    config = wanted | {
        "ack_policy": "none", "inactive_threshold": FORGOTTEN_AFTER_NS, "num_replicas": 1,
        "mem_storage": True, "max_waiting": 4,
    }  # fmt: skip
    made = api.call(
        client, f"CONSUMER.CREATE.{api.name(stream)}", {"stream_name": stream, "config": config}
    )
    consumer = str(made["name"])
    try:
        left = int(made.get("num_pending", 0))
        yield from _pulled(client, stream, consumer, last=last, left=left, batch=batch)
    finally:
        with suppress(CommandFailed):  # the server forgets it by itself
            api.call(client, f"CONSUMER.DELETE.{stream}.{consumer}")


def _pulled(
    client: CommandClient, stream: str, consumer: str, *, last: int, left: int, batch: int
) -> Iterator[StreamMessage]:
    subject = f"{client.to.api_prefix}.CONSUMER.MSG.NEXT.{stream}.{consumer}"
    sid = client.subscribe(reply := f"{client.new_reply()}.pull")
    asked = 0
    deadline = time.monotonic() + client.to.timeout_s
    try:
        while left > 0:
            while asked < min(left, 2 * batch):
                client.publish(subject, b'{"batch":%d,"expires":30000000000}' % batch, reply=reply)
                asked += batch
            message = client.next(deadline - time.monotonic())
            if message is None:
                raise NoAnswerInTime(f"{stream}: {left} messages did not come in time")
            if message.sid != sid or message.status == 100:
                continue
            if message.status:
                raise CommandFailed(f"{stream}: {message.status} {message.description}")
            found = delivered(message)
            if found.seq > last:
                return
            asked -= 1
            left -= 1
            yield found
            deadline = time.monotonic() + client.to.timeout_s
    finally:
        client.unsubscribe(sid)


def delivered(message: ReceivedMessage) -> StreamMessage:
    """A message of a consumer: where it stands in the stream is in its reply subject."""
    words = message.reply.split(".")
    if len(words) < 9 or words[:2] != ["$JS", "ACK"]:
        raise CommandFailed(f"{message.subject}: this is not a message of a consumer")
    at = 4 if len(words) == 9 else 6  # with domain and account in newer forms
    return StreamMessage(
        int(words[at + 1]), int(words[at + 3]), message.subject, message.head, message.data
    )
