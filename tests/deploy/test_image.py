"""The Dockerfile and the compose file, checked without a docker daemon.

Owns: what can be checked by reading the files. Building the image needs a daemon."""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
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
    # Nothing but installed wheels, and the script that starts them.
    assert [rest.split()[1] for name, rest in final if name == "COPY"] == ["deploy/entrypoint.sh"]


def test_image_runs_as_an_unprivileged_user() -> None:
    final = instructions()
    users = [rest for name, rest in final if name == "USER"]
    assert users == ["10001:10001"]
    last_run = max(position for position, (name, _) in enumerate(final) if name == "RUN")
    assert final.index(("USER", "10001:10001")) > last_run


def test_versions_come_from_the_lock_file_and_the_base_has_a_digest() -> None:
    steps = instructions()
    assert any(
        "pip wheel" in rest and "--constraint requirements.lock" in rest for _, rest in steps
    )
    assert {rest.split()[0] for name, rest in steps if name == "FROM"} == {"${PYTHON_IMAGE}"}
    (base,) = [rest for name, rest in steps if name == "ARG"]
    assert re.fullmatch(r"PYTHON_IMAGE=python:3\.\d+\.\d+-slim-bookworm@sha256:[0-9a-f]{64}", base)


def test_entry_point_is_in_exec_form() -> None:
    steps = dict(instructions())
    assert json.loads(steps["ENTRYPOINT"]) == ["/usr/local/bin/jetraft-entrypoint"]
    assert "CMD" not in steps


SERVE = "serve --jetstream --http_port 8222 --store_dir /data"


@pytest.mark.parametrize(
    ("given", "run"),
    [
        ("", SERVE),
        ("-js", "serve -js --store_dir /data"),
        ("-js -sd /else", "serve -js -sd /else"),
        ("-c /etc/a.conf", "serve -c /etc/a.conf"),
        ("serve --config=/etc/a.conf --watch 10s", "serve --config=/etc/a.conf --watch 10s"),
        ("serve --signal ldm=/run/a.pid", "serve --signal ldm=/run/a.pid"),
        ("--help", "serve --help"),
        ("stream ls --json", "stream ls --json"),
    ],
)
def test_the_entry_point_serves_unless_it_is_told_otherwise(
    tmp_path: Path, given: str, run: str
) -> None:
    fake = tmp_path / "jetraft"
    fake.write_text('#!/bin/sh\necho "$@"\n')
    fake.chmod(0o755)
    done = subprocess.run(
        [ROOT / "deploy" / "entrypoint.sh", *given.split()],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout.strip()) == (0, run), done.stderr


def test_the_entry_point_gives_a_shell() -> None:
    words = [ROOT / "deploy" / "entrypoint.sh", "sh", "-c", "echo inside"]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "inside\n"


def test_the_entry_point_starts_a_server_that_ends_by_a_signal(tmp_path: Path) -> None:
    """`docker run IMAGE -js`, without docker."""
    fake = tmp_path / "jetraft"
    fake.write_text(f'#!/bin/sh\nexec {sys.executable} -m broker "$@"\n')
    fake.chmod(0o755)
    environ = {
        **os.environ, "PATH": f"{tmp_path}:/usr/bin:/bin", "PYTHONPATH": str(ROOT),
        "JETRAFT_STORE_DIR": str(tmp_path / "data"),
    }  # fmt: skip
    words = [ROOT / "deploy" / "entrypoint.sh", "-js", "-a", "127.0.0.1", "-p", "-1"]
    with subprocess.Popen(words, env=environ, stderr=subprocess.PIPE, text=True) as child:
        assert child.stderr is not None
        try:
            assert any("Server is ready" in line for line in child.stderr)
            assert (tmp_path / "data" / "jetstream").is_dir()
        finally:
            child.terminate()
        assert child.wait(30) == 0


def test_the_systemd_unit_uses_flags_that_exist() -> None:
    from broker.config.load import parse_flags

    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[method-assign, assignment]
    unit.read(ROOT / "deploy" / "jetraft.service")
    program, command, *flags = shlex.split(unit["Service"]["ExecStart"])
    assert (program, command) == ("/opt/jetraft/bin/jetraft", "serve")
    assert parse_flags(flags).watch_ns == 10**10
    assert unit["Service"]["NoNewPrivileges"] == "yes"
    assert int(unit["Service"]["TimeoutStopSec"]) > 120 + 15  # the default lame duck


def nodes() -> dict[str, Any]:
    services = compose()["services"]
    return {name: services[name] for name in ("n1", "n2", "n3")}


def test_compose_can_start_prometheus_and_grafana() -> None:
    services = compose()["services"]
    for name in ("prometheus", "grafana"):
        assert services[name]["profiles"] == ["monitoring"]
        assert all(port.startswith("127.0.0.1:") for port in services[name]["ports"])
        for volume in services[name]["volumes"]:
            source = volume.partition(":")[0]
            if source.startswith("."):
                assert (ROOT / "deploy" / source).is_file(), source
            else:
                assert source in compose()["volumes"]
    scrape = yaml.safe_load((ROOT / "deploy" / "monitoring" / "prometheus.yaml").read_text())
    (job,) = scrape["scrape_configs"]
    assert job["static_configs"][0]["targets"] == [f"{name}:8222" for name in nodes()]
    assert f'job="{job["job_name"]}"' in (CHART / "files" / "alerts.yaml").read_text()


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
    services = nodes()
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
    assert {service["image"] for service in nodes().values()} == {f"jetraft:{project[1]}"}
