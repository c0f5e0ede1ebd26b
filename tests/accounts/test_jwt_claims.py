"""What JWTs say beyond who may log in: JWTs in cookies, traces of an account."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.json import decode, encode
from msgspec.structs import replace

from broker.config.load import BadSettings
from tests.accounts.test_operator_mode import (
    ACCOUNT,
    USER,
    account,
    admitted,
    trusting,
    user,
)
from tests.support.server import run, running
from tests.support.websocket import PLAIN, RawWebSocket, serving

PARENT = b"traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\n"
BEARER = user(nats={"bearer_token": True})


def cookie(jwt: str) -> bytes:
    return b"Cookie: other=x; j=%b\r\n" % jwt.encode()


def test_a_jwt_comes_in_a_cookie(tmp_path: Path) -> None:
    settings = trusting(tmp_path, (ACCOUNT, account()))
    options = replace(PLAIN, jwt_cookie="j")

    async def opened(server: Any, brought: str, **connect: Any) -> RawWebSocket:
        client = await RawWebSocket.open(server, headers=cookie(brought), connect=None)
        if connect.pop("signed", False):
            connect["sig"] = USER.sign_nonce(client.info["nonce"])
        client.send(b"CONNECT %b\r\n" % encode({"verbose": False, **connect}))
        return client

    async def test() -> None:
        async with serving(websocket=options, **settings) as server:
            assert await (await opened(server, BEARER)).flush() == b""
            (connection,) = server.connections.values()
            assert connection.identity.user == USER.public
            assert await (await opened(server, user(), signed=True)).flush() == b""
            assert await (await opened(server, "garbage", jwt=BEARER)).flush() == b""
            for jwt in (user(), "garbage", f"{BEARER}x"):  # not signed, no JWT, a bad signature
                assert (await (await opened(server, jwt)).close_frame())[0] == 1008
        async with serving(**settings) as server:  # without the setting, a cookie says nothing
            assert (await (await opened(server, BEARER)).close_frame())[0] == 1008

    run(test())


def test_an_account_traces_sampled_messages(tmp_path: Path) -> None:
    claims = account(trace={"dest": "traces", "sampling": 100})

    async def test() -> None:
        async with running(**trusting(tmp_path, (ACCOUNT, claims))) as server:
            client = await admitted(server, user())
            client.send(b"SUB a 1\r\nSUB traces 2\r\n")
            head = b"NATS/1.0\r\n" + PARENT + b"\r\n"
            client.send(b"HPUB a %d %d\r\n%b\r\n" % (len(head), len(head), head))
            got = await client.flush()
            event = decode(
                got.partition(b"MSG traces 2 ")[2].split(b"\r\n", 1)[1].split(b"\r\n")[0]
            )
            assert [one["type"] for one in event["events"]] == ["in", "eg"]
            client.send(b"PUB a 0\r\n\r\n")
            assert b"traces" not in await client.flush()
            client.close()

    run(test())


@pytest.mark.parametrize(
    ("trace", "told"),
    [
        ({"dest": "t.*"}, "wildcards"),
        ({"dest": "t", "sampling": 101}, "sampling of 101"),
        ({"dest": "t..u"}, "not a valid subject"),
    ],
)
def test_bad_trace_claims_are_refused(tmp_path: Path, trace: dict[str, Any], told: str) -> None:
    with pytest.raises(BadSettings, match=told):
        trusting(tmp_path, (ACCOUNT, account(trace=trace)))
