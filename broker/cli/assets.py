"""`jetraft stream` and `jetraft consumer`: the things that live in the cluster.

Owns: how they are asked for and printed.
May not touch: the server's internals."""

from __future__ import annotations

from typing import Any

import click
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, RetentionPolicy, StorageType
from nats.js.api import StreamConfig as ClientStreamConfig

from broker.cli.client import server_option, with_connection


@click.group()
def stream() -> None:
    """Create, list, look at, purge and delete streams."""


@stream.command("add")
@click.argument("name")
@click.option("--subjects", required=True, help="Subjects to capture, separated by commas.")
@click.option("--replicas", default=1, show_default=True, help="Copies, on as many nodes.")
@click.option(
    "--storage", type=click.Choice(["file", "memory"]), default="file", show_default=True,
    help="Where messages are kept.",
)  # fmt: skip
@click.option(
    "--retention", type=click.Choice(["limits", "interest", "workqueue"]), default="limits",
    show_default=True, help="When messages go: by limits, or when consumers are done with them.",
)  # fmt: skip
@click.option("--max-msgs", default=-1, help="Keep at most this many messages.")
@click.option("--max-bytes", default=-1, help="Keep at most this many bytes.")
@click.option("--max-age", default=0.0, help="Keep messages this many seconds.")
@server_option
def stream_add(
    *, name: str, subjects: str, replicas: int, storage: str, retention: str, max_msgs: int,
    max_bytes: int, max_age: float, server: str,
) -> None:  # fmt: skip
    """Create a stream."""
    config = ClientStreamConfig(
        name=name, subjects=subjects.split(","), num_replicas=replicas,
        storage=StorageType(storage), retention=RetentionPolicy(retention), max_msgs=max_msgs,
        max_bytes=max_bytes, max_age=max_age, allow_direct=True,
    )  # fmt: skip
    _print_stream(with_connection(server, lambda nc: nc.jetstream().add_stream(config)))


@stream.command("ls")
@server_option
def stream_ls(*, server: str) -> None:
    """List streams."""
    for info in with_connection(server, lambda nc: nc.jetstream().streams_info()):
        state = info.state
        subjects = ",".join(info.config.subjects or [])
        click.echo(
            f"{info.config.name:24} {state.messages:>12,} messages {state.bytes:>16,} B  {subjects}"
        )


@stream.command("info")
@click.argument("name")
@server_option
def stream_info(*, name: str, server: str) -> None:
    """Show a stream: what it keeps, where its replicas are."""
    _print_stream(with_connection(server, lambda nc: nc.jetstream().stream_info(name)))


@stream.command("purge")
@click.argument("name")
@click.option("--subject", default=None, help="Only messages on this subject (wildcards work).")
@server_option
def stream_purge(*, name: str, subject: str | None, server: str) -> None:
    """Remove messages, keep the stream."""
    with_connection(server, lambda nc: nc.jetstream().purge_stream(name, subject=subject))
    click.echo(f"purged {name}")


@stream.command("get")
@click.argument("name")
@click.argument("sequence", type=int)
@server_option
def stream_get(*, name: str, sequence: int, server: str) -> None:
    """Print one stored message."""
    message = with_connection(server, lambda nc: nc.jetstream().get_msg(name, sequence))
    click.echo(
        f"[{message.seq}] {message.subject}: {(message.data or b'').decode(errors='replace')}"
    )


@stream.command("rm")
@click.argument("name")
@server_option
def stream_rm(*, name: str, server: str) -> None:
    """Delete a stream and everything in it."""
    with_connection(server, lambda nc: nc.jetstream().delete_stream(name))
    click.echo(f"deleted {name}")


@click.group()
def consumer() -> None:
    """Create, list, look at and delete consumers; fetch messages."""


@consumer.command("add")
@click.argument("stream_name", metavar="STREAM")
@click.argument("name")
@click.option("--filter", "filter_subject", default=None, help="Only messages on this subject.")
@click.option(
    "--deliver", type=click.Choice(["all", "last", "new", "last_per_subject"]), default="all",
    show_default=True, help="Which message is the first.",
)  # fmt: skip
@click.option("--ack-wait", default=30.0, show_default=True, help="Seconds until redelivery.")
@server_option
def consumer_add(
    *, stream_name: str, name: str, filter_subject: str | None, deliver: str, ack_wait: float,
    server: str,
) -> None:  # fmt: skip
    """Create a durable pull consumer with explicit acks."""
    config = ConsumerConfig(
        durable_name=name, ack_policy=AckPolicy.EXPLICIT, ack_wait=ack_wait,
        deliver_policy=DeliverPolicy(deliver), filter_subject=filter_subject,
    )  # fmt: skip
    _print_consumer(
        with_connection(server, lambda nc: nc.jetstream().add_consumer(stream_name, config))
    )


@consumer.command("ls")
@click.argument("stream_name", metavar="STREAM")
@server_option
def consumer_ls(*, stream_name: str, server: str) -> None:
    """List the consumers of a stream."""
    for info in with_connection(server, lambda nc: nc.jetstream().consumers_info(stream_name)):
        click.echo(
            f"{info.name:24} {info.num_pending:>12,} to deliver {info.num_ack_pending:>8,} unacked"
        )


@consumer.command("info")
@click.argument("stream_name", metavar="STREAM")
@click.argument("name")
@server_option
def consumer_info(*, stream_name: str, name: str, server: str) -> None:
    """Show a consumer."""
    _print_consumer(
        with_connection(server, lambda nc: nc.jetstream().consumer_info(stream_name, name))
    )


@consumer.command("next")
@click.argument("stream_name", metavar="STREAM")
@click.argument("name")
@click.option("--count", default=1, show_default=True, help="How many messages at most.")
@click.option("--timeout", default=2.0, show_default=True, help="Seconds to wait for the first.")
@server_option
def consumer_next(*, stream_name: str, name: str, count: int, timeout: float, server: str) -> None:
    """Fetch messages, print and acknowledge them."""

    async def work(nc: Any) -> None:
        subscription = await nc.jetstream().pull_subscribe_bind(name, stream_name)
        for message in await subscription.fetch(count, timeout=timeout):
            sequence = message.metadata.sequence.stream
            click.echo(f"[{sequence}] {message.subject}: {message.data.decode(errors='replace')}")
            await message.ack_sync()

    with_connection(server, work)


@consumer.command("rm")
@click.argument("stream_name", metavar="STREAM")
@click.argument("name")
@server_option
def consumer_rm(*, stream_name: str, name: str, server: str) -> None:
    """Delete a consumer."""
    with_connection(server, lambda nc: nc.jetstream().delete_consumer(stream_name, name))
    click.echo(f"deleted {stream_name} > {name}")


def _print_stream(info: Any) -> None:
    config, state, cluster = info.config, info.state, info.cluster
    click.echo(f"stream {config.name}")
    click.echo(f"  subjects   {', '.join(config.subjects or [])}")
    click.echo(f"  keeps      {config.storage}, {config.retention}, {config.num_replicas} replicas")
    click.echo(
        f"  messages   {state.messages:,} ({state.bytes:,} B), "
        f"{state.first_seq} to {state.last_seq}"
    )
    click.echo(f"  consumers  {state.consumer_count}")
    if cluster is not None:
        click.echo(f"  leader     {cluster.leader}")
        for peer in cluster.replicas or []:
            condition = "current" if peer.current else f"{peer.lag or 0} log entries behind"
            if peer.offline:
                condition = "offline"
            click.echo(f"  follower   {peer.name} ({condition})")


def _print_consumer(info: Any) -> None:
    click.echo(f"consumer {info.stream_name} > {info.name}")
    click.echo(f"  delivered  {info.delivered.consumer_seq if info.delivered else 0}")
    click.echo(f"  pending    {info.num_pending:,} to deliver, {info.num_ack_pending:,} unacked")
