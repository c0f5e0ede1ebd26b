"""TLS on the client port: upgrade after INFO, handshake first, certificates, and refusals."""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import suppress
from pathlib import Path

from broker.config.options import SECOND, TlsOptions
from broker.server.server import Server
from tests.support.clients import open_client
from tests.support.server import PATIENCE, RawClient, run, running, until

CERTS = Path(__file__).parents[2] / "support" / "certs"
TLS = TlsOptions(
    cert_file=str(CERTS / "server-cert.pem"),
    key_file=str(CERTS / "server-key.pem"),
    ca_file=str(CERTS / "ca.pem"),
)


def client_context(*, certificate: bool = False) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(CERTS / "ca.pem"))
    if certificate:
        context.load_cert_chain(CERTS / "client-cert.pem", CERTS / "client-key.pem")
    return context


async def talk(server: Server, context: ssl.SSLContext, **settings: object) -> None:
    client = await open_client(
        f"tls://localhost:{server.port}", tls=context, allow_reconnect=False, **settings
    )
    sub = await client.subscribe("secret")
    payload = b"x" * 900_000
    await client.publish("secret", payload)
    message = await sub.next_msg(timeout=PATIENCE)
    assert message.data == payload
    await client.close()


def test_upgrade_follows_the_info() -> None:
    async def test() -> None:
        async with running(tls=TLS) as server:
            await talk(server, client_context())
            raw = await RawClient.open(server, connect=None)
            assert raw.info["tls_required"] is True
            assert "tls_verify" not in raw.info
            raw.close()

    run(test())


def test_handshake_first_sends_nothing_in_clear() -> None:
    async def test() -> None:
        tls = TlsOptions(**{**_fields(TLS), "handshake_first": True})
        async with running(tls=tls) as server:
            await talk(server, client_context(), tls_handshake_first=True)

    run(test())


def test_handshake_first_with_fallback_serves_both_kinds() -> None:
    async def test() -> None:
        tls = TlsOptions(
            **{**_fields(TLS), "handshake_first": True, "handshake_fallback_ns": SECOND // 20}
        )
        async with running(tls=tls) as server:
            await talk(server, client_context(), tls_handshake_first=True)
            await talk(server, client_context())

    run(test())


def test_verify_requires_a_client_certificate() -> None:
    async def test() -> None:
        tls = TlsOptions(**{**_fields(TLS), "verify": True})
        async with running(tls=tls) as server:
            await talk(server, client_context(certificate=True))
            raw = await RawClient.open(server, connect=None)
            assert raw.info["tls_verify"] is True
            raw.close()
            await until(lambda: not server.connections)
            context = client_context()

            def refused() -> None:
                # With TLS 1.3 the client notices the refusal only when it reads, if at all.
                with (
                    socket.create_connection(("127.0.0.1", server.port), PATIENCE) as sock,
                    suppress(ssl.SSLError, ConnectionError),
                ):
                    sock.recv(4096)
                    with context.wrap_socket(sock, server_hostname="localhost") as tls_sock:
                        assert tls_sock.recv(4096) == b""

            await asyncio.get_running_loop().run_in_executor(None, refused)
            await until(lambda: not server.connections)
            assert server.connections.history[-1].reason == "TLS Handshake Failure"

    run(test())


def test_allow_non_tls_decides_by_the_first_byte() -> None:
    async def test() -> None:
        async with running(tls=TLS, allow_non_tls=True) as server:
            plain = await RawClient.open(server)
            assert plain.info["tls_available"] is True
            assert "tls_required" not in plain.info
            assert await plain.flush() == b""
            plain.close()
            context = client_context()

            def secured() -> bytes:
                with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as sock:
                    sock.recv(4096)
                    with context.wrap_socket(sock, server_hostname="localhost") as tls:
                        tls.sendall(b'CONNECT {"verbose":false}\r\nPING\r\n')
                        return tls.recv(6)

            got = await asyncio.get_running_loop().run_in_executor(None, secured)
            assert got == b"PONG\r\n"

    run(test())


def test_plain_text_on_a_tls_port_is_closed() -> None:
    async def test() -> None:
        async with running(tls=TLS) as server:
            client = await RawClient.open(server)
            client.send(b"PING\r\n")
            await client.end()
            await until(lambda: not server.connections)

    run(test())


def test_a_missing_handshake_gets_an_error_in_clear_text() -> None:
    async def test() -> None:
        tls = TlsOptions(**{**_fields(TLS), "timeout_ns": SECOND // 20})
        async with running(tls=tls) as server:
            client = await RawClient.open(server, connect=None)
            assert await client.end() == b"-ERR 'Secure Connection - TLS Required'\r\n"

    run(test())


def _fields(options: TlsOptions) -> dict[str, object]:
    return {
        "cert_file": options.cert_file,
        "key_file": options.key_file,
        "ca_file": options.ca_file,
    }
