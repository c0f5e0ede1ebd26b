"""The `mappings` block: from each source to its destinations.

Owns: reading that block, at the top of the file and in an account.
May not touch: which mappings are possible (check_mappings.py).
Spec: NATS server configuration, mappings."""

from __future__ import annotations

from typing import Any

from broker.config.check_mappings import check_mapping
from broker.config.file import values
from broker.config.file.parser import Item
from broker.config.file.report import ConfigReport
from broker.config.file.values import BadValue
from broker.config.options import ALWAYS, MappingDestination, SubjectMapping
from broker.subjects.mapping import BadMapping


def read_mappings(report: ConfigReport, block: Item) -> tuple[SubjectMapping, ...]:
    if not isinstance(block.value, dict):
        raise BadValue("Expected map to define mappings")
    found = []
    for source, item in block.value.items():
        with report.at(item):
            rule = SubjectMapping(source, _destinations(item))
            try:
                check_mapping(rule)
            except BadMapping as bad:
                raise BadValue(str(bad)) from bad
            found.append(rule)
    return tuple(found)


def _destinations(item: Item) -> tuple[MappingDestination, ...]:
    if isinstance(item.value, str):
        return (MappingDestination(item.value),)
    if isinstance(item.value, list):
        return tuple(_destination(one) for one in item.value)
    return (_destination(item),)


def _destination(item: Item) -> MappingDestination:
    if not isinstance(item.value, dict):
        raise BadValue("Expected an entry for the mapping destination")
    settings: dict[str, Any] = {"subject": ""}
    for raw, inner in item.value.items():
        key = raw.lower()
        if key in ("dest", "destination"):
            settings["subject"] = values.text(key, inner)
        elif key == "weight":
            settings[key] = _percent(inner)
        elif key == "cluster":
            settings[key] = values.text(key, inner)
        else:
            raise BadValue(f'Unknown field "{raw}" for mapping destination')
    if "weight" not in settings:
        raise BadValue(f'Missing weight for mapping destination "{settings["subject"]}"')
    return MappingDestination(**settings)


def _percent(item: Item) -> int:
    word = str(item.value).removesuffix("%")
    if not word.lstrip("-").isdigit():
        raise BadValue(f'Invalid weight "{item.value}" for mapping destination')
    if not 0 <= int(word) <= ALWAYS:
        raise BadValue(f"Invalid weight {word} for mapping destination")
    return int(word)
