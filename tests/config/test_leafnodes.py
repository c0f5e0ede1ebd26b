"""The `leafnodes` block: what is read, and what is refused with which sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.config.draft import BadOptions
from broker.config.load import BadSettings, load, parse_flags
from broker.config.options import Authorization, LeafNodeOptions, LeafRemote, User

SEED = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY"


def read(place: Path, text: str) -> LeafNodeOptions | None:
    path = place / "server.conf"
    path.write_text(text)
    return load(parse_flags(["-c", str(path)])).options.leafnodes


def test_every_key(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        """
        accounts { A {}, B {} }
        leafnodes {
          listen: "127.0.0.1:7422", advertise: "hub:1", no_advertise: true, min_version: 2.10.0
          authorization { users [ { user: a, password: b, account: A } ], timeout: 3 }
          reconnect: "2s", compression: off
          remotes [
            { urls: ["nats://u:p@h:1", "tls://i:2"], account: B, deny_imports: "a.>",
              deny_exports: [b, c], first_info_timeout: "3s", no_randomize: true,
              tls { insecure: true }, hub: false }
            { url: "h:3", credentials: "x.creds", disabled: true }
            { url: "h:4", nkey: """
        + SEED
        + """ }
          ]
        }
        """,
    )
    assert found is not None
    assert (found.host, found.port, found.advertise) == ("127.0.0.1", 7422, "hub:1")
    assert (found.no_advertise, found.min_version, found.reconnect_ns) == (
        True, "2.10.0", 2_000_000_000,
    )  # fmt: skip
    assert found.authorization == Authorization(
        users=(User("a", "b", account="A"),), timeout_ns=3_000_000_000
    )
    first, second, third = found.remotes
    assert first.urls == ("nats://u:p@h:1", "tls://i:2")
    assert (first.account, first.deny_imports, first.deny_exports) == ("B", (b"a.>",), (b"b", b"c"))
    assert first.first_info_timeout_ns == 3_000_000_000
    assert first.no_randomize
    assert first.tls is not None
    assert first.tls.insecure
    assert second == LeafRemote(("h:3",), credentials="x.creds", disabled=True)
    assert third == LeafRemote(("h:4",), nkey=SEED)


def test_without_a_port_nobody_can_connect(tmp_path: Path) -> None:
    assert read(tmp_path, "leafnodes {}") is None
    found = read(tmp_path, 'leafnodes { remotes [ { url: "h:1" } ] }')
    assert found is not None
    assert found.port == 0


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{ nothing: 1 }", 'unknown field "nothing"'),
        ("{ isolate: true }", 'not supported yet: "isolate"'),
        ("{ compression: s2_fast }", 'not supported yet: "compression"'),
        ("{ min_version: 2.7.0 }", "the minimum version should be at least 2.8.0"),
        ("{ min_version: x }", 'invalid semver "x"'),
        ("{ authorization { user: a, password: b, nkey: x } }", "Not a valid public nkey"),
        ("{ authorization { users [ { password: b } ] } }", "User entry requires a user"),
        (
            "{ authorization { user: a, password: b, users [ { user: c, password: d } ] } }",
            "can not have a single user/pass and a users array",
        ),
        ("{ remotes: x }", "Expected remotes field to be an array"),
        ("{ remotes [ { account: A } ] }", "requires a url"),
        ('{ remotes [ { url: "ws://h" } ] }', "leaf nodes over WebSocket"),
        ('{ remotes [ { url: "h:x" } ] }', "error parsing leafnode url"),
        ('{ remotes [ { url: "h:1", hub: true } ] }', 'not supported yet: "hub"'),
        ('{ remotes [ { url: "h:1", deny_imports: "a..b" } ] }', "is not a valid subject"),
        ('{ remotes [ { url: "h:1", nkey: a, creds: b } ] }', "both creds and nkey"),
        ('{ remotes [ { url: "h:1", proxy { url: x } } ] }', 'not supported yet: "proxy"'),
    ],
)
def test_refused_with_a_position(tmp_path: Path, text: str, error: str) -> None:
    with pytest.raises(BadSettings, match=error):
        read(tmp_path, f"leafnodes {text}")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('leafnodes { remotes [ { url: "h:1", account: X } ] }', 'cannot find local account "X"'),
        (
            "leafnodes { port: 1, authorization { user: a, password: b, account: X } }",
            'account "X" of user "a" does not exist',
        ),
        (
            "leafnodes { port: 1, authorization { users [ "
            "{ user: a, password: b }, { user: a, password: c } ] } }",
            'duplicate user "a"',
        ),
        (
            'cluster { name: C, port: 1, routes: ["nats://h:1"] }\njetstream { }\n'
            'leafnodes { remotes [ { url: "h:1" } ] }',
            "leafnode remotes of a cluster with JetStream",
        ),
        ("leafnodes { port: 1, tls { ca_file: x } }", "TLS Server certificate must be present"),
    ],
)
def test_settings_that_contradict_each_other(tmp_path: Path, text: str, error: str) -> None:
    with pytest.raises((BadOptions, BadSettings), match=error):
        read(tmp_path, text)
