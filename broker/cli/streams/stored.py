"""`jetraft stream view|get|rm-msg`: stored messages.

Owns: the options and output of these commands.
May not touch: the server's internals."""

from __future__ import annotations

import sys
import time
from itertools import islice

import click

from broker.cli.connect import api
from broker.cli.connect.blocking import connected
from broker.cli.connect.options import AT_LEAST_ONE, Destination, connects
from broker.cli.output.message_text import message_fields, message_text
from broker.cli.output.questions import can_ask, confirm, yes_option
from broker.cli.output.tables import show, show_json, show_json_line
from broker.cli.output.times import rfc3339
from broker.cli.output.units import DURATION
from broker.cli.streams.reading import StreamMessage, stored_messages, stored_of


@click.command()
@click.argument("name")
@click.option("--seq", type=AT_LEAST_ONE, default=1, help="Start at this sequence.")
@click.option("--since", "since_ns", type=DURATION, help="Start this long ago.")
@click.option("--subject", default="", help="Only messages on this subject (wildcards work).")
@click.option(
    "--count",
    type=AT_LEAST_ONE,
    help="Number of messages; by default pages of 25 at a terminal, otherwise all.",
)
@click.option("--raw", is_flag=True, help="Print the payloads only, one per line.")
@connects
def view(
    *, name: str, seq: int, since_ns: int | None, subject: str, count: int | None, raw: bool,
    to: Destination, as_json: bool,
) -> None:  # fmt: skip
    """Print stored messages in order. At a terminal, page by page."""
    since = 0 if since_ns is None else max(time.time_ns() - since_ns, 1)
    with connected(to) as client:
        info = api.stream_info(client, name)
        found = stored_messages(client, info, first=seq, since_ns=since, subject=subject)
        paged = count is None and can_ask() and not as_json and not raw
        while page := list(islice(found, 25)) if paged else islice(found, count):
            for message in page:
                print_stored(message, as_json=as_json, raw=raw)
            if not paged or not click.confirm("more?", default=True, err=True):
                break
        found.close()  # type: ignore[attr-defined]


def print_stored(message: StreamMessage, *, as_json: bool, raw: bool) -> None:
    if raw:
        sys.stdout.buffer.write(message.data + b"\n")
    elif as_json:
        when = rfc3339(message.time_ns)
        show_json_line(
            message_fields(
                message.subject, message.data, message.headers, seq=message.seq, time=when
            )
        )
    else:
        click.echo(message_text(message.seq, message.subject, message.data, message.headers))


@click.command()
@click.argument("name")
@click.argument("sequence", type=AT_LEAST_ONE, required=False)
@click.option("--last", help="Get the last message on this subject instead of a sequence.")
@click.option("--raw", is_flag=True, help="Print the payload only, without a line end.")
@connects
def get(
    *, name: str, sequence: int | None, last: str | None, raw: bool, to: Destination,
    as_json: bool,
) -> None:  # fmt: skip
    """Print one stored message, by its sequence or the last one of a subject."""
    if (sequence is None) == (last is None):
        raise click.UsageError("give SEQUENCE or --last SUBJECT")
    body: dict[str, object] = {"last_by_subj": last} if last is not None else {"seq": sequence}
    with connected(to) as client:
        answer = api.call(client, f"STREAM.MSG.GET.{api.name(name)}", body)
    message = stored_of(answer["message"])
    if raw:
        sys.stdout.buffer.write(message.data)
        return
    print_stored(message, as_json=as_json, raw=False)


@click.command()
@click.argument("name")
@click.argument("sequence", type=AT_LEAST_ONE)
@click.option("--no-erase", is_flag=True, help="Do not overwrite the message on disk.")
@yes_option
@connects
def rm_msg(
    *, name: str, sequence: int, no_erase: bool, yes: bool, to: Destination, as_json: bool
) -> None:
    """Delete one message; by default its bytes are overwritten."""
    confirm(f"Delete message {sequence} of {name}?", yes=yes)
    with connected(to) as client:
        body = {"seq": sequence, "no_erase": no_erase}
        done = api.call(client, f"STREAM.MSG.DELETE.{api.name(name)}", body)
    show_json(done) if as_json else show(f"deleted {sequence} of {name}")
