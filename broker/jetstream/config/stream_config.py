"""The fields of a stream configuration, named and ordered as in the API.

Owns: the Structs of a stream's configuration and their enumerations.
May not touch: rules (stream_rules.py, stream_update.py), storage, the cluster.
Spec: JetStream stream configuration; durations are nanoseconds, -1 is "no limit"."""

from __future__ import annotations

from typing import Annotated

import msgspec

from broker.jetstream.strict_json import Unsigned, WallTime, WireText, always

Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]


class Retention(WireText):
    LIMITS = "limits"
    INTEREST = "interest"
    WORKQUEUE = "workqueue"


class Discard(WireText):
    OLD = "old"
    NEW = "new"

    @classmethod
    def spelled(cls, text: str) -> str:
        return text.lower()  # the only enumeration that nats-server reads in any case


class Storage(WireText):
    FILE = "file"
    MEMORY = "memory"


class Compression(WireText):
    NONE = "none"
    S2 = "s2"


class PersistMode(WireText):
    DEFAULT = "default"
    ASYNC = "async"

    @classmethod
    def spelled(cls, text: str) -> str:
        return text or "default"


class Placement(msgspec.Struct, frozen=True):
    """Where replicas are placed. `preferred` is only used by leader stepdown."""

    cluster: str = ""
    tags: tuple[str, ...] = ()
    preferred: str = ""


class SubjectTransform(msgspec.Struct, frozen=True):
    src: str = always("")
    dest: str = always("")


class External(msgspec.Struct, frozen=True):
    """An origin in another account or domain, or a named remote: `api` replaces `$JS.API`."""

    api: str = always("")
    deliver: str = always("")


class SourceConsumer(msgspec.Struct, frozen=True):
    """An existing durable consumer through which a mirror or source reads."""

    name: str = ""
    deliver_subject: str = ""


class StreamSource(msgspec.Struct, frozen=True):
    """The origin of a mirror, or one origin of a sourcing stream."""

    name: str = always("")
    opt_start_seq: Unsigned = 0
    opt_start_time: WallTime | None = None
    filter_subject: str = ""
    subject_transforms: tuple[SubjectTransform, ...] = ()
    external: External | None = None
    consumer: SourceConsumer | None = None


class Republish(msgspec.Struct, frozen=True):
    src: str = ""
    dest: str = always("")
    headers_only: bool = False


class ConsumerLimits(msgspec.Struct, frozen=True):
    """Limits and defaults for the consumers of a stream. 0 means "not set"."""

    inactive_threshold: int = 0
    max_ack_pending: int = 0


class StreamConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A stream's configuration. The defaults here are the normalized ones, except for `subjects`
    and `duplicate_window`, which depend on other fields (stream_rules.check_stream_config)."""

    name: str = always("")
    description: str = ""
    subjects: tuple[str, ...] = ()
    retention: Retention = always(Retention.LIMITS)
    max_consumers: int = always(-1)
    max_msgs: int = always(-1)
    max_bytes: int = always(-1)
    max_age: int = always(0)
    max_msgs_per_subject: int = always(-1)
    max_msg_size: Int32 = always(-1)
    discard: Discard = always(Discard.OLD)
    storage: Storage = always(Storage.FILE)
    num_replicas: int = always(1)
    no_ack: bool = False
    duplicate_window: int = 0
    placement: Placement | None = None
    mirror: StreamSource | None = None
    sources: tuple[StreamSource, ...] = ()
    compression: Compression = always(Compression.NONE)
    first_seq: Unsigned = 0
    subject_transform: SubjectTransform | None = None
    republish: Republish | None = None
    allow_direct: bool = always(value=False)
    mirror_direct: bool = always(value=False)
    discard_new_per_subject: bool = False
    sealed: bool = always(value=False)
    deny_delete: bool = always(value=False)
    deny_purge: bool = always(value=False)
    allow_rollup_hdrs: bool = always(value=False)
    consumer_limits: ConsumerLimits = always(ConsumerLimits())
    allow_msg_ttl: bool = always(value=False)
    subject_delete_marker_ttl: int = 0
    allow_msg_counter: bool = False
    allow_atomic: bool = False
    allow_msg_schedules: bool = False
    persist_mode: PersistMode = PersistMode.DEFAULT
    allow_batched: bool = False
    metadata: dict[str, str] = {}

    @property
    def subject_patterns(self) -> tuple[bytes, ...]:
        """The captured subjects as bytes."""
        return tuple(subject.encode() for subject in self.subjects)


class StreamConfigRequest(StreamConfig, frozen=True, kw_only=True):
    """Body of STREAM.CREATE and STREAM.UPDATE: the configuration, and whether to correct it."""

    pedantic: bool = False

    def config(self) -> StreamConfig:
        names = StreamConfig.__struct_fields__
        return StreamConfig(**{name: getattr(self, name) for name in names})
