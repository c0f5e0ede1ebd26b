"""`jetraft consumer next|sub`: messages of a consumer.

Owns: pulling and acking them, and the output.
May not touch: the server's internals."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import click

from broker.cli.connect import api
from broker.cli.connect.blocking import connected
from broker.cli.connect.client_shape import CommandClient, ReceivedMessage
from broker.cli.connect.failures import CommandFailed, NoAnswerInTime
from broker.cli.connect.options import AT_LEAST_ONE, Destination, connects
from broker.cli.output.message_text import message_fields, message_text
from broker.cli.output.tables import show_json_line
from broker.cli.output.units import DURATION, NS
from broker.cli.streams.reading import delivered

PULL_NS = 30_000_000_000
BATCH = 100
ENDED = (404, 408)  # a pull without messages, or at its end
_ANSWERS = {"ack": b"+ACK", "nak": b"-NAK", "term": b"+TERM", "none": b""}
stream_argument = click.argument("stream_name", metavar="STREAM")
raw_option = click.option("--raw", is_flag=True, help="Print the payloads only, one per line.")
answer_option = click.option(
    "--answer", type=click.Choice([*_ANSWERS]), default="ack", show_default=True,
    help="How to answer each message.",
)  # fmt: skip


def _ack_flag(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--no-ack", is_flag=True, help="The same as --answer none.")(command)


@click.command("next")
@stream_argument
@click.argument("name")
@click.option(
    "--count", default=1, show_default=True, type=AT_LEAST_ONE, help="Maximum number of messages."
)
@answer_option
@_ack_flag
@raw_option
@connects
def consumer_next(
    *, stream_name: str, name: str, count: int, answer: str, no_ack: bool, raw: bool,
    to: Destination, as_json: bool,
) -> None:  # fmt: skip
    """Fetch messages, print and acknowledge them. Waits for the first as long as --timeout says."""
    said = "none" if no_ack else answer
    with connected(to) as client:
        info = api.consumer_info(client, stream_name, name)  # names what is missing
        if info["config"].get("deliver_subject"):
            raise CommandFailed(f"{stream_name} > {name} pushes: use `consumer sub`")
        if info["config"].get("ack_policy") == "none":
            said = "none"
        wanted = {"batch": count, "expires": round(to.timeout_s * NS)}
        reply = client.new_reply() + ".next"
        sid = client.subscribe(reply)
        client.publish(
            _subject(client, stream_name, name), json.dumps(wanted).encode(), reply=reply
        )
        got = 0
        deadline = time.monotonic() + to.timeout_s + 1.0
        while got < count:
            message = client.next(max(deadline - time.monotonic(), 0.0))
            if message is None or (message.sid == sid and message.status in ENDED):
                break
            if message.sid != sid or message.status == 100:
                continue
            if message.status:
                raise CommandFailed(f"{message.status} {message.description}")
            got += 1
            _print(message, as_json=as_json, raw=raw)
            _tell(client, message, said)
            deadline = min(deadline, time.monotonic() + to.timeout_s)
    if not got:
        raise NoAnswerInTime(f"{stream_name} > {name} has no message within {to.timeout_s:g} s")


@click.command("sub")
@stream_argument
@click.argument("name")
@click.option("--count", type=AT_LEAST_ONE, help="Stop after this many messages.")
@click.option(
    "--wait", "wait_ns", type=DURATION, help="Stop when no message arrived for this long."
)
@answer_option
@_ack_flag
@raw_option
@connects
def consumer_sub(
    *, stream_name: str, name: str, count: int | None, wait_ns: int | None, answer: str,
    no_ack: bool, raw: bool, to: Destination, as_json: bool,
) -> None:  # fmt: skip
    """Print messages as the consumer delivers them, pull or push, and acknowledge them. Ctrl-C ends
    it."""
    said = "none" if no_ack else answer
    with connected(to, patience_s=60.0) as client:
        config = api.consumer_info(client, stream_name, name)["config"]
        if config.get("ack_policy") == "none":
            said = "none"
        source = _Deliveries(client, stream_name, name, config, count)
        click.echo(f"waiting for messages of {stream_name} > {name}", err=True)
        for _ in range(count or sys.maxsize):
            message = source.next(None if wait_ns is None else wait_ns / NS)
            if message is None:
                return
            _print(message, as_json=as_json, raw=raw)
            _tell(client, message, said)


class _Deliveries:
    """Messages of a pull or push consumer, one after the other."""

    def __init__(
        self, client: CommandClient, stream: str, name: str, config: dict[str, Any],
        most: int | None,
    ) -> None:  # fmt: skip
        self._client = client
        self._subject = _subject(client, stream, name)
        self._batch = min(BATCH, most or BATCH)
        self._left = 0
        self._renew = 0.0
        target = config.get("deliver_subject")
        self._pulls = not target
        self._reply = client.new_reply() + ".pull" if not target else ""
        self._sid = client.subscribe(target or self._reply, config.get("deliver_group") or "")
        client.flush()

    def next(self, wait_s: float | None) -> ReceivedMessage | None:
        deadline = None if wait_s is None else time.monotonic() + wait_s
        while True:
            self._pull()
            now = time.monotonic()
            until = min(x for x in (deadline, self._renew if self._pulls else None, now + 3600)
                        if x is not None)  # fmt: skip
            message = self._client.next(max(until - now, 0.0))
            if message is None:
                if deadline is not None and time.monotonic() >= deadline:
                    return None
                self._left = 0  # ask again: the connection may be a new one
                continue
            if message.sid != self._sid:
                continue
            if message.status == 100:  # heartbeat or flow control
                if message.reply:
                    self._client.publish(message.reply)
                continue
            if message.status in ENDED or message.status == 409:
                if "Deleted" in message.description:
                    raise CommandFailed("the consumer was deleted")
                self._left = 0
                continue
            if message.status:
                raise CommandFailed(f"{message.status} {message.description}")
            self._left -= 1
            return message

    def _pull(self) -> None:
        if self._pulls and self._left <= 0:
            body = json.dumps({"batch": self._batch, "expires": PULL_NS}).encode()
            self._client.publish(self._subject, body, reply=self._reply)
            self._left = self._batch
            self._renew = time.monotonic() + PULL_NS / NS + 1.0


def _subject(client: CommandClient, stream: str, name: str) -> str:
    return f"{client.to.api_prefix}.CONSUMER.MSG.NEXT.{stream}.{name}"


def _tell(client: CommandClient, message: ReceivedMessage, said: str) -> None:
    """Acks are confirmed: what is printed as acked is acked."""
    if said == "none":
        return
    if said == "ack":
        client.request(message.reply, _ANSWERS[said])
        return
    client.publish(message.reply, _ANSWERS[said])
    client.flush()


def _print(message: ReceivedMessage, *, as_json: bool, raw: bool) -> None:
    if raw:
        sys.stdout.buffer.write(message.data + b"\n")
        sys.stdout.flush()
        return
    seq = delivered(message).seq if message.reply.startswith("$JS.ACK.") else 0
    if as_json:
        words = message.reply.split(".")
        deliveries = int(words[-5]) if len(words) == 9 else int(words[6]) if len(words) > 9 else 0
        found = message_fields(
            message.subject, message.data, message.headers, seq=seq, deliveries=deliveries
        )
        show_json_line(found)
    else:
        click.echo(message_text(seq, message.subject, message.data, message.headers))
