"""Schemas of the custom resources that the chart can create.

Spec: the Prometheus operator, monitoring.coreos.com/v1; the fields that we use, and no others."""

from __future__ import annotations

from typing import Any

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
            "required": ["name", "namespace", "labels"],
            "properties": {"name": TEXT, "namespace": TEXT, "labels": LABELS},
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
