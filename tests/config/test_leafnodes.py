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
        ("{ write_timeout: close }", 'not supported yet: "write_timeout"'),
        ("{ compression: nothing }", 'unsupported compression mode "nothing"'),
        ("{ compression: 1 }", "should be a boolean or a structure"),
        ("{ compression { mode: s2_auto, x: 1 } }", 'unknown field "x"'),
        ("{ compression { rtts: [20ms, 10ms] } }", "should be in ascending order"),
        ("{ compression { rtts: [0, 0] } }", "requires at least one RTT threshold"),
        ("{ compression { rtts: [1ms, 2ms, 3ms, 4ms, 5ms] } }", "no more than 4 RTT thresholds"),
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
        ('{ remotes [ { urls: ["ws://h", "h:1"] } ] }', "cannot have a mix of websocket"),
        ('{ remotes [ { url: "h:x" } ] }', "error parsing leafnode url"),
        ('{ remotes [ { url: "h:1", deny_imports: "a..b" } ] }', "is not a valid subject"),
        ('{ remotes [ { url: "h:1", nkey: a, creds: b } ] }', "both creds and nkey"),
        (
            '{ remotes [ { url: "ws://h:1", proxy { url: "ftp://x" } } ] }',
            "proxy URL scheme must be http, got: ftp",
        ),
        ('{ remotes [ { url: "ws://h:1", proxy { url: "http://" } } ] }', "must specify a host"),
        (
            '{ remotes [ { url: "ws://h:1", proxy { url: "http://p:1", username: u } } ] }',
            "username and password must both",
        ),
        (
            '{ remotes [ { url: "h:1", proxy { url: "http://p:1" } } ] }',
            "for ws:// and wss:// URLs",
        ),
        ('{ remotes [ { url: "wss://h", proxy { url: "http://p:1" } } ] }', "requires TLS"),
        ('{ remotes [ { url: "ws://h", js_cluster_migrate { x: 1 } } ] }', 'unknown field "x"'),
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
        ("leafnodes { port: 1, tls { ca_file: x } }", "TLS Server certificate must be present"),
    ],
)
def test_settings_that_contradict_each_other(tmp_path: Path, text: str, error: str) -> None:
    with pytest.raises((BadOptions, BadSettings), match=error):
        read(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "mode", "thresholds_ms"),
    [
        ("s2_fast", "s2_fast", [10, 50, 100]),
        ("false", "off", [10, 50, 100]),
        ("enabled", "s2_auto", [10, 50, 100]),
        ('"not supported"', "not supported", [10, 50, 100]),
        ("{ mode: best }", "s2_best", [10, 50, 100]),
        ("{ rtt_thresholds: [0, 5ms, 0, 0] }", "s2_auto", [0, 5]),
    ],
)
def test_compression(tmp_path: Path, text: str, mode: str, thresholds_ms: list[int]) -> None:
    found = read(tmp_path, f"leafnodes {{ port: 1, compression: {text} }}")
    assert found is not None
    assert found.compression.mode == mode
    assert [one / 1e6 for one in found.compression.thresholds_ns] == thresholds_ms


def test_the_roles_and_the_links_of_a_remote(tmp_path: Path) -> None:
    remote = (
        'url: "wss://h/path", hub: true, isolate: true, request_isolation: true, '
        "ws_compress: true, ws_no_masking: true, compression: accept, dial_timeout: 3s"
    )
    found = read(
        tmp_path,
        f"leafnodes {{ isolate: true, write_deadline: 2s, remotes [ {{ {remote} }} ] }}",
    )
    assert found is not None
    assert (found.isolated, found.write_deadline_ns) == (True, 2_000_000_000)
    [one] = found.remotes
    assert one.hub
    assert one.isolated
    assert one.request_isolation
    assert one.ws_compression
    assert one.ws_no_masking
    assert (one.compression.mode, one.dial_timeout_ns) == ("accept", 3_000_000_000)
