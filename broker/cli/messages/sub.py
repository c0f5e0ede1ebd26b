"""`jetraft sub`.

Owns: its options and output.
May not touch: the server's internals."""

from __future__ import annotations

import sys
import time

import click

from broker.cli.connect.blocking import connected
from broker.cli.connect.options import AT_LEAST_ONE, Destination, connects
from broker.cli.output.message_text import message_fields, message_text
from broker.cli.output.tables import show_json_line
from broker.cli.output.units import DURATION, NS

PATIENCE_S = 60.0  # how long a lost connection is tried again


@click.command()
@click.argument("subjects", nargs=-1, required=True, metavar="SUBJECT...")
@click.option("--count", type=AT_LEAST_ONE, help="Stop after this many messages.")
@click.option(
    "--wait", "wait_ns", type=DURATION, help="Stop when no message arrived for this long."
)
@click.option("--queue", default="", help="Join this queue group: each message goes to one member.")
@click.option("--raw", is_flag=True, help="Print the payloads only, one per line.")
@connects
def sub(
    *, subjects: tuple[str, ...], count: int | None, wait_ns: int | None, queue: str, raw: bool,
    to: Destination, as_json: bool,
) -> None:  # fmt: skip
    """Print messages as they are published. Ctrl-C ends it. A lost connection is tried again for a
    minute; what was published meanwhile is not seen."""
    with connected(to, patience_s=PATIENCE_S) as client:
        for subject in subjects:
            client.subscribe(subject, queue)
        client.flush()
        click.echo(f"listening on {', '.join(subjects)}", err=True)
        wait_s = None if wait_ns is None else wait_ns / NS
        for received, message in enumerate(client.messages(wait_s), 1):
            if raw:
                sys.stdout.buffer.write(message.data + b"\n")
                sys.stdout.flush()
            elif as_json:
                more = {"number": received, "time": time.time()}
                if message.reply:
                    more["reply"] = message.reply  # type: ignore[assignment]
                show_json_line(
                    message_fields(message.subject, message.data, message.headers, **more)
                )
            else:
                click.echo(message_text(received, message.subject, message.data, message.headers))
            if received == count:
                return
