"""The configuration file and the flags."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.cluster.assembly import scan_limits
from broker.config.file.parser import Item, ParseError, parse
from broker.config.file.values import BadValue, parse_duration
from broker.config.load import BadSettings, load, parse_flags
from broker.config.options import MIB, SECOND, Options


def plain(value: object) -> object:
    if isinstance(value, Item):
        return plain(value.value)
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    return value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("port: 4222", {"port": 4222}),
        ('{ "port": 4567 }', {"port": 4567}),
        ("a = 1; b : 2, c 3", {"a": 1, "b": 2, "c": 3}),
        ("a: yes\nb: OFF\nc: true", {"a": True, "b": False, "c": True}),
        ("a: 1k\nb: 1KB\nc: 64MB\nd: 2m\ne: 1gi", {
            "a": 1000, "b": 1024, "c": 64 * MIB, "d": 2_000_000, "e": 1024**3}),
        ("a: 1.5\nb: -1\nc: 3secret\nd: 100ms", {"a": 1.5, "b": -1, "c": "3secret", "d": "100ms"}),
        ("a: 127.0.0.1:4222", {"a": "127.0.0.1:4222"}),
        ("a: nats://u:p@h:1 # end", {"a": "nats://u:p@h:1"}),
        ("a: 'x # y'\nb: \"q\\t\\x41\\\"\"", {"a": "x # y", "b": 'q\tA"'}),
        ("a: [1, 2,\n 3\n]\nb: []", {"a": [1, 2, 3], "b": []}),
        ("m {\n x: 1\n y { z: on }\n}", {"m": {"x": 1, "y": {"z": True}}}),
        ("m\n{\n x = 1 }", {"m": {"x": 1}}),
        ("m{x:1}", {"m": {"x": 1}}),
        ("// one\n# two\na: 1", {"a": 1}),
        ("a: 1\na: 2", {"a": 2}),
        ("password: §12§12", {"password": "§12§12"}),
        ("X: 7\na: $X", {"X": 7, "a": 7}),
        ("t: $2a$11$abcdef", {"t": "$2a$11$abcdef"}),
        ('t: "$X"', {"t": "$X"}),
        ("b: (\n one\n two\n)\n", {"b": " one\n two"}),
        ("m { V: 3\n n { w: $V } }", {"m": {"V": 3, "n": {"w": 3}}}),
        ("", {}),
    ],
)  # fmt: skip
def test_grammar(text: str, expected: object) -> None:
    assert plain(parse(text, environ={})) == expected


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: {", 1),
        ("a: [1", 1),
        ("\n\na: 'x", 3),
        ("a:\nb: 1", 1),
        ("a: 12-abc", 1),
        ("m { a: 1 b: 2 }", 1),
        ("a: 1 b", 1),
        ('a: "\\q"', 1),
        ("a: [1 2]", 1),
        ("= 1", 1),
        ("a: " + "[" * 100, 1),
    ],
)
def test_errors_name_the_line(text: str, line: int) -> None:
    with pytest.raises(ParseError, match=rf"^Parse error on line {line}: '.+'$"):
        parse(text, environ={})


def test_variables_come_from_the_environment_and_must_exist() -> None:
    assert plain(parse("a: $HERE", environ={"HERE": "64KB"})) == {"a": 65536}
    with pytest.raises(
        ParseError, match="variable reference for 'GONE' on line 2 can not be found"
    ):
        parse("\na: $GONE", environ={})


def test_includes_are_relative_to_the_including_file(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "inner.conf").write_text("include ./more.conf\nping_max: $P\n")
    (tmp_path / "sub" / "more.conf").write_text("max_payload: 2048")
    main = tmp_path / "main.conf"
    main.write_text("P: 5\nport: 1\ninclude sub/inner.conf\nserver_name: n\n")
    options = from_file(main)
    assert options.limits.max_payload == 2048
    assert options.ping.outstanding_max == 5
    assert options.server_name == "n"


def from_file(path: Path, *words: str) -> Options:
    return load(parse_flags(["-c", str(path), *words])).options


def from_text(tmp_path: Path, text: str, *words: str) -> Options:
    path = tmp_path / "server.conf"
    path.write_text(text)
    return from_file(path, *words)


def test_keys_set_their_options(tmp_path: Path) -> None:
    options = from_text(
        tmp_path,
        """
        listen: "127.0.0.1:-1"
        server_name: alpha
        http: "127.0.0.1:8222"
        max_payload: 2MB
        max_pending: 32MB
        ping_interval: "30s"
        ping_max: 3
        write_deadline: "5s"
        debug: true
        jetstream {
          store_dir: /data
          max_mem: 1G
          max_file: "10G"
          domain: hub
          sync_interval: always
          remotes { WEST { urls: ["nats://w1:4222", "nats://w2:4222"], user: u, password: p } }
        }
        cluster {
          name: C1
          listen: 127.0.0.1:6222
          routes = [ nats://a:6222, nats://b:6222 ]
          authorization { user: route, password: secret, timeout: 1 }
        }
        authorization {
          timeout: 0.5
          default_permissions { publish: { deny: "x.>" } }
          users = [
            { user: a, password: a, permissions: { publish: ["p.>"], subscribe: { deny: "s q1" } } }
            { user: b, password: b, permissions: { allow_responses: true } }
          ]
        }
        no_auth_user: a
        """,
    )
    assert (options.host, options.port, options.server_name) == ("127.0.0.1", -1, "alpha")
    assert options.http is not None
    assert (options.http.host, options.http.port) == ("127.0.0.1", 8222)
    assert options.limits.max_payload == 2 * MIB
    assert options.ping.interval_ns == 30 * SECOND
    assert options.jetstream is not None
    assert options.jetstream.store_dir == "/data"
    assert options.jetstream.max_memory_store == 1_000_000_000
    assert options.jetstream.max_file_store == 10 * 1024**3
    assert options.jetstream.remotes["WEST"].urls == ("nats://w1:4222", "nats://w2:4222")
    assert options.cluster is not None
    assert options.cluster.routes == ("nats://a:6222", "nats://b:6222")
    assert (options.cluster.user, options.cluster.password) == ("route", "secret")
    auth = options.authorization
    assert auth.timeout_ns == SECOND // 2
    assert auth.no_auth_user == "a"
    assert auth.users[0].permissions is not None
    assert auth.users[0].permissions.publish is not None
    assert auth.users[0].permissions.publish.allow == (b"p.>",)
    assert auth.users[1].permissions is not None
    assert auth.users[1].permissions.responses is not None


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("websocket { port: 1 }", "websocket requires TLS configuration"),
        ("\n  gateway { port: 1 }", r'server.conf:2:3: not supported yet: "gateway"'),
        ("hokus: 1", r'server.conf:1:1: unknown field "hokus"'),
        ("cluster { write_deadline: 3s }", r'not supported yet: "write_deadline"'),
        ("cluster { pokus: 3 }", r'unknown field "pokus"'),
        ("cluster { routes: [ 'nats://h:x' ] }", r'error parsing route url \["nats://h:x"\]'),
        ("cluster { routes: [ 'nats://a b:1' ] }", r'error parsing route url \["nats://a b:1"\]'),
        ("jetstream { cipher: rot13 }", 'Unknown cipher type: "rot13"'),
        ("tls { hokus: 1 }", r'error parsing tls config, unknown field "hokus"'),
        ("tls { cert_file: a }", "TLS Server private key must be present and valid"),
        ("authorization { user: a, token: b }", "Cannot have a user/pass and token"),
        ("authorization { users: [ {password: x} ] }", "User entry requires a user"),
        ("authorization { password: x }", "authorization has a password, but no user"),
        (
            "websocket { listen: '127.0.0.1:1', no_tls: true, authorization { password: x } }",
            "websocket authorization has a password, but no user",
        ),
        ("authorization { users: [ {user: x}, {user: x} ] }", 'Duplicate user "x" detected'),
        ("no_auth_user: z", "present, but users/nkeys are not defined"),
        ("server_name: 'a b'", "server name cannot contain spaces"),
        ("max_payload: 100MB", "cannot be higher than max_pending"),
        ('lame_duck_duration: "5s"', "invalid lame_duck_duration of 5s, minimum is 30 seconds"),
        ('lame_duck_grace_period: "3m"', "should be strictly lower than lame duck duration"),
        ("listen: nowhere", 'could not parse address string "nowhere"'),
        ("listen: 'h:x'", 'could not parse port "x"'),
        ("port: word", "wants an integer"),
        ("ping_interval: soon", 'invalid duration "soon"'),
        ("store_dir: a\njetstream { store_dir: b }", "Duplicate 'store_dir' configuration"),
        ("jetstream: perhaps", "Expected 'enabled' or 'disabled'"),
    ],
)
def test_errors_name_the_key_and_position(tmp_path: Path, text: str, error: str) -> None:
    with pytest.raises(BadSettings, match=error):
        from_text(tmp_path, text)


def test_all_errors_are_reported_at_once(tmp_path: Path) -> None:
    with pytest.raises(BadSettings) as caught:
        from_text(tmp_path, "one: 1\ntwo: 2\nmqtt {}\n")
    assert len(str(caught.value).splitlines()) == 3


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    options = from_text(
        tmp_path,
        "port: 1\nhttp: '10.0.0.1:2'\nauthorization { user: a, password: b }\nstore_dir: x",
        "--port=3", "-m", "4", "--auth", "tok", "-js", "-sd=/y", "-DV", "-T=false",
    )  # fmt: skip
    assert options.port == 3
    assert options.http is not None
    assert (options.http.host, options.http.port) == ("0.0.0.0", 4)
    assert options.authorization.token == "tok"
    assert not options.authorization.user
    assert options.jetstream is not None
    assert options.jetstream.store_dir == "/y"
    assert options.logging.debug
    assert options.logging.trace
    assert not options.logging.logtime


def test_cluster_flags() -> None:
    options = load(
        parse_flags([
            "--cluster_listen", "nats://u:p@127.0.0.1:-1", "--cluster_name", "C",
            "--routes", "nats://127.0.0.1:1, nats://127.0.0.1:2",
        ])
    ).options  # fmt: skip
    assert options.cluster is not None
    assert options.cluster.port == -1
    assert options.cluster.user == "u"
    assert options.cluster.name == "C"
    assert options.cluster.routes == ("nats://127.0.0.1:1", "nats://127.0.0.1:2")


def test_routes_of_the_flags_are_checked_too() -> None:
    with pytest.raises(BadSettings, match=r'error parsing route url \["nats://h:x"\]'):
        load(parse_flags(["--cluster_listen", "nats://127.0.0.1:-1", "--routes", "nats://h:x"]))


def test_tls_flags_imply_tls() -> None:
    with pytest.raises(BadSettings, match="TLS Server private key must be present and valid"):
        load(parse_flags(["--tlscert", "a.pem"]))
    options = load(
        parse_flags(["--tls", "--tlscert", "c", "--tlskey", "k", "--tlsverify", "--tlscacert", "a"])
    ).options
    assert options.tls is not None
    assert options.tls.verify
    assert options.tls.ca_file == "a"


@pytest.mark.parametrize(
    ("text", "ns"),
    [("1h30m", 5400 * SECOND), ("100ms", SECOND // 10), ("1.5s", SECOND * 3 // 2), ("0", 0)],
)
def test_durations(text: str, ns: int) -> None:
    assert parse_duration(text) == ns


@pytest.mark.parametrize("text", ["", "5", "s", "1x", "1s2"])
def test_bad_durations(text: str) -> None:
    with pytest.raises(BadValue):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "interval_s"),
    [
        ("{}", None),
        ("{ sync_interval: always }", None),
        ("{ sync_interval: 0 }", None),
        ('{ sync_interval: "100ms" }', 0.1),
        ("{ sync_interval: 5 }", 5.0),
    ],
)
def test_only_a_duration_disables_fsync_before_every_ack(
    tmp_path: Path, text: str, interval_s: float | None
) -> None:
    options = from_text(tmp_path, f"jetstream {text}")
    assert options.jetstream is not None
    assert options.jetstream.flush_interval_s == interval_s


def test_limits_of_scans_are_read(tmp_path: Path) -> None:
    text = "jetstream { max_scans: 10, max_account_scans: 5, max_scan_bytes: 32M }"
    options = from_text(tmp_path, text).jetstream
    assert options is not None
    limits = scan_limits(options)
    assert (limits.open_max, limits.open_per_account_max) == (10, 5)
    assert limits.held_bytes_max in (32 * MIB, 32_000_000)
    assert limits.held_bytes_per_account_max == 64 * MIB
    with pytest.raises(BadSettings, match="max_scans must be at least 1"):
        from_text(tmp_path, "jetstream { max_scans: 0 }")
