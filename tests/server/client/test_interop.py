"""The official Python client against our server: what every user does first."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.json import decode, encode
from nats.errors import NoRespondersError

from broker.config.options import Authorization, Permissions, ResponseRules, SubjectRules, User
from broker.server.server import Server
from tests.support.clients import open_client
from tests.support.server import PATIENCE, RawClient, broker_of, run, running, until


def test_publish_subscribe_request_and_queue_groups() -> None:
    async def test() -> None:
        async with running() as server:
            client = await open_client(f"nats://127.0.0.1:{server.port}")
            got: list[bytes] = []

            async def keep(message: object) -> None:
                got.append(message.data)  # type: ignore[attr-defined]

            async def answer(message: object) -> None:
                await message.respond(b"re:" + message.data)  # type: ignore[attr-defined]

            await client.subscribe("news.*", cb=keep)
            await client.subscribe("ask", queue="workers", cb=answer)
            await client.subscribe("ask", queue="workers", cb=answer)
            for number in range(100):
                await client.publish("news.x", b"%d" % number)
            await client.flush()
            await until(lambda: len(got) == 100)
            assert got == [b"%d" % number for number in range(100)]
            reply = await client.request("ask", b"q", timeout=PATIENCE)
            assert reply.data == b"re:q"
            with pytest.raises(NoRespondersError):
                await client.request("nobody.home", b"", timeout=PATIENCE)
            with pytest.raises(NoRespondersError):
                await client.request("nobody.home", b"", timeout=PATIENCE, old_style=True)
            await client.close()

    run(test())


def test_headers_large_payloads_and_auto_unsubscribe() -> None:
    async def test() -> None:
        async with running() as server:
            client = await open_client(f"nats://127.0.0.1:{server.port}")
            sub = await client.subscribe("big")
            await sub.unsubscribe(limit=2)
            payload = bytes(range(256)) * 4000
            headers = {"A-Key": "välue", "Other": "x"}
            for _ in range(3):
                await client.publish("big", payload, headers=headers)
            for _ in range(2):
                message = await sub.next_msg(timeout=PATIENCE)
                assert message.data == payload
                assert message.headers == headers
            await client.flush()
            assert server.connections.traffic().out_msgs == 2
            await client.close()

    run(test())


def test_drain_delivers_what_was_published() -> None:
    async def test() -> None:
        async with running() as server:
            url = f"nats://127.0.0.1:{server.port}"
            client, other = await open_client(url), await open_client(url)
            got: list[bytes] = []

            async def keep(message: object) -> None:
                got.append(message.data)  # type: ignore[attr-defined]

            await client.subscribe("d", cb=keep)
            await client.flush()
            for _ in range(500):
                await other.publish("d", b"x")
            await other.flush()
            await client.drain()
            assert len(got) == 500
            await other.close()
            await until(lambda: not server.connections)

    run(test())


def test_client_reconnects_to_a_restarted_server_on_the_same_port() -> None:
    async def test() -> None:
        async with running() as server:
            port = server.port
            back = asyncio.Event()

            async def reconnected() -> None:
                back.set()

            client = await open_client(
                f"nats://127.0.0.1:{port}", reconnected_cb=reconnected, reconnect_time_wait=0.05
            )
            sub = await client.subscribe("again")
            await client.flush()
            await broker_of(server).stop()
            async with running(port=port):
                async with asyncio.timeout(PATIENCE):
                    await back.wait()
                await client.publish("again", b"1")
                assert (await sub.next_msg(timeout=PATIENCE)).data == b"1"
                await client.close()

    run(test())


@pytest.mark.parametrize(
    ("auth", "good", "bad"),
    [
        (Authorization(token="s3cret"), {"token": "s3cret"}, {"token": "wrong"}),
        (Authorization(user="u", password="p"), {"user": "u", "password": "p"}, {"user": "u"}),
        (
            Authorization(users=(User("a", "x"), User("b", "y"))),
            {"user": "b", "password": "y"},
            {"user": "a", "password": "y"},
        ),
        (
            Authorization(  # "bcrypted"
                users=(User("h", "$2b$04$LkA.Mu4EsYKCqw6Uqe8BDOvX5QHYbMOBoY5PpaqRcUQ.x0IfOpoW6"),)
            ),
            None,
            {"user": "h", "password": "other"},
        ),
    ],
)
def test_credentials_admit_or_refuse(
    auth: Authorization, good: dict[str, str] | None, bad: dict[str, str]
) -> None:
    async def refused(server: Server, **given: str) -> None:
        names = {"password": "pass", "token": "auth_token"}
        fields = {names.get(key, key): value for key, value in given.items()}
        client = await RawClient.open(server, connect=b"CONNECT %b\r\n" % encode(fields))
        client.send(b"PING\r\n")
        assert await client.end() == b"-ERR 'Authorization Violation'\r\n"

    async def test() -> None:
        async with running(authorization=auth) as server:
            url = f"nats://127.0.0.1:{server.port}"
            await refused(server, **bad)
            await refused(server)
            if good is not None:
                client = await open_client(url, **good)
                await client.publish("x", b"")
                await client.flush()
                await client.close()

    run(test())


def test_bcrypt_password_is_checked_off_the_loop() -> None:
    import bcrypt

    hashed = bcrypt.hashpw(b"open sesame", bcrypt.gensalt(4)).decode()

    async def test() -> None:
        async with running(authorization=Authorization(token=hashed)) as server:
            url = f"nats://127.0.0.1:{server.port}"
            client = await open_client(url, token="open sesame")
            assert (await client.subscribe("x")) is not None
            await client.flush()
            await client.close()

    run(test())


def test_permissions_refuse_without_closing() -> None:
    rules = Permissions(
        publish=SubjectRules(allow=(b"ok.>",), deny=(b"ok.secret",)),
        subscribe=SubjectRules(allow=(b"in.>", b"grp.* workers"), deny=(b"in.hidden",)),
    )
    auth = Authorization(users=(User("limited", "", rules), User("root", "")), no_auth_user="root")

    async def test() -> None:
        async with running(authorization=auth) as server:
            errors: list[str] = []

            async def failed(error: Exception) -> None:
                errors.append(str(error))

            url = f"nats://127.0.0.1:{server.port}"
            root = await open_client(url)
            client = await open_client(url, user="limited", password="", error_cb=failed)
            allowed = await client.subscribe("in.>")
            await client.subscribe("other")
            await client.subscribe("grp.a", queue="workers")
            await client.subscribe("grp.a", queue="strangers")
            await client.publish("ok.secret", b"")
            await client.publish("elsewhere", b"")
            await client.publish("ok.fine", b"")
            await client.flush()
            assert [one.lower().partition("permissions")[2] for one in errors] == [
                ' violation for subscription to "other"',
                ' violation for subscription to "grp.a" using queue "strangers"',
                ' violation for publish to "ok.secret"',
                ' violation for publish to "elsewhere"',
            ]
            await root.publish("in.hidden", b"no")
            await root.publish("in.seen", b"yes")
            assert (await allowed.next_msg(timeout=PATIENCE)).data == b"yes"
            await client.close()
            await root.close()

    run(test())


def test_user_info_describes_the_client() -> None:
    async def test() -> None:
        rules = Permissions(
            publish=SubjectRules(allow=(b"$SYS.REQ.USER.INFO", b"a.>"), deny=(b"a.b",)),
            responses=ResponseRules(max_msgs=5, expires_ns=1_000_000_000),
        )
        users = (User("anna", "pw", rules), User("otto", "pw", account="A"))
        async with running(authorization=Authorization(users=users)) as server:
            documents = {}
            for name in ("anna", "otto"):
                client = await open_client(f"nats://{name}:pw@127.0.0.1:{server.port}")
                reply = await client.request("$SYS.REQ.USER.INFO", b"", timeout=PATIENCE)
                documents[name] = decode(reply.data)
                await client.close()
            assert documents["anna"]["server"]["id"] == server.id
            assert documents["anna"]["data"] == {
                "user": "anna",
                "account": "$G",
                "account_name": "$G",
                "permissions": {
                    "publish": {"allow": ["$SYS.REQ.USER.INFO", "a.>"], "deny": ["a.b"]},
                    "responses": {"max": 5, "ttl": 1_000_000_000},
                },
            }
            assert documents["otto"]["data"] == {
                "user": "otto",
                "account": "A",
                "account_name": "A",
            }

    run(test())
