"""The `mappings` block: what it sets, and the errors of nats-server."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.config.load import BadSettings, load, parse_flags
from broker.config.options import MappingDestination, Options, SubjectMapping


def loaded(tmp_path: Path, text: str) -> Options:
    path = tmp_path / "server.conf"
    path.write_text(text)
    return load(parse_flags(["-c", str(path)])).options


BLOCK = """mappings {
    a: b
    "c.*": [ {destination: "d.$1", weight: 30%}, {dest: e, weight: 50, cluster: EAST} ]
    f: {destination: g, weight: 20}
}"""
RULES = (
    SubjectMapping("a", (MappingDestination("b"),)),
    SubjectMapping("c.*", (MappingDestination("d.$1", 30), MappingDestination("e", 50, "EAST"))),
    SubjectMapping("f", (MappingDestination("g", 20),)),
)


def test_mappings_of_the_global_account_and_of_others(tmp_path: Path) -> None:
    assert loaded(tmp_path, BLOCK).mappings == RULES
    options = loaded(tmp_path, f"accounts {{ A {{ {BLOCK.replace('mappings', 'maps')} }} }}")
    assert options.accounts[0].mappings == RULES
    assert not options.mappings


@pytest.mark.parametrize(
    ("mapping", "text"),
    [
        ('"foo..x": bar', 'Subject "foo..x" is not a valid subject'),
        ("foo: 7", "Expected an entry for the mapping destination"),
        ("foo: [a, b]", "Expected an entry for the mapping destination"),
        ("foo: [{destination: a}]", 'Missing weight for mapping destination "a"'),
        ("foo: [{destination: a, weight: 150%}]", "Invalid weight 150 for mapping destination"),
        ("foo: [{destination: a, weight: -1}]", "Invalid weight -1 for mapping destination"),
        (
            "foo: [{destination: a, weight: 9, what: 1}]",
            'Unknown field "what" for mapping destination',
        ),
        (
            '"foo.*": "bar.$2"',
            'Error adding mapping for "foo.*" to "bar.$2" : invalid mapping destination: '
            "wildcard index out of range in $2: [2]",
        ),
        ('"foo.*": "bar.*"', 'Error adding mapping for "foo.*" to "bar.*" : invalid subject'),
        (
            "foo: [{destination: a, weight: 50%}, {destination: b, weight: 60%}]",
            'Error adding mapping for "foo" : total weight needs to be <= 100',
        ),
        (
            "foo: [{destination: a, weight: 20}, {destination: a, weight: 20}]",
            'Error adding mapping for "foo" : duplicate entry for "a"',
        ),
    ],
)
def test_a_mapping_that_cannot_be_is_refused(tmp_path: Path, mapping: str, text: str) -> None:
    with pytest.raises(BadSettings) as refused:
        loaded(tmp_path, f"mappings {{ {mapping} }}")
    assert str(refused.value).partition(": ")[2] == text
