"""The life of a release under load: install, rotation, update, scaling, a lost volume.

Run it whole: `python -m tests.deploy.rollout`. `make test` runs the short form (test_rollout.py).
Owns: the load and its verdict: every publish was acked, and is stored once."""

from __future__ import annotations

import asyncio
import ssl
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nats
from nats.errors import Error as ClientError

from tests.support.authority import Authority

from .conftest import Helm, find_helm
from .mini_kubelet import NETWORK, Kubelet

VALUES = {
    "auth": {"enabled": True},
    "tls": {"enabled": True, "secretName": "bus-tls", "verify": True},
    "config": {"reloadInterval": "200ms"},
    "minReadySeconds": 0,
    "lameDuck": {"durationSeconds": 30, "graceSeconds": 1},
}
HOSTS = ["127.0.0.1", *(f"{NETWORK}.{number}" for number in range(1, 8))]
EVERY_S = 0.02
ACKED_WITHIN_S = 30.0
REPEAT_AFTER_S = 5.0


class Load:
    """One publisher that sends messages with an id, and says how long each ack took. What is not
    acked is repeated with its id: a node that dies, or closes a connection whose last bytes it has
    not read, takes requests of its clients with it."""

    def __init__(self, client: Any) -> None:
        self._js = client.jetstream(timeout=REPEAT_AFTER_S)
        self.acked = 0
        self.repeated = 0
        self.failed: list[str] = []
        self.slowest_s = 0.0

    async def run(self) -> None:
        while True:
            number = self.acked + len(self.failed)
            begun = time.monotonic()
            problem = await self._publish(number)
            while problem is not None and time.monotonic() - begun < ACKED_WITHIN_S:
                self.repeated += 1
                problem = await self._publish(number)
            if problem is None:
                self.acked += 1
            else:
                self.failed.append(f"{number}: {problem!r}")
            self.slowest_s = max(self.slowest_s, time.monotonic() - begun)
            await asyncio.sleep(EVERY_S)

    async def _publish(self, number: int) -> Exception | None:
        try:
            await self._js.publish("load.a", b"%d" % number, headers={"Nats-Msg-Id": str(number)})
        except (ClientError, OSError) as problem:
            return problem
        return None

    async def check(self) -> None:
        """Every acked publish is stored, and nothing is stored twice."""
        assert not self.failed, self.failed[:5]
        info = await self._js.stream_info("LOAD")
        assert info.state.messages in (self.acked, self.acked + 1)  # one may be on its way

    async def flows(self, count: int = 20) -> None:
        """Wait for so many more acks."""
        wanted = self.acked + count
        async with asyncio.timeout(ACKED_WITHIN_S * 2):
            while self.acked < wanted and not self.failed:
                await asyncio.sleep(0.05)


@asynccontextmanager
async def release(folder: Path) -> AsyncIterator[tuple[Kubelet, Load, Authority]]:
    """Three nodes with mutual TLS and logins, and a client that publishes to a stream of three."""
    authority = Authority()
    binary = find_helm()
    assert binary is not None
    secrets = {"bus-tls": authority.sign("first", HOSTS)}
    kubelet = Kubelet(Helm(binary), folder, VALUES, secrets)
    try:
        await kubelet.upgrade()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cadata=authority.pem.decode())
        client_files = authority.sign("client", HOSTS)
        for name, content in client_files.items():
            (folder / name).write_bytes(content)
        context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
        user, password = (kubelet.secret("jr-jetraft-auth", key) for key in ("user", "password"))
        client = await nats.connect(  # noqa: TID251 - closed below, also when it fails
            kubelet.urls, tls=context, user=user, password=password, max_reconnect_attempts=-1,
            reconnect_time_wait=0.1, error_cb=quiet,
        )  # fmt: skip
        await client.jetstream().add_stream(name="LOAD", subjects=["load.>"], num_replicas=3)
        load = Load(client)
        task = asyncio.create_task(load.run(), name="load")
        try:
            await load.flows()
            yield kubelet, load, authority
            await load.flows()
            task.cancel()
            await load.check()
        finally:
            task.cancel()
            await client.close()
    finally:
        kubelet.kill_all()
        for pod in kubelet.pods.values():
            await pod.process.wait()


async def quiet(problem: Exception) -> None:
    """The client tells about every reconnect; the verdict is about publishes."""


async def reloads(kubelet: Kubelet, times: int) -> None:
    """Wait until every node has reloaded so often since it was started last."""
    async with asyncio.timeout(ACKED_WITHIN_S):
        for pod in list(kubelet.pods.values()):
            while _last_run(pod.folder / "log").count("Reloaded server configuration") < times:
                await asyncio.sleep(0.05)


def _last_run(log: Path) -> str:
    return log.read_text().rpartition("Starting JetRaft")[2]


async def whole_life(folder: Path) -> None:
    began = time.monotonic()

    def say(text: str, load: Load) -> None:
        passed, slow = time.monotonic() - began, load.slowest_s
        load.slowest_s = 0.0
        counted = f"{load.acked} acked, {load.repeated} repeated, {len(load.failed)} failed"
        sys.stdout.write(f"{passed:6.1f} s  {text}: {counted}, slowest {slow:.2f} s\n")
        sys.stdout.flush()

    async with release(folder) as (kubelet, load, authority):
        say("installed", load)
        await kubelet.helm_test()
        say("helm test, with a client certificate", load)
        kubelet.rotate("bus-tls", authority.sign("second", HOSTS))
        await reloads(kubelet, 1)
        await load.flows()
        say("certificates rotated", load)
        await kubelet.upgrade(jetstream={"domain": "", "syncInterval": "always"})
        await load.flows()
        say("rolling update", load)
        await kubelet.upgrade(replicas=5)
        await load.flows()
        say("scaled to 5", load)
        await kubelet.upgrade(replicas=3, scaleDown={"from": 5})
        await load.flows()
        say("scaled to 3", load)
        kubelet.forget_volume(3)
        kubelet.forget_volume(4)
        await kubelet.lose_volume(2)
        await load.flows()
        say("a lost volume", load)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="rollout-") as place:
        asyncio.run(whole_life(Path(place)))
