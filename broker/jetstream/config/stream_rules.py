"""The rules a stream configuration must satisfy, and its defaults.

Owns: normalization and validation of one configuration, for both create and update.
May not touch: storage, placement, the comparison with an older configuration (stream_update.py).
Spec: JetStream stream configuration; pedantic mode turns silent corrections into errors. The
checks run in the order of nats-server, since clients see the first error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from broker.jetstream.config.api_levels import stored_stream
from broker.jetstream.config.limits import AccountView, check_stream_bytes
from broker.jetstream.config.names import (
    DESCRIPTION_BYTES_MAX,
    METADATA_BYTES_MAX,
    NAME_BYTES_MAX,
    has_path_separator,
    metadata_exceeds,
    valid_asset_name,
)
from broker.jetstream.config.origin_rules import origin_steps
from broker.jetstream.config.stream_config import (
    Discard,
    PersistMode,
    Placement,
    Retention,
    Storage,
    StreamConfig,
    StreamConfigRequest,
)
from broker.jetstream.config.transforms import mapping_problem
from broker.jetstream.errors import ErrCode, JetStreamError
from broker.jetstream.times import NS_PER_MS, NS_PER_S, go_duration
from broker.subjects import (
    STEP_ITEMS,
    Steps,
    collides,
    finish,
    first_overlap,
    is_subset,
    valid_subject,
)

REPLICAS_MAX: Final = 5
SUBJECTS_MAX: Final = 100_000  # in one stream; a request of 1 MB may hold more
DUPLICATE_WINDOW_DEFAULT_NS: Final = 120 * NS_PER_S
SHORTEST_AGE_NS: Final = 100 * NS_PER_MS


def check_stream_create(
    request: StreamConfigRequest, *, named: str, view: AccountView
) -> StreamConfig:
    """`stream_create_steps`, in one call."""
    return finish(stream_create_steps(request, named=named, view=view))


def stream_create_steps(
    request: StreamConfigRequest, *, named: str, view: AccountView
) -> Steps[StreamConfig]:
    """The configuration to store for STREAM.CREATE.<named>; raises the error to answer with.

    The caller checks afterwards whether the stream exists (`same_stream`, else 10058), the
    account's limits and the overlap with other streams.
    """
    if request.name != named:
        raise JetStreamError(ErrCode.STREAM_MISMATCH)
    if has_path_separator(named):
        raise JetStreamError(ErrCode.STREAM_NAME_CONTAINS_PATH_SEPARATORS)
    if request.sealed:
        raise invalid_config("stream configuration for create can not be sealed")
    if request.mirror_direct and request.mirror is None:
        raise invalid_config("stream has no mirror but does have mirror direct")
    config = yield from stream_config_steps(request.config(), view=view, pedantic=request.pedantic)
    if config.num_replicas > 1 and not view.clustered:
        raise JetStreamError(ErrCode.STREAM_REPLICAS_NOT_SUPPORTED)
    return config


def check_stream_config(
    config: StreamConfig, *, view: AccountView, pedantic: bool = False
) -> StreamConfig:
    """`stream_config_steps`, in one call."""
    return finish(stream_config_steps(config, view=view, pedantic=pedantic))


def stream_config_steps(
    config: StreamConfig, *, view: AccountView, pedantic: bool = False
) -> Steps[StreamConfig]:
    """The normalized configuration, with the API level it requires in its metadata."""
    _check_texts(config)
    config = _with_limits(config, pedantic=pedantic)
    config = _with_duplicate_window(config, view, pedantic=pedantic)
    _check_combinations(config)
    config = _with_markers(config, pedantic=pedantic)
    config = _with_schedules(config, pedantic=pedantic)
    _check_persist_mode(config)
    config = yield from origin_steps(config, view, pedantic=pedantic)
    if not config.subjects and config.mirror is None and not config.sources:
        config = replace(config, subjects=(config.name,))
    else:
        yield from _check_subjects(config)
    check_stream_bytes(config, view.limits_of(config))
    _check_subject_transform(config)
    config = _with_republish(config, pedantic=pedantic)
    if config.placement == Placement():
        config = replace(config, placement=None)
    if config.placement is not None and config.placement.preferred:
        raise invalid_config("preferred server not permitted in placement")
    return stored_stream(config)


def invalid_config(reason: str) -> JetStreamError:
    return JetStreamError.of(ErrCode.STREAM_INVALID_CONFIG, err=reason)


def pedantic_error(reason: str) -> JetStreamError:
    return JetStreamError.of(ErrCode.PEDANTIC, err=reason)


def _check_texts(config: StreamConfig) -> None:
    if not valid_asset_name(config.name):
        raise invalid_config("stream name is required and can not contain '.', '*', '>', '\\', '/'")
    if len(config.name.encode()) > NAME_BYTES_MAX:
        raise invalid_config(f"stream name is too long, maximum allowed is {NAME_BYTES_MAX}")
    if len(config.description.encode()) > DESCRIPTION_BYTES_MAX:
        raise invalid_config(
            f"stream description is too long, maximum allowed is {DESCRIPTION_BYTES_MAX}"
        )
    if metadata_exceeds(config.metadata, METADATA_BYTES_MAX):
        raise invalid_config(f"stream metadata exceeds maximum size of {METADATA_BYTES_MAX} bytes")


def _with_limits(config: StreamConfig, *, pedantic: bool) -> StreamConfig:
    replicas = config.num_replicas or 1
    if replicas > REPLICAS_MAX:
        raise invalid_config(f"maximum replicas is {REPLICAS_MAX}")
    if replicas < 0:
        raise JetStreamError(ErrCode.REPLICAS_COUNT_CANNOT_BE_NEGATIVE)
    limits: dict[str, int] = {}
    names = ("max_msgs", "max_msgs_per_subject", "max_bytes", "max_msg_size", "max_consumers")
    for name in names:
        value: int = getattr(config, name)
        if value < -1 and pedantic:
            raise pedantic_error(f"{name} must be set to -1")
        limits[name] = value if value > 0 else -1
    if config.max_age < 0:
        raise invalid_config("max age can not be negative")
    if 0 < config.max_age < SHORTEST_AGE_NS:
        raise invalid_config("max age needs to be >= 100ms")
    return replace(config, num_replicas=replicas, **limits)


def _with_duplicate_window(
    config: StreamConfig, view: AccountView, *, pedantic: bool
) -> StreamConfig:
    window, longest = config.duplicate_window, view.server.duplicate_window_ns
    if window == 0 and config.mirror is None and not config.sources:
        window = DUPLICATE_WINDOW_DEFAULT_NS
        if 0 < longest < window:
            if pedantic:
                raise pedantic_error("duplicate window limits are higher than current limits")
            window = longest
        if 0 < config.max_age < window:
            if pedantic:
                raise pedantic_error("duplicate window cannot be bigger than max age")
            window = config.max_age
    if window < 0:
        raise invalid_config("duplicates window can not be negative")
    if 0 < config.max_age < window:
        raise invalid_config("duplicates window can not be larger then max age")
    if 0 < longest < window:
        limit = go_duration(longest)
        raise invalid_config(f"duplicates window can not be larger then server limit of {limit}")
    if 0 < window < SHORTEST_AGE_NS:
        raise invalid_config("duplicates window needs to be >= 100ms")
    return replace(config, duplicate_window=window)


def _check_combinations(config: StreamConfig) -> None:
    if config.deny_purge and config.allow_rollup_hdrs:
        raise invalid_config("roll-ups require the purge permission")
    if config.allow_msg_counter:
        if config.discard is Discard.NEW:
            raise invalid_config("counter stream cannot use discard new")
        if config.allow_msg_ttl:
            raise invalid_config("counter stream cannot use message TTLs")
        if config.allow_msg_schedules:
            raise invalid_config("counter stream cannot use message schedules")
        if config.retention is not Retention.LIMITS:
            raise invalid_config("counter stream can only use limits retention")
    if config.discard_new_per_subject:
        if config.discard is not Discard.NEW:
            raise invalid_config("discard new per subject requires discard new policy to be set")
        if config.max_msgs_per_subject <= 0:
            raise invalid_config("discard new per subject requires max msgs per subject > 0")


def _with_markers(config: StreamConfig, *, pedantic: bool) -> StreamConfig:
    """Delete markers are messages with a TTL that roll up their subject, so both get enabled."""
    marker_ttl = config.subject_delete_marker_ttl
    if marker_ttl < 0:
        raise invalid_config("subject delete marker TTL must not be negative")
    if marker_ttl == 0:
        return config
    if marker_ttl < NS_PER_S:
        raise invalid_config("subject delete marker TTL must be at least 1 second")
    if pedantic and not config.allow_msg_ttl:
        raise invalid_config("subject delete marker cannot be set if message TTLs are disabled")
    if pedantic and not config.allow_rollup_hdrs:
        raise invalid_config("subject delete marker cannot be set if roll-ups are disabled")
    return replace(_with_rollups(config), allow_msg_ttl=True)


def _with_schedules(config: StreamConfig, *, pedantic: bool) -> StreamConfig:
    if not config.allow_msg_schedules:
        return config
    if config.discard is Discard.NEW:
        raise invalid_config("message scheduling cannot use discard new")
    if pedantic and not config.allow_rollup_hdrs:
        raise invalid_config("message scheduling cannot be set if roll-ups are disabled")
    return _with_rollups(config)


def _with_rollups(config: StreamConfig) -> StreamConfig:
    if config.allow_rollup_hdrs:
        return config
    return replace(config, allow_rollup_hdrs=True, deny_purge=False)


def _check_persist_mode(config: StreamConfig) -> None:
    """The async mode allows acks before a message is on disk. This broker waits for the disk in
    every mode, and only checks the configuration."""
    if config.persist_mode is not PersistMode.ASYNC:
        return
    if config.storage is not Storage.FILE:
        raise invalid_config("async persist mode is only supported on file storage")
    if config.num_replicas > 1:
        raise invalid_config("async persist mode is not supported on replicated streams")
    if config.allow_atomic:
        raise invalid_config("async persist mode is not supported with atomic batch publish")


def _check_subjects(config: StreamConfig) -> Steps[None]:
    if len(config.subjects) > SUBJECTS_MAX:
        raise invalid_config(f"more than {SUBJECTS_MAX} subjects")
    refusal, patterns = None, config.subject_patterns
    for at, pattern in enumerate(patterns):
        if at % STEP_ITEMS == 0:
            yield
        try:
            _check_subject(config, pattern)
        except JetStreamError as refused:
            refusal, patterns = refused, patterns[:at]
            break
    # Of two errors, the one of the earlier subject is reported.
    position = yield from first_overlap(patterns)
    if position is not None:
        pattern = patterns[position]
        later = config.subjects[position + 1 :]
        other = yield from _first_colliding(pattern, later)
        raise invalid_config(f'subject "{pattern.decode()}" overlaps with "{other}"')
    if refusal is not None:
        raise refusal


def _first_colliding(pattern: bytes, later: Sequence[str]) -> Steps[str]:
    for at, other in enumerate(later):
        if at % STEP_ITEMS == 0:
            yield
        if collides(other.encode(), pattern):
            return other
    raise AssertionError("the overlap was found among these")


def _check_subject(config: StreamConfig, pattern: bytes) -> None:
    if not valid_subject(pattern, wildcards=True):
        raise invalid_config("invalid subject")
    if pattern == b">":
        if not config.no_ack:
            raise invalid_config("capturing all subjects requires no-ack to be true")
        if config.num_replicas != 1:
            raise invalid_config("capturing all subjects requires replicas of 1")
    if not config.no_ack and pattern[:1] in _RESERVED_STARTS:
        _check_reserved(pattern)


_RESERVED_STARTS: Final = (b"$", b"*", b">")


def _check_reserved(pattern: bytes) -> None:
    """A publish ack for a message on API subjects would be an API request itself."""
    for namespace in (b"$JS.>", b"$JSC.>", b"$NRG.>"):
        if collides(pattern, namespace) and not is_subset(pattern, b"$JS.EVENT.>"):
            raise invalid_config(
                "subjects that overlap with jetstream api require no-ack to be true"
            )
    if collides(pattern, b"$SYS.>") and not is_subset(pattern, b"$SYS.ACCOUNT.>"):
        raise invalid_config("subjects that overlap with system api require no-ack to be true")


def _check_subject_transform(config: StreamConfig) -> None:
    transform = config.subject_transform
    if transform is None:
        return
    if transform.src and not valid_subject(transform.src.encode(), wildcards=True):
        reason = f"invalid subject {transform.src}"
        raise JetStreamError.of(ErrCode.STREAM_TRANSFORM_INVALID_SOURCE, err=reason)
    problem = mapping_problem(transform.src, transform.dest)
    if problem is not None:
        raise JetStreamError.of(ErrCode.STREAM_TRANSFORM_INVALID_DESTINATION, err=problem)


def _with_republish(config: StreamConfig, *, pedantic: bool) -> StreamConfig:
    republish = config.republish
    if republish is None:
        return config
    if not republish.src:
        if pedantic:
            raise pedantic_error("republish source can not be empty")
        republish = replace(republish, src=">")
    transform = config.subject_transform
    sole_subject = config.subjects[0] if len(config.subjects) == 1 else None
    if republish.src == republish.dest == ">" and transform and transform.src == sole_subject:
        # All messages are stored under the transformed subject, so that one is republished.
        if pedantic:
            raise pedantic_error("implicit republish based on subject transform")
        republish = replace(republish, src=transform.dest, dest=transform.dest)
    if any(collides(republish.dest.encode(), mine) for mine in config.subject_patterns):
        raise invalid_config("stream configuration for republish destination forms a cycle")
    if mapping_problem(republish.src, republish.dest) is not None:
        raise invalid_config(
            f"stream configuration for republish with transform from '{republish.src}'"
            f" to '{republish.dest}' not valid"
        )
    return replace(config, republish=republish)
