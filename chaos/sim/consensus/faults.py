"""The faults of one seed: every rate, size and delay, drawn once before the run.

Owns: Faults, and how they are drawn from a seed.
May not touch: the running cluster (chaos/sim/consensus/nemesis.py injects the faults).
Spec: rates vary by seed, so that some runs have only one kind of fault; extreme values are likely,
because many bugs need two of them at once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from chaos.sim.consensus.schedule import MS, SECOND, rng_for
from raft.core.ready import CoreConfig


@dataclass(frozen=True, slots=True)
class Faults:
    """Probabilities are per message or per action; times are virtual microseconds."""

    voters: int
    learners: int
    spares: int  # nodes outside the group that may join it; 0: the members never change
    memory_only: bool  # logs are not persisted: a crash loses the log, but not term and vote
    relaxed: bool  # entries are promised before their flush; only processes crash, not machines
    sleepy: bool  # idle groups sleep, and the nodes watch each other
    duration_us: int  # of the part with faults
    loss: float
    duplicate: float
    straggle: float  # probability that a message is very late
    delay_us: int
    jitter_us: int
    straggle_us: int
    ordered: bool  # links keep order, as TCP does
    flush_us: int
    slow_flush: float
    slow_flush_us: int
    stall_us: int  # how long a stalled disk finishes no flush
    flush_interval_us: int  # relaxed: a write is flushed within this time
    refuse: float  # probability that a write is refused, to be retried
    full_us: int  # how long a full disk refuses all writes
    harsh_disk: bool  # writes may be torn in the middle
    nemesis_us: int  # mean time between its actions
    weights: dict[str, int]
    cut_us: int  # most cuts heal by themselves within this time; 0: only by the heal action
    outage_us: int  # a crashed node is back within this time
    proposal_us: int  # mean time between bursts of proposals
    read_us: int  # mean time between reads
    rest_us: int  # clients rest this long, then are active for a while; 0: always active
    lease_chance: float  # probability that a read may be served by lease
    burst_max: int
    backlog_max: int  # clients stop proposing while this many entries are not committed
    size_max: int
    checkpoint_us: int
    keep_entries: int  # how far below the checkpoint the log is cut
    clock_skew: float  # tick rates lie in [1 - skew, 1 + skew]
    minority_stays_down: bool  # even when the faults stop
    core: CoreConfig

    def settle_us(self, behind: int) -> int:
        """Once the faults stop, there must be a leader, new commits and equal replicas within this
        time: a few election timeouts, a snapshot, and the entries that the slowest replica is
        `behind`, at the slowest rate of this seed, which may be one entry per round trip."""
        round_trip_us = 2 * (self.delay_us + self.jitter_us) + self.flush_us
        return 10 * SECOND + 2 * max(self.backlog_max, behind) * round_trip_us

    @staticmethod
    def drawn_from(seed: int) -> Faults:
        return _with_broken_links(Faults._drawn_from(seed), rng_for(seed, "faults of links"))

    @staticmethod
    def _drawn_from(seed: int) -> Faults:
        rng = rng_for(seed, "faults")
        rng_added = rng_for(seed, "more faults")  # for faults added later: old seeds stay the same
        rng_rounds = rng_for(seed, "faults of rounds")
        relaxed = rng_rounds.random() < 0.12
        spares = rng_added.choices((0, 1, 2), (45, 30, 25))[0]
        lease_chance = rng_added.choice((0.0, 0.0, 0.5))
        memory_only = rng_added.random() < 0.12 and not relaxed
        voters = rng.choices((1, 2, 3, 4, 5), (6, 3, 56, 6, 29))[0]
        quiet_network = rng.random() < 0.3
        delay_us = rng.choice((200, MS, 5 * MS, 20 * MS))
        return Faults(
            voters=voters,
            spares=spares,
            memory_only=memory_only,
            relaxed=relaxed,
            flush_interval_us=rng_rounds.choice((5 * MS, 100 * MS, 2 * SECOND)),
            refuse=rng_rounds.choice((0.0, 0.0, 0.02, 0.3)),
            full_us=rng_rounds.choice((100 * MS, 2 * SECOND)),
            sleepy=rng_added.random() < 0.25,
            stall_us=rng_added.choice((SECOND, 4 * SECOND)),
            read_us=rng_added.choice((50, 200, 1000)) * MS,
            rest_us=0,
            lease_chance=lease_chance,
            learners=rng.choices((0, 1), (80, 20) if voters > 1 else (30, 70))[0],
            duration_us=rng.randint(8, 24) * SECOND,
            loss=0.0 if quiet_network else rng.choice((0.0, 0.01, 0.05, 0.2)),
            duplicate=0.0 if quiet_network else rng.choice((0.0, 0.02, 0.1)),
            straggle=0.0 if quiet_network else rng.choice((0.0, 0.005, 0.03)),
            delay_us=delay_us,
            jitter_us=rng.choice((0, delay_us, 4 * delay_us, 30 * MS)),
            straggle_us=rng.choice((100 * MS, SECOND, 3 * SECOND)),
            ordered=rng.random() < 0.4,
            flush_us=rng.choice((100, 2 * MS, 10 * MS, 30 * MS)),
            slow_flush=rng.choice((0.0, 0.02, 0.1)),
            slow_flush_us=rng.choice((100 * MS, 500 * MS, 2 * SECOND)),
            harsh_disk=rng.random() < 0.5,
            nemesis_us=rng.choice((150, 400, 900)) * MS,
            weights=_weights(rng, rng_added, spares=spares)
            | _disk_weights(rng_rounds, relaxed=relaxed),
            cut_us=rng.choice((0, 700 * MS, 1500 * MS, 3 * SECOND)),
            outage_us=rng.choice((20 * MS, 300 * MS, 2 * SECOND, 5 * SECOND)),
            proposal_us=rng.choice((10, 30, 100, 300, 1500)) * MS,
            burst_max=rng.choice((1, 3, 10)),
            backlog_max=rng.choice((10, 30, 100)),
            size_max=rng.choice((0, 40, 400)),
            checkpoint_us=rng.choice((300 * MS, SECOND, 4 * SECOND)),
            keep_entries=rng.choice((0, 5, 50)),
            clock_skew=rng.choice((0.0, 0.05, 0.2)),
            minority_stays_down=rng.random() < 0.3 and not spares and not memory_only,
            core=CoreConfig(
                max_inflight_batches=rng.choice((1, 2, 8, 64)),
                max_append_bytes=rng.choice((1, 1, 200, 2000, 1 << 20)),
                max_committed_bytes=rng.choice((1, 500, 8 << 20)),
                pre_vote=rng.random() < 0.85,
                check_quorum=rng.random() < 0.85,
                max_write_bytes=rng_added.choice((1, 300, 4 << 20)),
            ),
        )


def _with_broken_links(faults: Faults, rng: Random) -> Faults:
    """A read can be stale only if the links to the leader break, so in some seeds little else
    breaks: clients that read often keep the lease alive; if they rest in between, the group
    sleeps."""
    reading = rng.choices(("", "often", "seldom"), (70, 15, 15))[0]
    sleepy = faults.sleepy or bool(reading)
    weights = faults.weights | {"break_links": rng.choice((0, 1, 4)) if sleepy else 0}
    if faults.lease_chance or reading:  # leases allow clock rates that differ by a tenth
        faults = replace(faults, clock_skew=faults.clock_skew / 4)
    if not reading:
        return replace(faults, weights=weights)
    often = reading == "often"
    return replace(
        faults,
        sleepy=True,
        lease_chance=0.9,
        nemesis_us=SECOND if often else 1500 * MS,
        read_us=20 * MS if often else 40 * MS,
        proposal_us=70 * MS,
        burst_max=1,
        rest_us=0 if often else 1700 * MS,
        weights={name: min(weight, 1) for name, weight in weights.items()} | {"break_links": 30},
    )


def _weights(rng: Random, rng_added: Random, *, spares: int) -> dict[str, int]:
    """How often the nemesis takes each action. A few actions dominate each seed."""
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
    weights = {action: rng.choice((0, 1, 1, 2)) for action in actions}
    for favorite in rng.sample(actions, 3):
        weights[favorite] = 8
    weights["heal"] = max(weights["heal"], 4)
    weights["stall_disk"] = rng_added.choice((0, 1, 2))
    weights["damage"] = rng_added.choice((0, 0, 1, 3))
    weights["change_members"] = rng_added.choice((2, 6, 12)) if spares else 0
    return weights


def _disk_weights(rng: Random, *, relaxed: bool) -> dict[str, int]:
    """A relaxed group may lose promised entries when its disk fails, so there it never does."""
    fill, fail = rng.choice((0, 1, 2)), rng.choice((0, 1, 4))
    return {"fill_disk": fill, "fail_disk": 0 if relaxed else fail}
