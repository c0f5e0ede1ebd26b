"""Message tracing in the configuration file: what it sets and which errors are reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.config.load import BadSettings
from tests.config.test_accounts import loaded


@pytest.mark.parametrize(
    ("setting", "dest", "sampling"),
    [
        ("trace_dest: t.x", b"t.x", 100),
        ("msg_trace: t.x", b"t.x", 100),
        ("msg_trace: {dest: t.x, sampling: 10}", b"t.x", 10),
        ('msg_trace: {dest: t.x, sampling: "25%"}', b"t.x", 25),
        ("", b"", 100),
    ],
)
def test_an_account_sets_its_trace_destination(
    tmp_path: Path, setting: str, dest: bytes, sampling: int
) -> None:
    account = loaded(tmp_path, f"accounts {{ A {{ users: [{{user: a}}], {setting} }} }}").accounts[
        0
    ]
    assert (account.trace_dest, account.trace_sampling) == (dest, sampling)


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("msg_trace: t.*", 'Trace destination "t.*" is not valid'),
        ("msg_trace: {dest: t, sampling: 0}", "sampling 0 is invalid"),
        ("msg_trace: {dest: t, sampling: 101}", "sampling 101 is invalid"),
        ("msg_trace: {dest: t, sampling: x}", "sampling x is invalid"),
        ("msg_trace: {to: t}", 'Unknown field "to"'),
        ("exports: [{stream: s, allow_trace: true}]", "allow_trace directive on non-service"),
        (
            "imports: [{service: {account: B, subject: s}, allow_trace: true}]",
            "allow_trace directive on a non-stream",
        ),
    ],
)
def test_bad_trace_destinations_are_refused(tmp_path: Path, setting: str, told: str) -> None:
    with pytest.raises(BadSettings, match=told.replace("*", r"\*")):
        loaded(tmp_path, f"accounts {{ A {{ {setting} }}, B {{ exports: [{{service: s}}] }} }}")
