"""A kubelet in a page: the pods of the rendered chart as processes of this machine.

Owns: files, variables, probes, preStop and Jobs as the manifests say; an address of the loopback
network per pod. Names of pods become addresses, ports become free ones; nothing else is changed.
May not touch: other processes. No Kubernetes runs here."""

from __future__ import annotations

import asyncio
import base64
import os
import re
import shutil
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import yaml

from broker.local import free_ports
from tests.support.authority import mount

from .conftest import CHART, ROOT, Helm, Manifest, configuration, of_kind, only

NETWORK = f"127.{os.getpid() % 200 + 20}.{os.getpid() // 200 % 250}"
WITHIN_S = 120.0
POLL_S = 0.1


@dataclass
class Running:
    """One pod."""

    name: str
    address: str
    folder: Path
    process: asyncio.subprocess.Process
    template: Manifest


@dataclass
class Kubelet:
    """The release "jr" in the namespace "bus"; `secrets` are those that the user brings."""

    helm: Helm
    folder: Path
    values: dict[str, Any]
    secrets: dict[str, dict[str, bytes]]
    pods: dict[int, Running] = field(default_factory=dict)
    manifests: list[Manifest] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.client, self.route, self.monitor = free_ports(3)
        self._own: dict[str, dict[str, bytes]] = {}
        (self.folder / "bin").mkdir(parents=True)
        for name, words in (("jetraft", "-m broker"), ("python", "")):
            script = self.folder / "bin" / name
            script.write_text(f'#!/bin/sh\nexec {sys.executable} {words} "$@"\n')
            script.chmod(0o755)

    # -- the release ------------------------------------------------------------------------

    async def upgrade(self, **values: Any) -> None:
        """`helm upgrade`, or the installation: hooks, new configuration, pods."""
        self.values = {**self.values, **values}
        file = self.folder / "values.yaml"
        file.write_text(yaml.safe_dump(self.values))
        done = self.helm.run("template", "jr", str(CHART), "--namespace", "bus", "-f", str(file))
        assert done.returncode == 0, done.stderr
        self.manifests = [m for m in yaml.safe_load_all(done.stdout) if m is not None]
        for manifest in of_kind(self.manifests, "Secret"):  # drawn once, kept over upgrades
            data = {key: base64.b64decode(text) for key, text in manifest["data"].items()}
            kept = self._own.get(manifest["metadata"]["name"], {})
            self._own[manifest["metadata"]["name"]] = {**data, **kept}
        await self._hook("pre-upgrade")
        self._write_volumes()
        replicas = self._stateful["spec"]["replicas"]
        for ordinal in sorted(self.pods, reverse=True):
            if ordinal >= replicas:
                await self.stop(ordinal)
        await self._hook("post-upgrade")
        missing = [ordinal for ordinal in range(replicas) if ordinal not in self.pods]
        await asyncio.gather(*(self.start(ordinal) for ordinal in missing))
        for ordinal in sorted(self.pods, reverse=True):  # one after the other, the highest first
            if self.pods[ordinal].template != self._template:
                await self.stop(ordinal)
                await self.start(ordinal)

    async def helm_test(self) -> None:
        """`helm test`: the pod must end well."""
        await self._hook("test")

    def rotate(self, name: str, files: dict[str, bytes]) -> None:
        """A Secret of the user has changed."""
        self.secrets[name] = files
        self._write_volumes()

    @property
    def urls(self) -> list[str]:
        scheme = "tls" if self.values.get("tls", {}).get("enabled") else "nats"
        return [f"{scheme}://{pod.address}:{self.client}" for pod in self.pods.values()]

    def secret(self, name: str, key: str) -> str:
        return {**self._own, **self.secrets}[name][key].decode()

    # -- pods -------------------------------------------------------------------------------

    async def start(self, ordinal: int) -> None:
        """Start the pod and wait until it is ready."""
        name = f"{self._stateful['metadata']['name']}-{ordinal}"
        folder, address = self.folder / name, self.address(ordinal)
        self._mount(ordinal, folder)
        (folder / "run").mkdir(exist_ok=True)
        (folder / "data").mkdir(exist_ok=True)
        template = self._template
        (container,) = template["spec"]["containers"]
        words = [self._here(word, ordinal, folder) for word in ["jetraft", *container["args"]]]
        environ = self._environment(container["env"], name, ordinal, folder)
        with (folder / "log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *words, env=environ, stdout=log, stderr=log
            )
        self.pods[ordinal] = Running(name, address, folder, process, template)
        for probe in ("startupProbe", "readinessProbe"):
            async with asyncio.timeout(WITHIN_S):
                while await asyncio.to_thread(self.probe, ordinal, probe) != 200:
                    assert process.returncode is None, (folder / "log").read_text()[-2000:]
                    await asyncio.sleep(POLL_S)

    def probe(self, ordinal: int, name: str) -> int:
        """The status of its request; 0 if there is no answer."""
        pod = self.pods[ordinal]
        path = pod.template["spec"]["containers"][0][name]["httpGet"]["path"]
        try:
            with urlopen(f"http://{pod.address}:{self.monitor}{path}", timeout=5) as answer:
                return int(answer.status)
        except HTTPError as refused:
            with refused:
                return refused.code
        except OSError:
            return 0

    async def stop(self, ordinal: int) -> None:
        """preStop, SIGTERM, and SIGKILL only after the grace period, which must not be needed."""
        pod = self.pods.pop(ordinal)
        (container,) = pod.template["spec"]["containers"]
        hook = container["lifecycle"]["preStop"]["exec"]["command"]
        words = [self._here(word, ordinal, pod.folder) for word in hook]
        environ = self._environment([], pod.name, ordinal, pod.folder)
        ran = await asyncio.create_subprocess_exec(*words, env=environ)
        assert await ran.wait() == 0
        with suppress(ProcessLookupError):  # it may have ended already
            pod.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(pod.template["spec"]["terminationGracePeriodSeconds"]):
            assert await pod.process.wait() == 0, (pod.folder / "log").read_text()[-2000:]

    async def lose_volume(self, ordinal: int) -> None:
        """The machine dies with its disk; the pod is started elsewhere."""
        pod = self.pods.pop(ordinal)
        pod.process.kill()
        await pod.process.wait()
        self.forget_volume(ordinal)
        await self.start(ordinal)

    def forget_volume(self, ordinal: int) -> None:
        name = f"{self._stateful['metadata']['name']}-{ordinal}"
        shutil.rmtree(self.folder / name / "data")

    def kill_all(self) -> None:
        for pod in self.pods.values():
            if pod.process.returncode is None:
                pod.process.kill()

    # -- what the manifests say, on this machine -----------------------------------------------

    @property
    def _stateful(self) -> Manifest:
        return only(self.manifests, "StatefulSet")

    @property
    def _template(self) -> Manifest:
        return dict(self._stateful["spec"]["template"])

    def address(self, ordinal: int) -> str:
        return f"{NETWORK}.{ordinal + 1}"

    def _here(self, text: str, ordinal: int, folder: Path) -> str:
        """The text with addresses, ports and paths of this machine."""
        base, service = self._stateful["metadata"]["name"], self._stateful["spec"]["serviceName"]
        suffix = rf"\.{service}\.bus\.svc\.cluster\.local"
        text = re.sub(rf"{base}-(\d){suffix}", lambda m: self.address(int(m[1])), text)
        text = re.sub(rf"{base}\.bus\.svc\.cluster\.local", self.address(0), text)
        text = text.replace("port: 4222", f'listen: "{self.address(ordinal)}:{self.client}"')
        text = text.replace("0.0.0.0:", f"{self.address(ordinal)}:")
        for port, here in ((4222, self.client), (6222, self.route), (8222, self.monitor)):
            text = text.replace(f":{port}", f":{here}")
        text = text.replace('"/data"', f'"{folder}/data"').replace("/run/jetraft", f"{folder}/run")
        return text.replace("/etc/", f"{folder}/etc/")

    def _write_volumes(self) -> None:
        for ordinal, pod in self.pods.items():
            self._mount(ordinal, pod.folder)

    def _mount(self, ordinal: int, folder: Path) -> None:
        text = self._here(configuration(self.manifests), ordinal, folder)
        mount(folder / "etc" / "jetraft", {"jetraft.conf": text.encode()})
        for volume in self._template["spec"]["volumes"]:
            if "secret" in volume:
                place = folder / "etc" / f"jetraft-{volume['name']}"
                mount(place, self.secrets[volume["secret"]["secretName"]])

    def _environment(
        self, given: list[Manifest], name: str, ordinal: int, folder: Path
    ) -> dict[str, str]:
        found = {"POD_NAME": name}
        for variable in given:
            if "value" in variable:
                text = re.sub(r"\$\((\w+)\)", lambda m: found[m[1]], variable["value"])
                found[variable["name"]] = self._here(text, ordinal, folder)
            elif "secretKeyRef" in variable["valueFrom"]:
                reference = variable["valueFrom"]["secretKeyRef"]
                found[variable["name"]] = self.secret(reference["name"], reference["key"])
        path = f"{self.folder}/bin:{os.environ['PATH']}"
        return {**os.environ, "PYTHONPATH": str(ROOT), **found, "PATH": path}

    async def _hook(self, hook: str) -> None:
        """Run the Jobs and Pods of this hook with the files of the first pod."""
        for job in [*of_kind(self.manifests, "Job"), *of_kind(self.manifests, "Pod")]:
            if job["metadata"]["annotations"]["helm.sh/hook"] != hook:
                continue
            (container,) = job["spec"].get("template", job)["spec"]["containers"]
            folder = self.pods[0].folder
            environ = self._environment(container["env"], job["metadata"]["name"], 0, folder)
            words = [self._here(word, 0, folder) for word in container["command"]]
            ran = await asyncio.create_subprocess_exec(
                *words,
                env=environ,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
            output, _ = await asyncio.wait_for(ran.communicate(), WITHIN_S)
            assert ran.returncode == 0, output.decode()
