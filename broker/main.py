"""The process: from the command line to a running node, and its exit code.

Owns: the wiring (server, cluster runtime, monitor), the order of start and stop, the root task
group, signals, reload, and the commands that only print.
May not touch: connections or streams.
Spec: nats-server, command line, signals and exit codes."""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, Protocol, cast

from broker.config.draft import BadOptions
from broker.config.exposure import exposures
from broker.config.flags import USAGE
from broker.config.load import BadSettings, CommandLine, Loaded, UsageError, load, parse_flags
from broker.config.options import JETRAFT_VERSION, VERSION, Options
from broker.config.watched_files import digest, files_of
from broker.monitor.monitor import Monitor
from broker.monitor.observed import ObservedRuntime
from broker.server.client.listener_profile import ClientContext
from broker.server.listeners.client_listener import ClientListener, PortListener
from broker.server.process import pid_files
from broker.server.process.freed_memory import FreedMemory
from broker.server.process.garbage_collection import OldGarbage, collect_young_objects
from broker.server.process.interpreter_lock import share_interpreter
from broker.server.process.log import FATAL, LogHandler, install, logger
from broker.server.process.private_files import create_private_files
from broker.server.process.reload import NotReloadable, merge
from broker.server.process.tasks import Tasks
from broker.server.server import Server
from broker.server.services import BulkReads, Document, StartFailed
from raft.types import NewProcessNeeded, lacks_memory

PROGRAM = "nats-server"  # tools match this name in the output
RUNTIME_MODULE = "broker.cluster.runtime"
SIGNALS = {
    "stop": signal.SIGKILL,
    "quit": signal.SIGINT,
    "term": signal.SIGTERM,
    "reopen": signal.SIGUSR1,
    "reload": signal.SIGHUP,
    "ldm": signal.SIGUSR2,
}
PEER_WAIT_SECONDS = 0.5  # the ports file waits this long for a first peer, if there are routes
IDLE_WITHIN_S = 0.25  # shutdown waits this long for a moment without unanswered publishes
AWAY_WITHIN_S = 2.0  # clients that are sent to a peer close their connections within this time
AWAY_POLL_S = 0.01
ANSWERED_WITHIN_S = 2.0  # and this long for their answers once nothing more is read
ANSWERED_POLL_S = 0.002


class ClusterRuntime(ObservedRuntime, BulkReads, Protocol):
    """The cluster and JetStream (broker/cluster/runtime.py)."""

    async def start(self, server: Server) -> None:
        """Before the client port opens. Raises StartFailed."""

    async def stop(self) -> None: ...

    def reconfigure(self, options: Options) -> None:
        """Apply the settings that may change while running; the server has done its part."""

    async def hand_over(self) -> None:
        """Transfer leaderships to other nodes; takes a bounded time."""

    def all_answered(self) -> bool:
        """Whether every publish of a client of this node has its answer."""

    def hold_replies(self) -> None:
        """Keep answers to publishes until their clients have arrived at another node."""

    def all_delivered(self) -> bool:
        """Whether every publish is answered, and every answer has a recipient."""

    def serve_elsewhere(self) -> bool:
        """Whether a client that disconnects can reconnect to another node."""

    def lame_duck(self) -> None:
        """Begin to transfer leaderships; clients leave soon."""

    def held(self) -> int:
        """How many consumers this node has; a stream counts as three."""

    def on_connect_info(self) -> Document:
        """Fields for the INFO of every client: jetstream, domain, api_lvl, cluster."""

    def ports(self) -> dict[str, int]:
        """Listeners of the runtime for the ports file: {"cluster": port}."""


def main(argv: Sequence[str]) -> int:
    """What `jetraft serve` does; returns the exit code."""
    try:
        line = parse_flags(argv)
        if line.command == "help":
            sys.stdout.write(USAGE)
            return 0
        if line.command == "version":
            sys.stdout.write(f"{PROGRAM}: v{VERSION}\n")
            return 0
        if line.command == "signal":
            return _send_signal(line.argument)
        loaded = load(line)
    except UsageError as error:
        sys.stderr.write(f"{error}\n{USAGE}")
        return 0
    except (BadSettings, BadOptions) as error:
        sys.stderr.write(f"{PROGRAM}: {error}\n")
        return 1
    if line.command == "check":
        told = f"{line.config_file} is valid ({loaded.options.config_digest})"
        sys.stderr.write(f"{PROGRAM}: configuration file {told}\n")
        return 0
    return _run(line, loaded)


def _run(line: CommandLine, loaded: Loaded) -> int:
    """Serve, then exit the process. Returns only if the server could not start."""
    create_private_files()
    try:
        handler = install(loaded.options.logging)
    except OSError as error:
        sys.stderr.write(f"{PROGRAM}: could not open log file: {error}\n")
        return 1
    for warning in loaded.warnings:
        logger.warning("%s", warning)
    collect_young_objects()
    share_interpreter()
    import uvloop

    runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    process = _Process(line, loaded, handler)
    code = runner.run(process.run())
    # The runtime has stopped, so everything is flushed. Skip the interpreter's own shutdown: it
    # takes long, and a supervisor waits for the process to exit.
    sys.stdout.flush()
    if process.starts_again:
        _start_again()
    os._exit(code)


def on_unhandled(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """An exception has left a callback or a task of the event loop. Without memory anything may be
    half done, and a replica that stopped would stay so: begin again, as after a crash."""
    error = context.get("exception")
    if error is not None and lacks_memory(error):
        reason = "out of memory"
    elif isinstance(error, NewProcessNeeded):
        reason = str(error)
    else:
        loop.default_exception_handler(context)
        return
    try:
        logger.critical("%s: this node starts again (%s)", reason, context["message"])
        _start_again()
    finally:
        os._exit(1)


def _start_again() -> NoReturn:
    os.execv(sys.executable, sys.orig_argv)  # noqa: S606 - our own command line


def build_runtime(options: Options) -> ClusterRuntime | None:
    """Imported only when the options ask for it. Raises StartFailed when the import fails."""
    if options.jetstream is None and options.cluster is None:
        return None
    try:
        module = importlib.import_module(RUNTIME_MODULE)
    except ImportError as error:
        raise StartFailed(f"Can't start JetStream: {error}") from error
    return cast(ClusterRuntime, module.build(options))


def nothing_to_reload() -> None:
    raise ValueError("can only reload config when a file is provided using -c or --config")


class Broker:
    """One node: server, cluster runtime and monitor, started and stopped in this order."""

    def __init__(
        self,
        options: Options,
        tasks: Tasks,
        reload: Callable[[], None] = nothing_to_reload,
        *,
        runtime: Callable[[Options], ClusterRuntime | None] = build_runtime,
        listener: Callable[[ClientContext], PortListener] = ClientListener,
    ) -> None:
        """Raises StartFailed. `reload` raises ValueError with the reason. The simulator gives
        `runtime` and `listener`."""
        self.server = Server(options, tasks.spawn, listener)
        self.runtime = runtime(options)
        self.monitor = Monitor(self.server, self.runtime, reload)
        if self.runtime is not None:
            self.server.info.extend = self.runtime.on_connect_info
            self.server.clients.bulk_reads = self.runtime
        self._stopping = False
        self._ports_file = ""
        self.finished = asyncio.Event()

    async def start(self) -> None:
        """Returns when clients can connect. Raises StartFailed."""
        server, options = self.server, self.server.options
        self._log_banner()
        server.bind()
        if self.runtime is not None:
            await self.runtime.start(server)
            server.info.refresh()
        self.monitor.start()  # from now on subscriptions of this node are announced to peers
        await server.listen()
        self.monitor.open_http()
        server.announce()
        if options.pid_file:
            pid_files.write_pid(options.pid_file)
        waits = self.runtime is not None and options.cluster is not None and options.jetstream
        logger.info("Server is ready%s", ", JetStream waits for its cluster" if waits else "")
        self.monitor.serve_http()
        if options.ports_file_dir:
            await self._write_ports()

    def reconfigure(self, options: Options) -> None:
        """Raises StartFailed; nothing has changed then."""
        self.server.reconfigure(options)
        if self.runtime is not None:
            self.runtime.reconfigure(options)

    def _log_banner(self) -> None:
        options = self.server.options
        logger.info("Starting JetRaft")
        logger.info("  Version:  %s", JETRAFT_VERSION)
        logger.info("  Protocol: nats-server %s", VERSION)
        if options.cluster is not None and options.cluster.name:
            logger.info("  Cluster:  %s", options.cluster.name)
        logger.info("  Name:     %s", self.server.name)
        logger.info("  ID:       %s", self.server.id)
        if options.config_file:
            shown = (options.config_file, options.config_digest)
            logger.info("Using configuration file: %s (%s)", *shown)
        for sentence in exposures(options):
            logger.warning("%s", sentence)

    async def _write_ports(self) -> None:
        server, options = self.server, self.server.options
        cluster, http = options.cluster, options.http
        if cluster is not None and cluster.routes and not cluster.no_advertise:
            try:
                async with asyncio.timeout(PEER_WAIT_SECONDS):
                    await server.urls.peers_known.wait()
            except TimeoutError:
                logger.debug("No route yet; writing the ports file without waiting longer")
        scheme = "tls" if options.tls is not None else "nats"
        found = {"nats": pid_files.urls(scheme, options.host, server.port)}
        websocket = server.websocket
        if websocket is not None:
            host = websocket.options.host
            found["websocket"] = pid_files.urls(websocket.scheme, host, websocket.port)
        if http is not None and self.monitor.http is not None:
            scheme = "https" if http.tls else "http"
            found["monitoring"] = pid_files.urls(scheme, http.host, self.monitor.http.port)
        if self.runtime is not None and cluster is not None:
            for name, port in self.runtime.ports().items():
                found[name] = pid_files.urls("nats", cluster.host, port)
        try:
            self._ports_file = pid_files.write_ports(options.ports_file_dir, found)
        except OSError as error:
            logger.error("Error writing ports file: %s", error)

    async def stop(self) -> None:
        """Close everything; a second call does nothing. `finished` is set at the end, also when
        something fails to close: the process must exit."""
        if self._stopping:
            return
        self._stopping = True
        logger.info("Initiating Shutdown...")
        try:
            await self._close_all()
        finally:
            self.finished.set()
        logger.info("Server Exiting..")

    async def _close_all(self) -> None:
        self.monitor.events.shutdown()
        self.server.stop_accepting()
        if self.runtime is not None:
            if self.runtime.serve_elsewhere():
                await self._send_clients_away(self.runtime)
            else:
                await self._answer_publishes(self.runtime)
            await self.runtime.stop()
        await self.monitor.stop_http()
        # After the runtime: clients of a single server assume that it has stopped when their
        # connection closes.
        self.server.close_clients()
        self.monitor.stop()
        self.server.stop()
        for path in (self._ports_file, self.server.options.pid_file):
            if path:
                pid_files.remove(path)

    async def _send_clients_away(self, runtime: ClusterRuntime) -> None:
        """Let the clients reconnect to a peer. What they publish before they notice is stored too,
        and its answer reaches them there."""
        await runtime.hand_over()
        await _in_time(runtime.all_answered, IDLE_WITHIN_S)
        runtime.hold_replies()
        self.server.send_clients_away()
        deadline = time.monotonic() + AWAY_WITHIN_S
        while self.server.connections or not runtime.all_delivered():
            if time.monotonic() > deadline:
                break  # a client that does not close, or that went nowhere
            await asyncio.sleep(AWAY_POLL_S)
        self.server.close_clients()

    async def _answer_publishes(self, runtime: ClusterRuntime) -> None:
        """Wait until every publish that clients of this node sent has its answer. If publishes
        keep arriving and there is no such moment, stop reading and wait for the last answers."""
        await runtime.hand_over()
        if await _in_time(runtime.all_answered, IDLE_WITHIN_S):
            return
        self.server.pause_reading()
        await _in_time(runtime.all_answered, ANSWERED_WITHIN_S, every_s=ANSWERED_POLL_S)

    async def enter_lame_duck(self) -> None:
        """Refuse new clients, notify the connected ones, close them one by one, then stop."""
        if self.server.lame_duck:
            return
        logger.info("Entering lame duck mode, stop accepting new clients")
        self.monitor.events.lame_duck()
        self.server.withdraw()
        if self.runtime is not None:
            self.runtime.lame_duck()
        await self.server.close_gradually()
        await self.stop()


async def _in_time(check: Callable[[], bool], seconds: float, *, every_s: float = 0) -> bool:
    """Whether `check` became true in time. 0: it is called in every turn of the event loop, because
    it may be true for a short time only."""
    deadline = time.monotonic() + seconds
    while not check():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(every_s)
    return True


class _Process:
    """One run of the process, from start to exit, with its signal handlers."""

    def __init__(self, line: CommandLine, loaded: Loaded, handler: LogHandler) -> None:
        self._line = line
        self._options = loaded.options
        self._files = files_of(loaded.options, loaded.included)
        self._handler = handler
        self._broker: Broker | None = None
        self._tasks = Tasks()
        self.starts_again = False

    async def run(self) -> int:
        async with self._tasks:
            try:
                self._broker = Broker(self._options, self._tasks, self.reload)
                self._broker.server.restart = self._restart
                self._trap_signals()
                asyncio.get_running_loop().set_exception_handler(on_unhandled)
                await self._broker.start()
            except StartFailed as error:
                logger.log(FATAL, "%s", error)
                return 1
            runtime = self._broker.runtime
            held = runtime.held if runtime is not None else lambda: 0
            self._tasks.spawn(OldGarbage(held).run(), name="garbage collection")
            self._tasks.spawn(FreedMemory().run(), name="freed memory")
            if self._line.watch_ns and self._files:
                self._tasks.spawn(self._watch(self._line.watch_ns / 1e9), name="watch")
            await self._broker.finished.wait()
        return 0

    def _trap_signals(self) -> None:
        loop = asyncio.get_running_loop()
        actions = {
            signal.SIGTERM: ("terminated", self._terminate),
            signal.SIGINT: ("interrupt", self._interrupt),
            signal.SIGHUP: ("hangup", self._reload),
            signal.SIGUSR1: ("user defined signal 1", self._reopen_log),
            signal.SIGUSR2: ("user defined signal 2", self._lame_duck),
        }
        for number, (name, action) in actions.items():
            loop.add_signal_handler(number, self._trapped, name, action)

    def _trapped(self, name: str, action: Callable[[], None]) -> None:
        logger.debug('Trapped "%s" signal', name)
        action()

    @property
    def broker(self) -> Broker:
        assert self._broker is not None
        return self._broker

    def _terminate(self) -> None:
        if not self.broker.server.lame_duck:  # otherwise it is already shutting down gradually
            self._interrupt()

    def _interrupt(self) -> None:
        self._tasks.spawn(self.broker.stop(), name="stop")

    def _restart(self, reason: str) -> None:
        if not self.starts_again:
            self.starts_again = True
            logger.critical("%s: this node stops and starts again", reason)
            self._interrupt()

    def _lame_duck(self) -> None:
        self._tasks.spawn(self.broker.enter_lame_duck(), name="lame duck")

    def _reopen_log(self) -> None:
        try:
            self._handler.reopen()
        except OSError as error:
            logger.error("Could not reopen the log file: %s", error)
        else:
            logger.info("File log re-opened")

    def _reload(self) -> None:
        """SIGHUP. A failure is logged by reload()."""
        with suppress(ValueError):
            self.reload()

    async def _watch(self, every_s: float) -> None:
        """Reload when a file has changed. A reload that fails waits for the next change."""
        files = self._files
        before = await asyncio.to_thread(digest, files)
        while True:
            await asyncio.sleep(every_s)
            now = await asyncio.to_thread(digest, files)
            if now == before:
                continue
            logger.info("The configuration or a certificate has changed: reloading")
            self._reload()
            before = now
            if self._files != files:  # the new configuration names others
                files = self._files
                before = await asyncio.to_thread(digest, files)

    def reload(self) -> None:
        """Raises ValueError with the reason."""
        server = self.broker.server
        try:
            if not self._line.config_file:
                raise NotReloadable(
                    "can only reload config when a file is provided using -c or --config"
                )
            loaded = load(self._line)
            self._files = files_of(loaded.options, loaded.included)
            options = merge(server.options, loaded.options)
            if options.logging != server.options.logging:
                self._handler = install(options.logging)
            self.broker.reconfigure(options)
        except (BadSettings, NotReloadable, StartFailed, OSError) as error:
            logger.error("Failed to reload server configuration: %s", error)
            raise ValueError(str(error)) from error
        logger.info("Reloaded server configuration")


def _send_signal(text: str) -> int:
    name, _, target = text.partition("=")
    number = SIGNALS.get(name)
    if number is None:
        sys.stderr.write(f'{PROGRAM}: unknown signal "{name}"\n')
        return 1
    try:
        pid = int(target) if target.isdigit() else int(Path(target).read_text())
        os.kill(pid, number)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{PROGRAM}: could not signal {target!r}: {error}\n")
        return 1
    return 0
