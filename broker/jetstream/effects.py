"""What a delivery engine wants done: values that the runtime carries out in order.

Owns: the vocabulary between Delivery and the shell around it.
May not touch: sockets, Raft, consumer state.
Spec: JetStream delivery, status messages, acknowledgement confirmations."""

from __future__ import annotations

from dataclasses import dataclass, field

from broker.jetstream.consumer_commands import Acks, Progress
from broker.jetstream.message_source import Rows

# Built once per run of messages or per request, so not frozen: see STYLE, Types.


@dataclass(slots=True)
class Deliver:
    """Send rows[indices] to `to`, each under its own stream subject, as encode_deliveries does.

    The k-th message has consumer sequence consumer_seq + k, delivery count delivered[k] (1 if
    None) and shows `pending - k` messages behind it. With headers_only the payload is replaced by
    a Nats-Msg-Size header (`headers_only_headers`).
    """

    to: bytes
    rows: Rows
    indices: list[int]
    consumer_seq: int
    delivered: list[int] | None
    pending: int
    headers_only: bool


@dataclass(slots=True)
class Status:
    """A message without payload: subject `to`, the given header block, rarely a reply."""

    to: bytes
    header: bytes
    reply: bytes = b""


@dataclass(slots=True)
class Confirm:
    """Answer an acknowledgement now with an empty message: nothing has to be committed first."""

    reply: bytes


@dataclass(slots=True)
class DeleteIdle:
    """The consumer has been inactive for its threshold: propose DeleteConsumer for it."""

    consumer: str


@dataclass(slots=True)
class Advisory:
    """A fact somebody may listen for. `kind` is max_deliver, nak, terminated or ack_sample."""

    kind: str
    stream_seq: int
    consumer_seq: int
    deliveries: int
    reason: str = ""


Effect = Deliver | Status | Confirm | DeleteIdle | Advisory


@dataclass(slots=True)
class Proposal:
    """Commands to propose in this order, and who is answered when the last is applied.

    `confirms` are reply subjects of double acks: an empty message goes to each after the last
    command of `commands` has been committed and applied, never before.
    """

    commands: list[Progress | Acks] = field(default_factory=list)
    confirms: list[bytes] = field(default_factory=list)
