"""Who may read or change a stream: one table from actions to the subjects a user must be allowed.

Owns: the table, and the checks of actions that are not a publish to their own subject.
May not touch: users and their rules (broker/accounts), state, sockets.
Spec: a permission in NATS is a permission to publish to a subject. An API request is such a
publish, and the router checks it where it arrives. The table adds what a user makes the server do
for it: scans, copies of other streams (mirrors and sources), republished messages, requests under
the alias of a domain, and answers that the server would publish to a subject of a service.

    action                    subject that must be allowed
    any API request           $JS.API.<request>.<stream>...; no deny of it may be evaded by an alias
    plan a scan, scan         $JS.API.STREAM.SCAN.PLAN.<stream>, unless gets and consumers of the
                              stream are denied: what is closed there is closed here
    mirror, source, restore   one of the ways to read the whole origin (READ_WAYS)
    republish to a subject    that subject
    schedule a message        its target
    reply to a service        that subject, if it begins with $JS. or $SYS.
    push, snapshot to one     that subject, if it is one of SERVED"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from broker.jetstream.api.subjects import API_PREFIX, canonical_subject
from broker.jetstream.config.stream_config import StreamConfig, StreamSource
from broker.jetstream.errors import ErrCode, JetStreamError
from broker.subjects import PublishRules

_GETS: Final = ("STREAM.MSG.GET.{stream}", "DIRECT.GET.{stream}")
_CONSUMERS: Final = (
    "CONSUMER.CREATE.{stream}",
    "CONSUMER.CREATE.{stream}.*",
    "CONSUMER.DURABLE.CREATE.{stream}.*",
)
PLAN: Final = "STREAM.SCAN.PLAN.{stream}"
READ_WAYS: Final = (*_GETS, *_CONSUMERS, PLAN)
"""Requests that can read every message of a stream. A get or a consumer of one subject is none."""

SERVED: Final = (b"$JS.API.", b"$JS.ACK.", b"$JS.FC.", b"$JS.SNAPSHOT.", b"$SYS.")
"""What a server answers. Others below $JS. are inboxes of mirrors ($JS.M, $JS.S)."""

_PLACEHOLDER: Final = re.compile(r"\{\{.*?\}\}|\$\d+")


def scan_subject(stream: str) -> bytes:
    """What a user must be allowed to publish to, to plan a scan of the stream and to scan it."""
    return _subject(PLAN, stream)


def may_scan(rules: PublishRules | None, stream: str) -> bool:
    if rules is None:
        return True
    return rules.allows(scan_subject(stream)) and not _is_closed(rules, stream)


def check_config(
    rules: PublishRules | None, config: StreamConfig, known: StreamConfig | None
) -> None:
    """Before a stream is created, restored or changed: what it copies and where it republishes.
    What `known`, its present configuration, does already is not checked again. Raises
    JetStreamError. The same error for an origin that does not exist: it reveals nothing."""
    if rules is None:
        return
    before = set(_origins(known)) if known is not None else set()
    for origin in _origins(config):
        if origin not in before and not _may_copy(rules, origin):
            raise _refused(f"no permission to read stream '{origin.name}'")
    republish = config.republish
    if republish is not None and (known is None or known.republish != republish):
        target = _PLACEHOLDER.sub("*", republish.dest)
        if not rules.allows(target.encode()):
            raise _refused(f"no permission to republish to '{republish.dest}'")


def check_delivery(rules: PublishRules | None, subject: str, *, domain: bytes) -> None:
    """Before the server sends the messages of a stream to this subject, for a consumer or as a
    snapshot: they would be requests that nobody has checked. Raises JetStreamError."""
    if rules is None:
        return
    meant = canonical_subject(subject.encode(), domain=domain) or subject.encode()
    if meant.startswith(SERVED) and not rules.allows(meant):
        raise _refused(f"no permission to publish to '{subject}'")


def evades_deny(rules: PublishRules | None, subject: bytes, *, domain: bytes) -> bytes | None:
    """The subject that `subject`, under the alias of the domain, stands for, if it is denied."""
    if rules is None:
        return None
    meant = canonical_subject(subject, domain=domain)
    return meant if meant is not None and rules.denies(meant) else None


def _may_copy(rules: PublishRules, origin: StreamSource) -> bool:
    """`external.api` takes the place of $JS.API: an origin in another account or domain is read
    through what is imported there."""
    prefix = API_PREFIX
    if origin.external is not None and origin.external.api:
        prefix = origin.external.api.rstrip(".").encode() + b"."
    return any(rules.allows_some(_subject(way, origin.name, prefix)) for way in READ_WAYS)


def _is_closed(rules: PublishRules, stream: str) -> bool:
    """Whether a deny list names both the gets and the consumers of the stream."""

    def denied(ways: tuple[str, ...]) -> bool:
        return any(rules.denies(_subject(way, stream)) for way in ways)

    return denied(_GETS) and denied(_CONSUMERS)


def _origins(config: StreamConfig) -> Iterable[StreamSource]:
    return (config.mirror, *config.sources) if config.mirror is not None else config.sources


def _subject(way: str, stream: str, prefix: bytes = API_PREFIX) -> bytes:
    return prefix + way.format(stream=stream).encode()


def _refused(text: str) -> JetStreamError:
    return JetStreamError.of(ErrCode.STREAM_INVALID_CONFIG, err=text)
