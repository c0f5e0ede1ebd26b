"""One simulated node: the real server and cluster runtime on a simulated computer.

Owns: the disk of the node, and one run of the process on it after the other: start, pause, kill.
May not touch: what the broker does; it is wired as broker/main.py wires it, without ports.
Spec: broker/cluster/platform.py names what is simulated."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, cast

from broker.cluster.platform import Platform
from broker.cluster.runtime import Runtime
from broker.config.options import ClusterOptions, JetStreamOptions, Options
from broker.monitor.monitor import Monitor
from broker.server.client.connection import Connection
from broker.server.client.listener_profile import ListenerProfile
from broker.server.process.tasks import Tasks
from broker.server.server import Server
from chaos.sim.world.byte_stream import ByteStream
from chaos.sim.world.database import DatabaseFiles, SimDatabase, SimWriteBatch
from chaos.sim.world.flush import SimFlushThread
from chaos.sim.world.links import Fabric, SimTransport
from chaos.sim.world.node_loop import NodeLoop
from chaos.sim.world.virtual_time import MS, US, CurrentClock, WorldTime
from raft.store.database import claim
from raft.store.log_store import LogStore

CLUSTER = "sim"


@dataclass(slots=True)
class NodeDisk:
    """What survives a crash of the node."""

    database: DatabaseFiles = field(default_factory=DatabaseFiles)
    files: dict[str, bytes] = field(default_factory=dict)


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


class BrokerNode:
    """A computer with a disk. `start` runs the broker on it until `kill` or `stop`."""

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
    ) -> None:
        self.name = name
        self.disk = NodeDisk()
        self.loop: NodeLoop | None = None
        self.server: Server | None = None
        self.runtime: Runtime | None = None
        self.starts = 0
        self.wall_offset_ns = 0
        self.accepting = False
        self.streams: list[ByteStream] = []
        self._world = world
        self._current = current
        self._fabric = fabric
        self._rng = rng
        self._on_exception = on_exception
        self._transport: SimTransport | None = None
        self._former: list[object] = []  # ended runs: their coroutines must never be resumed
        self._options = Options(
            host="127.0.0.1",
            server_name=name,
            jetstream=JetStreamOptions(store_dir="/simulated"),
            cluster=ClusterOptions(
                name=CLUSTER,
                routes=tuple(f"nats://{other}:6222" for other in names if other != name),
            ),
        )

    @property
    def up(self) -> bool:
        return self.loop is not None

    # -- the computer

    def _platform(self, loop: NodeLoop) -> Platform:
        def transport(**settings: Any) -> Any:
            self._transport = SimTransport(self._fabric, loop, **settings)
            return self._transport

        return Platform(
            transport=transport,
            open_store=partial(self._open_store, loop),
            flush_thread=cast(
                Any, partial(SimFlushThread, self._world, self.disk.database, self.flush_ns)
            ),
            directory=Path,
            files=lambda _directory: SimFiles(self.disk, loop),
        )

    def _open_store(
        self, loop: NodeLoop, path: Path, *, node_name: str, cluster_name: str, tuning: Any
    ) -> LogStore:
        def open_database() -> Any:
            database: Any = SimDatabase(self.disk.database, lambda: loop.alive)
            return database, claim(
                database, str(path), node_name=node_name, cluster_name=cluster_name
            )

        return LogStore(
            path,
            open_database,
            flush_interval_s=tuning.flush_interval_s,
            new_batch=cast(Any, SimWriteBatch),
        )

    def flush_ns(self) -> int:
        return 100 * US + self._rng.randrange(2 * MS)

    def _blocking_ns(self) -> int:
        return 100 * US + self._rng.randrange(20 * MS)

    # -- life

    def start(self) -> None:
        assert self.loop is None, f"{self.name} is up"
        self.starts += 1
        loop = self.loop = NodeLoop(
            self.name,
            self._world,
            self._current,
            on_exception=self._on_exception,
            blocking_ns=self._blocking_ns,
        )
        loop.wall_offset_ns = self.wall_offset_ns
        task = loop.start(self._run(loop), f"{self.name}, run {self.starts}")
        task.add_done_callback(self._ended)

    async def _run(self, loop: NodeLoop) -> None:
        async with Tasks() as tasks:
            server = self.server = Server(self._options, tasks.spawn)
            runtime = self.runtime = Runtime(self._options, self._platform(loop))
            monitor = Monitor(server, runtime, lambda: None)
            server.info.extend = runtime.on_connect_info
            server.clients.bulk_reads = runtime
            server.info.port = server.urls.port = 4222
            server.info.refresh()
            await runtime.start(server)
            server.info.refresh()
            monitor.start()
            self.accepting = True
            await asyncio.Event().wait()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._on_exception(
                self.name, {"message": "the process has ended", "exception": task.exception()}
            )

    def kill(self, *, power: bool) -> int:
        """End the process now. `power`: of the whole computer, so that what was not flushed is
        lost and nobody is told. Returns how many writes are lost."""
        loop = self.loop
        assert loop is not None
        loop.kill()
        self._former.append((loop, self.server, self.runtime))
        if self._transport is not None:
            self._fabric.leave(self._transport, silently=power)
        for stream in self.streams:
            stream.server_gone()
        self.streams.clear()
        self.loop = self.server = self.runtime = self._transport = None
        self.accepting = False
        if power:
            return self.disk.database.crash(self._rng)
        database = self.disk.database  # the kernel keeps what was written to the log
        database.flush_logged(database.written)
        return database.crash(self._rng)

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
        server, loop = self.server, self.loop
        if not self.accepting or server is None or loop is None:
            return False
        self.streams.append(stream)
        profile = ListenerProfile(server.clients)
        loop.call_soon(lambda: stream.accepted(loop, Connection(profile, loop)))
        return True
