"""Applies an account's subject mappings to a run of messages.

Owns: building the run that is published instead.
May not touch: where a subject is mapped to (broker/accounts/mappings.py).
Spec: NATS subject mapping; subscribers see the mapped subject."""

from __future__ import annotations

from broker.accounts.mappings import AccountMappings
from broker.wire import PubRun


def mapped_run(mappings: AccountMappings, run: PubRun) -> PubRun:
    """The same messages with the subjects they go to; the run itself if no mapping concerns it."""
    segments = run.segments()
    if not any(mappings.concern(subject) for subject, _, _ in segments):
        return run
    return PubRun.of(
        [
            (to, *run.message(row)[1:])
            for subject, start, stop in segments
            for row, to in enumerate(mappings.subjects(subject, stop - start), start)
        ]
    )
