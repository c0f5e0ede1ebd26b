"""Users that sign a nonce: the official client with seeds, raw clients with wrong signatures."""

from __future__ import annotations

import base64
from pathlib import Path

import nats
import pytest
from msgspec.json import encode
from msgspec.structs import replace

from broker.config.load import BadSettings, load, parse_flags
from broker.config.options import Authorization, Options, Permissions, SubjectRules, User
from broker.credentials.nkeys import KeyKind
from broker.server.server import Server
from tests.support.clients import open_client
from tests.support.keys import Key
from tests.support.server import PATIENCE, RawClient, run, running, until

REFUSED = b"-ERR 'Authorization Violation'\r\n"
KEY = Key(KeyKind.USER)
OTHER = Key(KeyKind.USER)


def url(server: Server) -> str:
    return f"nats://127.0.0.1:{server.port}"


def users(*found: User, **settings: str) -> Authorization:
    return Authorization(users=found, **settings)  # type: ignore[arg-type]


async def say(server: Server, **fields: str) -> RawClient:
    """A client with this CONNECT; "right" as sig is replaced by a valid signature."""
    client = await RawClient.open(server, connect=None)
    if fields.get("sig") == "right":
        fields["sig"] = KEY.sign_nonce(client.info["nonce"])
    fields |= {"verbose": False}  # type: ignore[dict-item]
    client.send(b"CONNECT %b\r\nPING\r\n" % encode(fields))
    return client


async def refused(server: Server, **fields: str) -> None:
    assert await (await say(server, **fields)).end() == REFUSED


async def admitted(server: Server, **fields: str) -> None:
    client = await say(server, **fields)
    assert await client.line() == b"PONG\r\n"
    client.close()


async def kept_out(server: Server, **given: str) -> None:
    """Assert that the official client is refused, and close its socket."""
    client = nats.NATS()
    with pytest.raises(nats.errors.Error, match="Authorization Violation"):
        await client.connect(url(server), allow_reconnect=False, error_cb=_unheard, **given)
    await client.close()


async def _unheard(_error: Exception) -> None:
    """Ignore the error callback: `connect` raises the same error."""


def test_the_official_client_authenticates_with_a_seed() -> None:
    rules = Permissions(publish=SubjectRules(allow=(b"ok",)))
    auth = users(User(KEY.public, permissions=rules, account="acme", nkey=True))

    async def test() -> None:
        async with running(authorization=auth) as server:
            errors: list[str] = []

            async def note(error: Exception) -> None:
                errors.append(str(error))

            client = await open_client(url(server), nkeys_seed_str=KEY.seed, error_cb=note)
            (connection,) = server.connections.values()
            assert connection.identity.user == KEY.public
            assert connection.account.name == "acme"
            sub = await client.subscribe("ok")
            await client.publish("ok", b"x")
            assert (await sub.next_msg(timeout=PATIENCE)).data == b"x"
            await client.publish("not.ok", b"x")
            await client.flush()
            await until(lambda: errors)
            assert 'permissions violation for publish to "not.ok"' in errors[0].lower()
            await client.close()
            await kept_out(server, nkeys_seed_str=OTHER.seed)

    run(test())


def test_only_a_valid_signature_of_this_nonce_is_accepted() -> None:
    auth = users(User(KEY.public, nkey=True), User("plain", "secret"))

    async def test() -> None:
        async with running(authorization=auth) as server:
            await admitted(server, nkey=KEY.public, sig="right")
            await admitted(server, nkey=KEY.public, sig="right", user="plain", auth_token="ignored")
            await admitted(server, user="plain", **{"pass": "secret"})
            earlier = await RawClient.open(server, connect=None)
            await refused(server, nkey=KEY.public, sig=KEY.sign_nonce(earlier.info["nonce"]))
            await refused(server, nkey=KEY.public, sig=KEY.sign_nonce(""))
            await refused(server, nkey=KEY.public)
            await refused(server, nkey=KEY.public, sig="!")
            await refused(server, nkey=OTHER.public, sig="right")
            await refused(server, nkey="nonsense", sig="right")
            await refused(server, user=KEY.public)  # a public key is not a user name
            await refused(server, user=KEY.public, sig="right")
            await refused(server, nkey="plain", **{"pass": "secret"})
            earlier.close()

    run(test())


def test_a_signature_may_be_plain_base64() -> None:
    async def test() -> None:
        async with running(authorization=users(User(KEY.public, nkey=True))) as server:
            client = await RawClient.open(server, connect=None)
            signed = base64.b64encode(KEY.sign(client.info["nonce"].encode())).decode()
            fields = {"nkey": KEY.public, "sig": signed, "verbose": False}
            client.send(b"CONNECT %b\r\nPING\r\n" % encode(fields))
            assert await client.line() == b"PONG\r\n"
            client.close()

    run(test())


def test_a_nonce_is_sent_once_to_each_client_where_keys_are_in_use() -> None:
    async def test() -> None:
        async with running(authorization=users(User(KEY.public, nkey=True))) as server:
            one = await RawClient.open(server, connect=None)
            other = await RawClient.open(server, connect=None)
            assert len(one.info["nonce"]) == 15
            assert one.info["nonce"] != other.info["nonce"]
            assert one.info["auth_required"] is True
            signed = KEY.sign_nonce(one.info["nonce"])
            fields = {"nkey": KEY.public, "sig": signed, "verbose": False, "protocol": 1}
            one.send(b"CONNECT %b\r\nPING\r\n" % encode(fields))
            assert await one.line() == b"PONG\r\n"
            assert "nonce" not in await one.read_info()
            one.close()
            other.close()
        async with running(authorization=users(User("a", "b"))) as server:
            client = await RawClient.open(server, connect=None)
            assert "nonce" not in client.info
            client.close()

    run(test())


def test_a_user_may_be_restricted_to_connection_types() -> None:
    auth = users(
        User(KEY.public, nkey=True, connection_types=frozenset(["WEBSOCKET"])),
        User("ws", "", connection_types=frozenset(["WEBSOCKET"])),
        User("both", "", connection_types=frozenset(["WEBSOCKET", "STANDARD"])),
    )

    async def test() -> None:
        async with running(authorization=auth) as server:
            await refused(server, nkey=KEY.public, sig="right")
            await refused(server, user="ws")
            await admitted(server, user="both")

    run(test())


def test_the_no_auth_user_may_be_a_key() -> None:
    auth = users(User(KEY.public, account="acme", nkey=True), no_auth_user=KEY.public)

    async def test() -> None:
        async with running(authorization=auth) as server:
            client = await open_client(url(server))
            (connection,) = server.connections.values()
            assert connection.account.name == "acme"
            await client.close()
            await refused(server, nkey=KEY.public, sig="!")

    run(test())


def test_a_reload_keeps_clients_whose_key_is_still_configured() -> None:
    both = users(User(KEY.public, nkey=True), User(OTHER.public, nkey=True))

    async def test() -> None:
        async with running(authorization=both) as server:
            stays = await say(server, nkey=KEY.public, sig="right")
            assert await stays.line() == b"PONG\r\n"
            goes = await RawClient.open(server, connect=None)
            signed = OTHER.sign_nonce(goes.info["nonce"])
            fields = {"nkey": OTHER.public, "sig": signed, "verbose": False}
            goes.send(b"CONNECT %b\r\nPING\r\n" % encode(fields))
            assert await goes.line() == b"PONG\r\n"
            one = users(User(KEY.public, nkey=True))
            server.reconfigure(replace(server.options, authorization=one))
            assert await goes.end() == REFUSED
            assert await stays.flush() == b""
            stays.close()

    run(test())


def loaded(tmp_path: Path, text: str) -> Options:
    path = tmp_path / "server.conf"
    path.write_text(text)
    return load(parse_flags(["-c", str(path)])).options


def test_keys_in_a_file(tmp_path: Path) -> None:
    account = Key(KeyKind.ACCOUNT).public
    text = (
        "authorization { users: [ { nkey: %s, permissions { publish: a }, "
        "allowed_connection_types: [standard] } ] }\n"
        "accounts { A { nkey: %s, users: [ { nkey: %s } ] } }"
    )
    options = loaded(tmp_path, text % (KEY.public, account, OTHER.public))
    first, second = options.authorization.users
    assert (first.name, first.nkey, first.account) == (KEY.public, True, "$G")
    assert first.permissions is not None
    assert first.connection_types == {"STANDARD"}
    assert (second.name, second.nkey, second.account) == (OTHER.public, True, "A")


@pytest.mark.parametrize(
    ("entries", "error"),
    [
        (f"{{nkey: {KEY.public[:-1]}}}", "Not a valid public nkey for a user"),
        (f"{{nkey: {Key(KeyKind.ACCOUNT).public}}}", "Not a valid public nkey for a user"),
        (f"{{nkey: {KEY.public}, user: a}}", "Nkey users do not take usernames or passwords"),
        (f"{{nkey: {KEY.public}, pass: a}}", "Nkey users do not take usernames or passwords"),
        (f"{{nkey: {KEY.public}}}, {{nkey: {KEY.public}}}", f'Duplicate nkey "{KEY.public}"'),
        ("{user: a, connection_types: [hokus]}", r'invalid connection types \["HOKUS"\]'),
    ],
    ids=["cut short", "of an account", "user name", "password", "twice", "connection type"],
)
def test_errors_name_the_bad_entry(tmp_path: Path, entries: str, error: str) -> None:
    with pytest.raises(BadSettings, match=error):
        loaded(tmp_path, f"authorization {{ users: [ {entries} ] }}")


def test_errors_name_the_bad_account_key(tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match="Not a valid public nkey for an account"):
        loaded(tmp_path, f"accounts {{ A {{ nkey: {KEY.public} }} }}")
