"""Logging in to an origin: creds, nkeys, a private CA and a client certificate."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from broker.cluster.origins.origin_connection import OriginConnection, OriginLost
from broker.cluster.origins.origin_login import OriginAddress
from broker.config.load import load, parse_flags
from broker.config.options import Authorization, Remote, TlsOptions, User
from broker.credentials.nkeys import KeyKind
from broker.server.server import Server
from tests.accounts.test_operator_mode import ACCOUNT, USER, account, trusting, user
from tests.support.keys import Key
from tests.support.server import run, running

CERTS = Path(__file__).parents[2] / "support" / "certs"
SERVER_TLS = TlsOptions(
    cert_file=str(CERTS / "server-cert.pem"),
    key_file=str(CERTS / "server-key.pem"),
    ca_file=str(CERTS / "ca.pem"),
    verify=True,
)
CLIENT_TLS = TlsOptions(
    cert_file=str(CERTS / "client-cert.pem"),
    key_file=str(CERTS / "client-key.pem"),
    ca_file=str(CERTS / "ca.pem"),
)
NKEY = Key(KeyKind.USER)
CREDS = """-----BEGIN NATS USER JWT-----
{}
------END NATS USER JWT------

-----BEGIN USER NKEY SEED-----
{}
------END USER NKEY SEED------
"""


async def greeted(server: Server, **login: object) -> None:
    """Raises OriginLost when the server does not let it in."""
    address = OriginAddress((f"nats://localhost:{server.port}",), **login)  # type: ignore[arg-type]
    origin = await OriginConnection.connect(address)
    origin.close()


def test_a_seed_signs_the_nonce(tmp_path: Path) -> None:
    seed = tmp_path / "seed"

    async def test() -> None:
        auth = Authorization(users=(User(NKEY.public, nkey=True),))
        async with running(authorization=auth) as server:
            for text in (NKEY.seed, f"-----BEGIN USER NKEY SEED-----\n{NKEY.seed}\n"):
                seed.write_text(text)
                await greeted(server, nkey=str(seed))
            seed.write_text(Key(KeyKind.USER).seed)
            with pytest.raises(OriginLost, match="Authorization Violation"):
                await greeted(server, nkey=str(seed))

    run(test())


def test_a_creds_file_has_the_token_and_its_seed(tmp_path: Path) -> None:
    creds = tmp_path / "user.creds"

    async def test() -> None:
        async with running(**trusting(tmp_path, (ACCOUNT, account()))) as server:
            creds.write_text(CREDS.format(user(), USER.seed))
            await greeted(server, creds=str(creds))
            creds.write_text(CREDS.format(user(), NKEY.seed))
            with pytest.raises(OriginLost, match="Authorization Violation"):
                await greeted(server, creds=str(creds))

    run(test())


@pytest.mark.parametrize("first", [False, True])
def test_a_private_ca_and_a_client_certificate(*, first: bool) -> None:
    async def test() -> None:
        async with running(tls=replace(SERVER_TLS, handshake_first=first)) as server:
            ours = replace(CLIENT_TLS, handshake_first=first)
            await greeted(server, tls=ours)
            with pytest.raises(OriginLost):  # no certificate of ours
                await greeted(server, tls=replace(ours, cert_file="", key_file=""))
            with pytest.raises(OriginLost, match="certificate verify failed"):
                await greeted(server, tls=replace(ours, ca_file=""))
            await greeted(server, tls=replace(ours, ca_file="", insecure=True))

    run(test())


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "No such file"),
        ("hello", "base32|not a seed"),
        (NKEY.seed[:20] + ("A" if NKEY.seed[20] != "A" else "B") + NKEY.seed[21:], "damaged"),
        (NKEY.public, "not a seed"),
        ("\x00\xff", "base32|not a seed"),
    ],
    ids=["no file", "a word", "damaged", "a public key", "bytes"],
)
def test_a_bad_seed_is_named_with_its_file(tmp_path: Path, text: str | None, reason: str) -> None:
    seed = tmp_path / "seed"
    if text is not None:
        seed.write_text(text)

    async def test() -> None:
        async with running() as server:
            with pytest.raises(OriginLost, match=reason) as refused:
                await greeted(server, nkey=str(seed))
            assert str(seed) in str(refused.value)

    run(test())


def test_the_remotes_of_a_configuration_file(tmp_path: Path) -> None:
    path = tmp_path / "server.conf"
    path.write_text(
        """jetstream { remotes {
            east { urls: ["tls://e"], credentials: "/e.creds", tls { ca_file: "/ca.pem" } }
            west { url: "nats://w", nkey: "/w.nk" }
        } }"""
    )
    jetstream = load(parse_flags(["-c", str(path)])).options.jetstream
    assert jetstream is not None
    assert jetstream.remotes == {
        "east": Remote(("tls://e",), creds="/e.creds", tls=TlsOptions(ca_file="/ca.pem")),
        "west": Remote(("nats://w",), nkey="/w.nk"),
    }
