"""The nemesis: injects the faults of the script, and ends all of them.

Owns: which faults are active, and how each begins and ends.
May not touch: what clients do (it may disconnect them), the broker's state.
To add a fault: a kind in chaos/sim/broker/fault_script.py and a method here, in `_begin`."""

from __future__ import annotations

import json
from collections.abc import Callable, MutableSequence, Sequence
from dataclasses import replace
from random import Random
from typing import Final, Protocol

from broker.cluster.meta.assignments import META_GROUP
from broker.cluster.meta.founding import FOUNDING_FILE
from chaos.sim.broker.fault_script import Fault
from chaos.sim.world.links import Fabric, NetworkFault
from chaos.sim.world.node import BrokerNode
from chaos.sim.world.virtual_time import MS, NS, WorldTime
from raft.store.disk_space import Space

FLAP_NS: Final = 300 * MS  # at most, for one turn of a flapping link
RESETS_NS: Final = 150 * MS  # at most, between two
UNSTEADY_NS: Final = 3 * NS
SLOW_LINK_NS: Final = 250 * MS  # at most
SLOW_FLUSHES: Final = 500  # times slower, at most
ELECTED_BY_NS: Final = 3 * NS  # there is another leader by then, even if the group was asleep
OLD_LEADER_WITHIN_NS: Final = 2 * NS
ALONE_NS: Final = 700 * MS  # how long an old leader stays isolated
CLOCK_JUMP_NS: Final = 5 * NS  # at most, in both directions
CLOCK_WRONG_NS: Final = 3600 * NS  # every third jump, in both directions
DRIFT_PPM: Final = 20_000  # at most, in both directions
ROUGH: Final = 0.3  # highest probability
WIPED_VOTERS_MIN: Final = 3  # of every group on a node whose disk is wiped
BLOCK_FILES: Final = 0.6  # of the damage of states, if there are such files
AT_THE_START: Final = 0.5  # of the damage of databases of nodes that are down
ASK_EVERY_NS: Final = 1 * NS  # until a removal is done
BETWEEN_ROLLING_NS: Final = 300 * MS


class Disconnecting(Protocol):
    """A client, as far as faults reach it."""

    def disconnect(self) -> None: ...


class BrokerNemesis:
    def __init__(
        self,
        script: Sequence[Fault],
        *,
        world: WorldTime,
        nodes: MutableSequence[BrokerNode],
        spare: BrokerNode,
        clients: Sequence[Disconnecting],
        fabric: Fabric,
        leaders: Callable[[], Sequence[str]],
        tell: Callable[[str, str], None],
    ) -> None:
        """`spare` joins `nodes` if a fault asks for it. `clients` grows during the run. `leaders`
        returns the names of the nodes that lead a stream."""
        self._script = script
        self._world = world
        self._nodes = nodes
        self._spare: BrokerNode | None = spare
        self._wiped = self._file_damaged = False
        self._removing: BrokerNode | None = None
        self._wrong_clocks: set[str] = set()
        self._clients = clients
        self._fabric = fabric
        self._leaders = leaders
        self._tell = tell
        self._over = False
        self._old_until_ns = 0
        self._begin: dict[str, Callable[[Fault, BrokerNode], None]] = {
            "kill": self._kill,
            "power": self._kill,
            "stop": self._stop,
            "rolling": self._rolling,
            "pause": self._pause,
            "old leader": lambda fault, _: self._later(
                fault.dice % OLD_LEADER_WITHIN_NS, self._old_leader, fault
            ),
            "cut": self._cut,
            "one-way": self._one_way,
            "isolate": self._isolate,
            "halves": self._halves,
            "ring": self._ring,
            "flap": self._flap,
            "slow link": self._slow_link,
            "reset": self._reset,
            "unsteady return": self._unsteady_return,
            "rough": self._rough,
            "slow disk": self._slow_disk,
            "full disk": self._full_disk,
            "crowded disk": self._bad_disk,
            "flush error": self._bad_disk,
            "write error": self._bad_disk,
            "clock jump": self._clock_jump,
            "drift": self._drift,
            "wipe": self._wipe,
            "damage": self._wipe,
            "state damage": self._wipe,
            "database damage": self._wipe,
            "file damage": self._damage_file,
            "join": self._join,
            "remove": self._remove,
            "disconnect": self._disconnect,
        }

    def start(self) -> None:
        for fault in self._script:
            self._world.at(fault.at_ns, self._perform, fault)

    def _perform(self, fault: Fault) -> None:
        if not self._over:
            self._begin[fault.kind](fault, self._nodes[fault.node])

    def _later(self, delay_ns: int, action: Callable[..., None], *arguments: object) -> None:
        """Call `action` after the delay, unless the faults are over by then."""

        def unless_over() -> None:
            if not self._over:
                action(*arguments)

        self._world.after(delay_ns, unless_over)

    def heal(self) -> None:
        """End all faults: every node runs and reaches every other."""
        self._over = True
        self._tell("--", "the faults are over")
        self._fabric.end_all()
        for node in self._nodes:
            node.slowness = 1
            disk = node.disk.database
            disk.space = Space.AMPLE
            disk.write_fails = disk.flush_fails = disk.crowded = False
            node.set_clocks(wall_offset_ns=0, drift_ppm=0)
            node.resume()
            if node.stopping:
                node.on_stopped = lambda node=node: self._start(node)
            else:
                self._start(node)

    # -- processes

    def _start(self, node: BrokerNode) -> None:
        if not node.up:
            self._tell(node.name, "starts")
            node.start()

    def _kill(self, fault: Fault, node: BrokerNode) -> None:
        if node.up:
            lost = node.kill(power=fault.kind == "power")
            self._tell(node.name, f"{fault.kind}: {lost} writes lost, {_lasts(fault)}")
            self._later(fault.lasts_ns, self._start, node)

    def _stop(self, fault: Fault, node: BrokerNode) -> None:
        if node.up and not node.stopping:
            self._tell(node.name, "stop: SIGTERM")
            node.stop()
            node.on_stopped = lambda: self._stopped(fault, node)

    def _stopped(self, fault: Fault, node: BrokerNode) -> None:
        self._tell(node.name, f"has stopped: {_lasts(fault)}")
        self._later(fault.lasts_ns, self._start, node)

    def _rolling(self, fault: Fault, node: BrokerNode, left: int | None = None) -> None:
        """Restart each node in turn, the next one when the previous one is up again."""
        left = len(self._nodes) if left is None else left
        if left == 0:
            return
        if not node.up or node.stopping:  # another fault is active on this node; retry later
            self._later(BETWEEN_ROLLING_NS, self._rolling, fault, node, left)
            return
        self._tell(node.name, "rolling: SIGTERM")

        def stopped() -> None:
            self._later(BETWEEN_ROLLING_NS, self._start, node)
            after = self._nodes[(self._nodes.index(node) + 1) % len(self._nodes)]
            self._later(fault.lasts_ns + BETWEEN_ROLLING_NS, self._rolling, fault, after, left - 1)

        node.stop()
        node.on_stopped = stopped

    def _pause(self, fault: Fault, node: BrokerNode) -> None:
        if node.up:
            self._tell(node.name, f"pause: {_lasts(fault)}")
            node.pause()
            self._later(fault.lasts_ns, self._resume, node, node.starts)

    def _old_leader(self, fault: Fault) -> None:
        """Pause a leader until the others have elected a new one, then let it run without hearing
        of that. One at a time: without a majority there would be no other leader."""
        names = self._leaders() if self._world.now_ns >= self._old_until_ns else ()
        chosen = Random(fault.dice).choice(names) if names else ""
        for node in [one for one in self._nodes if one.name == chosen and one.up]:
            runs_ns = ELECTED_BY_NS + fault.strength * MS
            self._old_until_ns = self._world.now_ns + runs_ns + ALONE_NS
            cut = _both(node.name, self._names_besides(node))
            self._network_fault(
                replace(fault, lasts_ns=runs_ns + ALONE_NS), node.name, "", NetworkFault(cut=cut)
            )
            node.pause()
            self._later(runs_ns, self._resume, node, node.starts)

    def _resume(self, node: BrokerNode, starts: int) -> None:
        if node.up and node.starts == starts:
            self._tell(node.name, "resumes")
            node.resume()

    # -- members

    def _wipe(self, fault: Fault, node: BrokerNode) -> None:
        """Wipe or damage a disk: once in a run, because two lost disks of three may lose what was
        promised. A removed node has an empty disk too, and may still count as a voter."""
        runtime = node.runtime
        jetstream = None if runtime is None else runtime.jetstream
        if self._wiped or self._removing is not None or jetstream is None:
            return
        if any(len(voters) < WIPED_VOTERS_MIN for voters in jetstream.voters()):
            return
        rng = Random(fault.dice)
        if fault.kind == "state damage":
            self._damage_state(fault, node, rng)
            return
        if fault.kind == "database damage":
            self._damage_database(fault, node, rng)
            return
        self._wiped = True
        node.kill(power=False)
        if fault.kind == "wipe":
            node.wipe()
            self._tell(node.name, f"wipe: {_lasts(fault)}")
        else:
            what, files = rng.choice(
                (
                    ("log", node.disk.segments),
                    ("log", node.disk.segments),
                    ("table of promises", node.disk.promises),
                )
            )
            self._tell(node.name, f"damage: {what}, {files.damage(rng)}, {_lasts(fault)}")
        self._later(fault.lasts_ns, self._start, node)

    def _damage_state(self, fault: Fault, node: BrokerNode, rng: Random) -> None:
        """Damage stored state. It is detected when it is read: at a restart, or while running."""
        running = rng.random() < 0.5
        blocks = node.disk.values
        if blocks.used and Random(fault.dice + 1).random() < BLOCK_FILES:
            what = f"a file of blocks, {blocks.damage(rng)}"
        else:
            what = node.disk.database.damage(rng)
        if not what:
            return
        self._wiped = True
        self._tell(node.name, f"state damage: {what}, {running=}")
        if not running:
            node.kill(power=False)
            self._later(fault.lasts_ns, self._start, node)

    def _damage_database(self, fault: Fault, node: BrokerNode, rng: Random) -> None:
        """Damage the database. It is detected when it is opened, or by a compaction, after which
        RocksDB refuses every write; that may be the compaction at startup, with an unreadable table
        of streams."""
        self._wiped = True
        running = rng.random() < 0.5
        self._tell(node.name, f"database damage: {running=}, {_lasts(fault)}")
        if running:
            node.disk.database.corrupt = True
            return
        node.kill(power=False)
        if Random(fault.dice + 1).random() < AT_THE_START:
            node.disk.database.corrupt = True
            node.disk.database.damage_group(META_GROUP)
        else:
            node.disk.condemn("Corruption: the MANIFEST (simulated)")
        self._later(fault.lasts_ns, self._start, node)

    def _damage_file(self, fault: Fault, node: BrokerNode) -> None:
        """Damage a small file. Not before the founding: no other node would have the record."""
        if node.up and not self._file_damaged and FOUNDING_FILE in node.disk.files:
            self._file_damaged = True
            node.kill(power=False)
            what = node.disk.damage_file(Random(fault.dice))
            self._tell(node.name, f"file damage: {what}, {_lasts(fault)}")
            self._later(fault.lasts_ns, self._start, node)

    def _join(self, _fault: Fault, _node: BrokerNode) -> None:
        spare, self._spare = self._spare, None
        if spare is not None:
            self._tell(spare.name, "join: a new node")
            self._nodes.append(spare)
            spare.start()

    def _remove(self, fault: Fault, node: BrokerNode) -> None:
        """Remove a node; another one takes its place. This continues when the faults are over: a
        removed node serves nobody, and its machine gets an empty disk."""
        if self._removing is None and not self._wiped:
            self._removing = node
            self._tell(node.name, "remove: for good")
            self._join(fault, node)
            self._world.after(ASK_EVERY_NS, self._ask_removal, fault, node)

    def _ask_removal(self, fault: Fault, node: BrokerNode) -> None:
        if node.up and node.removed:
            self._tell(node.name, f"was removed: returns after {fault.lasts_ns / NS} s")
            node.kill(power=False)
            node.wipe()
            self._world.after(fault.lasts_ns, self._start, node)
            return
        others = [one for one in self._nodes if one is not node and one.up]
        for other in others[:1]:
            body = json.dumps({"peer": node.name}).encode()
            other.ask_system(b"$JS.API.SERVER.REMOVE", body)
        self._world.after(ASK_EVERY_NS, self._ask_removal, fault, node)

    # -- the network

    def _network_fault(self, fault: Fault, who: str, text: str, network: NetworkFault) -> None:
        self._tell(who, f"{fault.kind}: {text}{_lasts(fault)}")
        self._fabric.begin(fault, network)
        self._later(fault.lasts_ns, self._fabric.end, fault)

    def _names_besides(self, node: BrokerNode) -> list[str]:
        return [other.name for other in self._nodes if other is not node]

    def _cut(self, fault: Fault, node: BrokerNode) -> None:
        other = self._nodes[fault.other].name
        network = NetworkFault(cut=_both(node.name, [other]))
        self._network_fault(fault, node.name, f"from {other}, ", network)

    def _one_way(self, fault: Fault, node: BrokerNode) -> None:
        cut = frozenset((node.name, other) for other in self._names_besides(node))
        self._network_fault(fault, node.name, "", NetworkFault(cut=cut))

    def _isolate(self, fault: Fault, node: BrokerNode) -> None:
        cut = _both(node.name, self._names_besides(node))
        self._network_fault(fault, node.name, "", NetworkFault(cut=cut))

    def _halves(self, fault: Fault, _node: BrokerNode) -> None:
        names = [one.name for one in self._nodes]
        Random(fault.dice).shuffle(names)
        here, there = names[: len(names) // 2], names[len(names) // 2 :]
        cut = frozenset(pair for name in here for pair in _both(name, there))
        self._network_fault(fault, "--", f"{here} from {there}, ", NetworkFault(cut=cut))

    def _ring(self, fault: Fault, _node: BrokerNode) -> None:
        names = [one.name for one in self._nodes]
        Random(fault.dice).shuffle(names)
        cut: set[tuple[str, str]] = set()
        for position, name in enumerate(names):
            near = {names[position - 1], name, names[(position + 1) % len(names)]}
            cut |= _both(name, [other for other in names if other not in near])
        self._network_fault(fault, "--", f"{names}, ", NetworkFault(cut=frozenset(cut)))

    def _flap(self, fault: Fault, node: BrokerNode) -> None:
        rng = Random(fault.dice)
        cut = NetworkFault(cut=_both(node.name, self._names_besides(node)))
        self._tell(node.name, f"flap: {_lasts(fault)}")
        at_ns, isolated = 0, False
        while at_ns < fault.lasts_ns:
            isolated = not isolated
            if isolated:
                self._later(at_ns, self._fabric.begin, fault, cut)
            else:
                self._later(at_ns, self._fabric.end, fault)
            at_ns += rng.randint(10 * MS, FLAP_NS)
        self._later(fault.lasts_ns, self._fabric.end, fault)

    def _slow_link(self, fault: Fault, node: BrokerNode) -> None:
        delay_ns = (fault.strength + 1) * SLOW_LINK_NS // 1000
        slow = _both(node.name, self._names_besides(node))
        text = f"up to {delay_ns / MS} ms, "
        self._network_fault(fault, node.name, text, NetworkFault(slow=slow, delay_ns=delay_ns))

    def _reset(self, _fault: Fault, node: BrokerNode) -> None:
        self._tell(node.name, "reset: its links end")
        self._fabric.reset_links(node.name)

    def _unsteady_return(self, fault: Fault, node: BrokerNode) -> None:
        """Restart a node with unstable links, so that what it fetches from its peers (entries,
        snapshots) is interrupted."""
        if not node.up:
            return
        node.kill(power=False)
        self._tell(node.name, f"unsteady return: {_lasts(fault)}")
        self._later(fault.lasts_ns, self._start, node)
        rng = Random(fault.dice)
        at_ns = fault.lasts_ns
        while at_ns < fault.lasts_ns + UNSTEADY_NS:
            at_ns += rng.randint(20 * MS, RESETS_NS)
            self._later(at_ns, self._fabric.reset_links, node.name)

    def _rough(self, fault: Fault, _node: BrokerNode) -> None:
        rng = Random(fault.dice)
        loses, repeats, reorders = (ROUGH * rng.random() for _ in range(3))
        text = f"{loses:.2f} lost, {repeats:.2f} repeated, {reorders:.2f} reordered, "
        network = NetworkFault(loses=loses, repeats=repeats, reorders=reorders)
        self._network_fault(fault, "--", text, network)

    # -- disks and clocks

    def _slow_disk(self, fault: Fault, node: BrokerNode) -> None:
        slowness = 2 + fault.strength * SLOW_FLUSHES // 1000
        self._tell(node.name, f"slow disk: flushes take {slowness} times longer, {_lasts(fault)}")
        node.slowness = slowness
        self._later(fault.lasts_ns, setattr, node, "slowness", 1)

    def _full_disk(self, fault: Fault, node: BrokerNode) -> None:
        level = Space(fault.strength * Space.AMPLE // 1000)
        self._tell(node.name, f"full disk: space is {level.name}, {_lasts(fault)}")
        disk = node.disk.database
        disk.space = level
        self._later(fault.lasts_ns, setattr, disk, "space", Space.AMPLE)

    def _bad_disk(self, fault: Fault, node: BrokerNode) -> None:
        field = {
            "flush error": "flush_fails",
            "write error": "write_fails",
            "crowded disk": "crowded",
        }
        self._tell(node.name, f"{fault.kind}: {_lasts(fault)}")
        disk, name = node.disk.database, field[fault.kind]
        setattr(disk, name, True)
        self._later(fault.lasts_ns, lambda: setattr(disk, name, False))

    def _clock_jump(self, fault: Fault, node: BrokerNode) -> None:
        """Only a minority of clocks is wrong at any time: the majority defines cluster time."""
        wrong = self._wrong_clocks | {node.name}
        if len(self._nodes) > 1 and len(wrong) > (len(self._nodes) - 1) // 2:
            return
        offset_ns = (fault.strength - 500) * CLOCK_JUMP_NS // 500
        self._wrong_clocks.add(node.name)
        if fault.boots and len(self._nodes) > 1:
            self._boot_with_wrong_clock(fault, node)
            return
        self._tell(node.name, f"clock jump: by {offset_ns / NS} s, {_lasts(fault)}")
        node.set_clocks(wall_offset_ns=offset_ns)
        self._later(fault.lasts_ns, self._set_right, node)

    def _boot_with_wrong_clock(self, fault: Fault, node: BrokerNode) -> None:
        """The clock stays wrong until the faults are over."""
        offset_ns = CLOCK_WRONG_NS if fault.strength >= 500 else -CLOCK_WRONG_NS
        self._tell(node.name, f"clock jump: by {offset_ns / NS} s, at a restart")
        node.set_clocks(wall_offset_ns=offset_ns)
        if node.up:
            node.kill(power=False)
            self._later(BETWEEN_ROLLING_NS, self._start, node)

    def _set_right(self, node: BrokerNode) -> None:
        self._wrong_clocks.discard(node.name)
        node.set_clocks(wall_offset_ns=0)

    def _drift(self, fault: Fault, node: BrokerNode) -> None:
        ppm = (fault.strength - 500) * DRIFT_PPM // 500
        self._tell(node.name, f"drift: {ppm} ppm, {_lasts(fault)}")
        node.set_clocks(drift_ppm=ppm)
        self._later(fault.lasts_ns, lambda: node.set_clocks(drift_ppm=0))

    # -- clients

    def _disconnect(self, fault: Fault, _node: BrokerNode) -> None:
        rng = Random(fault.dice)
        for client in [client for client in self._clients if rng.random() < 0.5]:
            client.disconnect()
        self._tell("clients", "disconnect: some of them")


def _lasts(fault: Fault) -> str:
    return f"for {fault.lasts_ns / NS} s"


def _both(name: str, others: Sequence[str]) -> frozenset[tuple[str, str]]:
    """The paths between a node and others, in both directions."""
    return frozenset(pair for other in others for pair in ((name, other), (other, name)))
