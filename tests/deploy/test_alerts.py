"""Alerts and the dashboard: they use names that exist, and fire when they should.

Spec: Prometheus rule files, checked and run by promtool."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.monitor.documents.test_metrics import families

from .conftest import Render, only

PROMTOOL = shutil.which("promtool")
STANDARD = {"up", "process_cpu_seconds_total", "process_resident_memory_bytes"}
LABELS = 'job="jr-jetraft-headless",instance="n1"'
STREAM = f'{LABELS},stream="S",account="A"'

# Alert -> series that make it fire within an hour, and the same when all is well.
CASES = {
    "JetRaftNodeDown": (f"up{{{LABELS}}}", "0x60", "1x60"),
    "JetRaftNoLeader": (f"jetraft_raft_groups_leaderless{{{LABELS}}}", "3x60", "0x60"),
    "JetRaftGroupStopped": (f"jetraft_raft_groups_stopped{{{LABELS}}}", "1x60", "0x60"),
    "JetRaftStoreFailing": (f"jetraft_store_healthy{{{LABELS}}}", "0x60", "1x60"),
    "JetRaftDiskFull": (f"jetraft_disk_full{{{LABELS}}}", "1x60", "0x60"),
    "JetRaftReplicaOffline": (
        f'jetraft_stream_replica_offline{{{STREAM},node="n2"}}', "1x60", "0x60",
    ),
    "JetRaftReplicaBehind": (
        f'jetraft_stream_replica_lag{{{STREAM},node="n2"}}', "20000x60", "10x60",
    ),
    "JetRaftOverloaded": (f"jetraft_loop_lag_recent_max_seconds{{{LABELS}}}", "2x60", "0.01x60"),
    "JetRaftConsumerBehind": (
        f'jetraft_consumer_lag_seconds{{{STREAM},consumer="c"}}', "5000x60", "3x60",
    ),
    "JetRaftMirrorSilent": (
        f'jetraft_origin_silent_seconds{{{STREAM},origin="O"}}', "-1x60", "1x60",
    ),
    "JetRaftWrongClock": (f"jetraft_clock_agrees{{{LABELS}}}", "0x60", "1x60"),
    "JetRaftRefusedLogins": (f"jetraft_auth_failures_total{{{LABELS}}}", "0+600x60", "0+1x60"),
    "JetRaftSlowFlushes": (
        f'jetraft_flush_latency_seconds_bucket{{{LABELS},le="+Inf"}}', "0+600x60", "",
    ),
    "JetRaftDiskFillsUp": (f"jetraft_disk_free_bytes{{{LABELS}}}", "1e12-1e10x60", "1e12x60"),
    "JetRaftStorageLimit": (
        f'jetraft_stored_bytes{{{LABELS},storage="file"}}', "95x60", "50x60",
    ),
    "JetRaftAccountStorageLimit": (
        f'jetraft_account_stored_bytes{{{LABELS},account="A",storage="file"}}', "95x60", "50x60",
    ),
    "JetRaftManyElections": (f"jetraft_raft_terms_total{{{LABELS}}}", "0+100x60", "0+0x60"),
}  # fmt: skip
BESIDE = {  # series that an expression needs as well
    "JetRaftSlowFlushes": [
        (f'jetraft_flush_latency_seconds_bucket{{{LABELS},le="0.2048"}}', "0+10x60"),
        (f'jetraft_flush_latency_seconds_bucket{{{LABELS},le="0.4096"}}', "0+600x60"),
    ],
    "JetRaftDiskFillsUp": [(f"jetraft_disk_reserve_bytes{{{LABELS}}}", "1e10x60")],
    "JetRaftStorageLimit": [
        (f'jetraft_stored_bytes_max{{{LABELS},storage="file"}}', "100x60"),
    ],
    "JetRaftAccountStorageLimit": [
        (f'jetraft_account_stored_bytes_max{{{LABELS},account="A",storage="file"}}', "100x60"),
    ],
    "JetRaftManyElections": [(f"jetraft_raft_groups{{{LABELS}}}", "10x60")],
}


@pytest.fixture(scope="module")
def rules(render: Render) -> dict[str, Any]:
    found = only(render(sets=("prometheusRule.enabled=true",)), "PrometheusRule")["spec"]
    assert isinstance(found, dict)
    return found


def names(expression: str) -> set[str]:
    return set(re.findall(r"\b(?:jetraft|process)_[a-z_]+", expression))


def known() -> set[str]:
    found = {family.name for family in families()}
    buckets = {f"{family.name}_bucket" for family in families() if family.kind == "histogram"}
    return found | buckets | STANDARD


def test_alerts_use_metrics_that_exist(rules: dict[str, Any]) -> None:
    for rule in rules["groups"][0]["rules"]:
        assert names(rule["expr"]) <= known(), rule["alert"]
        assert 'job="jr-jetraft-headless"' in rule["expr"]


def test_the_dashboard_uses_metrics_that_exist(render: Render) -> None:
    manifests = render(sets=("dashboard.enabled=true",))
    texts = [m["data"]["jetraft.json"] for m in manifests if "jetraft.json" in m.get("data", {})]
    panels = json.loads(texts[0])["panels"]
    expressions = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    assert len(expressions) > 20
    for expression in expressions:
        assert names(expression) <= known(), expression


def test_every_alert_has_a_case(rules: dict[str, Any]) -> None:
    assert {rule["alert"] for rule in rules["groups"][0]["rules"]} == set(CASES)


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is missing: Debian package prometheus")
@pytest.mark.parametrize("fires", [True, False])
def test_alerts_fire_when_they_should(rules: dict[str, Any], tmp_path: Path, fires: bool) -> None:
    assert PROMTOOL is not None
    file = tmp_path / "alerts.yaml"
    file.write_text(yaml.safe_dump(rules))
    tests = []
    for alert, (series, bad, good) in CASES.items():
        values = bad if fires else good
        given = [(series, values), *BESIDE.get(alert, [])] if values else []
        tests.append({
            "interval": "1m",
            "input_series": [{"series": one, "values": text} for one, text in given],
            "promql_expr_test": [{
                "expr": f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})',
                "eval_time": "59m",
                "exp_samples": [{"labels": "{}", "value": 1}] if fires else [],
            }],
        })  # fmt: skip
    script = tmp_path / "tests.yaml"
    script.write_text(yaml.safe_dump({"rule_files": [str(file)], "tests": tests}))
    done = subprocess.run(
        [PROMTOOL, "test", "rules", str(script)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
