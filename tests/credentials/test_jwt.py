"""JWTs: both versions are decoded; modified ones are refused."""

from __future__ import annotations

import base64

import pytest

from broker.credentials.jwt import BadToken, decode, inside
from broker.credentials.nkeys import KeyKind
from tests.support.keys import Key, token

OPERATOR = Key(KeyKind.OPERATOR)
ACCOUNT = Key(KeyKind.ACCOUNT)
USER = Key(KeyKind.USER)


@pytest.mark.parametrize("version", [1, 2])
def test_both_versions_are_decoded(version: int) -> None:
    text = token(
        ACCOUNT, "user", USER.public, version=version, name="u", exp=9, nbf=5, nats={"src": ["x"]}
    )
    found = decode(text)
    assert (found.kind, found.version) == ("user", version)
    assert (found.issuer, found.subject, found.name) == (ACCOUNT.public, USER.public, "u")
    assert (found.issued_at, found.expires, found.not_before) == (1_000, 9, 5)
    assert found.claims["src"] == ["x"]


@pytest.mark.parametrize("version", [1, 2])
def test_a_change_breaks_the_signature(version: int) -> None:
    head, _, signature = token(ACCOUNT, "user", USER.public, version=version).split(".")
    other = token(ACCOUNT, "user", USER.public, version=version, exp=1).split(".")[1]
    with pytest.raises(BadToken, match=r"failed V\d signature verification"):
        decode(f"{head}.{other}.{signature}")


def test_versions_sign_different_things() -> None:
    """A signature of the payload alone is not valid for version 2."""
    head, body, _ = token(ACCOUNT, "user", USER.public).split(".")
    signed = base64.urlsafe_b64encode(ACCOUNT.sign(body.encode())).decode().rstrip("=")
    with pytest.raises(BadToken, match=r"failed V\d signature verification"):
        decode(f"{head}.{body}.{signed}")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "3 chunks"),
        ("a.b", "3 chunks"),
        ("a.b.c.d", "3 chunks"),
        ("!.!.!", "unreadable"),
        ("é.é.é", "unreadable"),
        ("e30.e30.e30", "algorithm"),
        ("W10.e30.e30", "unreadable"),
        (token(ACCOUNT, "hokus", USER.public), "claim of an operator"),
        (token(ACCOUNT, "user", ACCOUNT.public), "subject is not a key"),
        (token(ACCOUNT, "account", ACCOUNT.public), "issuer is not a key"),
        (token(USER, "user", USER.public), "issuer is not a key"),
        (token(OPERATOR, "user", USER.public), "issuer is not a key"),
        (token(ACCOUNT, "user", USER.public, nats={"version": 1}), "does not go with"),
        (token(ACCOUNT, "user", USER.public, exp="soon"), "unreadable"),
    ],
)
def test_malformed_tokens_are_refused(text: str, why: str) -> None:
    with pytest.raises(BadToken, match=why):
        decode(text)


def test_a_token_file_may_have_begin_and_end_lines() -> None:
    text = token(OPERATOR, "operator", OPERATOR.public)
    assert inside(f" {text}\n") == text
    assert inside(f"-----BEGIN NATS OPERATOR JWT-----\n{text}\n---END---\n") == text
    assert inside("") == ""
