"""docs/configuration.md is what the code reads: made again, it is the same.

Every key in it is accepted or refused by the parser as the document says."""

from __future__ import annotations

import runpy
from typing import Any

import pytest
import yaml

from broker.config.file import unsupported_keys
from tests.tidy.source_tree import ROOT

MADE: dict[str, Any] = runpy.run_path(str(ROOT / "docs" / "generate_configuration.py"))
BLOCKS = yaml.safe_load((ROOT / "docs" / "configuration_keys.yaml").read_text())


def test_the_reference_is_current() -> None:
    written = (ROOT / "docs" / "configuration.md").read_text()
    assert written == MADE["document"](), "run: python docs/generate_configuration.py"


def test_a_key_without_a_meaning_is_noticed() -> None:
    block = {**BLOCKS[0], "keys": dict(BLOCKS[0]["keys"])}
    del block["keys"]["max_payload"]
    with pytest.raises(LookupError, match="max_payload"):
        MADE["rows"](block)
    block["keys"] |= {"max_payload": "Largest message.", "max_mayload": "A typo."}
    with pytest.raises(LookupError, match="max_mayload"):
        MADE["rows"](block)


def test_every_refused_key_is_listed() -> None:
    listed = {block.get("refused") for block in BLOCKS}
    assert {name for name in vars(unsupported_keys) if name.isupper()} <= listed
