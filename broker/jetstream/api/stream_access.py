"""Who may read or change a stream: a table of actions and the subjects that a user must be allowed.

Owns: the table, and the checks of actions that are not a publish to their own subject.
May not touch: users and their rules (broker/accounts), state, sockets.
Spec: a permission in NATS is a permission to publish to a subject. An API request is such a
publish, and the router checks it where it arrives. The table adds what the server does on behalf of
a user: scans, copies of other streams (mirrors and sources), republished messages, requests under
the alias of a domain, and answers that the server would publish to a subject of a service.

    action                    subject that must be allowed
    any API request           $JS.API.<request>.<stream>...; an alias must not bypass a deny of it
    plan a scan, scan         $JS.API.STREAM.SCAN.PLAN.<stream>, unless gets and consumers of the
                              stream are both denied: then scans are denied as well
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
"""Requests that can read every message of a stream; not gets or consumers of a single subject."""

SERVED: Final = (b"$JS.API.", b"$JS.ACK.", b"$JS.FC.", b"$JS.SNAPSHOT.", b"$SYS.")
"""Subjects that a server answers. Others under $JS. are inboxes of mirrors ($JS.M, $JS.S)."""

_PLACEHOLDER: Final = re.compile(r"\{\{.*?\}\}|\$\d+")


def scan_subject(stream: str) -> bytes:
    """The subject that a user must be allowed to publish to in order to scan the stream."""
    return _subject(PLAN, stream)


def may_scan(rules: PublishRules | None, stream: str) -> bool:
    if rules is None:
        return True
    return rules.allows(scan_subject(stream)) and not _is_closed(rules, stream)


def check_config(
    rules: PublishRules | None, config: StreamConfig, known: StreamConfig | None
) -> None:
    """Called before a stream is created, restored or changed: checks what it copies and where it
    republishes, except for what `known`, its current configuration, already does. Raises
    JetStreamError; the same for an origin that does not exist, so that nothing is revealed."""
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
    """Called before the server sends messages of a stream to this subject, for a consumer or as a
    snapshot: on the subject of a service they would be unchecked requests. Raises
    JetStreamError."""
    if rules is None:
        return
    meant = canonical_subject(subject.encode(), domain=domain) or subject.encode()
    if meant.startswith(SERVED) and not rules.allows(meant):
        raise _refused(f"no permission to publish to '{subject}'")


def evades_deny(rules: PublishRules | None, subject: bytes, *, domain: bytes) -> bytes | None:
    """If `subject` uses the alias of the domain, the plain subject, if that is denied."""
    if rules is None:
        return None
    meant = canonical_subject(subject, domain=domain)
    return meant if meant is not None and rules.denies(meant) else None


def _may_copy(rules: PublishRules, origin: StreamSource) -> bool:
    """Whether the user may read the origin. `external.api` replaces $JS.API: an origin in another
    account or domain is read through the subjects imported there."""
    prefix = API_PREFIX
    if origin.external is not None and origin.external.api:
        prefix = origin.external.api.rstrip(".").encode() + b"."
    return any(rules.allows_some(_subject(way, origin.name, prefix)) for way in READ_WAYS)


def _is_closed(rules: PublishRules, stream: str) -> bool:
    """Whether a deny list contains both the gets and the consumers of the stream."""

    def denied(ways: tuple[str, ...]) -> bool:
        return any(rules.denies(_subject(way, stream)) for way in ways)

    return denied(_GETS) and denied(_CONSUMERS)


def _origins(config: StreamConfig) -> Iterable[StreamSource]:
    return (config.mirror, *config.sources) if config.mirror is not None else config.sources


def _subject(way: str, stream: str, prefix: bytes = API_PREFIX) -> bytes:
    return prefix + way.format(stream=stream).encode()


def _refused(text: str) -> JetStreamError:
    return JetStreamError.of(ErrCode.STREAM_INVALID_CONFIG, err=text)
