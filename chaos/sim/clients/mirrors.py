"""Mirrors and sources: streams that copy another one while the leaders of both change.

Owns: the origins, their copies, and what is published into the origins.
May not touch: other workloads.
Checks: promises/copies.py: after the faults a copy equals its origin, message by message."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from broker.store.block.codec import BlockDamaged
from chaos.sim.clients.client import header_block
from chaos.sim.clients.workload import Scene
from chaos.sim.promises.copies import behind, check_mirror, check_sourced, last_of

ORIGINS = ("ORIGIN-A", "ORIGIN-B")
MIRROR, SOURCED = "MIRROR", "SOURCED"
KINDS = ("x", "y")


class Mirrors:
    """A mirror of one origin, and a stream with both as sources, one of them filtered and with
    another subject."""

    def __init__(self, scene: Scene) -> None:
        rng = scene.rng
        self._scene = scene
        self._publishes = rng.randint(10, 40)
        self._gap_s = rng.choice((0.05, 0.2, 0.4))
        self._filter = rng.choice(("", "origin-a.x"))
        self._ends = [0, 0]  # the last sequence of each origin that the copies had to reach
        self._replicas = [rng.choice((1, scene.replicas_max)) for _ in range(4)]

    def streams(self) -> Sequence[dict[str, Any]]:
        transforms = [{"src": "origin-b.x", "dest": "renamed.x"}]
        mirror: dict[str, Any] = {"name": ORIGINS[0]}
        if self._filter:
            mirror["filter_subject"] = self._filter
        sources = [{"name": ORIGINS[0]}, {"name": ORIGINS[1], "subject_transforms": transforms}]
        streams: list[dict[str, Any]] = [
            {"name": name, "subjects": [f"{name.lower()}.*"]} for name in ORIGINS
        ]
        streams += [{"name": MIRROR, "mirror": mirror}, {"name": SOURCED, "sources": sources}]
        return [
            one | {"num_replicas": count}
            for one, count in zip(streams, self._replicas, strict=True)
        ]

    async def run(self) -> None:
        rng = self._scene.rng
        client = self._scene.client("origin-publisher")
        for number in range(self._publishes):
            subject = f"{rng.choice(ORIGINS).lower()}.{rng.choice(KINDS)}"
            headers = header_block(Number=str(number)) if rng.random() < 0.5 else b""
            try:
                await client.request(
                    subject.encode(), b"%d" % number, headers=headers, timeout_s=2.0
                )
            except TimeoutError:
                self._scene.mark("publish into an origin unanswered")
            await asyncio.sleep(self._gap_s * rng.random())
        while self._behind():  # noqa: ASYNC110 - nobody tells when a copy is complete
            await asyncio.sleep(0.5)

    def _behind(self) -> bool:
        """Whether a copy lags. Also true while a leader has damage that it has not detected yet:
        this reads its store directly."""
        try:
            return self._any_behind()
        except BlockDamaged:
            self._scene.mark("damage in an origin or a copy")
            return True

    def _any_behind(self) -> bool:
        self._ends = [last_of(self._scene.replicas(origin)) for origin in ORIGINS]
        replicas = self._scene.replicas
        copies = [(MIRROR, ORIGINS[0], self._filter), (SOURCED, ORIGINS[0], "")]
        copies.append((SOURCED, ORIGINS[1], "origin-b.x"))
        return any(
            behind(replicas(copy), replicas(origin), origin, wanted)
            for copy, origin, wanted in copies
        )

    def check(self) -> None:
        replicas, (first, second) = self._scene.replicas, self._ends
        check_mirror(replicas(ORIGINS[0]), replicas(MIRROR), self._filter, up_to=first)
        sourced = replicas(SOURCED)
        check_sourced(sourced, replicas(ORIGINS[0]), ORIGINS[0], "", "", up_to=first)
        wanted = "origin-b.x"
        check_sourced(sourced, replicas(ORIGINS[1]), ORIGINS[1], wanted, "renamed.x", up_to=second)
