"""Running servers and raw clients for the tests of the core server."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import uvloop
from msgspec.structs import replace

from broker.config.options import Options
from broker.main import Broker
from broker.server.process.tasks import Tasks
from broker.server.server import Server
from tests.support.clients import closing_clients

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 10.0
EMPTY_CONNECT = b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"protocol":1}\r\n'


def run(test: Coroutine[Any, Any, None]) -> None:
    """Run the test under uvloop, with a timeout; close the clients that it opened."""

    async def bounded() -> None:
        async with closing_clients(), asyncio.timeout(PATIENCE * 3):
            await test

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(bounded())


@asynccontextmanager
async def running_broker(options: Options) -> AsyncIterator[Broker]:
    """A whole node, as broker/main.py wires it, on the loop of the test."""
    async with Tasks() as tasks:
        broker = Broker(options, tasks)
        try:
            await broker.start()
            yield broker
        finally:
            await broker.stop()


@asynccontextmanager
async def running(**settings: Any) -> AsyncIterator[Server]:
    """The server of such a node, on any free port."""
    async with running_broker(local(**settings)) as broker:
        _brokers[broker.server] = broker
        try:
            yield broker.server
        finally:
            del _brokers[broker.server]


_brokers: dict[Server, Broker] = {}


def broker_of(server: Server) -> Broker:
    """The node around a server that `running` gave."""
    return _brokers[server]


def local(**settings: Any) -> Options:
    return replace(Options(host="127.0.0.1", port=-1), **settings)


async def until(condition: Any) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.005)


class RawClient:
    """A client on a raw socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.info: dict[str, Any] = {}

    @classmethod
    async def open(cls, server: Server, *, connect: bytes | None = EMPTY_CONNECT) -> RawClient:
        client = cls(*await asyncio.open_connection("127.0.0.1", server.port, limit=2**24))
        client.info = await client.read_info()
        if connect is not None:
            client.send(connect)
        return client

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def line(self) -> bytes:
        async with asyncio.timeout(PATIENCE):
            return await self.reader.readline()

    async def read_info(self) -> dict[str, Any]:
        line = await self.line()
        assert line.startswith(b"INFO "), line
        assert line.endswith(b" \r\n")
        found = msgspec.json.decode(line[5:])
        assert isinstance(found, dict)
        return found

    async def exactly(self, expected: bytes) -> None:
        async with asyncio.timeout(PATIENCE):
            got = b""
            while len(got) < len(expected):
                part = await self.reader.read(len(expected) - len(got))
                got += part
                if not part or not expected.startswith(got):
                    break
        assert got == expected

    async def flush(self) -> bytes:
        """PING, and everything up to its PONG (INFO lines left out)."""
        self.send(b"PING\r\n")
        got = b""
        while (line := await self.line()) != b"PONG\r\n":
            assert line, f"closed after {got!r}"
            if not line.startswith(b"INFO "):
                got += line
        return got

    async def end(self) -> bytes:
        """Everything until the server closes."""
        async with asyncio.timeout(PATIENCE):
            try:
                return await self.reader.read()
            except ConnectionResetError:
                return b""
            finally:
                self.writer.close()

    def close(self) -> None:
        self.writer.close()


class Process:
    """`python -m broker serve` as a child process, or another server with the same flags; stderr
    is read until the server is ready."""

    def __init__(
        self,
        *words: str,
        cwd: Path | None = None,
        ready: bool = True,
        command: Sequence[str] = (sys.executable, "-m", "broker", "serve"),
    ) -> None:
        self.child = subprocess.Popen(
            [*command, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=cwd,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        self.log = ""
        if ready:
            self.wait_for("Server is ready")

    def wait_for(self, text: str) -> None:
        assert self.child.stderr is not None
        poll = select.poll()
        poll.register(self.child.stderr, select.POLLIN)
        while text not in self.log:
            assert poll.poll(PATIENCE * 1000), f"no {text!r} in {self.log}"
            part = os.read(self.child.stderr.fileno(), 65536).decode()
            assert part, f"ended without {text!r}: {self.log}"
            self.log += part

    @property
    def port(self) -> int:
        line = next(one for one in self.log.splitlines() if "Listening for client" in one)
        return int(line.rpartition(":")[2])

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        if self.child.poll() is None:
            self.child.send_signal(number)
        code = self.child.wait(PATIENCE)
        self.drain()
        return code

    def drain(self) -> tuple[str, str]:
        out, err = self.child.communicate(timeout=PATIENCE)
        self.log += err.decode()
        return out.decode(), self.log

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        if self.child.poll() is None:
            self.child.kill()
            self.child.communicate()
        for pipe in (self.child.stdout, self.child.stderr):
            if pipe is not None:
                pipe.close()
