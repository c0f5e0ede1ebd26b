"""The Dockerfile and the compose file, checked without a docker daemon.

Owns: what can be checked by reading the files. Building the image needs a daemon."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

import pytest
import yaml

from .conftest import CHART, ROOT

DOCKERFILE = ROOT / "deploy" / "Dockerfile"
IGNORE = ROOT / "deploy" / "Dockerfile.dockerignore"


def instructions() -> list[tuple[str, str]]:
    """(instruction, rest) of the Dockerfile, comments dropped and continued lines joined."""
    text = "\n".join(
        line for line in DOCKERFILE.read_text().splitlines() if not line.lstrip().startswith("#")
    )
    found = []
    for line in text.replace("\\\n", " ").splitlines():
        if line.strip():
            name, _, rest = line.strip().partition(" ")
            found.append((name, rest.strip()))
    return found


def compose() -> dict[str, Any]:
    return dict(yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text()))


def test_image_builds_in_one_stage_and_runs_in_another() -> None:
    steps = instructions()
    stages = [position for position, (name, _) in enumerate(steps) if name == "FROM"]
    assert len(stages) == 2
    final = steps[stages[-1] :]
    assert not any("gcc" in rest for _, rest in final)
    assert not any(name == "COPY" for name, _ in final)  # nothing but installed wheels


def test_image_runs_as_an_unprivileged_user() -> None:
    final = instructions()
    users = [rest for name, rest in final if name == "USER"]
    assert users == ["10001:10001"]
    last_run = max(position for position, (name, _) in enumerate(final) if name == "RUN")
    assert final.index(("USER", "10001:10001")) > last_run


def test_entry_point_is_in_exec_form_and_serves() -> None:
    steps = dict(instructions())
    entry, command = json.loads(steps["ENTRYPOINT"]), json.loads(steps["CMD"])
    assert entry == ["jetraft"]
    assert command[0] == "serve"


def test_copied_sources_exist() -> None:
    for name, rest in instructions():
        if name in {"COPY", "ADD"}:
            *sources, _target = [part for part in shlex.split(rest) if not part.startswith("--")]
            for source in sources:
                assert (ROOT / source).exists(), f"{source} is copied but does not exist"


def test_every_import_package_enters_the_build() -> None:
    listed = {line[1:] for line in IGNORE.read_text().splitlines() if line.startswith("!")}
    project = (ROOT / "pyproject.toml").read_text()
    include = re.search(r"packages\.find\]\ninclude = (\[.*?\])", project, re.DOTALL)
    assert include
    packages = {pattern.rstrip("*") for pattern in json.loads(include[1])}
    assert packages | {"pyproject.toml"} <= listed
    for name in sorted(listed):
        if name in packages:
            assert (ROOT / name / "__init__.py").exists()


def test_compose_starts_three_nodes_with_routes_to_each_other() -> None:
    services = compose()["services"]
    assert len(services) == 3
    published: set[str] = set()
    for name, service in services.items():
        flags = dict(flag.partition("=")[::2] for flag in service["command"][1:])
        assert service["command"][0] == "serve"
        assert flags["--server_name"] == name == service["hostname"]
        assert flags["--routes"] == ",".join(f"nats://{other}:6222" for other in services)
        assert service["volumes"] == [f"{name}:/data"]
        assert name in compose()["volumes"]
        assert "ready=true" in service["healthcheck"]["test"][-1]
        assert not published.intersection(service["ports"])
        published.update(service["ports"])
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
        assert service["cap_drop"] == ["ALL"]
    builds = [service["build"] for service in services.values() if "build" in service]
    assert builds == [{"context": "..", "dockerfile": "deploy/Dockerfile"}]


@pytest.mark.parametrize("key", ["version", "appVersion"])
def test_versions_agree(key: str) -> None:
    project = re.search(
        r'^version = "([^"]+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE
    )
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert project
    assert chart[key] == project[1]
    assert {service["image"] for service in compose()["services"].values()} == {
        f"jetraft:{project[1]}"
    }
