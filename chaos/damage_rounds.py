"""Damages random files of one node, in rounds: the node must repair itself and lose nothing.

Owns: the rounds (victim, file, place and kind of damage, all from one seed) and their report.
May not touch: processes and files other than those of its own cluster.
Steps: publishes are acknowledged; one node is killed, one of its files is changed, cut or removed;
it starts, and every node becomes healthy without help. Then every replica of every stream is read
and compared with what was acknowledged, which also finds most damage that was not read before.
While a damaged data file still exists, the next round hits the same node: two damaged disks of
three would be more than a minority."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError
from urllib.request import urlopen

import nats.errors
import nats.js.errors
from nats.js.api import StreamConfig

from broker.client import scan
from broker.local import LocalCluster, LocalNode
from broker.scan.client import ScanFailed
from chaos.scenarios import client_of

STREAMS: Final = ("D1", "D2", "D3")
MESSAGES: Final = 15  # per stream, twice in a round
HEAL_WITHIN_S: Final = 90.0
DATA: Final = (
    "log segment",
    "table",
    "blob",
    "block file",
)  # kinds of files that are not read as a whole
DAMAGES: Final = ("flip", "truncate", "delete")
KINDS: Final = {  # of files, by the end of their names
    "log segment": ".seg",
    "promises": "promises",
    "table": ".sst",
    "blob": ".blob",
    "block file": ".values",
    "manifest": "MANIFEST-",
    "current": "CURRENT",
    "write-ahead log": ".log",
    "options": "OPTIONS-",
    "founding record": "founding.json",
    "session": "session",
}


@dataclass(frozen=True, slots=True)
class Damage:
    kind: str
    path: Path
    way: str

    def apply(self, dice: random.Random) -> str:
        """Do it; what was done, in words."""
        content = bytearray(self.path.read_bytes())
        if self.way == "delete" or not content:
            self.path.unlink()
            return f"{self.path.name} removed"
        place = dice.randrange(len(bytes(content).rstrip(b"\0")) or 1)
        if self.way == "truncate":
            self.path.write_bytes(content[:place])
            return f"{self.path.name} cut at {place} of {len(content)}"
        content[place] ^= 1 << dice.randrange(8)
        self.path.write_bytes(content)
        return f"{self.path.name} has a flipped bit at {place} of {len(content)}"


@dataclass(frozen=True, slots=True)
class HiddenDamage:
    """Damage that may not have been detected yet: it can make its node rebuild its database at any
    time."""

    node: LocalNode
    path: Path
    digest: bytes

    @property
    def is_left(self) -> bool:
        return self.path.is_file() and _digest(self.path.read_bytes()) == self.digest


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


@dataclass(slots=True)
class DamageReport:
    seed: int
    rounds: int = 0
    acked: dict[str, dict[int, bytes]] = field(default_factory=dict)  # digests by sequence
    hit: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    slowest_s: float = 0.0
    hidden: list[HiddenDamage] = field(default_factory=list)  # all of one node

    @property
    def ok(self) -> bool:
        return not self.problems

    def lines(self) -> list[str]:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.hit.items()))
        acked = sum(map(len, self.acked.values()))
        return [
            f"seed {self.seed}: {self.rounds} rounds ({kinds}), {acked:,} messages acknowledged; "
            f"slowest recovery {self.slowest_s:.1f} s",
            *self.problems,
            "verdict: every promise kept" if self.ok else "verdict: PROMISES BROKEN",
            f"repeat it: jetraft chaos damage --rounds {self.rounds} --seed {self.seed}",
        ]


def damages(data: Path) -> Iterator[tuple[str, Path]]:
    """The files of a node's directory of data that can be hit, with their kinds."""
    for path in sorted(data.rglob("*")):
        if not path.is_file() or ".damaged-" in str(path):
            continue
        for kind, name in KINDS.items():
            if path.name.endswith(name) or (name.endswith("-") and path.name.startswith(name)):
                yield kind, path


async def run_damage_rounds(
    *, seed: int, rounds: int, say: Callable[[str], None], only: tuple[tuple[str, str], ...] = ()
) -> DamageReport:
    """`only`: kinds of files and ways to damage them, one per round, in place of random ones."""
    report, dice = DamageReport(seed), random.Random(seed)
    with contextlib.ExitStack() as cleanup:
        place = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="damage-")))
        cluster = LocalCluster(place, size=3, name="damage")
        cleanup.callback(cluster.stop)
        await asyncio.to_thread(cluster.start)
        async with client_of(cluster.nodes[0]) as client:
            for name in STREAMS:
                config = StreamConfig(name=name, subjects=[name], num_replicas=3)
                await client.jetstream().add_stream(config)
        for number in range(rounds):
            wanted = only[number] if number < len(only) else None
            await _round(cluster, report, dice, say, wanted)
            if report.problems:
                break
    return report


async def _round(
    cluster: LocalCluster,
    report: DamageReport,
    dice: random.Random,
    say: Callable[[str], None],
    wanted: tuple[str, str] | None,
) -> None:
    victim = dice.choice(cluster.nodes)
    report.hidden = [damage for damage in report.hidden if damage.is_left]
    if report.hidden:
        victim = report.hidden[0].node
    others = [node for node in cluster.nodes if node is not victim]
    await _publish(cluster, others[0], report, dice)
    if dice.random() < 0.5:
        victim.kill()
    else:
        await asyncio.to_thread(victim.stop)
    found: dict[str, list[Path]] = {}
    for kind, path in damages(victim.directory / "data"):
        found.setdefault(kind, []).append(path)
    kind, way = wanted or (dice.choice(sorted(found)), dice.choice(DAMAGES))
    if kind in found:
        path = dice.choice(found[kind])
        done = Damage(kind, path, way).apply(dice)
        if kind in DATA and path.is_file():
            report.hidden.append(HiddenDamage(victim, path, _digest(path.read_bytes())))
        report.hit[kind] += 1
        say(f"round {report.rounds + 1}: {victim.name}: {kind}: {done}")
    await _publish(cluster, others[0], report, dice)
    began = time.monotonic()
    victim.start()
    await _healed(cluster, victim, report)
    if report.ok:
        await _compare(cluster, victim, report)
        await _healed(cluster, victim, report)
    report.slowest_s = max(report.slowest_s, time.monotonic() - began)
    report.rounds += 1


async def _healed(cluster: LocalCluster, victim: LocalNode, report: DamageReport) -> None:
    try:
        for node in (victim, *cluster.nodes):
            await asyncio.to_thread(node.wait_healthy, timeout_s=HEAL_WITHIN_S)
    except RuntimeError as error:
        report.problems += [str(error), *map(_condition, cluster.nodes)]
    log = victim.log_path.read_bytes()[victim.log_begins :].decode(errors="replace")
    if "Traceback" in log:
        report.problems.append(f"a traceback in the log of {victim.name}: {victim.log_tail(60)}")


def _condition(node: LocalNode) -> str:
    """What a node says of itself, for the report."""
    url = f"http://127.0.0.1:{node.http_port}/healthz?details=true"
    try:
        with urlopen(url, timeout=2) as answer:
            said = answer.read().decode()
    except HTTPError as refused:
        said = refused.read().decode()
    except OSError as error:
        said = str(error)
    return f"{node.name}: {said}\n{node.log_tail(25)}"


async def _publish(
    cluster: LocalCluster, node: LocalNode, report: DamageReport, dice: random.Random
) -> None:
    async with client_of(node) as client:
        stream = client.jetstream(timeout=30)
        for name in STREAMS:
            acked = report.acked.setdefault(name, {})
            for _ in range(MESSAGES):
                data = dice.randbytes(dice.choice((20, 2_000, 20_000)))
                try:
                    ack: Any = await stream.publish(name, data)
                except (nats.errors.Error, nats.js.errors.Error) as error:
                    problem = f"no ack of {name} by {node.name}: {error}"
                    report.problems += [problem, *map(_condition, cluster.nodes)]
                    return
                acked[ack.seq] = hashlib.sha256(data).digest()


async def _compare(cluster: LocalCluster, victim: LocalNode, report: DamageReport) -> None:
    """Every replica has exactly what was acknowledged."""
    for name, acked in report.acked.items():
        for node in cluster.nodes:
            try:
                try:
                    stored = await asyncio.to_thread(_stored, node, name, max(acked))
                except ScanFailed:
                    # It may have detected the damage only now, and be rebuilding (see its health).
                    await _healed(cluster, victim, report)
                    stored = await asyncio.to_thread(_stored, node, name, max(acked))
            except Exception as error:  # noqa: BLE001 - it is the verdict
                report.problems.append(f"{name} cannot be read from {node.name}: {error}")
                continue
            lost = [seq for seq in acked if seq not in stored]
            wrong = [seq for seq, digest in acked.items() if stored.get(seq, digest) != digest]
            more = len(stored) - len(acked) + len(lost)
            if lost or wrong or more:
                text = f"{len(lost)} lost, {len(wrong)} wrong, {more} too many"
                report.problems.append(f"{name} on {node.name}: {text}")


def _stored(node: LocalNode, name: str, last: int) -> dict[int, bytes]:
    table = scan(name, servers=f"127.0.0.1:{node.client_port}", last=last, pinned=True)
    digests = [hashlib.sha256(bytes(value)).digest() for value in table.column("data").to_pylist()]
    return dict(zip(table.column("seq").to_pylist(), digests, strict=True))
