"""Authorization callout: a service decides about clients, and nothing else it says counts."""

from __future__ import annotations

import base64
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from broker.accounts.authentication import Authenticator
from broker.accounts.identity import Credentials
from broker.config.load import BadSettings, load, parse_flags
from broker.config.options import AccountOptions, Authorization, CalloutOptions, Options, User
from broker.credentials import jwt, nkeys
from broker.credentials.nkeys import KeyKind
from broker.server.process.private_keys import BadSeal, SealingKey, SigningKey
from broker.server.process.reload import NotReloadable, merge
from broker.server.server import Server
from tests.support.clients import open_client
from tests.support.server import RawClient, run, running

ISSUER = SigningKey(KeyKind.ACCOUNT)
STRANGER = SigningKey(KeyKind.ACCOUNT)
SERVICE_XKEY = SealingKey()
ACCOUNTS = tuple(AccountOptions(name) for name in ("AUTH", "A"))
OTHER_USER = nkeys.encode(KeyKind.USER, bytes(32))

Decide = Callable[[dict[str, Any]], str | bytes | None]


def claims_of(token: str) -> dict[str, Any]:
    middle = token.split(".")[1]
    found = msgspec.json.decode(base64.urlsafe_b64decode(middle + "=" * (-len(middle) % 4)))
    assert isinstance(found, dict)
    return found


def user_token(
    request: dict[str, Any], *, key: SigningKey = ISSUER, account: str = "A", subject: str = "",
    exp: int = 0, **claims: Any,
) -> str:  # fmt: skip
    body = {"pub": {}, "sub": {}, "subs": -1, "payload": -1, "type": "user", "version": 2, **claims}
    whole = {
        "iss": key.public, "sub": subject or request["nats"]["user_nkey"], "aud": account,
        "name": "anna", "iat": int(time.time()), "nats": body,
    }  # fmt: skip
    return jwt.encode(whole | ({"exp": exp} if exp else {}), key.sign)


def answer(
    request: dict[str, Any], user: str = "", *, key: SigningKey = ISSUER, error: str = "",
    **changed: str,
) -> str:  # fmt: skip
    body = {"type": "authorization_response", "version": 2, "jwt": user, "error": error}
    whole = {
        "iss": key.public, "sub": request["nats"]["user_nkey"], "aud": request["iss"],
        "iat": int(time.time()), "nats": body, **changed,
    }  # fmt: skip
    return jwt.encode(whole, key.sign)


@asynccontextmanager
async def deciding(decide: Decide, *, xkey: str = "") -> AsyncIterator[tuple[Server, list[Any]]]:
    """A server whose clients `decide` is asked about, and the requests it has been sent."""
    callout = CalloutOptions(ISSUER.public, ("judge",), "AUTH", xkey)
    users = (User("judge", "secret", account="AUTH"),)
    auth = Authorization(users=users, callout=callout, timeout_ns=500_000_000)
    async with running(authorization=auth, accounts=ACCOUNTS) as server:
        asked: list[Any] = []
        service = await open_client(url(server), user="judge", password="secret")

        async def requested(message: Any) -> None:
            text = message.data
            if xkey:
                text = SERVICE_XKEY.open(text, message.headers["Nats-Server-Xkey"])
            asked.append(claims_of(text.decode()))
            found = decide(asked[-1])
            if found is not None:
                await message.respond(found if isinstance(found, bytes) else found.encode())

        await service.subscribe("$SYS.REQ.USER.AUTH", cb=requested)
        await service.flush()
        try:
            yield server, asked
        finally:
            await service.close()


def url(server: Server) -> str:
    return f"nats://127.0.0.1:{server.port}"


async def client(server: Server, **options: Any) -> Any:
    return await open_client(url(server), allow_reconnect=False, **options)


async def refusal(server: Server, user: str) -> bytes:
    line = msgspec.json.encode({"verbose": False, "user": user, "pass": "wrong"})
    one = await RawClient.open(server, connect=b"CONNECT " + line + b"\r\nPING\r\n")
    return await one.end()


def checked(decide: Decide, check: Callable[[Any, list[Any]], Awaitable[None]]) -> None:
    """A client of a server with this service."""

    async def test() -> None:
        async with deciding(decide) as (server, asked):
            one = await client(server, user="anna", password="pw", name="shop")
            try:
                await check(one, asked)
            finally:
                await one.close()

    run(test())


def test_the_service_is_told_who_asks_and_names_the_user() -> None:
    async def check(one: Any, asked: list[Any]) -> None:
        told = asked[0]
        assert (told["aud"], told["sub"]) == ("nats-authorization-request", ISSUER.public)
        assert told["iss"] == told["nats"]["server_id"]["id"]
        opts = told["nats"]["connect_opts"]
        assert (opts["user"], opts["pass"], opts["name"]) == ("anna", "pw", "shop")
        assert told["nats"]["client_info"]["host"] == "127.0.0.1"
        info = await one.request("$SYS.REQ.USER.INFO", timeout=10)
        shown = msgspec.json.decode(info.data)["data"]
        assert (shown["user"], shown["account"]) == ("anna", "A")

    checked(lambda request: answer(request, user_token(request)), check)


def test_permissions_of_the_user_hold() -> None:
    rules = {"allow": ["ok.>"]}

    async def test() -> None:
        async with deciding(lambda request: answer(request, user_token(request, pub=rules))) as (
            server,
            _,
        ):
            errors: list[str] = []

            async def failed(error: Exception) -> None:
                errors.append(str(error))

            one = await client(server, user="anna", error_cb=failed)
            try:
                await one.publish("ok.a", b"")
                await one.publish("no", b"")
                await one.flush()
                assert [text.partition("for ")[2] for text in errors] == ['publish to "no"']
            finally:
                await one.close()

    run(test())


def test_a_user_in_the_account_of_the_service_does_not_hear_requests() -> None:
    async def test() -> None:
        async with deciding(
            lambda request: answer(request, user_token(request, account="AUTH"))
        ) as (server, _):
            errors: list[str] = []

            async def failed(error: Exception) -> None:
                errors.append(str(error))

            one = await client(server, user="anna", error_cb=failed)
            try:
                await one.subscribe("$SYS.REQ.USER.AUTH")
                await one.flush()
                assert "subscription to" in errors[0]
            finally:
                await one.close()

    run(test())


NOW = int(time.time())
REFUSED: dict[str, Decide] = {
    "an error": lambda request: answer(request, error="no such person"),
    "silence": lambda _request: None,
    "no token": lambda _request: "hello",
    "not even text": lambda _request: b"\xff\xfe",
    "signed by a stranger": lambda request: answer(request, user_token(request), key=STRANGER),
    "a user signed by a stranger": lambda request: answer(
        request, user_token(request, key=STRANGER)
    ),
    "for another server": lambda request: answer(request, user_token(request), aud=STRANGER.public),
    "for another request": lambda request: answer(request, user_token(request), sub=OTHER_USER),
    "another user": lambda request: answer(request, user_token(request, subject=OTHER_USER)),
    "an unknown account": lambda request: answer(request, user_token(request, account="NONE")),
    "no account": lambda request: answer(request, user_token(request, account="")),
    "an expired user": lambda request: answer(request, user_token(request, exp=NOW - 10)),
    "damaged claims": lambda request: answer(request, user_token(request, pub={"allow": 7})),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_client_is_refused_after(what: str) -> None:
    async def test() -> None:
        async with deciding(REFUSED[what]) as (server, asked):
            assert await refusal(server, "anna") == b"-ERR 'Authorization Violation'\r\n"
            assert len(asked) == 1

    run(test())


def test_the_users_of_the_service_log_in_as_ever() -> None:
    async def test() -> None:
        async with deciding(lambda _request: None) as (server, asked):
            assert await refusal(server, "judge") == b"-ERR 'Authorization Violation'\r\n"
            assert not asked

    run(test())


def test_a_reload_cannot_switch_it_on() -> None:
    before = Options()
    callout = CalloutOptions(ISSUER.public, ("judge",))
    after = Options(authorization=Authorization(users=(User("judge", "x"),), callout=callout))
    assert merge(after, after) == after
    with pytest.raises(NotReloadable, match="auth_callout"):
        merge(before, after)


def test_requests_are_encrypted_for_the_service() -> None:
    async def test() -> None:
        def decide(request: dict[str, Any]) -> bytes:
            plain = answer(request, user_token(request)).encode()
            return SERVICE_XKEY.seal(plain, request["nats"]["server_id"]["xkey"])

        async with deciding(decide, xkey=SERVICE_XKEY.public) as (server, asked):
            one = await client(server, user="anna", password="pw")
            await one.close()
            assert asked[0]["nats"]["connect_opts"]["pass"] == "pw"

    run(test())


def test_a_seal_is_for_one_reader() -> None:
    sealed = SERVICE_XKEY.seal(b"secret", SealingKey().public)
    with pytest.raises(BadSeal):
        SealingKey().open(sealed, SERVICE_XKEY.public)


AUTH = """
accounts { AUTH: { users: [{user: judge, password: x}] }, A: {} }
authorization { auth_callout %s }
"""


@pytest.mark.parametrize(
    ("block", "text"),
    [
        ("7", "Expected authorization callout to be a map/struct, got 7"),
        ("{ users: [judge] }", "Authorization callouts require an issuer to be specified"),
        (
            "{ issuer: abc, users: [judge] }",
            'Expected callout user to be a valid public account nkey, got "abc"',
        ),
        (
            f"{{ issuer: {ISSUER.public} }}",
            "Authorization callouts require authorized users to be specified",
        ),
        (
            f"{{ issuer: {ISSUER.public}, users: [judge], xkey: abc }}",
            'Expected callout xkey to be a valid public xkey, got "abc"',
        ),
        (
            f"{{ issuer: {ISSUER.public}, what: 1 }}",
            'Unknown field "what" parsing authorization callout',
        ),
        (
            f"{{ issuer: {ISSUER.public}, users: [judge], account: NONE }}",
            'auth_callout: account "NONE" does not exist',
        ),
        (
            f"{{ issuer: {ISSUER.public}, users: [other], account: AUTH }}",
            'auth_callout: there is no user "other"',
        ),
    ],
    ids=[
        "a number", "no issuer", "a bad issuer", "no users", "a bad xkey", "a strange key",
        "an unknown account", "an unknown user",
    ],
)  # fmt: skip
def test_bad_blocks_are_refused(tmp_path: Path, block: str, text: str) -> None:
    path = tmp_path / "server.conf"
    path.write_text(AUTH % block)
    with pytest.raises(BadSettings) as refused:
        load(parse_flags(["-c", str(path)]))
    assert text in str(refused.value)


def test_users_of_other_accounts_log_in_without_a_callout(tmp_path: Path) -> None:
    """Such as those of the system account."""
    path = tmp_path / "server.conf"
    users = (
        "AUTH: { users: [{user: judge, password: x}] }, SYS: { users: [{user: s, password: x}] }"
    )
    path.write_text(
        f"accounts {{ {users} }}\nauthorization {{ auth_callout "
        f"{{ issuer: {ISSUER.public}, users: [judge, s], account: AUTH }} }}"
    )
    authenticator = Authenticator(load(parse_flags(["-c", str(path)])).options.authorization)
    judged = [authenticator.delegates(Credentials(user=name)) for name in ("judge", "s", "guest")]
    assert judged == [False, False, True]
