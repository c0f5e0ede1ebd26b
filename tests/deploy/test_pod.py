"""The pod of a one-node release, run on this machine without Kubernetes.

Owns: files, variables, probes and the preStop command as in the rendered StatefulSet. Only paths
and ports differ, because those of the container may be in use on this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from broker.local import free_ports

from .conftest import ROOT, Render, configuration, server
from .test_configuration import environment

WITHIN_S = 30.0


@dataclass
class Pod:
    container: dict[str, Any]
    folder: Path
    monitor_port: int
    environ: dict[str, str]
    process: subprocess.Popen[bytes]

    def command(self, words: list[str]) -> list[str]:
        """The command with our `jetraft` and with the paths of this machine."""
        here = [word.replace("/etc/jetraft/", f"{self.folder}/") for word in words]
        here = [word.replace("/run/jetraft/", f"{self.folder}/") for word in here]
        assert here[0] == "jetraft"
        return [sys.executable, "-m", "broker", *here[1:]]

    def probe(self, name: str) -> int:
        """The status of the request of the probe; 0 if there is no answer."""
        path = self.container[name]["httpGet"]["path"]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.monitor_port}{path}") as answer:
                return int(answer.status)
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code
        except OSError:
            return 0


@pytest.fixture
def pod(render: Render, tmp_path: Path) -> Iterator[Pod]:
    manifests = render("one-node")
    client_port, monitor_port = free_ports(2)
    text = configuration(manifests)
    for container_side, here in (
        ("port: 4222", f"port: {client_port}"),
        ("0.0.0.0:8222", f"127.0.0.1:{monitor_port}"),
        ("/run/jetraft", str(tmp_path)),
        ('"/data"', f'"{tmp_path}/data"'),
    ):
        assert container_side in text
        text = text.replace(container_side, here)
    (tmp_path / "jetraft.conf").write_text(text)
    environ = {**os.environ, **environment(manifests), "PYTHONPATH": str(ROOT)}
    container = server(manifests)
    running = Pod(container, tmp_path, monitor_port, environ, None)  # type: ignore[arg-type]
    words = running.command(["jetraft", *container["args"]])
    with (tmp_path / "log").open("wb") as log:
        running.process = subprocess.Popen(words, env=environ, stdout=log, stderr=log)
    yield running
    if running.process.poll() is None:
        running.process.kill()
    running.process.wait(10)
    shutil.rmtree(tmp_path / "data", ignore_errors=True)


def wait_until_started(pod: Pod) -> None:
    deadline = time.monotonic() + WITHIN_S
    while pod.probe("startupProbe") != 200:
        log = (pod.folder / "log").read_text()
        assert pod.process.poll() is None, log
        assert time.monotonic() < deadline, log
        time.sleep(0.05)


def test_the_pod_starts_answers_its_probes_and_drains_on_stop(pod: Pod) -> None:
    wait_until_started(pod)
    assert pod.probe("livenessProbe") == 200
    assert pod.probe("readinessProbe") == 200
    hook = pod.command(pod.container["lifecycle"]["preStop"]["exec"]["command"])
    done = subprocess.run(hook, env=pod.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert pod.process.wait(WITHIN_S) == 0
    assert "lame duck" in (pod.folder / "log").read_text()
