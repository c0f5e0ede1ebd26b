"""The `websocket` block: its keys, its errors, and the listener of a real process."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from broker.config.draft import BadOptions
from broker.config.load import BadSettings, load, parse_flags
from broker.config.options import SECOND, Options, TlsOptions, WebSocketOptions
from tests.support.server import PATIENCE, Process

USERS = "authorization { users: [ {user: a, password: b} ] }\n"


def loaded(tmp_path: Path, text: str) -> Options:
    path = tmp_path / "server.conf"
    path.write_text(text)
    return load(parse_flags(["-c", str(path)])).options


def test_every_key(tmp_path: Path) -> None:
    found = loaded(
        tmp_path,
        """
        websocket
        {
            listen: "127.0.0.1:8443"
            advertise: "web.example:443"
            tls { cert_file: c.pem, key_file: k.pem }
            same_origin: true
            allowed_origins: [ "https://a.example", "http://b.example:81" ]
            compression: true
            handshake_timeout: "3s"
            ping_interval: 20
            user_cookie: u, pass_cookie: p, token_cookie: t
            authorization { user: ann, password: secret, timeout: 0.5 }
            headers { X-Served-By: me }
        }
        """,
    )
    assert found.websocket == WebSocketOptions(
        host="127.0.0.1",
        port=8443,
        advertise="web.example:443",
        tls=TlsOptions(cert_file="c.pem", key_file="k.pem"),
        same_origin=True,
        allowed_origins=("https://a.example", "http://b.example:81"),
        compression=True,
        handshake_timeout_ns=3 * SECOND,
        ping_interval_ns=20 * SECOND,
        user_cookie="u",
        pass_cookie="p",
        token_cookie="t",
        user="ann",
        password="secret",
        auth_timeout_ns=SECOND // 2,
        headers={"X-Served-By": "me"},
    )


def test_there_is_no_listener_without_a_port(tmp_path: Path) -> None:
    assert loaded(tmp_path, "websocket { compression: true }").websocket is None
    found = loaded(tmp_path, "ws { port: -1, no_tls: true }").websocket
    assert found == WebSocketOptions(port=-1, no_tls=True)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("websocket { port: 1 }", "websocket requires TLS configuration"),
        ("websocket { port: 1, tls { key_file: k } }", "certificate must be present"),
        ("websocket { hokus: 1 }", 'server.conf:1:13: unknown field "hokus"'),
        ("websocket: 5", "Expected websocket to be a map"),
        ("websocket { port: 1, no_tls: true, origins: [ 'a' ] }", "parse allowed origin: .a"),
        ("websocket { port: 1, no_tls: true, origin: 'http://a:b' }", "parse allowed origin"),
        ("websocket { port: 1, no_tls: true, jwt_cookie: j }", "trusted operators"),
        ("websocket { port: 1, no_tls: true, no_auth_user: z }", "users/nkeys are not defined"),
        (USERS + "ws { port: 1, no_tls: true, no_auth_user: z }", "not present as user"),
        (
            USERS + "ws { port: 1, no_tls: true, authorization { user: z } }",
            "username not compatible",
        ),
        (USERS + "ws { port: 1, no_tls: true, authorization { token: z } }", "token not compat"),
        ("ws { authorization { hokus: 1 } }", 'unknown field "hokus"'),
        ('ws { headers { "a\\r\\nb": 1 } }', "invalid header"),
    ],
)
def test_refusals(tmp_path: Path, text: str, error: str) -> None:
    with pytest.raises((BadOptions, BadSettings), match=error):
        loaded(tmp_path, text)


def test_a_process_logs_where_it_listens(tmp_path: Path) -> None:
    (tmp_path / "server.conf").write_text(
        "port: -1\nhost: 127.0.0.1\nports_file_dir: '.'\n"
        "websocket { host: 127.0.0.1, port: -1, no_tls: true }\n"
    )
    with Process("-c", "server.conf", cwd=tmp_path) as process:
        line = next(one for one in process.log.splitlines() if "websocket clients" in one)
        shown = line.partition("Listening for websocket clients on ")[2]
        assert shown.startswith("ws://127.0.0.1:")
        path = tmp_path / f"nats-server_{process.child.pid}.ports"
        deadline = time.monotonic() + PATIENCE
        while not path.exists():
            assert time.monotonic() < deadline
        assert json.loads(path.read_text())["websocket"] == [shown]
        assert process.end() == 0
