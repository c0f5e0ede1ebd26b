"""Subjects reserved for servers: clients may neither publish to them nor name them as reply.

Owns: the prefixes, and the search for them in a run of publishes.
May not touch: connections; the caller answers the client.
Spec: nats-server, reserved prefixes; the list is fixed, whatever the server has enabled. One rule
of our own: a user with restricted permissions may use a service subject ($JS, $SYS) as reply only
if the user may publish to it. Otherwise the responder, usually the server itself, would publish
there for the user. The same holds for the target of a scheduled message."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.subjects import PublishRules
from broker.wire import ReplyColumn
from broker.wire import headers as wire_headers

if TYPE_CHECKING:
    from broker.wire import PubRun

SUBJECTS = (b"_GR_.", b"$NRG.")
REPLIES = (b"_R_.", b"$JS.ACK.", b"_GR_.")
SERVICES = (b"$JS.", b"$SYS.")
# Headers with a subject to which the server publishes later, or whose schedule it removes.
NAMING = (b"Nats-Schedule-Target", b"Nats-Scheduler")


def refusals(run: PubRun, rules: PublishRules | None) -> dict[int, str]:
    """Row -> text of the -ERR. Checked per segment, if there is anything to find; row by row only
    where replies differ."""
    suspect = REPLIES if rules is None else REPLIES + SERVICES
    found: dict[int, str] = {}
    if rules is not None and run.has_headers:
        found = _closed_targets(run, rules)
    if len(run) == 1 and not found:
        subject, reply = run.names(0)
        if not subject.startswith(SUBJECTS) and not reply.startswith(suspect):
            return {}
    elif not found and not run.begins(SUBJECTS, suspect):
        return {}  # a chunk may have ten thousand subjects
    for subject, start, stop in run.segments():
        if subject.startswith(SUBJECTS):
            text = f'Permissions Violation for Publish to "{_shown(subject)}"'
            found.update(dict.fromkeys(range(start, stop), text))
        elif run.any_reply(start, stop) and not _none_suspect(run, start, stop, suspect):
            for row in range(start, stop):
                reply = run.names(row)[1]
                if reply.startswith(REPLIES) or _is_closed_service(reply, rules):
                    text = f'Permissions Violation for Publish with Reply of "{_shown(reply)}"'
                    found[row] = text
    return found


def _closed_targets(run: PubRun, rules: PublishRules) -> dict[int, str]:
    found: dict[int, str] = {}
    for name in NAMING:
        for row in run.rows_naming(name.lower()):
            subject = closed_target(run.message(row)[2], rules)
            if subject is not None:
                found[row] = f'Permissions Violation for Publish to "{_shown(subject)}"'
    return found


def closed_target(headers: bytes, rules: PublishRules) -> bytes | None:
    """The target of the schedule in a header block, if the user may not publish to it."""
    for name, subject in wire_headers.parse(headers):
        if name in NAMING and subject and not rules.allows(subject):
            return subject
    return None


def _is_closed_service(reply: bytes, rules: PublishRules | None) -> bool:
    return rules is not None and reply.startswith(SERVICES) and not rules.allows(reply)


def _none_suspect(run: PubRun, start: int, stop: int, suspect: tuple[bytes, ...]) -> bool:
    """Whether all replies share a prefix that rules out the suspect ones."""
    if stop - start == 1:
        return not run.names(start)[1].startswith(suspect)
    replies = ReplyColumn()
    replies.append_run(run, start, stop)
    shared = replies.prefix(0, stop - start)
    return shared is not None and not shared.startswith(suspect)


def _shown(subject: bytes) -> str:
    return subject.decode(errors="backslashreplace")
