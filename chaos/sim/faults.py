"""How unkind the world is in one seed: every rate and size, drawn once.

Owns: Faults, and how it follows from a seed.
May not touch: the running cluster (nemesis.py acts).
Spec: rates vary by seed, so that some runs are calm in all but one respect; extremes are likely,
because bugs live where two of them meet."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from chaos.sim.schedule import MS, SECOND, dice
from raft.core.ready import CoreConfig


@dataclass(frozen=True, slots=True)
class Faults:
    """Chances are per message or per turn of the nemesis; times are virtual microseconds."""

    voters: int
    learners: int
    spares: int  # nodes outside the group that may join it; 0: the members stay
    memory_only: bool  # logs are not persisted: a crash loses the log and keeps the promises
    sleepy: bool  # idle groups sleep, and the nodes watch over each other
    duration_us: int  # of the part with faults
    loss: float
    duplicate: float
    straggle: float  # chance that a message comes very late
    delay_us: int
    jitter_us: int
    straggle_us: int
    ordered: bool  # links keep order, as TCP does
    flush_us: int
    slow_flush: float
    slow_flush_us: int
    stall_us: int  # how long a stalled disk finishes nothing
    harsh_disk: bool  # writes may be torn in the middle
    nemesis_us: int  # mean time between its actions
    weights: dict[str, int]
    cut_us: int  # most cuts heal by themselves within this time; 0: only the nemesis heals
    outage_us: int  # a crashed node is back within this time
    proposal_us: int  # mean time between bursts of proposals
    read_us: int  # mean time between reads
    lease_chance: float  # that a read may be served by lease
    burst_max: int
    backlog_max: int  # clients hold back while so many entries are not committed
    size_max: int
    checkpoint_us: int
    keep_entries: int  # how far below the checkpoint the log is cut
    clock_skew: float  # tick rates lie in [1 - skew, 1 + skew]
    spare_minority: bool  # when faults stop, a minority may stay down
    core: CoreConfig

    def settle_us(self, behind: int) -> int:
        """Peace must bring a leader, new commits and level replicas within this time: some
        election timeouts, a snapshot, and what the last one is behind at the slowest pace of this
        seed, which may be one entry for every round trip."""
        round_trip_us = 2 * (self.delay_us + self.jitter_us) + self.flush_us
        return 10 * SECOND + 2 * max(self.backlog_max, behind) * round_trip_us

    @staticmethod
    def drawn_from(seed: int, bugs: frozenset[str]) -> Faults:
        luck = dice(seed, "faults")
        later = dice(seed, "more faults")
        spares = later.choices((0, 1, 2), (45, 30, 25))[0]
        lease_chance = later.choice((0.0, 0.0, 0.5))
        memory_only = later.random() < 0.12
        voters = luck.choices((1, 2, 3, 4, 5), (6, 3, 56, 6, 29))[0]
        calm_net = luck.random() < 0.3
        delay_us = luck.choice((200, MS, 5 * MS, 20 * MS))
        return Faults(
            voters=voters,
            spares=spares,
            memory_only=memory_only,
            sleepy=later.random() < 0.25,
            stall_us=later.choice((SECOND, 4 * SECOND)),
            read_us=later.choice((50, 200, 1000)) * MS,
            lease_chance=lease_chance,
            learners=luck.choices((0, 1), (80, 20) if voters > 1 else (30, 70))[0],
            duration_us=luck.randint(8, 24) * SECOND,
            loss=0.0 if calm_net else luck.choice((0.0, 0.01, 0.05, 0.2)),
            duplicate=0.0 if calm_net else luck.choice((0.0, 0.02, 0.1)),
            straggle=0.0 if calm_net else luck.choice((0.0, 0.005, 0.03)),
            delay_us=delay_us,
            jitter_us=luck.choice((0, delay_us, 4 * delay_us, 30 * MS)),
            straggle_us=luck.choice((100 * MS, SECOND, 3 * SECOND)),
            ordered=luck.random() < 0.4,
            flush_us=luck.choice((100, 2 * MS, 10 * MS, 30 * MS)),
            slow_flush=luck.choice((0.0, 0.02, 0.1)),
            slow_flush_us=luck.choice((100 * MS, 500 * MS, 2 * SECOND)),
            harsh_disk=luck.random() < 0.5,
            nemesis_us=luck.choice((150, 400, 900)) * MS,
            weights=_weights(luck, later, spares=spares),
            cut_us=luck.choice((0, 700 * MS, 1500 * MS, 3 * SECOND)),
            outage_us=luck.choice((20 * MS, 300 * MS, 2 * SECOND, 5 * SECOND)),
            proposal_us=luck.choice((10, 30, 100, 300, 1500)) * MS,
            burst_max=luck.choice((1, 3, 10)),
            backlog_max=luck.choice((10, 30, 100)),
            size_max=luck.choice((0, 40, 400)),
            checkpoint_us=luck.choice((300 * MS, SECOND, 4 * SECOND)),
            keep_entries=luck.choice((0, 5, 50)),
            clock_skew=luck.choice((0.0, 0.05, 0.2)),
            spare_minority=luck.random() < 0.3 and not spares and not memory_only,
            core=CoreConfig(
                max_inflight_batches=luck.choice((1, 2, 8, 64)),
                max_append_bytes=luck.choice((1, 1, 200, 2000, 1 << 20)),
                max_committed_bytes=luck.choice((1, 500, 8 << 20)),
                pre_vote=luck.random() < 0.85,
                check_quorum=luck.random() < 0.85 or lease_chance > 0,
                max_write_bytes=later.choice((1, 300, 4 << 20)),
                lease_reads=lease_chance > 0,
                bugs=bugs,
            ),
        )


def _weights(luck: Random, later: Random, *, spares: int) -> dict[str, int]:
    """How often the nemesis does what. A few actions dominate each seed."""
    actions = (
        "crash_leader",
        "crash_one",
        "crash_some",
        "crash_all",
        "isolate_leader",
        "split",
        "one_way",
        "mute_leader",
        "bridge",
        "heal",
        "pause_leader",
        "pause_one",
        "transfer",
        "campaign",
        "slow_disk",
        "unreachable",
    )
    weights = {action: luck.choice((0, 1, 1, 2)) for action in actions}
    for favourite in luck.sample(actions, 3):
        weights[favourite] = 8
    weights["heal"] = max(weights["heal"], 4)
    weights["stall_disk"] = later.choice((0, 1, 2))
    weights["damage"] = later.choice((0, 0, 1, 3))
    weights["change_members"] = later.choice((2, 6, 12)) if spares else 0
    return weights
