"""Rules for the origins of a stream: its mirror or its sources.

Owns: validation of StreamSource, what a mirror excludes, the detection of cycles.
May not touch: reading from origins (broker/cluster/origins).
Spec: JetStream mirrors and sources."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Final

from msgspec.structs import replace

from broker.jetstream.config.limits import AccountView
from broker.jetstream.config.names import valid_asset_name
from broker.jetstream.config.stream_config import StreamConfig, StreamSource, SubjectTransform
from broker.jetstream.config.transforms import mapping_problem
from broker.jetstream.errors import ErrCode, JetStreamError
from broker.subjects import STEP_ITEMS, Steps, any_included, collides, first_overlap, valid_subject

TRANSFORMS_MAX: Final = 128  # per origin: they are tried one after the other


def origin_steps(config: StreamConfig, view: AccountView, *, pedantic: bool) -> Steps[StreamConfig]:
    """The configuration, with `mirror_direct` taken from the origin if that is a local stream;
    raises the error to answer with."""
    if config.mirror is not None:
        check_mirror_exclusions(config)
        yield from _check_mirror(config, config.mirror, view)
        config = _aligned_with_origin(config, config.mirror, view, pedantic=pedantic)
    if config.sources and config.allow_msg_schedules:
        raise JetStreamError(ErrCode.SOURCE_WITH_MSG_SCHEDULES)
    yield from _check_sources(config, view)
    yield from _check_externals(config, view)
    yield from _check_cycles(config, view.streams)
    return config


def check_mirror_exclusions(config: StreamConfig) -> None:
    """Raise if a mirror has settings that mirrors cannot have."""
    exclusions = (
        (config.first_seq, ErrCode.MIRROR_WITH_FIRST_SEQ),
        (config.subjects, ErrCode.MIRROR_WITH_SUBJECTS),
        (config.sources, ErrCode.MIRROR_WITH_SOURCES),
        (config.allow_msg_counter, ErrCode.MIRROR_WITH_COUNTERS),
        (config.allow_atomic, ErrCode.MIRROR_WITH_ATOMIC_PUBLISH),
        (config.allow_batched, ErrCode.MIRROR_WITH_BATCH_PUBLISH),
        (config.allow_msg_schedules, ErrCode.MIRROR_WITH_MSG_SCHEDULES),
    )
    for present, code in exclusions:
        if present:
            raise JetStreamError(code)


def _check_mirror(config: StreamConfig, mirror: StreamSource, view: AccountView) -> Steps[None]:
    if not _source_consumer_fits(mirror):
        raise JetStreamError(ErrCode.MIRROR_DURABLE_CONSUMER_CFG_INVALID)
    if mirror.filter_subject and mirror.subject_transforms:
        raise JetStreamError(ErrCode.MIRROR_MULTIPLE_FILTERS_NOT_ALLOWED)
    if config.subject_delete_marker_ttl > 0:
        # A marker would take a sequence that belongs to a message of the origin.
        raise _invalid("subject delete markers forbidden on mirrors")
    codes = (
        ErrCode.MIRROR_INVALID_SUBJECT_FILTER,
        ErrCode.MIRROR_INVALID_TRANSFORM_DESTINATION,
    )
    _check_number(mirror)
    _check_transforms(mirror.subject_transforms[:1], *codes)
    sources = [transform.src.encode() for transform in mirror.subject_transforms]
    valid = [one for one in sources if valid_subject(one, wildcards=True)]
    if (yield from first_overlap(valid)) is not None:
        raise JetStreamError(ErrCode.MIRROR_OVERLAPPING_SUBJECT_FILTERS)
    _check_transforms(mirror.subject_transforms[1:], *codes)
    if mirror.external is None:
        if not valid_asset_name(mirror.name):
            raise JetStreamError(ErrCode.MIRROR_INVALID_STREAM_NAME)
        if _narrower_than_origin(config, view.streams.get(mirror.name)):
            raise JetStreamError(ErrCode.MIRROR_MAX_MESSAGE_SIZE_TOO_BIG)


def check_new_mirror(config: StreamConfig) -> None:
    """Checks the mirror of a new stream; an existing mirror cannot be changed."""
    wanted = "" if config.mirror is None else config.mirror.filter_subject
    if wanted and not valid_subject(wanted.encode(), wildcards=True):
        reason = f"subject filter '{wanted}' for the mirror invalid subject"
        raise JetStreamError.of(ErrCode.STREAM_CREATE, err=reason)


def _aligned_with_origin(
    config: StreamConfig, mirror: StreamSource, view: AccountView, *, pedantic: bool
) -> StreamConfig:
    origin = view.streams.get(mirror.name) if mirror.external is None else None
    if origin is None or origin.allow_direct == config.mirror_direct:
        return config
    if pedantic:
        reason = "origin stream has direct get set, mirror has it disabled"
        raise JetStreamError.of(ErrCode.PEDANTIC, err=reason)
    return replace(config, mirror_direct=origin.allow_direct)


def _check_sources(config: StreamConfig, view: AccountView) -> Steps[None]:
    seen: set[object] = set()
    consumers: set[object] = set()
    for source in config.sources:
        if not valid_asset_name(source.name):
            raise JetStreamError(ErrCode.SOURCE_INVALID_STREAM_NAME)
        if _identity(source) in seen:
            raise JetStreamError(ErrCode.SOURCE_DUPLICATE_DETECTED)
        seen.add(_identity(source))
        yield from _check_source(source)
        if source.consumer is not None:
            reader = (source.name, source.external, source.consumer.name)
            if reader in consumers:
                raise JetStreamError(ErrCode.SOURCE_DURABLE_CONSUMER_DUPLICATE_DETECTED)
            consumers.add(reader)
        origin = view.streams.get(source.name) if source.external is None else None
        if _narrower_than_origin(config, origin):
            raise JetStreamError(ErrCode.SOURCE_MAX_MESSAGE_SIZE_TOO_BIG)


def _check_source(source: StreamSource) -> Steps[None]:
    if source.filter_subject and source.subject_transforms:
        raise JetStreamError(ErrCode.SOURCE_MULTIPLE_FILTERS_NOT_ALLOWED)
    _check_number(source)
    yield
    _check_transforms(
        source.subject_transforms,
        ErrCode.SOURCE_INVALID_SUBJECT_FILTER,
        ErrCode.SOURCE_INVALID_TRANSFORM_DESTINATION,
    )
    filters = [transform.src.encode() for transform in source.subject_transforms]
    if (yield from any_included(filters)):
        raise JetStreamError(ErrCode.SOURCE_OVERLAPPING_SUBJECT_FILTERS)
    if not _source_consumer_fits(source):
        raise JetStreamError(ErrCode.SOURCE_DURABLE_CONSUMER_CFG_INVALID)


def _check_number(origin: StreamSource) -> None:
    if len(origin.subject_transforms) > TRANSFORMS_MAX:
        raise _invalid(f"more than {TRANSFORMS_MAX} subject transforms of one origin")


def _check_transforms(
    transforms: Sequence[SubjectTransform], bad_source: ErrCode, bad_destination: ErrCode
) -> None:
    for transform in transforms:
        if transform.src and not valid_subject(transform.src.encode(), wildcards=True):
            raise JetStreamError.of(bad_source, err=f"invalid subject {transform.src}")
        problem = mapping_problem(transform.src, transform.dest)
        if problem is not None:
            raise JetStreamError.of(bad_destination, err=problem)


def _source_consumer_fits(source: StreamSource) -> bool:
    """An existing consumer determines start and filter, so the source may not set them."""
    consumer = source.consumer
    if consumer is None:
        return True
    free = not source.opt_start_seq and source.opt_start_time is None and not source.filter_subject
    deliver_subject = consumer.deliver_subject.encode()
    return (
        free and valid_asset_name(consumer.name) and valid_subject(deliver_subject, wildcards=False)
    )


def _check_externals(config: StreamConfig, view: AccountView) -> Steps[None]:
    names = dict.fromkeys(one.name for one in _origins(config) if one.external is None)
    visible = [view.streams[name] for name in names if name in view.streams]
    externals = [source.external for source in _origins(config) if source.external is not None]
    prefixes = dict.fromkeys(external.deliver for external in externals if external.deliver)
    for prefix in prefixes:
        if not valid_subject(prefix.encode(), wildcards=False):
            raise JetStreamError.of(ErrCode.STREAM_INVALID_EXTERNAL_DELIVERY_SUBJ, prefix=prefix)
        for at, subject in enumerate(chain.from_iterable(one.subjects for one in visible)):
            if at % STEP_ITEMS == 0:
                yield
            if collides(subject.encode(), f"{prefix}.{subject}".encode()):
                raise JetStreamError.of(
                    ErrCode.STREAM_EXTERNAL_DEL_PREFIX_OVERLAPS, prefix=prefix, subject=subject
                )
    for api in [external.api for external in externals if external.api]:
        if not valid_subject(api.encode(), wildcards=False):
            raise _invalid(
                f'stream external api prefix "{api}" must be a valid subject without wildcards'
            )
        if collides(api.encode(), b"$JS.API"):
            raise JetStreamError.of(
                ErrCode.STREAM_EXTERNAL_API_OVERLAP, prefix=api, subject="$JS.API"
            )


def _check_cycles(config: StreamConfig, streams: Mapping[str, StreamConfig]) -> Steps[None]:
    """No stream may feed itself through the local streams that it mirrors or sources. Each of them
    is visited once, however many others read it."""
    to_visit, visited = deque([config]), set[str]()
    while to_visit:
        stream = to_visit.popleft()
        if stream.name in visited:
            continue
        visited.add(stream.name)
        for at, source in enumerate(_origins(stream)):
            if at % STEP_ITEMS == 0:
                yield
            if source.external is not None:
                continue
            if source.name not in visited:
                if source.name in streams:
                    to_visit.append(streams[source.name])
            elif source is stream.mirror or _feeds(stream, source):
                raise _invalid("detected cycle")


def _feeds(stream: StreamConfig, source: StreamSource) -> bool:
    """Whether the stream captures subjects that the source reads."""
    wanted = source.filter_subject.encode()
    return not wanted or any(collides(mine, wanted) for mine in stream.subject_patterns)


def _origins(config: StreamConfig) -> Iterator[StreamSource]:
    if config.mirror is not None:
        yield config.mirror
    yield from config.sources


def _identity(source: StreamSource) -> object:
    """Two sources with the same identity would read the same messages."""
    transforms = source.subject_transforms
    filters = tuple(t.src or ">" for t in transforms) or (source.filter_subject or ">",)
    targets = tuple(t.dest or ">" for t in transforms) or (">",)
    api = source.external.api if source.external else ""
    return source.name, api, source.consumer and source.consumer.name, filters, targets


def _narrower_than_origin(config: StreamConfig, origin: StreamConfig | None) -> bool:
    return origin is not None and 0 < config.max_msg_size < origin.max_msg_size


def _invalid(reason: str) -> JetStreamError:
    return JetStreamError.of(ErrCode.STREAM_INVALID_CONFIG, err=reason)
