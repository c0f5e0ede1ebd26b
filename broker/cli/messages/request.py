"""`jetraft request` and `jetraft reply`.

Owns: their options and output.
May not touch: the server's internals."""

from __future__ import annotations

import subprocess
import sys
import time

import click

from broker.cli.connect.blocking import connected
from broker.cli.connect.client_shape import CommandClient, ReceivedMessage
from broker.cli.connect.failures import CommandFailed, NoAnswerInTime
from broker.cli.connect.options import AT_LEAST_ONE, Destination, connects
from broker.cli.messages.headers import header_option, parsed_headers
from broker.cli.messages.templates import filled
from broker.cli.output.message_text import message_fields, message_text
from broker.cli.output.tables import show_json_line
from broker.cli.output.units import DURATION, NS, latency

COMMAND_WITHIN_S = 60.0


@click.command()
@click.argument("subject")
@click.argument("message", required=False)
@click.option("--count", default=1, show_default=True, type=AT_LEAST_ONE, help="How many requests.")
@click.option(
    "--replies", default=1, show_default=True, type=click.IntRange(0),
    help="How many answers to wait for; 0: all until the timeout.",
)  # fmt: skip
@header_option
@click.option("--raw", is_flag=True, help="Print the payload only.")
@connects
def request(
    *, subject: str, message: str | None, count: int, replies: int, headers: tuple[str, ...],
    raw: bool, to: Destination, as_json: bool,
) -> None:  # fmt: skip
    """Send a request and print the answer. Without MESSAGE, standard input is sent, unless it is a
    terminal. The text may have templates, as in `pub`."""
    whole = b"" if message is not None or sys.stdin.isatty() else sys.stdin.buffer.read()
    fields = parsed_headers(headers)
    with connected(to) as client:
        for number in range(1, count + 1):
            data = whole if message is None else filled(message, number).encode()
            started = time.perf_counter()
            # A stream delivers with the subject of the message: only the subscription tells that
            # it is an answer.
            reply = f"{client.new_reply()}.{number}"
            sid = client.subscribe(reply)
            client.publish(subject, data, reply=reply, headers=fields)
            _answers(client, subject, sid, replies, started, raw=raw, as_json=as_json)
            client.unsubscribe(sid)


def _answers(
    client: CommandClient, subject: str, sid: int, replies: int, started: float, *,
    raw: bool, as_json: bool,
) -> None:  # fmt: skip
    got = 0
    deadline = time.monotonic() + client.to.timeout_s
    while not replies or got < replies:
        answer = client.next(max(deadline - time.monotonic(), 0.0))
        if answer is None:
            break
        if answer.sid != sid:
            continue
        if answer.status == 503 and not answer.data:
            raise CommandFailed(f"nobody answers on {subject}: no responders")
        got += 1
        seconds = time.perf_counter() - started
        if raw:
            sys.stdout.buffer.write(answer.data + b"\n")
        elif as_json:
            found = message_fields(answer.subject, answer.data, answer.headers, seconds=seconds)
            show_json_line(found)
        else:
            click.echo(message_text(latency(seconds), subject, answer.data, answer.headers))
    if not got or got < replies:
        within = f"within {client.to.timeout_s:g} s"
        raise NoAnswerInTime(
            f"no answer from {subject} {within}" if not got else f"{got} of {replies} {within}"
        )


@click.command()
@click.argument("subject")
@click.argument("message", required=False)
@click.option("--echo", is_flag=True, help="Answer with the payload of the request.")
@click.option(
    "--command", help="Answer with the output of this program; its standard input is the request."
)
@click.option(
    "--queue", default="jetraft-reply", show_default=True,
    help="Queue group: each request is answered by one member.",
)  # fmt: skip
@header_option
@click.option("--sleep", "sleep_ns", type=DURATION, help="Wait this long before each answer.")
@click.option("--count", type=AT_LEAST_ONE, help="Stop after this many answers.")
@connects
def reply(
    *, subject: str, message: str | None, echo: bool, command: str | None, queue: str,
    headers: tuple[str, ...], sleep_ns: int | None, count: int | None, to: Destination,
    as_json: bool,
) -> None:  # fmt: skip
    """Answer requests with MESSAGE, which may have templates, with the request (--echo) or with
    the output of a program (--command). Ctrl-C ends it."""
    if (message is not None) + echo + (command is not None) != 1:
        raise click.UsageError("give MESSAGE, --echo or --command")
    fields = parsed_headers(headers)
    with connected(to, patience_s=60.0) as client:
        client.subscribe(subject, queue)
        client.flush()
        click.echo(f"answering on {subject}", err=True)
        answered = 0
        for received in client.messages():
            if not received.reply:
                continue
            answered += 1
            if sleep_ns is not None:
                time.sleep(sleep_ns / NS)
            data = _answer(received, answered, message, command)
            client.publish(
                received.reply, data, headers=fields or (received.headers if echo else ())
            )
            client.flush()
            if as_json:
                show_json_line(message_fields(received.subject, received.data, received.headers))
            else:
                click.echo(
                    message_text(answered, received.subject, received.data, received.headers)
                )
            if answered == count:
                return


def _answer(
    received: ReceivedMessage, number: int, message: str | None, command: str | None
) -> bytes:
    if command is not None:
        import shlex

        try:
            done = subprocess.run(  # noqa: S603 - the user's own command
                shlex.split(command), input=received.data, stdout=subprocess.PIPE,
                timeout=COMMAND_WITHIN_S, check=False,
            )  # fmt: skip
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            raise CommandFailed(f"--command: {error}") from error
        return done.stdout
    if message is not None:
        return filled(message, number).encode()
    return received.data
