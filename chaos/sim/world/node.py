"""One simulated node: the real server and cluster runtime on a simulated machine.

Owns: the disk of the node, and the runs of its process: start, pause, stop, kill.
May not touch: what the broker does; broker/main.py wires it, starts it and stops it.
Spec: broker/cluster/platform.py lists what is simulated."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, cast

from broker.cluster.platform import Platform
from broker.cluster.runtime import Runtime
from broker.config.options import (
    SYSTEM_ACCOUNT,
    ClusterOptions,
    JetStreamOptions,
    Options,
)
from broker.main import Broker
from broker.server.client.connection import Connection
from broker.server.client.listener_profile import ClientContext, ListenerProfile
from broker.server.process.tasks import Tasks
from broker.store.encryption.directory_cipher import DirectoryCipher
from broker.store.encryption.key_file import EncryptionKeys
from chaos.sim.files import SimJobs, SimLogFiles
from chaos.sim.world.byte_stream import ByteStream
from chaos.sim.world.database import (
    DatabaseFiles,
    DiskFault,
    SimDatabase,
    SimDiskSpace,
    SimWriteBatch,
    is_injected,
)
from chaos.sim.world.flush import SimFlushThread
from chaos.sim.world.links import Fabric, SimTransport
from chaos.sim.world.node_loop import NodeLoop
from chaos.sim.world.virtual_time import MS, US, CurrentClock, WorldTime
from raft.host.compaction import CompactionPolicy
from raft.store.database import claim
from raft.store.log_store import LogStore
from raft.store.node_log import LogPlace
from raft.store.records import DamagedDatabase

CLUSTER = "sim"
SEGMENT_BYTES = 64 << 10  # of the log: small, so that segments are recycled in a short run
VALUE_FILE_BYTES = 8 << 10  # two blocks each
SUPERVISED_NS = 1000 * MS  # after this time a process that could not start is started again


@dataclass(slots=True)
class NodeDisk:
    """What survives a crash of the node."""

    database: DatabaseFiles = field(default_factory=DatabaseFiles)
    segments: SimLogFiles = field(default_factory=SimLogFiles)
    promises: SimLogFiles = field(default_factory=SimLogFiles)
    values: SimLogFiles = field(default_factory=SimLogFiles)  # large blocks
    files: dict[str, bytes] = field(default_factory=dict)
    data_key: bytes = b""  # of encryption at rest; not damaged, because nothing replaces it

    def __post_init__(self) -> None:
        for files in self.directories():
            files.fault = self._fault

    def directories(self) -> tuple[SimLogFiles, ...]:
        return self.segments, self.promises, self.values

    def holds(self, text: bytes) -> bool:
        """Whether the log or the database contains the text."""
        return self.database.holds(text) or any(files.holds(text) for files in self.directories())

    def condemn(self, reason: str) -> None:
        self.database.condemned = reason

    def set_aside(self) -> None:
        """Start with an empty database and log. The old contents are not kept."""
        empty = NodeDisk(files=self.files, data_key=self.data_key)
        for one in fields(self):
            setattr(self, one.name, getattr(empty, one.name))
        self.__post_init__()

    def damage_file(self, rng: Random) -> str:
        """One of the small files is changed, cut or gone. Returns what is damaged."""
        name = rng.choice(sorted(self.files))
        content = bytearray(self.files.pop(name))
        kind = rng.choice(("remove", "cut", "bit") if content else ("remove",))
        at = rng.randrange(max(1, len(content)))
        if kind == "cut":
            self.files[name] = bytes(content[:at])
        elif kind == "bit":
            content[at] ^= 1 << rng.randrange(8)
            self.files[name] = bytes(content)
        return f"{kind} at {at} of {name}"

    def _fault(self, operation: str, _name: str) -> OSError | None:
        """The log is on the same disk as the database, with the same faults."""
        if self.database.write_fails and operation in ("write", "allocate", "create", "rename"):
            return DiskFault("simulated write error")
        if self.database.flush_fails and operation in ("sync", "sync_names"):
            return DiskFault("simulated flush error")
        return None


class SimFiles:
    """The small files of a node: durable at once."""

    def __init__(self, disk: NodeDisk, loop: NodeLoop) -> None:
        self._files = disk.files
        self._loop = loop

    def read(self, name: str) -> bytes | None:
        return self._files.get(name)

    def write(self, name: str, content: bytes) -> None:
        if self._loop.alive:
            self._files[name] = content

    def remove(self, name: str) -> None:
        if self._loop.alive:
            self._files.pop(name, None)


class SimListener:
    """Stands in for the client port."""

    def __init__(self, context: ClientContext) -> None:
        self.port = 0
        self.profile = ListenerProfile(context)
        self.accepting = False

    def bind(self) -> None:
        self.port = 4222

    async def listen(self) -> None:
        self.accepting = True

    def announce(self) -> None:
        """Nobody reads it."""

    def close(self) -> None:
        self.accepting = False


@dataclass(slots=True)
class Process:
    """One run of the broker on a node."""

    loop: NodeLoop
    started: bool = False
    stopping: bool = False
    broker: Broker | None = None
    tasks: Tasks | None = None
    listener: SimListener | None = None
    transport: SimTransport | None = None


class BrokerNode:
    """A machine with a disk. `start` runs the broker on it until `kill` or `stop`."""

    def __init__(
        self,
        name: str,
        names: list[str],
        *,
        world: WorldTime,
        current: CurrentClock,
        fabric: Fabric,
        rng: Random,
        on_exception: Callable[[str, dict[str, Any]], None],
        compaction: CompactionPolicy,
        scrub_ns: int,
        cipher: str,
    ) -> None:
        """`names`: of the nodes that its routes lead to; its own is left out. `scrub_ns`: interval
        between two scrubs; 0: never. `cipher`: for stored data; empty: not encrypted."""
        self.name = name
        self.disk = NodeDisk()
        self.process: Process | None = None
        self.starts = 0
        self.slowness = 1  # of the disk
        self.on_stopped: Callable[[], None] | None = None  # at the next end of a graceful stop
        self.streams: list[ByteStream] = []
        self._wall_offset_ns = 0
        self._drift_ppm = 0
        self._world = world
        self._current = current
        self._fabric = fabric
        self._rng = rng
        self._on_exception = on_exception
        self._compaction = compaction
        self._former: list[object] = []  # ended runs: their coroutines must never be resumed
        self._options = Options(
            host="127.0.0.1",
            server_name=name,
            jetstream=JetStreamOptions(
                store_dir="/simulated",
                scrub_interval_ns=scrub_ns,
                cipher=cipher,
                key=name if cipher else "",
            ),
            cluster=ClusterOptions(
                name=CLUSTER,
                routes=tuple(f"nats://{other}:6222" for other in names if other != name),
            ),
        )

    @property
    def up(self) -> bool:
        return self.process is not None

    @property
    def loop(self) -> NodeLoop | None:
        return None if self.process is None else self.process.loop

    @property
    def runtime(self) -> Runtime | None:
        broker = None if self.process is None else self.process.broker
        return None if broker is None else cast(Runtime, broker.runtime)

    @property
    def stopping(self) -> bool:
        return self.process is not None and self.process.stopping

    @property
    def removed(self) -> bool:
        """Whether it has learned that it was removed from its cluster."""
        jetstream = None if self.runtime is None else self.runtime.jetstream
        return jetstream is not None and jetstream.is_removed

    def ask_system(self, subject: bytes, body: bytes) -> None:
        """Send a request of an administrator, in the system account, without waiting for the
        answer."""
        process = self.process
        if process is not None and process.broker is not None:
            server = process.broker.server
            account = server.account(SYSTEM_ACCOUNT)
            process.loop.call_soon(server.router.publish, account, subject, b"", b"", body)

    def set_clocks(
        self, *, wall_offset_ns: int | None = None, drift_ppm: int | None = None
    ) -> None:
        """Set the clocks of the machine: they stay wrong when the process is restarted."""
        if wall_offset_ns is not None:
            self._wall_offset_ns = wall_offset_ns
        if drift_ppm is not None:
            self._drift_ppm = drift_ppm
        if self.loop is not None:
            self.loop.wall_offset_ns = self._wall_offset_ns
            self.loop.drift(self._drift_ppm)

    # -- the machine

    def _platform(self, process: Process) -> Platform:
        loop = process.loop

        def transport(**settings: Any) -> Any:
            process.transport = SimTransport(self._fabric, loop, **settings)
            return process.transport

        return Platform(
            transport=transport,
            open_store=partial(self._open_store, loop),
            open_cipher=self._open_cipher,
            condemn=lambda store: self.disk.condemn(store.damage or ""),
            set_aside=lambda _: self.disk.set_aside(),
            flush_thread=cast(Any, partial(SimFlushThread, self._world, self.flush_ns)),
            directory=Path,
            files=lambda _directory: SimFiles(self.disk, loop),
            compaction=self._compaction,
        )

    def _open_cipher(
        self, _directory: Path, keys: EncryptionKeys, *, used: bool
    ) -> DirectoryCipher | None:
        """`used` is about the real directory."""
        if not keys.key:
            return None
        if not self.disk.data_key:
            self.disk.data_key = self._rng.randbytes(32)
        return DirectoryCipher(self.disk.data_key, keys.cipher)

    def _open_store(
        self,
        loop: NodeLoop,
        path: Path,
        *,
        node_name: str,
        cluster_name: str,
        tuning: Any,
    ) -> LogStore:
        openings = 0

        def open_database() -> Any:
            nonlocal openings
            openings += 1
            if self.disk.database.condemned:
                raise DamagedDatabase(f"{path}: {self.disk.database.condemned}")
            if openings > 1:  # the disk has failed: what was not flushed may be lost, or not
                self.disk.database.crash(self._rng)
                for files in self.disk.directories():
                    files.lose_power(self._rng)
            database: Any = SimDatabase(self.disk.database, lambda: loop.alive)
            return database, claim(
                database, str(path), node_name=node_name, cluster_name=cluster_name
            )

        return LogStore(
            path,
            open_database,
            tuning=replace(
                tuning,
                reserve_percent=0,
                segment_bytes_first=SEGMENT_BYTES,
                segment_bytes_max=4 * SEGMENT_BYTES,
                value_file_bytes=VALUE_FILE_BYTES,
            ),
            new_batch=cast(Any, SimWriteBatch),
            space=cast(Any, SimDiskSpace(self.disk.database)),
            place=LogPlace(
                segments=self.disk.segments,
                promises=self.disk.promises,
                jobs=lambda: SimJobs(at_once=True),
                draw_salt=lambda: self._rng.getrandbits(64),
                space=lambda _size: self.disk.database.space,
                cipher=tuning.cipher,
            ),
            value_files=self.disk.values,
        )

    def flush_ns(self) -> int:
        return self.slowness * (100 * US + self._rng.randrange(2 * MS))

    def _blocking_ns(self) -> int:
        return 100 * US + self._rng.randrange(20 * MS)

    # -- life

    def start(self) -> None:
        assert self.process is None, f"{self.name} is up"
        self.starts += 1
        loop = NodeLoop(
            self.name,
            self._world,
            self._current,
            on_exception=self._on_exception,
            blocking_ns=self._blocking_ns,
        )
        loop.wall_offset_ns = self._wall_offset_ns
        loop.drift(self._drift_ppm)
        process = self.process = Process(loop)
        task = loop.start(self._run(process), f"{self.name}, run {self.starts}")
        task.add_done_callback(lambda ended: self._ended(process, ended))

    async def _run(self, process: Process) -> None:
        def listener(context: ClientContext) -> SimListener:
            process.listener = SimListener(context)
            return process.listener

        async with Tasks() as tasks:
            process.tasks = tasks
            process.broker = Broker(
                self._options,
                tasks,
                runtime=lambda options: Runtime(options, self._platform(process)),
                listener=listener,
            )
            process.broker.server.restart = lambda _: self._restart(process)
            await process.broker.start()
            process.started = True
            await process.broker.finished.wait()

    def _ended(self, process: Process, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not is_injected(error):
            self._on_exception(self.name, {"message": "the process has ended", "exception": error})
        elif process is self.process:
            self.kill(power=False)
            stopped, self.on_stopped = self.on_stopped, None
            if error is not None:  # it could not start on this disk; a supervisor tries again
                self._world.after(SUPERVISED_NS, self._start_again)
            elif stopped is not None:
                stopped()

    def _restart(self, process: Process) -> None:
        """The node has asked for a restart. If it fails to start, it is started again anyway."""
        if process is self.process and process.started and not process.stopping:
            self.stop()
            self.on_stopped = self._start_again

    def _start_again(self) -> None:
        if self.process is None:
            self.start()

    def stop(self) -> None:
        """Like SIGTERM: the process ends by itself, then `on_stopped` is called."""
        process = self.process
        assert process is not None
        if process.stopping or process.broker is None or process.tasks is None:
            return
        process.stopping = True
        broker, tasks = process.broker, process.tasks
        process.loop.call_soon(lambda: tasks.spawn(broker.stop(), name="stop"))

    def kill(self, *, power: bool) -> int:
        """End the process now. `power`: the whole machine loses power, so that what was not flushed
        is lost and peers are not told. Returns how many writes are lost."""
        process = self.process
        assert process is not None
        self.process = None
        process.loop.kill()
        self._former.append(process)
        if process.transport is not None:
            self._fabric.leave(process.transport, silently=power)
        for stream in self.streams:
            stream.server_gone()
        self.streams.clear()
        database = self.disk.database
        lost = 0
        for files in self.disk.directories():
            if power:
                lost += files.unsynced()
                files.lose_power(self._rng)
            else:  # the kernel keeps what was written
                files.die()
        if not power:
            database.flush_logged(database.written)
        return lost + database.crash(self._rng)

    def wipe(self) -> None:
        """The node gets a new, empty disk."""
        assert self.process is None, f"{self.name} is up"
        self.disk = NodeDisk()

    def pause(self) -> None:
        if self.loop is not None:
            self.loop.pause()
            self._fabric.changed()

    def resume(self) -> None:
        if self.loop is not None:
            self.loop.resume()
            self._fabric.changed()

    # -- clients

    def accept(self, stream: ByteStream) -> bool:
        """A client connects. False: refused."""
        process = self.process
        listener = None if process is None else process.listener
        if process is None or listener is None or not listener.accepting:
            return False
        self.streams.append(stream)
        loop = process.loop
        loop.call_soon(lambda: stream.accepted(loop, Connection(listener.profile, loop)))
        return True
