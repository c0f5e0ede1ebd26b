"""All planted bugs of the broker, and the search for the seed that reveals one.

Owns: the table of all areas (chaos/sim/bugs).
May not touch: what a bug replaces.
Spec: every bug is found within 2,000 seeds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from chaos.sim.broker.plan import Plan
from chaos.sim.broker.run import RunOutcome, run_broker_seed
from chaos.sim.bugs.ack_bugs import ACK_BUGS
from chaos.sim.bugs.broker_bug import BrokerBug
from chaos.sim.bugs.change_bugs import CHANGE_BUGS
from chaos.sim.bugs.consumer_bugs import CONSUMER_BUGS
from chaos.sim.bugs.node_bugs import NODE_BUGS
from chaos.sim.bugs.publish_bugs import PUBLISH_BUGS
from chaos.sim.bugs.queue_bugs import QUEUE_BUGS
from chaos.sim.bugs.read_bugs import READ_BUGS
from chaos.sim.bugs.retention_bugs import RETENTION_BUGS
from chaos.sim.bugs.schedule_bugs import SCHEDULE_BUGS
from chaos.sim.bugs.storage_bugs import STORAGE_BUGS
from chaos.sim.bugs.writer_bugs import WRITER_BUGS

WITHIN_SEEDS: Final = 2000
BROKER_BUGS: Final[Mapping[str, BrokerBug]] = {
    **NODE_BUGS,
    **CONSUMER_BUGS,
    **ACK_BUGS,
    **CHANGE_BUGS,
    **RETENTION_BUGS,
    **PUBLISH_BUGS,
    **QUEUE_BUGS,
    **READ_BUGS,
    **SCHEDULE_BUGS,
    **STORAGE_BUGS,
    **WRITER_BUGS,
}


def run_with_bug(seed: int, bug: str, *, tell: bool = False) -> RunOutcome:
    """Like run_broker_seed, with a bug in the code of all nodes and the workloads that show it."""
    with BROKER_BUGS[bug].installed():
        return run_broker_seed(seed, plan=plan_for_bug(seed, bug), tell=tell)


def plan_for_bug(seed: int, bug: str) -> Plan:
    planted = BROKER_BUGS[bug]
    return replace(Plan.drawn_from(seed, planted.faults), workloads=planted.workloads)


def find_bug(bug: str, first: int = 0, count: int = WITHIN_SEEDS) -> RunOutcome | None:
    """The first run that reveals a planted bug; None: none of these seeds does."""
    for seed in range(first, first + count):
        outcome = run_with_bug(seed, bug)
        if not outcome.ok:
            return outcome
    return None
