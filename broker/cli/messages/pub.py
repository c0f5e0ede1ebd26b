"""`jetraft pub`.

Owns: its options and output, and the window of messages that wait for an ack.
May not touch: the server's internals."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import click

from broker.cli.connect import api
from broker.cli.connect.blocking import connected
from broker.cli.connect.client_shape import CommandClient
from broker.cli.connect.failures import ApiRefused, CommandFailed, NoAnswerInTime
from broker.cli.connect.options import Destination, connects
from broker.cli.messages.headers import header_option, parsed_headers
from broker.cli.messages.templates import filled
from broker.cli.output.progress import progress_bar
from broker.cli.output.tables import show, show_json_line
from broker.cli.output.units import DURATION, NS
from broker.subjects.grammar import valid_subject

WINDOW = 1024  # messages that wait for an ack
TOLD_ONE_BY_ONE = 20  # more messages than this are summed up in one line


@click.command()
@click.argument("subject")
@click.argument("message", required=False)
@click.option(
    "--count", default=1, show_default=True, type=click.IntRange(-1),
    help="How many messages; -1 means until Ctrl-C.",
)  # fmt: skip
@click.option("--sleep", "sleep_ns", type=DURATION, help="Wait this long between messages.")
@header_option
@click.option(
    "--reply", default="", help="Reply subject of the messages; disables waiting for acks."
)
@click.option(
    "--require-ack", is_flag=True, help="Fail unless a stream acknowledges every message."
)
@click.option(
    "--send-on", type=click.Choice(["eof", "newline"]), default="eof", show_default=True,
    help="Send standard input as one message (eof), or each line as one (newline).",
)  # fmt: skip
@click.option(
    "--templates/--no-templates", default=True, help="Replace {{Count}} and other templates."
)
@connects
def pub(
    *, subject: str, message: str | None, count: int, sleep_ns: int | None,
    headers: tuple[str, ...], reply: str, require_ack: bool, send_on: str, templates: bool,
    to: Destination, as_json: bool,
) -> None:  # fmt: skip
    """Publish messages, and wait for the acks of the stream that stores the subject, if there is
    one. Without MESSAGE, what standard input has is published.

    The text may have {{Count}}, {{TimeStamp}}, {{Time}}, {{Unix}}, {{UnixNano}}, {{ID}} and
    {{Random 10 100}} (or {{Random}}) in it."""
    if not valid_subject(subject.encode(), wildcards=False):
        raise click.BadParameter(
            f'"{subject}" is not a valid subject to publish to', param_hint="SUBJECT"
        )
    if count == 0:
        raise click.BadParameter("0 is not in the range x>=1 (or -1)", param_hint="--count")
    if reply and require_ack:
        raise click.UsageError("--reply and --require-ack exclude each other: acks need the reply")
    fields = parsed_headers(headers)
    texts = _texts(message, count, by_lines=send_on == "newline", templates=templates)
    with connected(to) as client:
        stored = not reply and (require_ack or _is_stored(client, subject))
        sending = _Sending(client, subject, reply, fields, stored, require_ack)
        one_by_one = sleep_ns is not None or 0 < count <= TOLD_ONE_BY_ONE or as_json
        try:
            if one_by_one:
                sending.tell = _json_line if as_json else _line
            _send_all(sending, texts, count, sleep_ns)
        finally:
            if not one_by_one:
                show(sending.summary())


def _texts(message: str | None, count: int, *, by_lines: bool, templates: bool) -> Iterator[bytes]:
    if message is None:
        source: Any = sys.stdin.buffer
        if by_lines:
            yield from (line.rstrip(b"\r\n") for line in source)
            return
        whole = source.read()
        for _ in _numbers(count):
            yield whole
        return
    for number in _numbers(count):
        yield (filled(message, number) if templates else message).encode(errors="surrogateescape")


def _numbers(count: int) -> Iterator[int]:
    number = 1
    while count < 0 or number <= count:
        yield number
        number += 1


@dataclass(slots=True)
class _Sending:
    """Messages on their way, in order."""

    client: CommandClient
    subject: str
    reply: str
    headers: list[tuple[str, str]]
    stored: bool
    required: bool
    tell: Any = None
    sent: int = 0
    waiting: dict[str, int] = field(default_factory=dict)  # reply subject -> message number
    acked: int = 0
    streams: dict[str, tuple[int, int]] = field(default_factory=dict)
    started: float = field(default_factory=time.perf_counter)

    def send(self, data: bytes) -> None:
        limit = int(self.client.info.get("max_payload") or 0)
        if limit and len(data) > limit:
            raise CommandFailed(f"a message of {len(data):,} bytes; the server takes {limit:,}")
        self.sent += 1
        if not self.stored:
            self.client.publish(self.subject, data, reply=self.reply, headers=self.headers)
            return
        reply = self.client.new_reply()
        self.waiting[reply] = self.sent
        self.client.publish(self.subject, data, reply=reply, headers=self.headers)

    def collect(self, most: int) -> None:
        """Take acks until at most so many are missing."""
        while len(self.waiting) > most:
            answer = self.client.next(self.client.to.timeout_s)
            if answer is None:
                raise NoAnswerInTime(
                    f"no ack for {len(self.waiting)} of {self.sent} messages; they may be stored"
                )
            number = self.waiting.pop(answer.subject, None)
            if number is not None:
                self._acked(number, answer)

    def _acked(self, number: int, answer: Any) -> None:
        if answer.status == 503:
            raise CommandFailed(f"message {number}: no stream stores {self.subject}")
        try:
            ack = json.loads(answer.data)
        except ValueError as error:
            raise CommandFailed(f"message {number}: the answer is not an ack") from error
        if "error" in ack:
            raise ApiRefused(ack["error"])
        if "stream" not in ack:
            raise CommandFailed(f"message {number}: the answer is not an ack")
        self.acked += 1
        first = self.streams.get(ack["stream"], (ack["seq"], 0))[0]
        self.streams[ack["stream"]] = (first, ack["seq"])
        if self.tell:
            self.tell(self.subject, ack)

    def summary(self) -> str:
        seconds = time.perf_counter() - self.started
        rate = f"{self.sent:,} messages in {seconds:.2f} s ({self.sent / seconds:,.0f}/s)"
        where = ", ".join(
            f"{stream} as {first:,} to {last:,}" for stream, (first, last) in self.streams.items()
        )
        if not self.stored:
            return f"published {rate} to {self.subject} (no stream stores it)"
        return f"published {rate}: {self.acked:,} stored" + (f" in {where}" if where else "")


def _send_all(sending: _Sending, texts: Iterator[bytes], count: int, sleep_ns: int | None) -> None:
    window = 0 if sleep_ns is not None else WINDOW
    total = count if count > TOLD_ONE_BY_ONE and sleep_ns is None else 0
    with progress_bar("publish", total) as advance:
        for data in texts:
            if sleep_ns is not None and sending.sent:
                _pause(sending.client, sleep_ns / NS)
            sending.send(data)
            if sending.stored:
                sending.collect(window)
            elif sending.tell:
                sending.client.flush()
                sending.tell(sending.subject, None)
            advance(1)
        sending.collect(0)
    sending.client.flush()


def _pause(client: CommandClient, seconds: float) -> None:
    """PINGs of the server are answered meanwhile."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        client.next(left)


def _is_stored(client: CommandClient, subject: str) -> bool:
    """Ask the API instead of trying: with a subscriber and no stream, no ack would come."""
    try:
        return bool(api.stream_names(client, subject))
    except NoAnswerInTime:
        return True  # JetStream is there, but busy or not allowed to answer: wait for an ack
    except CommandFailed:
        return False


def _line(subject: str, ack: dict[str, Any] | None) -> None:
    if ack is None:
        show(f"published to {subject} (no stream stores it)")
        return
    repeat = " (duplicate)" if ack.get("duplicate") else ""
    show(f"stored in {ack['stream']} as {ack['seq']}{repeat}")


def _json_line(subject: str, ack: dict[str, Any] | None) -> None:
    show_json_line({"subject": subject} | (ack or {}))
