"""`jetraft stream`, `jetraft consumer` and `jetraft scan`.

Owns: their options and output.
May not touch: the server's internals."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import click
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, RetentionPolicy, StorageType
from nats.js.api import StreamConfig as ClientStreamConfig

from broker.cli.client import AT_LEAST_ONE, SECONDS, server_option, with_connection
from broker.cli.tables import age, message_text, show, size, table

ANSWER_WITHIN_S = 10.0
_OF_NODES = ("scans_open", "scans_total", "scans_refused_total", "scan_sent_bytes_total")

Reading = tuple[str, dict[str, str], float]


@click.group()
def stream() -> None:
    """Create, list, show, purge and delete streams."""


@stream.command("add")
@click.argument("name")
@click.option("--subjects", required=True, help="Subjects to capture, separated by commas.")
@click.option(
    "--replicas", default=1, show_default=True, type=click.IntRange(1, 5),
    help="Number of replicas, each on a node of its own.",
)  # fmt: skip
@click.option(
    "--storage", type=click.Choice(["file", "memory"]), default="file", show_default=True,
    help="Where messages are kept.",
)  # fmt: skip
@click.option(
    "--retention", type=click.Choice(["limits", "interest", "workqueue"]), default="limits",
    show_default=True,
    help="When messages are removed: by limits, or when consumers have acked them.",
)  # fmt: skip
@click.option("--max-msgs", type=AT_LEAST_ONE, help="Keep at most this many messages.")
@click.option("--max-bytes", type=AT_LEAST_ONE, help="Keep at most this many bytes.")
@click.option("--max-age", type=SECONDS, help="Keep messages this many seconds.")
@server_option
def stream_add(
    *, name: str, subjects: str, replicas: int, storage: str, retention: str,
    max_msgs: int | None, max_bytes: int | None, max_age: float | None, server: str,
) -> None:  # fmt: skip
    """Create a stream."""
    config = ClientStreamConfig(
        name=name, subjects=subjects.split(","), num_replicas=replicas,
        storage=StorageType(storage), retention=RetentionPolicy(retention),
        max_msgs=max_msgs or -1, max_bytes=max_bytes or -1, max_age=max_age or 0.0,
        allow_direct=True,
    )  # fmt: skip
    _print_stream(with_connection(server, lambda nc: nc.jetstream().add_stream(config)))


@stream.command("ls")
@server_option
def stream_ls(*, server: str) -> None:
    """List streams."""
    found = with_connection(server, lambda nc: nc.jetstream().streams_info())
    rows = [
        (
            info.config.name, info.config.storage, info.config.num_replicas,
            info.cluster.leader if info.cluster else "", info.state.consumer_count,
            info.state.messages, size(info.state.bytes), ",".join(info.config.subjects or []),
        )
        for info in sorted(found, key=lambda info: info.config.name)
    ]  # fmt: skip
    headings = (
        "name", "storage", "replicas", "leader", "consumers", "messages", "size", "subjects",
    )  # fmt: skip
    table(headings, rows, empty="no streams; `jetraft stream add` creates one")


@stream.command("info")
@click.argument("name")
@server_option
def stream_info(*, name: str, server: str) -> None:
    """Show a stream: its configuration, contents and replicas."""
    _print_stream(with_connection(server, lambda nc: nc.jetstream().stream_info(name)))


@stream.command("purge")
@click.argument("name")
@click.option("--subject", default=None, help="Only messages on this subject (wildcards work).")
@server_option
def stream_purge(*, name: str, subject: str | None, server: str) -> None:
    """Remove messages, keep the stream."""
    with_connection(server, lambda nc: nc.jetstream().purge_stream(name, subject=subject))
    show(f"purged {name}")


@stream.command("get")
@click.argument("name")
@click.argument("sequence", type=AT_LEAST_ONE)
@server_option
def stream_get(*, name: str, sequence: int, server: str) -> None:
    """Print one stored message."""
    message = with_connection(server, lambda nc: nc.jetstream().get_msg(name, sequence))
    show(f"[{message.seq}] {message.subject}: {(message.data or b'').decode(errors='replace')}")


@stream.command("rm")
@click.argument("name")
@server_option
def stream_rm(*, name: str, server: str) -> None:
    """Delete a stream and everything in it."""
    with_connection(server, lambda nc: nc.jetstream().delete_stream(name))
    show(f"deleted {name}")


@click.group()
def consumer() -> None:
    """Create, list, show and delete consumers; fetch messages."""


@consumer.command("add")
@click.argument("stream_name", metavar="STREAM")
@click.argument("name")
@click.option("--filter", "filter_subject", default=None, help="Only messages on this subject.")
@click.option(
    "--deliver", type=click.Choice(["all", "last", "new", "last_per_subject"]), default="all",
    show_default=True, help="Where to start in the stream.",
)  # fmt: skip
@click.option(
    "--ack-wait", default=30.0, show_default=True, type=SECONDS, help="Seconds until redelivery."
)
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
    found = with_connection(server, lambda nc: nc.jetstream().consumers_info(stream_name))
    rows = [
        (
            info.name, "push" if info.config.deliver_subject else "pull",
            info.config.filter_subject or ",".join(info.config.filter_subjects or []) or ">",
            info.config.ack_policy, info.delivered.stream_seq if info.delivered else 0,
            info.num_pending or 0, info.num_ack_pending or 0, info.num_redelivered or 0,
        )
        for info in sorted(found, key=lambda info: info.name)
    ]  # fmt: skip
    headings = (
        "name", "mode", "filter", "acks", "last delivered", "to deliver", "unacked", "redelivered",
    )  # fmt: skip
    table(headings, rows, empty=f"{stream_name} has no consumers")


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
@click.option(
    "--count", default=1, show_default=True, type=AT_LEAST_ONE, help="How many messages at most."
)
@click.option(
    "--timeout", default=2.0, show_default=True, type=SECONDS,
    help="Seconds to wait for the first.",
)  # fmt: skip
@server_option
def consumer_next(*, stream_name: str, name: str, count: int, timeout: float, server: str) -> None:
    """Fetch messages, print and acknowledge them."""

    async def work(nc: Any) -> None:
        await nc.jetstream().consumer_info(stream_name, name)  # names a missing stream or consumer
        subscription = await nc.jetstream().pull_subscribe_bind(name, stream_name)
        for message in await subscription.fetch(count, timeout=timeout):
            sequence = message.metadata.sequence.stream
            click.echo(message_text(sequence, message))
            await message.ack_sync()

    with_connection(server, work)


@consumer.command("rm")
@click.argument("stream_name", metavar="STREAM")
@click.argument("name")
@server_option
def consumer_rm(*, stream_name: str, name: str, server: str) -> None:
    """Delete a consumer."""
    with_connection(server, lambda nc: nc.jetstream().delete_consumer(stream_name, name))
    show(f"deleted {stream_name} > {name}")


def _print_stream(info: Any) -> None:
    config, state, cluster = info.config, info.state, info.cluster
    show(f"stream {config.name}")
    show(f"  subjects   {', '.join(config.subjects or [])}")
    show(f"  keeps      {config.storage}, {config.retention}, {config.num_replicas} replicas")
    show(
        f"  messages   {state.messages:,} ({size(state.bytes)}), "
        f"{state.first_seq} to {state.last_seq}"
    )
    show(f"  consumers  {state.consumer_count}")
    if cluster is not None:
        show(f"  leader     {cluster.leader}")
        for peer in cluster.replicas or []:
            condition = "current" if peer.current else f"{peer.lag or 0} log entries behind"
            if peer.offline:
                condition = "offline"
            heard = f", heard {age(peer.active / 1e9)} ago" if peer.active else ""
            show(f"  follower   {peer.name} ({condition}{heard})")


def _print_consumer(info: Any) -> None:
    show(f"consumer {info.stream_name} > {info.name}")
    config = info.config
    mode = f"push to {config.deliver_subject}" if config.deliver_subject else "pull"
    only = config.filter_subject or ",".join(config.filter_subjects or []) or "everything"
    show(f"  mode       {mode}, acks {config.ack_policy}, from {config.deliver_policy}")
    show(f"  takes      {only}")
    for word, at in (("delivered", info.delivered), ("ack floor", info.ack_floor)):
        consumer_seq, stream_seq = (at.consumer_seq, at.stream_seq) if at else (0, 0)
        show(f"  {word:10} {consumer_seq:,} (stream sequence {stream_seq:,})")
    show(f"  pending    {info.num_pending:,} to deliver, {info.num_ack_pending:,} unacked")


@click.group()
def scan() -> None:
    """Show bulk reads and the lag of streaming queries."""


@scan.command("ls")
@click.option(
    "--monitor",
    default="http://127.0.0.1:8222",
    show_default=True,
    help="Monitoring addresses of the nodes, separated by commas.",
)
def ls(*, monitor: str) -> None:
    """List streaming queries with their lag, and what each node has sent."""
    readers: list[tuple[str, str, str, int]] = []
    nodes: list[tuple[str | int, ...]] = []
    for address in filter(None, (part.strip().rstrip("/") for part in monitor.split(","))):
        readings = list(_readings(address))
        numbers = {name: int(value) for name, names, value in readings if not names}
        nodes.append((address, *(numbers.get(f"jetraft_{name}", 0) for name in _OF_NODES)))
        readers += [
            (names["account"], names["stream"], names["reader"], int(value))
            for name, names, value in readings
            if name == "jetraft_reader_lag"
        ]
    table(("account", "stream", "reader", "lag"), sorted(readers), empty="No streaming queries.")
    click.echo()
    table(("node", "open", "completed", "refused", "bytes sent"), nodes, empty="No nodes.")


def _readings(address: str) -> Iterator[Reading]:
    from prometheus_client.parser import text_string_to_metric_families

    if not address.startswith(("http://", "https://")):
        raise click.ClickException(f"--monitor {address}: write http://host:port")
    url = f"{address}/metrics"
    try:
        with urllib.request.urlopen(url, timeout=ANSWER_WITHIN_S) as answer:  # noqa: S310
            text = answer.read().decode()
    except (OSError, ValueError, urllib.error.URLError) as error:
        raise click.ClickException(f"--monitor {address}: {error}") from error
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            yield sample.name, sample.labels, sample.value
