"""Operator mode: users present JWTs signed by accounts of the operator."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.json import decode, encode
from msgspec.structs import replace

from broker.config.load import BadSettings, load, parse_flags
from broker.config.options import Options
from broker.credentials.nkeys import KeyKind
from broker.server.server import Server
from tests.accounts.test_nkey_users import REFUSED, kept_out, url
from tests.support.clients import open_client
from tests.support.keys import Key, token
from tests.support.server import PATIENCE, RawClient, run, running, until

OPERATOR, SIGNER, STRANGER = (Key(KeyKind.OPERATOR) for _ in range(3))
ACCOUNT, ACCOUNT_SIGNER, SCOPED, OTHER = (Key(KeyKind.ACCOUNT) for _ in range(4))
USER = Key(KeyKind.USER)
FREE = {"subs": -1, "data": -1, "payload": -1}
OPEN = {**FREE, "conn": -1, "imports": -1, "exports": -1, "wildcards": True}
SCOPE = {
    "kind": "user_scope",
    "key": SCOPED.public,
    "template": {**FREE, "pub": {"allow": ["of.{{name()}}"]}},
}


def operator(**claims: Any) -> str:
    named = {"signing_keys": [SIGNER.public], **claims}
    return token(OPERATOR, "operator", OPERATOR.public, name="O", nats=named)


def account(key: Key = ACCOUNT, signer: Key = SIGNER, exp: int = 0, **claims: Any) -> str:
    keys = [ACCOUNT_SIGNER.public, SCOPE] if key is ACCOUNT else []
    named = {"limits": OPEN, "signing_keys": keys, **claims}
    return token(signer, "account", key.public, name="acme", exp=exp, nats=named)


def user(signer: Key = ACCOUNT, **fields: Any) -> str:
    claims = {**FREE, **fields.pop("nats", {})}
    if signer in (ACCOUNT_SIGNER, SCOPED):
        claims["issuer_account"] = ACCOUNT.public
    return token(signer, "user", USER.public, name="joe", nats=claims, **fields)


def loaded(tmp_path: Path, text: str) -> Options:
    path = tmp_path / "server.conf"
    path.write_text(text)
    return load(parse_flags(["-c", str(path)])).options


def trusting(tmp_path: Path, *accounts: tuple[Key, str], **claims: Any) -> dict[str, Any]:
    """Options of a server with these accounts, loaded from a configuration file."""
    preload = "\n".join(f"{key.public}: {text}" for key, text in accounts)
    text = f"operator: {operator(**claims)}\nresolver: MEMORY\nresolver_preload {{\n{preload}\n}}"
    options = loaded(tmp_path, text)
    names = ("authorization", "accounts", "system_account")
    return {name: getattr(options, name) for name in names}


async def say(server: Server, jwt: str, *, signed: bool = True) -> RawClient:
    client = await RawClient.open(server, connect=None)
    fields = {"jwt": jwt, "verbose": False, "headers": True}
    if signed:
        fields["sig"] = USER.sign_nonce(client.info["nonce"])
    client.send(b"CONNECT %b\r\nPING\r\n" % encode(fields))
    return client


async def admitted(server: Server, jwt: str, *, signed: bool = True) -> RawClient:
    client = await say(server, jwt, signed=signed)
    assert await client.line() == b"PONG\r\n"
    return client


async def refused(server: Server, jwt: str, *, signed: bool = True) -> None:
    assert await (await say(server, jwt, signed=signed)).end() == REFUSED


def creds(tmp_path: Path, jwt: str, seed: str) -> str:
    path = tmp_path / "user.creds"
    path.write_text(
        f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )
    return str(path)


def keys_trusted(tmp_path: Path, *keys: str, more: str = "") -> Options:
    preload = f"resolver_preload {{ {ACCOUNT.public}: {account()} }}"
    text = f"trusted_keys: [{', '.join(keys)}]\nresolver: MEMORY\n{preload}\n{more}"
    return loaded(tmp_path, text)


def test_a_trusted_key_takes_the_place_of_an_operator(tmp_path: Path) -> None:
    async def test() -> None:
        options = keys_trusted(tmp_path, STRANGER.public, SIGNER.public)
        parts = {name: getattr(options, name) for name in ("authorization", "accounts")}
        async with running(**parts) as server:
            (await admitted(server, user())).close()
        options = keys_trusted(tmp_path, STRANGER.public)  # did not sign the account
        assert options.authorization.tokens == {}

    run(test())


def test_what_is_no_operator_is_not_trusted(tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match="valid public operator nkey"):
        keys_trusted(tmp_path, ACCOUNT.public)
    with pytest.raises(BadSettings, match="conflicting options"):
        keys_trusted(tmp_path, SIGNER.public, more=f"operator: {operator()}")


def test_the_official_client_uses_a_credentials_file(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(**trusting(tmp_path, (ACCOUNT, account()))) as server:
            given = creds(tmp_path, user(exp=int(time.time()) + 3600), USER.seed)
            client = await open_client(url(server), user_credentials=given)
            (connection,) = server.connections.values()
            assert connection.identity.user == USER.public
            assert connection.account.name == ACCOUNT.public
            answer = await client.request("$SYS.REQ.USER.INFO", timeout=PATIENCE)
            shown = decode(answer.data)["data"]
            assert shown["user"] == USER.public
            assert 0 < shown["expires"] <= 3600 * 10**9
            sub = await client.subscribe("x")
            await client.publish("x", b"1")
            assert (await sub.next_msg(timeout=PATIENCE)).data == b"1"
            await client.close()
            wrong = creds(tmp_path, user(), Key(KeyKind.USER).seed)
            await kept_out(server, user_credentials=wrong)

    run(test())


@pytest.mark.parametrize("version", [1, 2])
def test_the_signature_chain_from_the_operator_must_be_valid(tmp_path: Path, version: int) -> None:
    async def test() -> None:
        settings = trusting(tmp_path, (ACCOUNT, account()), (OTHER, account(OTHER, STRANGER)))
        async with running(**settings) as server:
            for signer in (ACCOUNT, ACCOUNT_SIGNER):
                (await admitted(server, user(signer, version=version))).close()
            await refused(server, user(OTHER, version=version))  # signed by another operator
            await refused(server, user(Key(KeyKind.ACCOUNT), version=version))
            forged = {"issuer_account": ACCOUNT.public}
            await refused(server, user(OTHER, version=version, nats=forged))
            await refused(server, account())
            await refused(server, "")
            await refused(server, "e30.e30.e30")
            await refused(server, user(version=version), signed=False)

    run(test())


def test_time_limits_revocations_and_source_networks(tmp_path: Path) -> None:
    now = int(time.time())
    gone = Key(KeyKind.USER).public
    revoked = {gone: now, USER.public: 999}

    async def test() -> None:
        settings = trusting(tmp_path, (ACCOUNT, account(revocations=revoked)))
        async with running(**settings) as server:
            (await admitted(server, user(exp=now + 1000, nbf=now - 1000))).close()
            await refused(server, user(exp=now - 1))
            await refused(server, user(nbf=now + 1000))
            await refused(server, user(iat=999))  # tokens issued before 1000 are revoked
            (await admitted(server, user(nats={"src": ["10.0.0.0/8", "127.0.0.0/8"]}))).close()
            await refused(server, user(nats={"src": ["10.0.0.0/8"]}))
            await refused(server, user(nats={"src": [5]}))
            (await admitted(server, user(version=1, nats={"src": "127.0.0.1/32"}))).close()
            types = {"allowed_connection_types": ["STANDARD"]}
            (await admitted(server, user(nats=types))).close()
            await refused(server, user(nats={"allowed_connection_types": ["WEBSOCKET"]}))
            always = [
                {"start": "00:00:00", "end": "23:59:59"},
                {"start": "23:59:59", "end": "12:00:00"},
            ]
            (await admitted(server, user(nats={"times": always}))).close()
            start = time.strftime("%H:%M:%S", time.gmtime(now + 3600 * 6))
            end = time.strftime("%H:%M:%S", time.gmtime(now + 3600 * 7))
            if start < end:
                await refused(server, user(nats={"times": [{"start": start, "end": end}]}))
            await refused(server, user(nats={"times": [{"start": "late"}]}))
        everybody = account(revocations={"*": 1_000})
        async with running(**trusting(tmp_path, (ACCOUNT, everybody))) as server:
            await refused(server, user())
            (await admitted(server, user(iat=1_001))).close()

    run(test())


def test_bearer_tokens_need_no_signature_where_they_are_allowed(tmp_path: Path) -> None:
    bearer = user(nats={"bearer_token": True})

    async def test() -> None:
        async with running(**trusting(tmp_path, (ACCOUNT, account()))) as server:
            (await admitted(server, bearer, signed=False)).close()
        strict = account(limits={**OPEN, "disallow_bearer": True})
        async with running(**trusting(tmp_path, (ACCOUNT, strict))) as server:
            await refused(server, bearer, signed=False)
            (await admitted(server, user())).close()

    run(test())


@pytest.mark.parametrize("whose", ["User", "Account"])
def test_an_expired_jwt_closes_the_connection(tmp_path: Path, whose: str) -> None:
    async def is_closed_in(seconds: int) -> bool:
        """False: it had expired before the client was connected."""
        soon = int(time.time()) + seconds
        text = account(exp=soon if whose == "Account" else 0)
        async with running(**trusting(tmp_path, (ACCOUNT, text))) as server:
            client = await say(server, user(exp=soon if whose == "User" else soon + 60))
            if await client.line() != b"PONG\r\n":
                assert time.time() >= soon
                client.close()
                return False
            assert f"-ERR '{whose} Authentication Expired'\r\n".encode() in await client.end()
            assert soon <= time.time() < soon + PATIENCE
            await until(lambda: server.connections.history)
            assert server.connections.history[0].reason == "Authentication Expired"
            await refused(server, user(exp=soon))
        return True

    async def test() -> None:
        assert await is_closed_in(2) or await is_closed_in(10), "a slow machine gets more time"

    run(test())


def test_permissions_and_limits_of_a_user(tmp_path: Path) -> None:
    claims = {"pub": {"allow": ["a.>"], "deny": ["a.b"]}, "subs": 1, "payload": 5}

    async def test() -> None:
        async with running(**trusting(tmp_path, (ACCOUNT, account()))) as server:
            client = await admitted(server, user(nats=claims))
            client.send(b"PUB a.b 0\r\n\r\nPUB b 0\r\n\r\nPUB a.c 0\r\n\r\nSUB x 1\r\nSUB y 2\r\n")
            assert (await client.flush()).splitlines() == [
                b"-ERR 'Permissions Violation for Publish to \"a.b\"'",
                b"-ERR 'Permissions Violation for Publish to \"b\"'",
                b"-ERR 'maximum subscriptions exceeded'",
            ]
            client.send(b"PUB a.c 6\r\n")
            assert await client.end() == b"-ERR 'Maximum Payload Violation'\r\n"

    run(test())


def test_a_scoped_signing_key_sets_the_permissions_of_its_users(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(**trusting(tmp_path, (ACCOUNT, account()))) as server:
            client = await admitted(server, user(SCOPED, nats={"pub": {"allow": ["mine"]}}))
            client.send(b"PUB mine 0\r\n\r\nPUB of.joe 0\r\n\r\n")
            denied = b"-ERR 'Permissions Violation for Publish to \"mine\"'\r\n"
            assert await client.flush() == denied
            client.close()

    run(test())


def test_exports_imports_and_limits_of_accounts(tmp_path: Path) -> None:
    exporter = account(
        OTHER, exports=[{"subject": "news.>", "type": "stream"},
                        {"subject": "secret", "type": "stream", "token_req": True}],
    )  # fmt: skip
    wanted = {"account": OTHER.public, "type": "stream"}
    importer = account(
        limits={**OPEN, "conn": 1},
        imports=[{**wanted, "subject": "news.>", "local_subject": "from.>"},
                 {**wanted, "subject": "secret"}],
    )  # fmt: skip

    async def test() -> None:
        settings = trusting(tmp_path, (ACCOUNT, importer), (OTHER, exporter))
        async with running(**settings) as server:
            reader = await admitted(server, user())
            reader.send(b"SUB from.> 1\r\nSUB secret 2\r\n")
            assert await reader.flush() == b""
            writer = await admitted(server, user(OTHER))
            writer.send(b"PUB secret 1\r\nn\r\nPUB news.a 1\r\ny\r\n")
            assert await reader.line() == b"MSG from.a 1 1\r\n"
            ended = await (await say(server, user())).end()
            assert b"maximum account active connections exceeded" in ended
            reader.close()
            writer.close()

    run(test())


def test_the_operator_names_the_system_account(tmp_path: Path) -> None:
    settings = trusting(tmp_path, (OTHER, account(OTHER)), system_account=OTHER.public)
    assert settings["system_account"] == OTHER.public


def test_a_reload_revokes(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(**trusting(tmp_path, (ACCOUNT, account()))) as server:
            client = await admitted(server, user())
            later = trusting(tmp_path, (ACCOUNT, account(revocations={USER.public: 1_000})))
            assert later["accounts"] == server.options.accounts
            server.reconfigure(replace(server.options, authorization=later["authorization"]))
            assert await client.end() == REFUSED

    run(test())


def test_the_operator_may_be_a_file_or_a_list(tmp_path: Path) -> None:
    path = tmp_path / "op.jwt"
    path.write_text(f"-----BEGIN NATS OPERATOR JWT-----\n{operator()}\n---END---\n")
    for value in (f'"{path}"', f'["{path}", {operator()}]'):
        options = loaded(tmp_path, f"operator: {value}\nresolver: mem")
        assert options.authorization.tokens == {}
        assert options.authorization.required


def test_strict_operators_sign_with_signing_keys_only(tmp_path: Path) -> None:
    by_root = (ACCOUNT, account(signer=OPERATOR))
    settings = trusting(tmp_path, by_root)
    assert list(settings["authorization"].tokens) == [ACCOUNT.public]
    strict = trusting(tmp_path, by_root, strict_signing_key_usage=True)
    assert strict["authorization"].tokens == {}


TIERED = account(limits={"disk_storage": 5, "tiered_limits": {"R1": {}}})
GOOD = f"operator: {operator()}\nresolver: MEMORY\n"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (f"operator: {operator()}", "operators require an account resolver to be configured"),
        (GOOD + "accounts { A {} }", "operators do not allow Accounts to be configured directly"),
        (
            GOOD + "authorization { users: [ {user: a} ] }",
            "operators do not allow users to be configured directly",
        ),
        (GOOD + "no_auth_user: a", "no_auth_user not compatible with Trusted Operator"),
        ("operator: /no/such/file", "error parsing operator JWT: open /no/such/file: no such file"),
        (f"operator: {account()}", "not operator claim"),
        (f"operator: {operator()}x", "error parsing operator JWT: claim failed V2 signature"),
        ("operator: 5", "error parsing operators: unsupported type"),
        ("resolver: 5", "error parsing operator resolver, wrong type"),
        pytest.param(
            f"resolver_preload {{ {ACCOUNT.public}: abc }}", "invalid account JWT", id="not a JWT"
        ),
        ("resolver: hokus", r"error parsing account resolver, should be MEM or\s+URL"),
        ("resolver { type: full }", "dir has no value"),
        ("resolver_preload: 5", "preload should be a map of account_public_key:account_jwt"),
        ("resolver_preload { A: 5 }", "preload map value should be a string JWT"),
        (f"resolver_preload {{ {ACCOUNT.public}: {account(OTHER)} }}", "not of this account"),
        (
            GOOD + f"resolver_preload {{ {ACCOUNT.public}: {TIERED} }}",
            "mutually exclusive",
        ),
    ],
)
def test_bad_configurations_are_reported(tmp_path: Path, text: str, error: str) -> None:
    with pytest.raises(BadSettings, match=error):
        loaded(tmp_path, text)
