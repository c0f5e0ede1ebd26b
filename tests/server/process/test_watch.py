"""--watch: a changed configuration and rotated certificates are taken over without a restart.

Spec: Kubernetes swaps the files of a mounted Secret by a link."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID

from broker.config.flags import UsageError
from broker.config.load import load, parse_flags
from broker.config.watched_files import digest, files_of
from broker.local import free_ports
from tests.support.authority import Authority, mount
from tests.support.server import PATIENCE, Process

CONFIGURATION = """
listen: "127.0.0.1:-1"
server_name: watched
include "limits.conf"
tls {{ {files} }}
https: "127.0.0.1:{https}"
websocket {{ listen: "127.0.0.1:{websocket}", tls {{ {files} }} }}
cluster {{ name: one, listen: "127.0.0.1:{cluster}", tls {{ {files} }} }}
"""


def shown_name(port: int, *, starts: bool, client: Path | None = None) -> str:
    """The common name of the certificate that the server presents on this port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if client is not None:
        context.load_cert_chain(client / "tls.crt", client / "tls.key")
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as plain:
        if starts:
            assert b"INFO" in plain.recv(64 * 1024)
        with context.wrap_socket(plain) as secure:
            raw = secure.getpeercert(binary_form=True)
    assert raw is not None
    (found,) = x509.load_der_x509_certificate(raw).subject.get_attributes_for_oid(
        NameOID.COMMON_NAME
    )
    return str(found.value)


def test_rotated_certificates_and_settings_are_taken_over(tmp_path: Path) -> None:
    authority, tls = Authority(), tmp_path / "tls"
    mount(tls, authority.sign("first", ["127.0.0.1"]))
    https, websocket, cluster = free_ports(3)
    files = f'cert_file: "{tls}/tls.crt", key_file: "{tls}/tls.key", ca_file: "{tls}/ca.crt"'
    config = tmp_path / "server.conf"
    (tmp_path / "limits.conf").write_text("max_payload: 1000\n")
    config.write_text(
        CONFIGURATION.format(files=files, https=https, websocket=websocket, cluster=cluster)
    )

    def names(port: int) -> list[str]:
        return [
            shown_name(port, starts=True),
            shown_name(https, starts=False),
            shown_name(websocket, starts=False),
            shown_name(cluster, starts=False, client=tls),
        ]

    with Process("-c", str(config), "--watch", "50ms") as process:
        port = process.port
        assert names(port) == ["first"] * 4
        mount(tls, authority.sign("second", ["127.0.0.1"]))
        process.wait_for("Reloaded server configuration")
        assert names(port) == ["second"] * 4

        process.log = ""
        (tmp_path / "limits.conf").write_text("max_payload: 2000\n")
        process.wait_for("Reloaded server configuration")
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as plain:
            assert b'"max_payload":2000' in plain.recv(64 * 1024)
        # A broken one is refused and said once; the server goes on with what it has.
        mount(tls, {"ca.crt": authority.pem, "tls.crt": b"", "tls.key": b""})
        process.wait_for("Failed to reload server configuration")
        assert shown_name(port, starts=True) == "second"


def test_all_files_of_a_configuration_are_watched(tmp_path: Path) -> None:
    (tmp_path / "inner.conf").write_text("max_payload: 1000\n")
    (tmp_path / "remote.creds").write_text("")
    config = tmp_path / "server.conf"
    config.write_text(
        'include "inner.conf"\n'
        'jetstream { remotes { west { urls: ["nats://h:1"], creds: "remote.creds" } } }\n'
        'tls { cert_file: "a.pem", key_file: "b.pem" }\n'
    )
    loaded = load(parse_flags(["-c", str(config)]))
    found = files_of(loaded.options, loaded.included)
    assert set(found) == {
        str(config), str(tmp_path / "inner.conf"), "remote.creds", "a.pem", "b.pem",
    }  # fmt: skip
    before = digest(found)
    assert digest(found) == before
    (tmp_path / "inner.conf").write_text("max_payload: 2000\n")
    assert digest(found) != before


@pytest.mark.parametrize("text", ["", "often", "0s", "-1s"])
def test_a_bad_interval_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="such as 10s"):
        parse_flags(["--watch", text])
