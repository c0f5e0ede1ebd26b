"""Mutual TLS between nodes: a node without a valid certificate is refused, others go on."""

from __future__ import annotations

import asyncio
import logging
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from raft.transport.transport import Transport, TransportLimits
from tests.support.transport_rig import Cluster, cluster_test, loop_kind, until

__all__ = ["loop_kind"]  # a fixture: every test here runs on both event loops

pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="makes its certificates with openssl"
)
KEY = "-nodes -newkey ec -pkeyopt ec_paramgen_curve:P-256"
PATIENT = TransportLimits(retry_last_seconds=0.1, ping_seconds=1.0)


class Certificates:
    """Two authorities, and certificates that one of them has signed."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        for authority in ("ours", "foreign"):
            self._openssl(
                f"req -x509 {KEY} -days 2 -subj /CN={authority}"
                f" -keyout {authority}.key -out {authority}.pem"
            )
        self._sign("good", by="ours")
        self._sign("unknown", by="foreign")
        self._sign("expired", by="ours", days=-1)
        self._sign("misnamed", by="ours", address="127.9.9.9")

    def _openssl(self, arguments: str) -> None:
        subprocess.run(
            ["openssl", *arguments.split()], check=True, capture_output=True, cwd=self.directory
        )

    def _sign(self, name: str, *, by: str, days: int = 2, address: str = "127.0.0.1") -> None:
        self._openssl(
            f"req -new {KEY} -subj /CN={name} -addext subjectAltName=IP:{address}"
            f" -keyout {name}.key -out {name}.csr"
        )
        self._openssl(
            f"x509 -req -in {name}.csr -CA {by}.pem -CAkey {by}.key -CAcreateserial"
            f" -days {days} -copy_extensions copy -out {name}.pem"
        )

    def contexts(
        self, name: str | None, *, verify: bool = True
    ) -> tuple[ssl.SSLContext, ssl.SSLContext]:
        """For accepting and dialing. `verify` is False: a dialer that accepts any server."""
        accepting = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        dialling = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        accepting.verify_mode = ssl.CERT_REQUIRED
        if not verify:
            dialling.check_hostname = False
            dialling.verify_mode = ssl.CERT_NONE
        for context in (accepting, dialling):
            context.load_verify_locations(self.directory / "ours.pem")
            if name is not None:
                chain = self.directory / f"{name}.pem", self.directory / f"{name}.key"
                context.load_cert_chain(*chain)
        return accepting, dialling


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


async def good_pair(c: Cluster, certificates: Certificates) -> tuple[Transport, Transport]:
    tls = certificates.contexts("good")
    a = await c.start("a", tls=tls, limits=PATIENT)
    b = await c.start("b", a.port, tls=tls, limits=PATIENT)
    await until(c.is_full_mesh)
    return a, b


async def undisturbed(c: Cluster, a: Transport, b: Transport) -> None:
    got: list[bytes] = []
    a.register(16, lambda _node, payload: got.append(payload))
    assert b.send(a.node, 16, b"still here")
    await until(lambda: got == [b"still here"])
    assert c.events["a"] == [("b", True)]
    assert set(a.peers()) == {b.node}


@pytest.mark.parametrize(
    ("shown", "reason"),
    [
        ("unknown", "its certificate was rejected: unable to get local issuer certificate"),
        ("expired", "its certificate was rejected: certificate has expired"),
        (None, "peer did not return a certificate"),
    ],
)
def test_a_dialer_without_a_good_certificate_is_refused(
    certificates: Certificates,
    caplog: pytest.LogCaptureFixture,
    shown: str | None,
    reason: str,
) -> None:
    async def body(c: Cluster) -> None:
        a, b = await good_pair(c, certificates)
        x = await c.start(
            "x", a.port, tls=certificates.contexts(shown, verify=False), limits=PATIENT
        )
        await until(lambda: a.statistics().refused.get("tls", 0) >= 2)  # it retries
        assert not x.peers()
        await undisturbed(c, a, b)

    with caplog.at_level(logging.WARNING, logger="raft.transport"):
        cluster_test(body)
    lines = [r.getMessage() for r in caplog.records if r.getMessage().startswith("a: ")]
    assert lines == [f"a: TLS handshake with 127.0.0.1 failed: {reason}"]


@pytest.mark.parametrize(
    ("shown", "reason"),
    [
        ("unknown", "unable to get local issuer certificate"),
        ("expired", "certificate has expired"),
        ("misnamed", "IP address mismatch, certificate is not valid for '127.0.0.1'."),
    ],
)
def test_an_accepting_server_without_a_good_certificate_is_refused(
    certificates: Certificates, caplog: pytest.LogCaptureFixture, shown: str, reason: str
) -> None:
    async def body(c: Cluster) -> None:
        x = await c.start("x", tls=certificates.contexts(shown), limits=PATIENT)
        a = await c.start("a", x.port, tls=certificates.contexts("good"), limits=PATIENT)
        await until(lambda: a.statistics().refused.get("tls", 0) >= 2)
        assert not a.peers()
        assert not a.connected(x.node)

    with caplog.at_level(logging.WARNING, logger="raft.transport"):
        cluster_test(body)
    (line,) = [r.getMessage() for r in caplog.records if r.getMessage().startswith("a: ")]
    assert line.startswith("a: TLS handshake with the server at 127.0.0.1:")
    assert line.endswith(f"its certificate was rejected: {reason}")


def test_a_connection_without_tls_is_closed(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(c: Cluster) -> None:
        a, b = await good_pair(c, certificates)
        reader, writer = await asyncio.open_connection("127.0.0.1", a.port)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        await reader.read()
        writer.close()
        await until(lambda: a.statistics().refused == {"tls": 1})
        await undisturbed(c, a, b)

    with caplog.at_level(logging.WARNING, logger="raft.transport"):
        cluster_test(body)
    (line,) = [r.getMessage() for r in caplog.records]
    assert line == "a: TLS handshake with 127.0.0.1 failed: http request"


def test_unfinished_handshakes_are_bounded_in_number_and_time(certificates: Certificates) -> None:
    async def body(c: Cluster) -> None:
        tls = certificates.contexts("good")
        limits = TransportLimits(handshakes_max=2, connect_seconds=0.5)
        a = await c.start("a", tls=tls, limits=limits)
        silent = [await asyncio.open_connection("127.0.0.1", a.port) for _ in range(5)]
        await until(lambda: a.statistics().refused.get("handshake") == 3)
        await until(lambda: a.statistics().refused.get("tls") == 2)  # the other two timed out
        for _, writer in silent:
            writer.transport.abort()
        b = await c.start("b", a.port, tls=tls)
        await until(lambda: a.connected(b.node) and b.connected(a.node))

    cluster_test(body)
