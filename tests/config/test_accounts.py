"""The `accounts` block of the configuration file: what it sets and which errors are reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.config.load import BadSettings, load, parse_flags
from broker.config.options import (
    SECOND,
    AccountOptions,
    AccountStore,
    Export,
    Import,
    Options,
    SubjectRules,
)


def loaded(tmp_path: Path, text: str) -> Options:
    path = tmp_path / "server.conf"
    path.write_text(text)
    return load(parse_flags(["-c", str(path)])).options


def test_accounts_have_users_limits_exports_and_imports(tmp_path: Path) -> None:
    options = loaded(
        tmp_path,
        """
        no_auth_user: foo
        accounts {
          A {
            users: [{ user: foo }, { user: bar, pass: x, permissions: { publish: "a.>" } }]
            default_permissions: { subscribe: "b.>" }
            limits { max_conn: 3, max_subs: 4, max_pay: 1k, max_leafs: 0 }
            exports: [
              { stream: "s.>", accounts: [B] }
              { service: "q.*", response_type: stream, threshold: "2s" }
            ]
          }
          B {
            imports: [
              { stream: { account: A, subject: "s.>" }, prefix: p }
              { service: { account: A, subject: "q.*" }, to: "l.*", share: true }
            ]
          }
        }
        system_account: B
        """,
    )
    assert options.accounts == (
        AccountOptions(
            "A",
            max_connections=3,
            max_subscriptions=4,
            max_payload=1000,
            exports=(
                Export(b"s.>", accounts=("B",)),
                Export(b"q.*", service=True, many_answers=True, threshold_ns=2 * SECOND),
            ),
        ),
        AccountOptions(
            "B",
            imports=(
                Import("A", b"s.>", b"p.s.>"),
                Import("A", b"q.*", b"l.*", service=True, share=True),
            ),
        ),
    )
    foo, bar = options.authorization.users
    assert (foo.name, foo.account, bar.name, bar.account) == ("foo", "A", "bar", "A")
    assert foo.permissions is not None
    assert foo.permissions.subscribe == SubjectRules(allow=(b"b.>",))  # the account's default
    assert bar.permissions is not None
    assert bar.permissions.subscribe is None  # a user's own permissions replace the default
    assert options.system_account == "B"


def test_limits_of_jetstream_are_per_account(tmp_path: Path) -> None:
    options = loaded(
        tmp_path,
        """
        jetstream: { domain: d }
        accounts: {
          A { users: [{ user: foo }], jetstream: {
            max_mem: 64MB, max_file: 32MB, max_streams: 10, max_consumers: 20, max_ack_pending: 100,
            memory_max_stream_bytes: 2048, store_max_stream_bytes: 4096, max_stream_bytes: true } }
          B { jetstream: enabled }
          C { jetstream: disabled }
          D { }
        }
        """,
    )
    assert options.jetstream is not None
    assert options.jetstream.accounts == {
        "A": AccountStore(64 << 20, 32 << 20, 10, 20, 100, 2048, 4096, max_bytes_required=True),
        "B": AccountStore(),
    }


@pytest.mark.parametrize("text", ["", "accounts { $SYS { users: [{user: s, password: s}] } }"])
def test_the_global_account_has_jetstream_when_there_is_no_other(tmp_path: Path, text: str) -> None:
    options = loaded(tmp_path, "jetstream: enabled\n" + text)
    assert options.jetstream is not None
    assert options.jetstream.accounts == {"$G": AccountStore()}
    assert options.authorization.open_to_all is bool(text)


def test_accounts_may_be_a_list_of_names(tmp_path: Path) -> None:
    options = loaded(tmp_path, "accounts: [A, B]")
    assert [account.name for account in options.accounts] == ["A", "B"]


TWO = "accounts {{ A {{ users: [{{user: a}}], {} }}, B {{ users: [{{user: b}}], {} }} }}"


def two(a: str, b: str) -> str:
    return TWO.format(a, b)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("accounts { $G { users: [{user: a}] } }", '"$G" is a Reserved Account'),
        ("accounts: 5", "Expected accounts field to be a map or an array"),
        ("accounts { A { foo: 1 } }", 'unknown field "foo"'),
        ("accounts { A { jetstream: 3 } }", "Expected map, bool or string to define JetStream"),
        ("accounts { A { jetstream: { foo: 3 } } }", 'unknown field "foo"'),
        ("accounts { A { limits: { foo: 3 } } }", 'Unknown field "foo" parsing account limits'),
        ("accounts { A { exports: [{streem: x}] } }", 'unknown field "streem"'),
        ("accounts { A { exports: x } }", "Exports should be an array"),
        (
            "accounts { A { exports: [{stream: x, service: y}] } }",
            'Detected service "y" but already saw a stream',
        ),
        ("accounts { A { exports: [{stream: 'x..y'}] } }", '"x..y" is not a valid subject'),
        (
            "accounts { A { exports: [{service: x, response_type: foo}] } }",
            'Unknown response type: "foo"',
        ),
        (
            "accounts { A { exports: [{service: x, accounts: [Z]}] } }",
            '"Z" account not defined for service export',
        ),
        (two("", "users: [{user: a}]"), 'Duplicate user "a" detected'),
        (
            "authorization { users: [{user: a}] }\naccounts { A { users: [{user: a}] } }",
            'Duplicate user "a" detected',
        ),
        (
            "authorization { user: x, password: y }\naccounts { A { users: [{user: a}] } }",
            "Can not have a single user/pass and accounts",
        ),
        (
            "authorization { token: y }\naccounts { A { users: [{user: a}] } }",
            "Can not have a token and accounts",
        ),
        (
            two("imports: [{stream: {account: C, subject: x}}]", ""),
            '"C" account not defined for stream import',
        ),
        (
            two("imports: [{stream: {account: B, subject: x}}]", ""),
            'Error adding stream import "x": stream import not authorized',
        ),
        (
            two("imports: [{service: {account: B, subject: x}}]", "exports: [{stream: x}]"),
            'Error adding service import "x": service import not authorized',
        ),
        (
            two(
                "imports: [{service: {account: B, subject: x}}]",
                "exports: [{service: x, accounts: [B]}]",
            ),
            'Error adding service import "x": service import not authorized',
        ),
        (
            two(
                "imports: [{service: {account: B, subject: x}}], exports: [{service: x}]",
                "imports: [{service: {account: A, subject: x}}], exports: [{service: x}]",
            ),
            'Error adding service import "x": import forms a cycle',
        ),
        (
            two(
                "imports: [{stream: {account: B, subject: 'x.*'}, to: y}]",
                "exports: [{stream: 'x.*'}]",
            ),
            "not using all of the token wildcard(s) in y",
        ),
        (
            two(
                "imports: [{stream: {account: B, subject: x}, prefix: p, to: q}]",
                "exports: [{stream: x}]",
            ),
            "Stream import can not have a 'prefix' and a 'to' property",
        ),
        (
            "jetstream: enabled\naccounts { $SYS { jetstream: enabled } }",
            "JetStream cannot be enabled on the system account",
        ),
    ],
)
def test_contradictory_accounts_are_refused_with_a_message(
    tmp_path: Path, text: str, words: str
) -> None:
    with pytest.raises(BadSettings) as refusal:
        loaded(tmp_path, text)
    assert words in str(refusal.value)


def test_a_chain_of_imports_is_no_cycle(tmp_path: Path) -> None:
    options = loaded(
        tmp_path,
        """accounts {
          A { exports: [{service: x}] }
          B { imports: [{service: {account: A, subject: x}}], exports: [{service: x}] }
          C { imports: [{service: {account: B, subject: x}, to: z}], exports: [{service: x}] }
        }""",
    )
    assert len(options.accounts) == 3
