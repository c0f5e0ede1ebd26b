"""Effects: what the caller of a delivery engine must do, in order.

Owns: the values between Delivery (engine.py) and the code around it that has sockets and Raft.
May not touch: sockets, Raft, consumer state.
Spec: JetStream delivery, status messages, ack confirmations, headers_only.

Effects are built once per run of messages or per request. They are not frozen, because building
a frozen dataclass costs several times as much."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from broker.jetstream.commands.stream_commands import AnyCommand
from broker.store.block.codec import Rows

_EMPTY_HEADERS: Final = b"NATS/1.0\r\n\r\n"


@dataclass(slots=True)
class Deliver:
    """Send rows[indices] to `to`, each under its own stream subject, as encode_deliveries does.

    The k-th message has consumer sequence consumer_seq + k, delivery count delivered[k] (1 if
    None) and reports `pending - k` messages still pending after it. With headers_only each
    message is sent as `headers_only_block(rows, i)` with an empty payload.
    """

    to: bytes
    rows: Rows
    indices: list[int]
    consumer_seq: int
    delivered: list[int] | None
    pending: int
    headers_only: bool
    pin_id: str = ""  # pin id of the receiving client, sent with every message


@dataclass(slots=True)
class StatusMessage:
    """A message without payload: subject `to`, the given header block, rarely a reply."""

    to: bytes
    header: bytes
    reply: bytes = b""


@dataclass(slots=True)
class Confirm:
    """Answer an acknowledgement now with an empty message: it needed no log entry."""

    reply: bytes


@dataclass(slots=True)
class Propose:
    """Propose a command that no client waits for (the deletion of an idle consumer)."""

    command: AnyCommand


@dataclass(slots=True)
class Advisory:
    """An event to publish as an advisory or a metric (api/advisories.py) if it has subscribers.

    `kind` is `max_deliver`, `nak`, `terminated` or `ack` (a sampled ack). Three kinds are not
    about a message: `resumed` (a pause has run out), `pinned` with the pin id in `reason`, and
    `unpinned` with the reason.
    """

    kind: str
    stream_seq: int = 0
    consumer_seq: int = 0
    deliveries: int = 0
    reason: str = ""
    elapsed_ns: int = 0  # `ack`: time since the delivery
    group: str = ""  # priority group of the pin


Effect = Deliver | StatusMessage | Confirm | Propose | Advisory


def headers_only_block(rows: Rows, index: int) -> bytes:
    """The header block of a message delivered without its payload: `Nats-Msg-Size` gives the
    size of the payload that was left out."""
    block = rows.headers(index) or _EMPTY_HEADERS
    return b"%bNats-Msg-Size: %d\r\n\r\n" % (block[:-2], len(rows.data(index)))
