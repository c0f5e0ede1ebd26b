"""Tables of a real server: logins of every kind over TLS, filters, times, and what errors say."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from broker.client import LoginRefused, NoServer, PlanRefused, scan
from broker.config.options import Authorization, JetStreamOptions, TlsOptions, User
from broker.credentials.nkeys import KeyKind
from broker.scan.client import Login, Planner, endpoints_of
from broker.scan.login import LoginUnusable, secret
from broker.scan.protocol import PlanRequest, same_incarnation
from tests.support.keys import Key
from tests.support.server import RawClient, local, run, running_broker

CERTS = Path(__file__).parents[1] / "support" / "certs"
KEY = Key(KeyKind.USER)
CA, CERT, CERT_KEY = (str(CERTS / f"{name}.pem") for name in ("ca", "client-cert", "client-key"))


async def filled(broker: Any, rows: int, *, connect: bytes) -> None:
    client = await RawClient.open(broker.server, connect=connect)
    body = b'{"name":"S","subjects":["s.*"]}'
    client.send(b"SUB inbox 1\r\nPUB $JS.API.STREAM.CREATE.S inbox %d\r\n" % len(body))
    client.send(body + b"\r\n")
    while b'"did_create":true' not in await client.line():
        pass
    for k in range(rows):
        client.send(b"PUB s.%d inbox %d\r\n%d\r\n" % (k % 3, len(b"%d" % k), k))
    for _ in range(rows):
        while b'"seq"' not in await client.line():
            pass
    client.close()


def with_server(tmp_path: Path, look: Callable[[str], None], **settings: Any) -> None:
    """`look` runs in a thread, with the address of a server that has a stream of 30 messages."""

    async def test() -> None:
        users = (User("u", "pw"), User(KEY.public, nkey=True))
        options = local(
            server_name="n",
            authorization=Authorization(users=users),
            jetstream=JetStreamOptions(store_dir=str(tmp_path)),
        )
        connect = b'CONNECT {"verbose":false,"user":"u","pass":"pw"}\r\n'
        async with running_broker(options) as broker:
            await filled(broker, 30, connect=connect)
        async with running_broker(replace(options, **settings)) as broker:
            await asyncio.to_thread(look, f"localhost:{broker.server.port}")

    run(test())


def test_a_table_with_every_kind_of_login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NATS_PASSWORD", "pw\n")
    seed_file = tmp_path / "user.nk"
    seed_file.write_text(KEY.seed)
    tls = TlsOptions(
        cert_file=str(CERTS / "server-cert.pem"),
        key_file=str(CERTS / "server-key.pem"),
        ca_file=CA,
        verify=True,
    )

    def look(servers: str) -> None:
        ours: Any = {"servers": servers, "tls_ca": CA, "tls_cert": CERT, "tls_key": CERT_KEY}
        for login in (
            {"user": "u", "password": "pw"},
            {"user": "u", "password": "env:NATS_PASSWORD"},
            {"nkey": KEY.seed},
            {"nkey": str(seed_file)},
            {"nkey": f"file:{seed_file}"},
        ):
            found = scan("S", **ours, **login, columns=["data"], subjects=["s.1"])
            assert [int(data) for data in found.column(0).to_pylist()] == list(range(1, 30, 3))
        with pytest.raises(LoginRefused, match="refuses the login with user and password; it asks"):
            scan("S", **ours, user="u", password="wrong")
        with pytest.raises(LoginRefused, match="cannot read the secret 'file:/none'"):
            scan("S", **ours, credentials="/none")
        with pytest.raises(LoginRefused, match="option nkey cannot be used: a seed is written"):
            scan("S", **ours, nkey=f"file:{CA}")
        with pytest.raises(LoginRefused, match=r"certificate is not trusted .*tlsCa"):
            scan("S", servers=servers, user="u", password="pw")

    with_server(tmp_path, look, tls=tls)


def test_times_columns_and_errors_of_a_table(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []

    def look(servers: str) -> None:
        ours: Any = {"servers": f"nats://u:pw@{servers}"}
        whole = scan("S", **ours, columns=["seq", "time"])
        times = whole.column("time").to_pylist()
        late = scan("S", **ours, columns=["seq"], since=times[20])
        assert late.num_rows == sum(moment >= times[20] for moment in times)
        early = scan("S", **ours, until=times[20].replace(tzinfo=UTC), columns=["seq", "stream"])
        assert early.num_rows == sum(moment < times[20] for moment in times)
        assert scan("S", **ours, since=datetime(2200, 1, 1)).num_rows == 0  # noqa: DTZ001
        scan("S", **ours, progress=lambda done, total: seen.append((done, total)))
        assert seen[-1] == (30, 30)
        with pytest.raises(PlanRefused, match="stream NONE: stream not found"):
            scan("NONE", **ours)
        planner = Planner(endpoints_of(servers), Login(user="u", password="pw"))
        assert planner.names() == ["S"]
        plan = planner.plan("S", PlanRequest(piece_bytes=300, first=1, behind=31))
        assert plan.edges[0] > 1
        created, _, group = plan.id.partition("-")
        assert abs(int(created, 16) / 1e9 - times[0].timestamp()) < 60  # no other cluster has it
        assert group.isdecimal()
        assert same_incarnation(plan.id, group)  # as version 0.1 called it
        assert not same_incarnation(plan.id, f"{created[:-1]}-{group}")
        bad = json.loads(planner.request("$JS.API.STREAM.SCAN.PLAN.S", b'{"times":1}'))
        assert bad["error"]["code"] == 500
        planner.close()

    with_server(tmp_path, look)


def test_a_server_that_cannot_be_reached_or_says_nothing_is_named() -> None:
    async def test() -> None:
        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()

        listener = await asyncio.start_server(silent, "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        servers = endpoints_of(f"127.0.0.1:1,127.0.0.1:{port}")
        planner = Planner(servers, Login(connect_timeout_s=0.05), pause=lambda _s: None)
        with pytest.raises(NoServer) as failed:
            await asyncio.to_thread(planner.plan, "S")
        text = str(failed.value)
        assert text.startswith("no server answers: check the option servers. 127.0.0.1:1: ")
        assert f"127.0.0.1:{port}: accepts connections, but said nothing for 0.05 s" in text
        listener.close()

    run(test())


def test_no_secret_is_shown() -> None:
    login = Login(user="u", password="hush", token="hush", nkey="hush", credentials="hush")
    assert "hush" not in repr(login)
    assert secret("env:HOME")
    with pytest.raises(LoginUnusable, match="no such environment variable"):
        secret("env:NOT_SET_ANYWHERE")
