"""`jetraft pub` and `jetraft sub`.

Owns: their options and output.
May not touch: the server's internals."""

from __future__ import annotations

import asyncio
from typing import Any

import click
import nats.errors
import nats.js.errors

from broker.cli.client import AT_LEAST_ONE, server_option, with_connection
from broker.cli.tables import message_text
from broker.subjects.grammar import valid_subject


@click.command()
@click.argument("subject")
@click.argument("message")
@click.option(
    "--count", default=1, show_default=True, type=AT_LEAST_ONE,
    help="How many messages; {{Count}} in the text is the number of each.",
)  # fmt: skip
@click.option("--header", "headers", multiple=True, help="Name:value, may be repeated.")
@server_option
def pub(*, subject: str, message: str, count: int, headers: tuple[str, ...], server: str) -> None:
    """Publish, and print the ack of the stream that stores the subject, if there is one."""
    fields = dict(_field(header) for header in headers) or None
    if not valid_subject(subject.encode(), wildcards=False):
        raise click.BadParameter(
            f'"{subject}" is not a valid subject to publish to', param_hint="SUBJECT"
        )

    async def work(nc: Any) -> None:
        stream = nc.jetstream()
        stored = await _is_stored(stream, subject)
        for i in range(1, count + 1):
            body = message.replace("{{Count}}", str(i)).encode()
            if stored:
                ack = await stream.publish(subject, body, headers=fields)
                repeat = " (duplicate)" if ack.duplicate else ""
                click.echo(f"stored in {ack.stream} as {ack.seq}{repeat}")
            else:
                await nc.publish(subject, body, headers=fields)
                await nc.flush()
                click.echo(f"published to {subject} (no stream stores it)")

    with_connection(server, work)


async def _is_stored(stream: Any, subject: str) -> bool:
    """Ask the API instead of trying: with a subscriber and no stream, no ack would come."""
    try:
        await stream.find_stream_name_by_subject(subject)
    except (nats.js.errors.NotFoundError, nats.js.errors.ServiceUnavailableError):
        return False
    except nats.errors.TimeoutError:
        return True  # the user may lack permission to ask; wait for an ack
    return True


@click.command()
@click.argument("subject")
@click.option("--count", type=AT_LEAST_ONE, help="Stop after this many messages.")
@click.option("--queue", default="", help="Share the messages with this queue group.")
@server_option
def sub(*, subject: str, count: int | None, queue: str, server: str) -> None:
    """Print messages as they are published. Ctrl-C ends it."""

    async def work(nc: Any) -> None:
        subscription = await nc.subscribe(subject, queue=queue)
        await nc.flush()
        click.echo(f"listening on {subject}", err=True)
        received = 0
        async for message in subscription.messages:
            received += 1
            click.echo(message_text(received, message))
            if received == count:
                return

    try:
        with_connection(server, work)
    except (KeyboardInterrupt, asyncio.CancelledError):
        click.echo("", err=True)


def _field(header: str) -> tuple[str, str]:
    name, colon, value = header.partition(":")
    if not colon or not name:
        raise click.BadParameter(f'"{header}" is not Name:value', param_hint="--header")
    return name, value.strip()
