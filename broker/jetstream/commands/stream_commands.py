"""The commands of a stream group: every kind of log entry a stream can have.

Owns: the kind byte, and one Struct per command that is not a publish; `encode` and `decode`.
May not touch: state; the layout of entries that carry a block (publish_entry.py, and sourcing.py
in broker/jetstream/stream).
Spec: docs/ARCHITECTURE.md, "Invariants" (replicas that applied the same index are equal).

A command carries everything that its effect depends on, above all the time: the leader stamps it
once, and applying the command reads no clock. New fields go to the end of a Struct and have a
default, so that entries written by an older version can be decoded."""

from __future__ import annotations

from enum import IntEnum
from typing import Final, TypeAlias

import msgspec

from broker.jetstream.commands.consumer_commands import Acks, DeliveryProgress
from broker.jetstream.config import ConsumerConfig, StreamConfig


class CommandKind(IntEnum):
    """First byte of an entry. Numbers are on disk: never reuse one."""

    PUBLISH = 1
    MIRROR_BATCH = 2
    PURGE = 3
    DELETE_MESSAGE = 4
    UPDATE_CONFIG = 5
    EXPIRE = 6
    FIRE = 7
    LOAD_STATE = 8
    SOURCE_BATCH = 9
    NOTED_PUBLISH = 10  # with limits in bytes and marks of fast batches: publish_entry.py
    WRITER_BATCH = 11  # writer_entry.py
    CREATE_CONSUMER = 16
    UPDATE_CONSUMER = 17
    DELETE_CONSUMER = 18
    PAUSE_CONSUMER = 19
    PROGRESS = 20
    ACKS = 21
    RESET_CONSUMER = 22


class Command(msgspec.Struct, frozen=True, array_like=True):
    """Base of the commands that are encoded as a kind byte and MessagePack."""

    now_ns: int  # wall time, stamped by the leader that proposed the command


class Purge(Command, frozen=True, array_like=True):
    """Remove messages (STREAM.PURGE). Empty `filter`: all subjects; `seq` 0 and `keep` 0: not set.

    `start` >= 0: one bounded part of a purge; 0 is the first part, otherwise it continues at that
    sequence with `left` matching messages remaining (MessageStore.purge_part). `subjects` are
    those that the filter matches, if the leader found only a few."""

    filter: bytes = b""
    seq: int = 0
    keep: int = 0
    start: int = -1
    left: int = 0
    subjects: list[bytes] = []


class DeleteMessage(Command, frozen=True, array_like=True):
    """Remove one message; its bytes are overwritten as well, unless `no_erase`."""

    seq: int
    no_erase: bool = False


class UpdateConfig(Command, frozen=True, array_like=True):
    """Replace the configuration (already normalized and validated). Lowered limits take effect
    immediately."""

    config: StreamConfig


class Expire(Command, frozen=True, array_like=True):
    """Remove messages that have reached max_age or their own TTL at `now_ns`, and idle batches."""


class Firing(msgspec.Struct, frozen=True, array_like=True):
    """The schedule in message `seq` fires for `due_ns` and is next due at `next_ns` (0: never)."""

    seq: int
    due_ns: int
    next_ns: int = 0


class Fire(Command, frozen=True, array_like=True):
    """Schedules publish their messages. The leader computes the times, because time zone rules are
    not replicated."""

    fired: list[Firing]


class LoadState(Command, frozen=True, array_like=True):
    """The state of a restored stream besides its messages; large states are split into several."""

    last_seq: int
    last_msg_id: bytes = b""
    message_ids: list[tuple[bytes, int, int]] = []  # (id, sequence, time) of the duplicate window
    consumers: list[bytes] = []  # their images
    last_time: int = 0  # of the newest message ever stored, even if it was removed since
    sources: dict[str, int] = {}  # the origin sequence read last, by source


class CreateConsumer(Command, frozen=True, array_like=True):
    """Create a consumer; if the name exists, `action` decides between update, no-op and error.

    The leader has normalized and validated `config`. What depends on replicated state (existence,
    workqueue overlap, consumer limit, start position) is decided when the entry is applied. The
    consumer's incarnation is the index of the entry that created it."""

    name: str
    config: ConsumerConfig
    action: str = ""  # "" = create or update, "create", "update"
    # The deliver subject of the consumer that the leader has seen under this name; "" = there was
    # none. None = not checked, from an earlier version.
    seen_deliver_subject: str | None = None


class UpdateConsumer(Command, frozen=True, array_like=True):
    """Reconfigure an existing consumer; its position, pending messages and acks stay."""

    name: str
    config: ConsumerConfig


class DeleteConsumer(Command, frozen=True, array_like=True):
    """`incarnation` not 0: delete only that incarnation (an inactivity timer may race with the
    creation of a new consumer of the same name)."""

    name: str
    incarnation: int = 0


class PauseConsumer(Command, frozen=True, array_like=True):
    """Pause until `until_ns`; 0 or a time not after `now_ns` resumes. `kept`: the configuration
    keeps a time that has passed."""

    name: str
    until_ns: int = 0
    kept: bool = False


class ResetConsumer(Command, frozen=True, array_like=True):
    """Move the position to `seq` (0: just above the ack floor); clears pending and counts."""

    name: str
    seq: int = 0


# Commands to a consumer that exists.
ConsumerCommand: TypeAlias = UpdateConsumer | PauseConsumer | ResetConsumer
AnyCommand: TypeAlias = (
    Purge
    | DeleteMessage
    | UpdateConfig
    | Expire
    | LoadState
    | Fire
    | CreateConsumer
    | DeleteConsumer
    | ConsumerCommand
    | DeliveryProgress
    | Acks
)

_KINDS: Final[dict[type[AnyCommand], CommandKind]] = {
    Purge: CommandKind.PURGE,
    DeleteMessage: CommandKind.DELETE_MESSAGE,
    UpdateConfig: CommandKind.UPDATE_CONFIG,
    Expire: CommandKind.EXPIRE,
    LoadState: CommandKind.LOAD_STATE,
    Fire: CommandKind.FIRE,
    CreateConsumer: CommandKind.CREATE_CONSUMER,
    UpdateConsumer: CommandKind.UPDATE_CONSUMER,
    DeleteConsumer: CommandKind.DELETE_CONSUMER,
    PauseConsumer: CommandKind.PAUSE_CONSUMER,
    DeliveryProgress: CommandKind.PROGRESS,
    Acks: CommandKind.ACKS,
    ResetConsumer: CommandKind.RESET_CONSUMER,
}
_DECODERS: Final[dict[int, msgspec.msgpack.Decoder[AnyCommand]]] = {
    int(kind): msgspec.msgpack.Decoder(command) for command, kind in _KINDS.items()
}
_ENCODER: Final = msgspec.msgpack.Encoder()


def encode(command: AnyCommand) -> bytes:
    return bytes((_KINDS[type(command)],)) + _ENCODER.encode(command)


def decode(entry: bytes) -> AnyCommand:
    """Decode an entry that carries no block."""
    return _DECODERS[entry[0]].decode(memoryview(entry)[1:])
