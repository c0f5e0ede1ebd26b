"""Certificates of clients: the user that one names, keys that are pinned, ciphers."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from broker.config.options import Authorization, TlsOptions, User
from broker.credentials.certificates import key_fingerprint, subject_text, user_names
from broker.server.server import Server
from tests.server.client.test_tls import CERTS, TLS, client_context, talk
from tests.support.server import PATIENCE, run, running

PEM = (CERTS / "client-cert.pem").read_text()
PINNED = key_fingerprint(ssl.PEM_cert_to_DER_cert(PEM))


def with_tls(**more: Any) -> TlsOptions:
    return msgspec.structs.replace(TLS, ca_file=str(CERTS / "ca.pem"), **more)


async def verdict(server: Server) -> bytes:
    """What a client with a certificate and without a password gets; nothing if it is cut off."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    async with asyncio.timeout(PATIENCE):
        await reader.readline()
        try:
            await writer.start_tls(client_context(certificate=True), server_hostname="localhost")
            writer.write(b'CONNECT {"verbose":false}\r\nPING\r\n')
            return await reader.readline()
        except (ssl.SSLError, ConnectionError):
            return b""
        finally:
            writer.close()
            with suppress(ssl.SSLError, ConnectionError):
                await writer.wait_closed()


@pytest.mark.parametrize(
    ("name", "admitted"), [("CN=client", True), ("localhost", True), ("CN=other", False)]
)
def test_the_certificate_says_who_the_client_is(name: str, admitted: bool) -> None:
    async def test() -> None:
        users = Authorization(users=(User(name, "a password that nobody gives"),))
        async with running(tls=with_tls(verify_and_map=True), authorization=users) as server:
            if admitted:
                await talk(server, client_context(certificate=True))
                return
            assert b"Authorization Violation" in await verdict(server)

    run(test())


@pytest.mark.parametrize("pinned", [PINNED, "0" * 64])
def test_only_pinned_keys_are_admitted(pinned: str) -> None:
    async def test() -> None:
        tls = with_tls(verify=True, pinned_certs=frozenset([pinned]))
        async with running(tls=tls) as server:
            assert (await verdict(server) == b"PONG\r\n") is (pinned == PINNED)

    run(test())


def test_the_ciphers_of_tls_1_2_are_those_of_the_configuration() -> None:
    async def test() -> None:
        tls = with_tls(ciphers="ECDHE-ECDSA-AES256-GCM-SHA384:ECDHE-RSA-AES256-GCM-SHA384")
        async with running(tls=tls) as server:
            context = client_context()
            context.maximum_version = ssl.TLSVersion.TLSv1_2
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            await reader.readline()
            await writer.start_tls(context, server_hostname="localhost")
            assert "AES256-GCM" in writer.get_extra_info("cipher")[0]
            writer.close()
            await writer.wait_closed()

    run(test())


def test_names_are_tried_in_nats_servers_order() -> None:
    certificate = {
        "subject": (
            (("countryName", "US"),),
            (("organizationName", "a, b"),),
            (("commonName", "x"),),
        ),
        "subjectAltName": (("DNS", "h"), ("URI", "spiffe://x"), ("email", "a@b"), ("DNS", "i")),
    }
    expected = ("a@b", "h", "i", "spiffe://x", "CN=x,O=a\\, b,C=US")
    assert user_names(certificate) == expected
    assert subject_text(()) == ""
