"""The chart passes the linter, renders, and matches the Kubernetes schemas.

Owns: what a schema cannot express: names that must agree across objects, and the order of timeouts.
Spec: Kubernetes API schemas (bundled with kubernetes-validate); Pod Security "restricted"."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml

from broker.config.load import load, parse_flags
from broker.config.options import Options
from broker.server.process.reload import NotReloadable, merge

from .conftest import (
    CHART,
    VALUE_SETS,
    Helm,
    Manifest,
    Render,
    configuration,
    of_kind,
    only,
    pod_specs,
    pods,
    server,
)
from .custom_resources import CUSTOM_RESOURCES
from .test_configuration import environment, place

KUBE_VERSIONS = ("1.27", "1.30", "1.33", str(kubernetes_validate.latest_version()))


@pytest.mark.parametrize("values", VALUE_SETS)
def test_chart_lints_strictly(helm: Helm, values: str) -> None:
    done = helm.run(
        "lint", "--strict", str(CHART), "-f", str(CHART / "ci" / f"{values}-values.yaml")
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("kube", KUBE_VERSIONS)
@pytest.mark.parametrize("values", VALUE_SETS)
def test_manifests_match_the_strict_schemas(render: Render, values: str, kube: str) -> None:
    manifests = render(values, kube=kube)
    assert manifests
    for manifest in manifests:
        own = CUSTOM_RESOURCES.get(manifest["kind"])
        if own is not None:
            jsonschema.validate(manifest, own)
        else:  # a kind the bundled schemas do not know raises SchemaNotFoundError
            kubernetes_validate.validate(manifest, kube, strict=True)


def test_strict_schemas_catch_a_misspelled_field(render: Render) -> None:
    manifest = only(render(), "StatefulSet")
    manifest["spec"]["minReadySecond"] = 1
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(manifest, "1.33", strict=True)


def test_older_kubernetes_is_refused(helm: Helm) -> None:
    done = helm.run("template", "jr", str(CHART), "--kube-version", "1.25")
    assert done.returncode != 0
    assert "kubeVersion" in done.stderr


BAD_VALUES = [
    "replicas=2",
    "replicas=0",
    "replica=3",
    "image.pullPolicy=Sometimes",
    "server.maxPayload=lots",
    "server.maxPayloads=1MB",
    "server.pingInterval=120",
    "persistence.size=-1Gi",
    "persistence.accessModes={ReadWriteMany}",
    "persistence.retention.whenDeleted=Keep",
    "auth.password=it's",
    "service.type=ExternalName",
    "service.port=70000",
    "lameDuck.durationSeconds=5",
    "terminationGracePeriodSeconds=50",
    "lameDuck.graceSeconds=45",
    "topologySpread.hostname=Maybe",
    "podDisruptionBudget.maxUnavailable=0",
    "probes.startup.path=/",
    "cluster.name=two words",
    "jetstream.remotes[0].name=west",
    "jetstream.remotes[0].name=1,jetstream.remotes[0].urls={nats://h:1}",
    "fullnameOverride=9lives",
    "config.reloadInterval=often",
    "updateStrategy.type=Recreate",
    "topologySpread.zoneTag=maybe",
    "auth.operator.systemAccount=SYS",
    "chaos.size=much",
]
ONE_LINE = {
    "replicas=4": "replicas must be one of the following: 1, 3, 5, 7",
    "replica=3": "Additional property replica is not allowed",
    "tls.enabled=true": "tls.enabled needs tls.secretName",
    "websocket.enabled=true,websocket.tls=true": "websocket.tls needs tls.enabled",
    "websocket.ingress.enabled=true": "websocket.ingress needs websocket.enabled",
    "websocket.enabled=true,websocket.ingress.enabled=true": "websocket.ingress.host",
    "auth.operator.jwt=x": "auth.operator needs auth.enabled",
    "auth.enabled=true,auth.operator.jwt=x": "auth.operator.systemAccount",
    "config.extra.authorization.password=secret": "would be readable in a ConfigMap",
    "auth.accounts.A.users[0].password=secret": "would be readable in a ConfigMap",
    "replicas=3,scaleDown.from=7": "scale down in steps: 3 of 7 nodes",
    "replicas=1,scaleDown.from=3": "cannot be scaled down to replicas=1",
}


@pytest.mark.parametrize("setting", BAD_VALUES)
def test_bad_values_are_refused(helm: Helm, setting: str) -> None:
    done = helm.run("template", "jr", str(CHART), "--set", setting)
    assert done.returncode != 0, f"{setting} was accepted"
    assert done.stderr.strip()


@pytest.mark.parametrize("setting", ONE_LINE)
def test_a_fault_is_said_in_one_line(helm: Helm, setting: str) -> None:
    done = helm.run("template", "jr", str(CHART), "--set", setting)
    assert done.returncode != 0, f"{setting} was accepted"
    (line,) = [line for line in done.stderr.splitlines() if ONE_LINE[setting] in line]
    assert len(line) < 400


def test_a_release_name_that_is_not_a_valid_service_name_is_refused(helm: Helm) -> None:
    done = helm.run("template", "1st", str(CHART))
    assert done.returncode != 0
    assert "begin with a letter" in done.stderr


def test_the_table_of_values_is_current() -> None:
    written = (CHART / "README.md").read_text()
    made = runpy.run_path(str(CHART.parent / "generate_values_readme.py"))["document"]()
    assert written == made, "run: python helm/generate_values_readme.py"
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    for top, block in values.items():
        assert f"| `{top}`" in written or all(f"| `{top}.{key}" in written for key in block), top


def test_every_value_has_a_comment_and_a_schema() -> None:
    text = (CHART / "values.yaml").read_text()
    schema = yaml.safe_load((CHART / "values.schema.json").read_text())
    assert set(yaml.safe_load(text)) == set(schema["properties"]) - {"global"}
    lines = text.replace(text[text.index("\nresources:") : text.index("\ntopologySpread:")], "")
    above = ""
    for line in lines.splitlines():
        if re.match(r"^ *\w+: \S", line):
            assert above.lstrip().startswith("#"), f"no comment above {line!r}"
        above = line


@pytest.mark.parametrize("values", VALUE_SETS)
def test_selectors_match_the_broker_pods_and_no_others(render: Render, values: str) -> None:
    manifests = render(values)
    stateful = only(manifests, "StatefulSet")
    pod_labels = stateful["spec"]["template"]["metadata"]["labels"].items()
    selectors = [stateful["spec"]["selector"]["matchLabels"]]
    selectors += [service["spec"]["selector"] for service in of_kind(manifests, "Service")]
    selectors += [m["spec"]["selector"]["matchLabels"]
                  for m in of_kind(manifests, "PodDisruptionBudget")]  # fmt: skip
    selectors += [brokers_policy(manifests)["podSelector"]["matchLabels"]]
    for spread in stateful["spec"]["template"]["spec"]["topologySpreadConstraints"]:
        selectors.append(spread["labelSelector"]["matchLabels"])
    for selector in selectors:
        assert selector.items() <= pod_labels
        for pod in pods(manifests)[1:]:
            assert not selector.items() <= pod["metadata"]["labels"].items()
    for monitor in of_kind(manifests, "ServiceMonitor"):
        chosen = [
            service
            for service in of_kind(manifests, "Service")
            if monitor["spec"]["selector"]["matchLabels"].items()
            <= service["metadata"]["labels"].items()
            and any(port["name"] == "monitor" for port in service["spec"]["ports"])
        ]
        assert len(chosen) == 1


@pytest.mark.parametrize("values", VALUE_SETS)
def test_every_object_names_its_namespace(render: Render, values: str) -> None:
    assert {manifest["metadata"]["namespace"] for manifest in render(values)} == {"bus"}


def brokers_policy(manifests: list[Manifest]) -> Manifest:
    base = only(manifests, "StatefulSet")["metadata"]["name"]
    (policy,) = [m for m in of_kind(manifests, "NetworkPolicy") if m["metadata"]["name"] == base]
    return dict(policy["spec"])


def test_pods_that_are_clients_reach_the_brokers_alone(render: Render) -> None:
    manifests = render("tools")
    policies = {m["metadata"]["name"]: m["spec"] for m in of_kind(manifests, "NetworkPolicy")}
    rule = policies["jr-jetraft-tools"]
    (chosen,) = rule["podSelector"]["matchExpressions"]
    found = {pod["metadata"]["labels"][chosen["key"]] for pod in pods(manifests)}
    assert found - {"broker"} == set(chosen["values"])
    assert "ingress" not in rule
    assert [port["port"] for port in rule["egress"][1]["ports"]] == [4222, 8222]


@pytest.mark.parametrize("values", VALUE_SETS)
def test_every_reference_exists(render: Render, values: str) -> None:
    manifests = render(values)
    given = yaml.safe_load((CHART / "ci" / f"{values}-values.yaml").read_text())
    auth, streams = given.get("auth", {}), given.get("jetstream", {})
    brought = {given.get("tls", {}).get("secretName"), given.get("config", {}).get("secret")}
    brought |= {auth.get("accountsSecret"), auth.get("operator", {}).get("credsSecret")}
    brought |= {streams.get("encryption", {}).get("existingSecret"), "orders-login"}
    for remote in streams.get("remotes", []):
        brought |= {remote.get("existingSecret"), remote.get("credsSecret")}
    secrets = {m["metadata"]["name"]: set(m["data"]) for m in of_kind(manifests, "Secret")}
    config_maps = {m["metadata"]["name"] for m in of_kind(manifests, "ConfigMap")}
    claims = {
        claim["metadata"]["name"]
        for claim in only(manifests, "StatefulSet")["spec"]["volumeClaimTemplates"]
    }
    for spec in pod_specs(manifests):
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        for volume in volumes.values():
            if "configMap" in volume:
                assert volume["configMap"]["name"] in config_maps
            if "secret" in volume:
                assert volume["secret"]["secretName"] in secrets.keys() | brought
        for container in spec["containers"]:
            for mount in container["volumeMounts"]:
                assert mount["name"] in volumes.keys() | claims
            for variable in container.get("env", []):
                reference = variable.get("valueFrom", {}).get("secretKeyRef")
                if reference and reference["name"] not in brought:
                    assert reference["key"] in secrets[reference["name"]]
    names = {port["name"] for port in server(manifests)["ports"]}
    for service in of_kind(manifests, "Service"):
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= names
    for rule in brokers_policy(manifests)["ingress"]:
        assert {port["port"] for port in rule["ports"]} <= names
    account = only(manifests, "ServiceAccount")
    assert {spec["serviceAccountName"] for spec in pod_specs(manifests)} == {
        account["metadata"]["name"]
    }


@pytest.mark.parametrize("values", VALUE_SETS)
def test_nodes_find_each_other_through_the_headless_service(render: Render, values: str) -> None:
    manifests = render(values)
    stateful = only(manifests, "StatefulSet")
    headless = {
        service["metadata"]["name"]: service
        for service in of_kind(manifests, "Service")
        if service["spec"].get("clusterIP") == "None"
    }[stateful["spec"]["serviceName"]]
    assert headless["spec"]["publishNotReadyAddresses"] is True
    routes = re.findall(r"nats-route://([^:]+):6222", configuration(manifests))
    replicas = stateful["spec"]["replicas"]
    base, service = stateful["metadata"]["name"], headless["metadata"]["name"]
    expected = [f"{base}-{ordinal}.{service}.bus.svc." for ordinal in range(replicas)]
    assert len(routes) == (replicas if replicas > 1 else 0)
    for route, start in zip(routes, expected, strict=False):
        assert route.startswith(start)


def test_growing_from_three_to_five_restarts_no_node(render: Render) -> None:
    three = only(render("default"), "StatefulSet")["spec"]
    five = only(render("five-nodes"), "StatefulSet")["spec"]
    assert (three["replicas"], five["replicas"]) == (3, 5)
    assert three["template"] == five["template"]
    assert three["volumeClaimTemplates"] == five["volumeClaimTemplates"]


LIVE = [
    "server.maxPayload=2MB",
    "server.debug=true",
    "jetstream.maxFileStore=8GB",
    "config.extra.accounts.A.jetstream=enabled",
    "config.extra.mappings.a=b",
    "lameDuck.graceSeconds=5",
]
FIXED = [
    "jetstream.syncInterval=2s",
    "jetstream.domain=east",
    "config.extra.http_base_path=/x",
    "cluster.name=other",
    "config.extra.jetstream.strict=false",
]


def template(render: Render, *sets: str) -> Manifest:
    return dict(only(render(sets=sets), "StatefulSet")["spec"]["template"])


@pytest.mark.parametrize("setting", LIVE)
def test_what_a_reload_applies_restarts_no_node(
    render: Render, setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server agrees that it can take the change over."""
    assert template(render) == template(render, setting)
    assert template(render, "config.reloadInterval=") != template(
        render, "config.reloadInterval=", setting
    )
    merge(*options(render, setting, tmp_path, monkeypatch))


@pytest.mark.parametrize("setting", FIXED)
def test_other_changes_restart_the_nodes(
    render: Render, setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert template(render) != template(render, setting)
    with pytest.raises(NotReloadable):
        merge(*options(render, setting, tmp_path, monkeypatch))


def options(
    render: Render, setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> list[Options]:
    """Before and after the setting."""
    found = []
    for sets in ((), (setting,)):
        manifests = render(sets=sets)
        for name, value in environment(manifests).items():
            monkeypatch.setenv(name, value)
        file = place(manifests, tmp_path)
        found.append(load(parse_flags(["-c", str(file)])).options)
    return found


@pytest.mark.parametrize("values", VALUE_SETS)
def test_each_probe_has_its_own_check(render: Render, values: str) -> None:
    container = server(render(values))
    asked = {
        name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")
    }
    assert asked == {
        "startup": {"path": "/healthz?startup=true", "port": "monitor"},
        "liveness": {"path": "/healthz?live=true", "port": "monitor"},
        "readiness": {"path": "/healthz?ready=true", "port": "monitor"},
    }


@pytest.mark.parametrize("values", VALUE_SETS)
def test_a_node_drains_before_it_is_killed(render: Render, values: str) -> None:
    manifests = render(values)
    pod = only(manifests, "StatefulSet")["spec"]["template"]["spec"]
    text = configuration(manifests)
    drain = re.search(r'lame_duck_duration: "(\d+)s"', text)
    grace = re.search(r'lame_duck_grace_period: "(\d+)s"', text)
    pid_file = re.search(r'pid_file: "([^"]+)"', text)
    assert drain
    assert grace
    assert pid_file
    assert int(grace[1]) < int(drain[1])
    assert int(drain[1]) + 15 <= pod["terminationGracePeriodSeconds"]
    command = server(manifests)["lifecycle"]["preStop"]["exec"]["command"]
    assert command == ["jetraft", "serve", "--signal", f"ldm={pid_file[1]}"]
    mounts = {mount["mountPath"] for mount in server(manifests)["volumeMounts"]}
    assert str(Path(pid_file[1]).parent) in mounts


@pytest.mark.parametrize("values", VALUE_SETS)
def test_pods_are_restricted(render: Render, values: str) -> None:
    for spec in pod_specs(render(values)):
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] == 10001
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in spec["containers"]:
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["readOnlyRootFilesystem"] is True
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert container["resources"]["requests"].keys() >= {"cpu", "memory"}


def test_no_secret_is_outside_of_secrets(render: Render) -> None:
    manifests = render("everything")
    assert "12-abc" not in str([m for m in manifests if m["kind"] != "Secret"])
    for manifest in of_kind(manifests, "ConfigMap"):
        for text in manifest["data"].values():
            for value in re.findall(r'"?(?:password|token|key)"?: (\S+)', str(text)):
                assert value.startswith("$"), value


def test_pods_reach_dns_each_other_and_the_remotes(render: Render) -> None:
    policy = brokers_policy(render("everything"))
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    reached = [{port["port"] for port in rule["ports"]} for rule in policy["egress"]]
    assert reached == [{53}, {6222}, {4222}]
    assert len(brokers_policy(render())["egress"]) == 2


def test_updates_can_be_staged(render: Render) -> None:
    strategy = only(render(sets=("updateStrategy.partition=2",)), "StatefulSet")["spec"]
    assert strategy["updateStrategy"] == {
        "type": "RollingUpdate", "rollingUpdate": {"partition": 2},
    }  # fmt: skip
    assert only(render("tools"), "StatefulSet")["spec"]["updateStrategy"] == {"type": "OnDelete"}


def test_scaling_down_drains_first_and_removes_afterwards(render: Render) -> None:
    jobs = {
        m["metadata"]["annotations"]["helm.sh/hook"]: m for m in of_kind(render("tools"), "Job")
    }
    scripts = {
        hook: job["spec"]["template"]["spec"]["containers"][0]["command"][-1]
        for hook, job in jobs.items()
    }
    assert re.findall(r"cluster (\w+) (jr-jetraft-\d)", scripts["pre-upgrade"]) == [
        ("drain", "jr-jetraft-4"), ("drain", "jr-jetraft-3"),
    ]  # fmt: skip
    assert re.findall(r"cluster (\w+) (jr-jetraft-\d)", scripts["post-upgrade"]) == [
        ("remove", "jr-jetraft-4"), ("remove", "jr-jetraft-3"),
    ]  # fmt: skip
    assert not of_kind(render(sets=("replicas=5",)), "Job")


def test_routes_are_open_to_own_pods_only(render: Render) -> None:
    manifests = render("netpol")
    policy = brokers_policy(manifests)
    labels = only(manifests, "StatefulSet")["spec"]["selector"]["matchLabels"]
    (route,) = [rule for rule in policy["ingress"] if rule["ports"][0]["port"] == "route"]
    assert route["from"] == [{"podSelector": {"matchLabels": labels}}]
