"""A resumed TLS session does not outlive the client's certificate."""

from __future__ import annotations

import ssl
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from broker.config.options import TlsOptions
from broker.server.client.tls import TlsFailed, TlsLayer, route_contexts, server_context

CERTS = Path(__file__).parents[2] / "support" / "certs"
VERIFY = TlsOptions(
    cert_file=str(CERTS / "server-cert.pem"),
    key_file=str(CERTS / "server-key.pem"),
    ca_file=str(CERTS / "ca.pem"),
    verify=True,
)
CENTURY_S = 100 * 365 * 86400.0


def client_context(version: ssl.TLSVersion) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(CERTS / "ca.pem"))
    context.load_cert_chain(CERTS / "client-cert.pem", CERTS / "client-key.pem")
    context.maximum_version = version
    return context


def handshake(
    server: TlsLayer, context: ssl.SSLContext, session: ssl.SSLSession | None
) -> ssl.SSLObject:
    """Both sides over memory, and one message each way, after which tickets have arrived."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname="localhost", session=session)
    done = False
    for _ in range(8):
        if not done:
            try:
                client.do_handshake()
                done = True
            except ssl.SSLWantReadError:
                pass
        server.receive(outgoing.read())
        incoming.write(server.pending_output())
        if done and server.established:
            break
    incoming.write(server.encrypt(b"INFO"))
    assert client.read(4) == b"INFO"
    return client


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_an_expired_certificate_is_refused_although_the_session_is_known(
    version: ssl.TLSVersion,
) -> None:
    context, dialing = server_context(VERIFY), client_context(version)
    standing = TlsLayer(context)  # a session of a connection that was cut off is forgotten
    first = handshake(standing, dialing, None)
    later = TlsLayer(context, now=lambda: time.time() + CENTURY_S)
    if version is ssl.TLSVersion.TLSv1_2:  # resumed from the server's memory, without a ticket
        with pytest.raises(TlsFailed, match="expired"):
            handshake(later, dialing, first.session)
        return
    # The whole handshake is made, so OpenSSL has checked the certificate.
    assert not handshake(later, dialing, first.session).session_reused


def test_a_session_may_resume_while_the_certificate_is_valid() -> None:
    context, dialing = server_context(VERIFY), client_context(ssl.TLSVersion.TLSv1_2)
    standing = TlsLayer(context)  # a session of a connection that was cut off is forgotten
    first = handshake(standing, dialing, None)
    assert handshake(TlsLayer(context), dialing, first.session).session_reused


def test_without_client_certificates_sessions_resume() -> None:
    context = server_context(replace(VERIFY, verify=False))
    dialing = client_context(ssl.TLSVersion.TLSv1_3)
    standing = TlsLayer(context)  # a session of a connection that was cut off is forgotten
    first = handshake(standing, dialing, None)
    assert handshake(TlsLayer(context), dialing, first.session).session_reused


def test_links_between_nodes_use_tls_13_only() -> None:
    for context in route_contexts(VERIFY):
        assert context.minimum_version is ssl.TLSVersion.TLSv1_3
