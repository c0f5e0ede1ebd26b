"""The chart passes the linter, renders, and matches the Kubernetes schemas.

Owns: what a schema cannot express: names that must agree across objects, and the order of timeouts.
Spec: Kubernetes API schemas (bundled with kubernetes-validate); Pod Security "restricted"."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from .conftest import (
    CHART,
    VALUE_SETS,
    Helm,
    Render,
    configuration,
    of_kind,
    only,
    pod_specs,
    server,
)

KUBE_VERSIONS = ("1.27", "1.30", "1.33", str(kubernetes_validate.latest_version()))

TEXT: dict[str, Any] = {"type": "string"}
LABELS: dict[str, Any] = {"type": "object", "additionalProperties": TEXT}
SERVICE_MONITOR: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "properties": {
        "apiVersion": {"const": "monitoring.coreos.com/v1"},
        "kind": {"const": "ServiceMonitor"},
        "metadata": {
            "type": "object",
            "additionalProperties": False,
            "required": ["name", "labels"],
            "properties": {"name": TEXT, "labels": LABELS},
        },
        "spec": {
            "type": "object",
            "additionalProperties": False,
            "required": ["selector", "endpoints"],
            "properties": {
                "selector": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {"matchLabels": LABELS},
                },
                "namespaceSelector": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {"matchNames": {"type": "array", "items": TEXT}},
                },
                "endpoints": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "additionalProperties": False,
                        "required": ["port", "path"],
                        "properties": {
                            "port": TEXT,
                            "path": TEXT,
                            "interval": TEXT,
                            "scrapeTimeout": TEXT,
                        },
                    },
                },
            },
        },
    },
}
RULE: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["alert", "expr", "labels", "annotations"],
    "properties": {
        "alert": TEXT, "expr": TEXT, "for": TEXT, "labels": LABELS, "annotations": LABELS,
    },
}  # fmt: skip
PROMETHEUS_RULE: dict[str, Any] = {
    "type": "object",
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "properties": {
        "apiVersion": {"const": "monitoring.coreos.com/v1"},
        "spec": {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "groups": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "additionalProperties": False,
                        "required": ["name", "rules"],
                        "properties": {"name": TEXT, "rules": {"type": "array", "items": RULE}},
                    },
                },
            },
        },
    },
}
CUSTOM_RESOURCES = {"ServiceMonitor": SERVICE_MONITOR, "PrometheusRule": PROMETHEUS_RULE}


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
    "tls.enabled=true",
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
]


@pytest.mark.parametrize("setting", BAD_VALUES)
def test_bad_values_are_refused(helm: Helm, setting: str) -> None:
    done = helm.run("template", "jr", str(CHART), "--set", setting)
    assert done.returncode != 0, f"{setting} was accepted"
    assert done.stderr.strip()


def test_a_release_name_that_is_not_a_valid_service_name_is_refused(helm: Helm) -> None:
    done = helm.run("template", "1st", str(CHART))
    assert done.returncode != 0
    assert "begin with a letter" in done.stderr


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
    for kind, field in (("PodDisruptionBudget", "selector"), ("NetworkPolicy", "podSelector")):
        selectors += [m["spec"][field]["matchLabels"] for m in of_kind(manifests, kind)]
    for spread in stateful["spec"]["template"]["spec"]["topologySpreadConstraints"]:
        selectors.append(spread["labelSelector"]["matchLabels"])
    for selector in selectors:
        assert selector.items() <= pod_labels
        for pod in of_kind(manifests, "Pod"):
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
def test_every_reference_exists(render: Render, values: str) -> None:
    manifests = render(values)
    given = yaml.safe_load((CHART / "ci" / f"{values}-values.yaml").read_text())
    brought = {given.get("tls", {}).get("secretName")}
    brought |= {r.get("existingSecret") for r in given.get("jetstream", {}).get("remotes", [])}
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
    for policy in of_kind(manifests, "NetworkPolicy"):
        for rule in policy["spec"]["ingress"]:
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


def test_a_changed_setting_restarts_the_nodes(render: Render) -> None:
    before = only(render(), "StatefulSet")["spec"]["template"]
    after = only(render(sets=("server.maxPayload=2MB",)), "StatefulSet")["spec"]["template"]
    assert before != after


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


def test_routes_are_open_to_own_pods_only(render: Render) -> None:
    manifests = render("netpol")
    policy = only(manifests, "NetworkPolicy")["spec"]
    labels = only(manifests, "StatefulSet")["spec"]["selector"]["matchLabels"]
    (route,) = [rule for rule in policy["ingress"] if rule["ports"][0]["port"] == "route"]
    assert route["from"] == [{"podSelector": {"matchLabels": labels}}]
