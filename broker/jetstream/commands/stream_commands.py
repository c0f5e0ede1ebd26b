"""The commands of a stream group: everything a log entry of a stream can say.

Owns: the kind byte, the publish prefix, and one Struct per other command; `encode` and `decode`.
May not touch: state. A command carries every fact that its effect depends on, above all the
time, which the leader stamped once: applying it reads no clock.
Spec: DESIGN sections 4 and 7. New fields go to the end of a Struct and have a default, so that
an entry written by an older version still decodes."""

from __future__ import annotations

from enum import IntEnum
from struct import Struct as Packing
from typing import Final, TypeAlias

import msgspec

from broker.jetstream.commands.consumer_commands import Acks, DeliveryProgress
from broker.jetstream.commands.publish_notes import Bounds, encode_bounds
from broker.jetstream.config import ConsumerConfig, StreamConfig

# kind, time_ns, origin, session, batch_no; the bytes of a Block follow
PUBLISH_PREFIX: Final = Packing("<B7xqQQQ")
PUBLISH_PREFIX_SIZE: Final = PUBLISH_PREFIX.size


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
    NOTED_PUBLISH = 10  # bounds and marks lie between the prefix and the block
    CREATE_CONSUMER = 16
    UPDATE_CONSUMER = 17
    DELETE_CONSUMER = 18
    PAUSE_CONSUMER = 19
    PROGRESS = 20
    ACKS = 21
    RESET_CONSUMER = 22


class Command(msgspec.Struct, frozen=True, array_like=True):
    """Base of the commands that are MessagePack after the kind byte."""

    now_ns: int  # wall time, stamped by the leader that proposed the command


class Purge(Command, frozen=True, array_like=True):
    """Remove messages: spec 4.4. `filter` empty = all subjects, `seq` 0 and `keep` 0 = not set.
    `start` not negative: a part of a purge, the first one (0) or from that sequence on, while
    `left` matching messages are left (MessageStore.purge_part)."""

    filter: bytes = b""
    seq: int = 0
    keep: int = 0
    start: int = -1
    left: int = 0


class DeleteMessage(Command, frozen=True, array_like=True):
    """Remove one message; unless `no_erase`, its bytes are overwritten as well."""

    seq: int
    no_erase: bool = False


class UpdateConfig(Command, frozen=True, array_like=True):
    """The stream gets this (normalised, validated) configuration; lowered limits trim at once."""

    config: StreamConfig


class Expire(Command, frozen=True, array_like=True):
    """Messages whose age or own TTL has run out at `now_ns` leave the stream."""


class Firing(msgspec.Struct, frozen=True, array_like=True):
    """The schedule in message `seq` fires for `due_ns`, and again at `next_ns`; 0: never again."""

    seq: int
    due_ns: int
    next_ns: int = 0


class Fire(Command, frozen=True, array_like=True):
    """Schedules publish their messages. The times are the leader's: zones are not replicated."""

    fired: list[Firing]


class LoadState(Command, frozen=True, array_like=True):
    """What a restored stream has besides its messages; in several commands if it is much."""

    last_seq: int
    last_msg_id: bytes = b""
    message_ids: list[tuple[bytes, int, int]] = []  # (id, sequence, time) of the duplicate window
    consumers: list[bytes] = []  # their images
    last_time: int = 0  # of the newest message there ever was
    sources: dict[str, int] = {}  # how far each source was read


class CreateConsumer(Command, frozen=True, array_like=True):
    """Create a consumer, or meet the existing one by the rules of `action` (spec 5.2).

    `config` is normalised and validated by the leader; what depends on replicated state (does it
    exist, workqueue overlap, consumer limit, start position) is decided when applied. The
    consumer's incarnation is the index of the entry that created it.
    """

    name: str
    config: ConsumerConfig
    action: str = ""  # "" = create or update, "create", "update"


class UpdateConsumer(Command, frozen=True, array_like=True):
    """New configuration for an existing consumer; position, pending and acks survive."""

    name: str
    config: ConsumerConfig


class DeleteConsumer(Command, frozen=True, array_like=True):
    """`incarnation` not 0: only if it still is that one (an idle timer races re-creation)."""

    name: str
    incarnation: int = 0


class PauseConsumer(Command, frozen=True, array_like=True):
    """Paused until `until_ns`; 0 or a time not after `now_ns` resumes."""

    name: str
    until_ns: int = 0


class ResetConsumer(Command, frozen=True, array_like=True):
    """Position goes to `seq` (0: right above the ack floor); pending and counts are cleared."""

    name: str
    seq: int = 0


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
    """The command of an entry that has no block."""
    return _DECODERS[entry[0]].decode(memoryview(entry)[1:])


def publish_prefix(*, time_ns: int, origin: int, session: int, batch_no: int) -> bytes:
    """What the leader puts before a batch's block. `origin` 0: no session, never a repeat."""
    return PUBLISH_PREFIX.pack(CommandKind.PUBLISH, time_ns, origin, session, batch_no)


def noted_prefix(
    *, time_ns: int, origin: int, session: int, batch_no: int, bounds: Bounds | None
) -> bytes:
    """As publish_prefix; the marks and the block follow, as notes.encode_marks makes them."""
    prefix = PUBLISH_PREFIX.pack(CommandKind.NOTED_PUBLISH, time_ns, origin, session, batch_no)
    return prefix + encode_bounds(bounds)


def mirror_prefix(*, time_ns: int) -> bytes:
    """Before a block that carries the origin's sequences and times: gaps become skipped sequences.

    Rows at or below the stream's last sequence are repeats and are left out, so no session is
    needed.
    """
    return PUBLISH_PREFIX.pack(CommandKind.MIRROR_BATCH, time_ns, 0, 0, 0)
