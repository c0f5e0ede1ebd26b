"""What a delivery engine wants done: values that the runtime carries out in order.

Owns: the vocabulary between Delivery and the shell around it.
May not touch: sockets, Raft, consumer state.
Spec: JetStream delivery, status messages, acknowledgement confirmations.

Effects are built once per run of messages or per request and are not frozen (STYLE, Types)."""

from __future__ import annotations

from dataclasses import dataclass, field

from broker.jetstream.commands.stream_commands import AnyCommand
from broker.store.block.block import Rows


@dataclass(slots=True)
class Deliver:
    """Send rows[indices] to `to`, each under its own stream subject, as encode_deliveries does.

    The k-th message has consumer sequence consumer_seq + k, delivery count delivered[k] (1 if
    None) and shows `pending - k` messages behind it. With headers_only each message goes out as
    `headers_only_block(rows, i)` and an empty payload.
    """

    to: bytes
    rows: Rows
    indices: list[int]
    consumer_seq: int
    delivered: list[int] | None
    pending: int
    headers_only: bool
    pin_id: str = ""  # the client's, told with every message


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
    """A fact somebody may listen for.

    `kind` is `max_deliver`, `nak`, `terminated` or `ack` (a sampled one). Others are about no
    message: `resumed`, a pause has run out; `pinned` with the id, and `unpinned` with the reason.
    """

    kind: str
    stream_seq: int = 0
    consumer_seq: int = 0
    deliveries: int = 0
    reason: str = ""
    elapsed_ns: int = 0  # `ack`: since the delivery
    group: str = ""  # whose pin it is


Effect = Deliver | StatusMessage | Confirm | Propose | Advisory


@dataclass(slots=True)
class TurnProposal:
    """Commands to propose in this order, and who is answered when the last one is applied.

    `confirms` are reply subjects of double acks: an empty message goes to each after the last
    command has been committed and applied, never before. A Proposal with confirms has commands.
    """

    commands: list[AnyCommand] = field(default_factory=list)
    confirms: list[bytes] = field(default_factory=list)
