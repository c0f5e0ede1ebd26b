"""The fields of a consumer configuration, named and ordered as in the API.

Owns: the Structs of a consumer's configuration and their enumerations.
May not touch: rules (consumer_rules.py, consumer_update.py), delivery, storage.
Spec: JetStream consumer configuration; durations are nanoseconds."""

from __future__ import annotations

import msgspec

from broker.jetstream.strict_json import Unsigned, WallTime, WireText, always


class DeliverPolicy(WireText):
    ALL = "all"
    LAST = "last"
    NEW = "new"
    BY_START_SEQUENCE = "by_start_sequence"
    BY_START_TIME = "by_start_time"
    LAST_PER_SUBJECT = "last_per_subject"

    @classmethod
    def spelled(cls, text: str) -> str:
        return "all" if text == "undefined" else text


class AckPolicy(WireText):
    NONE = "none"
    ALL = "all"
    EXPLICIT = "explicit"
    FLOW_CONTROL = "flow_control"


class ReplayPolicy(WireText):
    INSTANT = "instant"
    ORIGINAL = "original"


class PriorityPolicy(WireText):
    NONE = "none"
    OVERFLOW = "overflow"
    PINNED_CLIENT = "pinned_client"
    PRIORITIZED = "prioritized"


class ConsumerAction(WireText):
    CREATE_OR_UPDATE = ""
    CREATE = "create"
    UPDATE = "update"


class ConsumerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer's configuration. 0 means "not set" until consumer_rules.check_consumer_config has
    filled in the defaults."""

    durable_name: str = ""
    name: str = ""
    description: str = ""
    deliver_policy: DeliverPolicy = always(DeliverPolicy.ALL)
    opt_start_seq: Unsigned = 0
    opt_start_time: WallTime | None = None
    ack_policy: AckPolicy = always(AckPolicy.NONE)
    ack_wait: int = 0
    max_deliver: int = 0
    backoff: tuple[int, ...] = ()
    filter_subject: str = ""
    filter_subjects: tuple[str, ...] = ()
    replay_policy: ReplayPolicy = always(ReplayPolicy.INSTANT)
    rate_limit_bps: Unsigned = 0
    sample_freq: str = ""
    max_waiting: int = 0
    max_ack_pending: int = 0
    flow_control: bool = False
    headers_only: bool = False
    max_batch: int = 0
    max_expires: int = 0
    max_bytes: int = 0
    deliver_subject: str = ""
    deliver_group: str = ""
    idle_heartbeat: int = 0
    inactive_threshold: int = 0
    num_replicas: int = always(0)
    mem_storage: bool = False
    direct: bool = False
    sourcing: bool = False
    metadata: dict[str, str] = {}
    pause_until: WallTime | None = None
    priority_groups: tuple[str, ...] = ()
    priority_policy: PriorityPolicy = PriorityPolicy.NONE
    priority_timeout: int = 0

    @property
    def is_push(self) -> bool:
        return self.deliver_subject != ""

    @property
    def is_durable(self) -> bool:
        return self.durable_name != ""

    @property
    def sample_percent(self) -> int:
        """How many of a hundred acks are sampled."""
        return int(self.sample_freq.removesuffix("%") or 0)

    @property
    def filters(self) -> tuple[bytes, ...]:
        """Subject filters as bytes; empty means every subject."""
        texts = (self.filter_subject,) if self.filter_subject else self.filter_subjects
        return tuple(map(str.encode, texts))


class ConsumerCreateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of CONSUMER.CREATE in all its forms."""

    stream_name: str = always("")
    config: ConsumerConfig = always(ConsumerConfig())
    action: ConsumerAction = always(ConsumerAction.CREATE_OR_UPDATE)
    pedantic: bool = False
