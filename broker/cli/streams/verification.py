"""`jetraft stream verify`: read everything, and say whether it is what the stream claims.

Owns: what is checked.
May not touch: the server's internals."""

from __future__ import annotations

from typing import Any

import click

from broker.cli.connect import api
from broker.cli.connect.blocking import connected
from broker.cli.connect.client_shape import CommandClient
from broker.cli.connect.failures import CommandFailed
from broker.cli.connect.options import Destination, at, connects, of_context
from broker.cli.output.progress import progress_bar
from broker.cli.output.tables import facts, show_json
from broker.cli.streams.digest import StreamDigest
from broker.cli.streams.reading import stored_messages


@click.command()
@click.argument("name")
@click.option("--against", help="Compare with the stream of this name on these servers (URLs).")
@click.option(
    "--against-context", help="Compare with the stream on the servers of this saved context."
)
@connects
def verify(
    *, name: str, against: str | None, against_context: str | None, to: Destination, as_json: bool
) -> None:
    """Read all messages of a stream, check their number and order, and print their digest. With
    --against, compare it with the digest of the stream on other servers."""
    with connected(to) as client:
        digest, faults = checked_stream(client, name)
    result: dict[str, Any] = {
        "stream": name, "messages": digest.messages, "first": digest.first, "last": digest.last,
        "sha256": digest.sha256,
    }  # fmt: skip
    other = None
    if against or against_context:
        there = of_context(against_context) if against_context else at(against or "", to)
        with connected(there) as client:
            other, more = checked_stream(client, name)
        faults += [f"the other one: {fault}" for fault in more]
        result["other_sha256"] = other.sha256
        if other.sha256 != digest.sha256:
            faults.append(
                f"they differ: here {digest.messages:,} messages, {digest.first} to {digest.last}; "
                f"there {other.messages:,}, {other.first} to {other.last}"
            )
    if as_json:
        show_json(result | {"faults": faults})
    else:
        facts(f"stream {name}", [
            ("messages", f"{digest.messages:,}, {digest.first} to {digest.last}"),
            ("sha256", digest.sha256),
            ("the other", other and other.sha256),
        ])  # fmt: skip
    if faults:
        raise CommandFailed("; ".join(faults))


def checked_stream(
    client: CommandClient, name: str, *, last: int | None = None
) -> tuple[StreamDigest, list[str]]:
    """The digest, and what is wrong. Messages that come or go meanwhile are not held against it.
    `last`: of the messages up to this sequence."""
    info = api.stream_info(client, name)
    if last is not None:
        info["state"]["last_seq"] = min(last, int(info["state"].get("last_seq", 0)))
    digest = StreamDigest()
    with progress_bar(name, int(info["state"].get("messages", 0))) as advance:
        for message in stored_messages(client, info):
            digest.add(message)
            advance(1)
    faults = digest.disorder[:3]
    state, after = info["state"], api.stream_info(client, name)["state"]
    went = after.get("first_seq") != state.get("first_seq") or after.get(
        "num_deleted"
    ) != state.get("num_deleted")
    claimed = int(state.get("messages", 0))
    if digest.messages != claimed and not went and last is None:
        faults.append(f"{name} claims {claimed:,} messages, {digest.messages:,} can be read")
    return digest, faults
