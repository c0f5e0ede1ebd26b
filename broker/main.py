"""The process: words in, a running server, signals, an exit code out.

Owns: start-up order, signals, commands that only print, and the runtime's construction.
May not touch: connections or streams.
Spec: core contract 6."""

from __future__ import annotations

import asyncio
import gc
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import cast

from broker.config.draft import BadOptions
from broker.config.flags import USAGE
from broker.config.load import BadSettings, CommandLine, Loaded, UsageError, load, parse_flags
from broker.config.options import VERSION, Options
from broker.server.process.log import FATAL, NonBlockingHandler, install, logger
from broker.server.process.reload import NotReloadable, merge
from broker.server.server import Server
from broker.server.services import JetStreamRuntime, StartFailed

PROGRAM = "nats-server"  # tools look for this name, whatever we are called
RUNTIME_MODULE = "broker.cluster.runtime"
SIGNALS = {
    "stop": signal.SIGKILL,
    "quit": signal.SIGINT,
    "term": signal.SIGTERM,
    "reopen": signal.SIGUSR1,
    "reload": signal.SIGHUP,
    "ldm": signal.SIGUSR2,
}
GC_THRESHOLD = 50_000  # the data plane makes few cycles; the default interrupts it constantly


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
        digest = loaded.options.config_digest
        path = line.config_file
        sys.stderr.write(f"{PROGRAM}: configuration file {path} is valid ({digest})\n")
        return 0
    return _run(line, loaded)


def _run(line: CommandLine, loaded: Loaded) -> int:
    """Serve until the end, and end the process there; returns only when it cannot begin."""
    try:
        handler = install(loaded.options.logging)
    except OSError as error:
        sys.stderr.write(f"{PROGRAM}: could not open log file: {error}\n")
        return 1
    for warning in loaded.warnings:
        logger.warning("%s", warning)
    gc.set_threshold(GC_THRESHOLD, 20, 50)
    import uvloop

    runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    code = runner.run(_Process(line, loaded.options, handler).run())
    # All that had to be flushed is: the services have stopped. Taking the interpreter apart would
    # last longer than clients need to find us gone, and a supervisor waits for the process.
    sys.stdout.flush()
    os._exit(code)


def build_runtime(options: Options) -> JetStreamRuntime | None:
    """Imported only when asked for; a missing runtime is said, not papered over."""
    if options.jetstream is None and options.cluster is None:
        return None
    try:
        module = importlib.import_module(RUNTIME_MODULE)
    except ImportError as error:
        raise StartFailed(f"Can't start JetStream: {error}") from error
    return cast(JetStreamRuntime, module.build(options))


class _Process:
    """One run from start to exit, and what signals do to it."""

    def __init__(self, line: CommandLine, options: Options, handler: NonBlockingHandler) -> None:
        self._line = line
        self._options = options
        self._handler = handler
        self._server: Server | None = None

    async def run(self) -> int:
        try:
            server = self._server = Server(self._options, build_runtime(self._options))
            server.reload = self.reload
            self._trap_signals()
            await server.start()
        except StartFailed as error:
            logger.log(FATAL, "%s", error)
            return 1
        gc.collect()
        gc.freeze()
        await server.finished.wait()
        return 0

    def _trap_signals(self) -> None:
        loop = asyncio.get_running_loop()
        actions = {
            signal.SIGTERM: self._terminate,
            signal.SIGINT: self._interrupt,
            signal.SIGHUP: self._reload,
            signal.SIGUSR1: self._reopen_log,
            signal.SIGUSR2: self._lame_duck,
        }
        for number, action in actions.items():
            loop.add_signal_handler(number, self._trapped, number, action)

    def _trapped(self, number: signal.Signals, action: object) -> None:
        names = {signal.SIGTERM: "terminated", signal.SIGINT: "interrupt"}
        names |= {signal.SIGHUP: "hangup"}
        names |= {signal.SIGUSR1: "user defined signal 1", signal.SIGUSR2: "user defined signal 2"}
        logger.debug('Trapped "%s" signal', names[number])
        assert callable(action)
        action()

    @property
    def server(self) -> Server:
        assert self._server is not None
        return self._server

    def _terminate(self) -> None:
        if not self.server.lame_duck:  # it is leaving already, at its own pace
            self._interrupt()

    def _interrupt(self) -> None:
        self.server.spawn(self.server.stop(), name="stop")

    def _lame_duck(self) -> None:
        self.server.spawn(self.server.enter_lame_duck(), name="lame duck")

    def _reopen_log(self) -> None:
        try:
            self._handler.reopen()
        except OSError as error:
            logger.error("Could not reopen the log file: %s", error)
        logger.info("File log re-opened")

    def _reload(self) -> None:
        """What a signal does; a failure is in the log."""
        with suppress(ValueError):
            self.reload()

    def reload(self) -> None:
        """Raises ValueError with the reason."""
        try:
            if not self._line.config_file:
                raise NotReloadable(
                    "can only reload config when a file is provided using -c or --config"
                )
            loaded = load(self._line)
            options = merge(self.server.options, loaded.options)
            if options.logging != self.server.options.logging:
                self._handler = install(options.logging)
            self.server.reconfigure(options)
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
