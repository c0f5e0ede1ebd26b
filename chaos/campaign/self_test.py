"""Proof that a campaign can fail: broken brokers, and the faults that must reveal them.

Owns: which planted bug is run under which fault.
May not touch: the server; the nodes of such a run replace functions in their own processes
(altered_node.py).
Spec: every row is found; the same run without the bug breaks no promise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from chaos.campaign.campaign import CampaignSettings, run_campaign
from chaos.campaign.local_target import LocalSettings, usable
from chaos.campaign.record import CampaignRecord

ATTEMPTS: Final = 3  # other seeds: what is revealed also depends on moments


@dataclass(frozen=True, slots=True)
class Planted:
    bug: str  # of chaos/sim/bugs
    fault: str
    works: tuple[str, ...]  # in which it shows
    seed: int = 1  # of the first attempt
    seconds: float = 8.0


PLANTED: Final = (
    Planted("ack before flush", "power-cut-all", (), seconds=1),
    Planted("a member that lost its log votes", "lost-voter", (), seed=6),
    Planted("a truncated member votes", "lost-voter", (), seed=10),
    Planted("a read after the lease", "old-leader", ("registers",), seconds=25),
    Planted("message ids forgotten over a restart", "kill-all", ("repeated message ids",)),
    Planted("snapshot without message ids", "wipe", ("repeated message ids",)),
    Planted("atomic batch stored by and by", "kill-leader", ("atomic batches",)),
)


def settings_of(planted: Planted, *, seed: int, with_bug: bool) -> CampaignSettings:
    bugs = (planted.bug,) if with_bug else ()
    return CampaignSettings(
        (planted.fault,), seconds=planted.seconds, seed=seed, local=LocalSettings(bugs=bugs),
        works=planted.works,
    )  # fmt: skip


async def find(planted: Planted, say: Callable[[str], None]) -> CampaignRecord | None:
    """The record of the first run that reveals the bug; None: none of ATTEMPTS did."""
    for seed in range(planted.seed, planted.seed + ATTEMPTS):
        record = await run_campaign(settings_of(planted, seed=seed, with_bug=True), say)
        if not record.ok:
            return record
    return None


def not_possible(planted: Planted) -> str:
    """Why it cannot be tried here; empty: it can be."""
    _, not_tried = usable([planted.fault], LocalSettings())
    return not_tried[0] if not_tried else ""
