"""Operator mode: both servers make the same of templates, tokens of exports, and latency."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import nats
import pytest
from nats.aio.client import Client

from broker.credentials.nkeys import KeyKind
from broker.local import LocalCluster, LocalNode
from tests.support.clients import open_client
from tests.support.clusters import nats_server, run
from tests.support.keys import Key, token

Nodes = tuple[LocalNode, LocalNode]
OPERATOR = Key(KeyKind.OPERATOR)
SYSTEM, SHOP, SCOPED, GUEST, JUDGE, TIERED = (Key(KeyKind.ACCOUNT) for _ in range(6))
USER, SERVICE = Key(KeyKind.USER), Key(KeyKind.USER)
FREE = {"subs": -1, "data": -1, "payload": -1}
OPEN = {**FREE, "conn": -1, "leaf": -1, "imports": -1, "exports": -1, "wildcards": True}
NOW = int(time.time())
TEMPLATES = {
    "pub": {
        "allow": [
            "n.{{name()}}", "s.{{subject()}}", "an.{{account-name()}}", "as.{{account-subject()}}",
            "t.{{tag(dept)}}", "u.{{account-tag(zone)}}", "x.{{tag(none)}}", "y.{{Tag( dept )}}",
            "two.{{tag(dept)}}.{{account-tag(zone)}}", "plain", "_INBOX.>",
        ],
        "deny": ["t.{{tag(banned)}}"],
    },
    "sub": {"allow": ["{{tag(none)}}.>", "_INBOX.>"]},
}  # fmt: skip


def account(key: Key, name: str, **claims: Any) -> str:
    body = {"limits": OPEN, **claims}
    return token(OPERATOR, "account", key.public, name=name, iat=NOW, nats=body)


def activation(signer: Key, importer: Key, subject: str, kind: str = "service", **more: Any) -> str:
    nats_part = {"subject": subject, "kind": kind, **more.pop("nats", {})}
    return token(signer, "activation", importer.public, iat=NOW, nats=nats_part, **more)


def export(subject: str, **more: Any) -> dict[str, Any]:
    return {"name": subject, "subject": subject, "type": "service", **more}


def wanted(subject: str, jwt: str = "", of: Key = SHOP) -> dict[str, Any]:
    one = {"name": subject, "subject": subject, "account": of.public, "type": "service"}
    return {**one, **({"token": jwt} if jwt else {})}


SHOP_CLAIMS = account(
    SHOP,
    "shop",
    tags=["zone:eu", "zone:us"],
    signing_keys=[{"kind": "user_scope", "key": SCOPED.public, "role": "r",
                   "template": {**FREE, **TEMPLATES}}],
    exports=[
        export("open"),
        export("closed.>", token_req=True),
        export("revoked", token_req=True, revocations={"*": NOW + 10}),
        export("of.*", account_token_position=2),
        export("timed", service_latency={"sampling": 100, "results": "times"}),
    ],
)  # fmt: skip
GUEST_CLAIMS = account(
    GUEST,
    "guest",
    imports=[
        wanted("open"),
        wanted("closed.a", activation(SHOP, GUEST, "closed.a")),
        wanted("closed.e", activation(SHOP, GUEST, "closed.e", exp=NOW - 60)),
        wanted("closed.f"),
        wanted("revoked", activation(SHOP, GUEST, "revoked")),
        wanted(f"of.{GUEST.public}"),
        wanted("timed"),
    ],
)
SUBJECTS = ("open", *(f"closed.{one}" for one in "aef"), "revoked", f"of.{GUEST.public}")


def user(signer: Key, key: Key = USER, **claims: Any) -> str:
    own = {} if signer is SCOPED else FREE
    issuer = {"issuer_account": SHOP.public} if signer is SCOPED else {}
    body = {**own, **issuer, **claims}
    return token(signer, "user", key.public, name="joe", iat=NOW, nats=body)


def configuration() -> str:
    system = account(SYSTEM, "SYS")
    head = token(OPERATOR, "operator", OPERATOR.public, name="O",
                 nats={"system_account": SYSTEM.public})  # fmt: skip
    preload = {
        SYSTEM: system,
        SHOP: SHOP_CLAIMS,
        GUEST: GUEST_CLAIMS,
        JUDGE: JUDGE_CLAIMS,
        TIERED: TIERED_CLAIMS,
    }
    lines = "\n".join(f"{key.public}: {text}" for key, text in preload.items())
    return f"operator: {head}\nresolver: MEMORY\nresolver_preload {{\n{lines}\n}}"


JUDGE_CLAIMS = account(
    JUDGE,
    "judge",
    authorization={"auth_users": [SERVICE.public], "allowed_accounts": [GUEST.public]},
)
TIERS = {
    "R1": {"disk_storage": 5000, "streams": 2, "consumer": 1, "max_ack_pending": 20,
           "disk_max_stream_bytes": 4000, "max_bytes_required": True},
    "R3": {"mem_storage": 100, "disk_storage": 900, "streams": -1, "consumer": -1},
}  # fmt: skip
TIERED_CLAIMS = account(
    TIERED,
    "tiered",
    limits={**OPEN, "tiered_limits": TIERS},
    trace={"dest": "traces", "sampling": 100},
)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    place = tmp_path_factory.mktemp("operator")
    more = configuration()
    with (
        LocalCluster(place / "ours", size=1, name="one", more=more) as ours,
        LocalCluster(place / "real", 1, "one", command=nats_server(), more=more) as theirs,
    ):
        yield ours.nodes[0], theirs.nodes[0]


async def connected(node: LocalNode, jwt: str, key: Key = USER) -> tuple[Client, list[str]]:
    errors: list[str] = []

    async def heard(error: Exception) -> None:
        errors.append(str(error))

    client = await open_client(
        f"nats://127.0.0.1:{node.client_port}",
        user_jwt_cb=jwt.encode,
        signature_cb=lambda nonce: key.sign_nonce(nonce).encode(),
        error_cb=heard,
        allow_reconnect=False,
        max_reconnect_attempts=1,
    )
    return client, errors


async def verdict_on(node: LocalNode, jwt: str) -> bytes:
    """The first line that a client with this JWT gets after INFO."""
    reader, writer = await asyncio.open_connection("127.0.0.1", node.client_port)
    try:
        info = msgspec.json.decode((await reader.readline()).partition(b" ")[2])
        connect = {"jwt": jwt, "sig": USER.sign_nonce(info["nonce"]), "verbose": False}
        writer.write(b"CONNECT %b\r\nPING\r\n" % msgspec.json.encode(connect))
        async with asyncio.timeout(20):
            return await reader.readline()
    finally:
        writer.close()
        await writer.wait_closed()


async def imported(client: Client, subject: str) -> None:
    """nats-server says "no responders" for a moment, until an import is in force."""
    async with asyncio.timeout(20):
        while True:
            try:
                await client.request(subject, timeout=5)
            except nats.errors.NoRespondersError:
                await asyncio.sleep(0.01)
            else:
                return


def alike(nodes: Nodes, ask: Any) -> Any:
    ours, theirs = (run(lambda node=node: ask(node)) for node in nodes)  # type: ignore[misc]
    assert ours == theirs
    return ours


PUBLISHED = (
    "n.joe", "n.jim", f"s.{USER.public}", "an.shop", f"as.{SHOP.public}", "t.a", "t.b", "t.c",
    "u.eu", "u.us", "x.a", "y.a", "two.a.eu", "two.b.us", "two.a.b", "plain", "other",
)  # fmt: skip


@pytest.mark.parametrize(
    "tags", [["dept:a", "banned:x"], ["dept:a", "dept:b", "banned:b"]], ids=str
)
def test_templates_of_scoped_keys(nodes: Nodes, tags: list[str]) -> None:
    async def ask(node: LocalNode) -> list[str]:
        client, errors = await connected(node, user(SCOPED, tags=tags))
        for subject in PUBLISHED:
            await client.publish(subject)
            await client.flush()
        await client.subscribe("a.x")  # denied, too: the last error
        async with asyncio.timeout(20):
            while not any("a.x" in error for error in errors):
                await asyncio.sleep(0.01)
        await client.close()
        return errors

    assert alike(nodes, ask)


def test_a_deny_list_needs_the_values_of_its_templates(nodes: Nodes) -> None:
    verdict = alike(nodes, lambda node: verdict_on(node, user(SCOPED, tags=["dept:a"])))
    assert b"Authorization" in verdict


def test_imports_that_need_a_token(nodes: Nodes) -> None:
    async def ask(node: LocalNode) -> dict[str, bool]:
        service, _ = await connected(node, user(SHOP))
        client, _ = await connected(node, user(GUEST))

        async def answer(message: Any) -> None:
            await message.respond(b"ok")

        for subject in SUBJECTS:
            await service.subscribe(subject, cb=answer)
        await service.flush()
        await imported(client, "open")
        served = {}
        for subject in SUBJECTS:
            try:
                served[subject] = (await client.request(subject, timeout=5)).data == b"ok"
            except nats.errors.NoRespondersError:
                served[subject] = False
        await service.close()
        await client.close()
        return served

    found = alike(nodes, ask)
    assert [subject for subject, works in found.items() if works] == [
        "open", "closed.a", f"of.{GUEST.public}",
    ]  # fmt: skip


def test_the_latency_of_a_service(nodes: Nodes) -> None:
    async def ask(node: LocalNode) -> list[str]:
        service, _ = await connected(node, user(SHOP))
        client, _ = await connected(node, user(GUEST))
        times = await service.subscribe("times")

        async def answer(message: Any) -> None:
            await message.respond(b"ok")

        await service.subscribe("timed", cb=answer)
        await service.flush()
        await imported(client, "timed")
        told: dict[str, Any] = {}
        while told.get("status") != 200:  # others report that nobody was there
            told = msgspec.json.decode((await times.next_msg(timeout=5)).data)
        await service.close()
        await client.close()
        assert told["total"] > 0
        told["responder"]["user"], told["responder"]["rtt"] = "<key>", 0
        return [*told, *told["requestor"], *told["responder"]]

    alike(nodes, ask)


def test_an_account_whose_service_judges_its_users(nodes: Nodes) -> None:
    """The service places the first user into another account; what it places elsewhere is refused,
    and so is everybody while it is silent."""

    async def ask(node: LocalNode) -> list[str]:
        service, _ = await connected(node, user(JUDGE, SERVICE), SERVICE)
        places = [GUEST, SHOP, None]

        async def judge(message: Any) -> None:
            request = _claims(message.data.decode())
            place = places.pop(0)
            if place is None:
                return
            key = request["nats"]["user_nkey"]
            made = token(place, "user", key, name="made", iat=NOW, nats={**FREE})
            body = {"jwt": made}
            answer = token(JUDGE, "authorization_response", key, aud=request["nats"]["server_id"]
                           ["id"], iat=NOW, nats=body)  # fmt: skip
            await message.respond(answer.encode())

        await service.subscribe("$SYS.REQ.USER.AUTH", cb=judge)
        await service.flush()
        found = []
        client, _ = await connected(node, user(JUDGE))
        info = await client.request("$SYS.REQ.USER.INFO", timeout=5)
        found.append(msgspec.json.decode(info.data)["data"]["account"])
        await client.close()
        refusals = await service.subscribe("$SYS.ACCOUNT.CLIENT.AUTH.ERR")
        await service.flush()
        for _ in range(2):
            found.append((await verdict_on(node, user(JUDGE))).decode())
            event = msgspec.json.decode((await refusals.next_msg(timeout=20)).data)
            found += [*event, {**shown(event["client"]), "jwt": ""}, event["sent"]]
        await service.close()
        return found

    assert alike(nodes, ask)[0] == GUEST.public


def _claims(text: str) -> dict[str, Any]:
    middle = text.split(".")[1]
    found = msgspec.json.decode(base64.urlsafe_b64decode(middle + "=" * (-len(middle) % 4)))
    assert isinstance(found, dict)
    return found


def of_stream(name: str, **more: Any) -> tuple[str, Any]:
    body = {"name": name, "subjects": [f"{name}.>"], "num_replicas": 1, **more}
    return f"$JS.API.STREAM.CREATE.{name}", body


def of_consumer(name: str, **more: Any) -> tuple[str, Any]:
    config = {"name": name, "durable_name": name, "ack_policy": "explicit", **more}
    return f"$JS.API.CONSUMER.CREATE.A.{name}", {"stream_name": "A", "config": config}


TIERED_REQUESTS = (
    of_stream("A"),
    of_stream("A", max_bytes=4001),
    of_stream("A", max_bytes=3000),
    of_stream("B", max_bytes=2001),
    of_stream("B", max_bytes=10, storage="memory"),
    of_stream("C", num_replicas=2),
    of_stream("C", num_replicas=3),
    of_stream("B", max_bytes=2000),
    of_stream("D", max_bytes=1),
    of_consumer("x", max_ack_pending=50),
    of_consumer("x"),
    of_consumer("y"),
    ("A.1", "a message"),
    ("$JS.API.INFO", None),
)


def test_limits_of_tiers(nodes: Nodes) -> None:
    """Errors, what a consumer gets by default, and the info of the account with its tiers."""

    async def ask(node: LocalNode) -> list[Any]:
        client, _ = await connected(node, user(TIERED))
        told = []
        for subject, body in TIERED_REQUESTS:
            payload = b"" if body is None else msgspec.json.encode(body)
            answer = await client.request(subject, payload, timeout=20)
            found = msgspec.json.decode(answer.data)
            chosen = found.get("error") or found.get("config", {}).get("max_ack_pending")
            told.append(chosen if subject != "$JS.API.INFO" else {**found, "api": None})
        await client.close()
        return told

    told = alike(nodes, ask)
    assert told[-1]["tiers"]["R1"]["streams"] == 2
    assert [one["err_code"] for one in told[:-1] if isinstance(one, dict)] == [
        10113, 10122, 10047, 10028, 10120, 10074, 10027, 10121, 10026,
    ]  # fmt: skip


def shown(found: Any) -> Any:
    """Without what differs between two runs of the same server."""
    own = {"start", "stop", "rtt", "id", "cid", "port", "last_activity", "stalls", "uptime", "idle"}
    own |= {"in_bytes", "out_bytes"}
    return {key: value for key, value in found.items() if key not in own}


def test_what_is_shown_of_a_user_and_its_account(nodes: Nodes) -> None:
    """Events of the system account, /connz and $SYS.REQ.USER.INFO."""
    watcher = token(SYSTEM, "user", SERVICE.public, name="sys", iat=NOW, nats=FREE)
    joe = user(SHOP, tags=["dept:a"])

    async def ask(node: LocalNode) -> list[Any]:
        system, _ = await connected(node, watcher, SERVICE)
        counts = await system.subscribe(f"$SYS.ACCOUNT.{SHOP.public}.SERVER.CONNS")
        begins = await system.subscribe(f"$SYS.ACCOUNT.{SHOP.public}.CONNECT")
        ends = await system.subscribe(f"$SYS.ACCOUNT.{SHOP.public}.DISCONNECT")
        refusals = await system.subscribe("$SYS.SERVER.*.CLIENT.AUTH.ERR")
        refused = await system.subscribe("$SYS.ACCOUNT.$G.DISCONNECT")
        await system.flush()
        client, _ = await connected(node, joe)
        info = await client.request("$SYS.REQ.USER.INFO", timeout=20)
        asked = msgspec.json.encode({"auth": True, "acc": SHOP.public})
        connz = await system.request("$SYS.REQ.SERVER.PING.CONNZ", asked, timeout=20)
        (found,) = msgspec.json.decode(connz.data)["data"]["connections"]
        await client.close()
        told = [msgspec.json.decode(info.data)["data"], shown(found)]
        for one in (begins, ends):
            told.append(shown(msgspec.json.decode((await one.next_msg(timeout=20)).data)["client"]))
        told.append(msgspec.json.decode((await counts.next_msg(timeout=20)).data)["name"])
        await verdict_on(node, token(SHOP, "user", USER.public, exp=NOW - 60, iat=NOW, nats=FREE))
        for one in (refusals, refused):
            event = msgspec.json.decode((await one.next_msg(timeout=20)).data)
            told.append({**shown(event["client"]), "reason": event["reason"]})
        await system.close()
        return told

    ours, theirs = (run(lambda node=node: ask(node)) for node in nodes)  # type: ignore[misc]
    for refusal in theirs[-2:]:
        assert refusal.pop("jwt")  # by design: it may be a credential
    assert ours == theirs
    assert ours[0]["user_name"] == "joe"


def test_the_jwt_of_a_bearer_is_not_shown(nodes: Nodes) -> None:
    async def ask() -> Any:
        node = nodes[0]
        watcher = token(SYSTEM, "user", SERVICE.public, name="sys", iat=NOW, nats=FREE)
        system, _ = await connected(node, watcher, SERVICE)
        bearer, _ = await connected(node, user(SHOP, bearer_token=True))
        asked = msgspec.json.encode({"auth": True, "acc": SHOP.public})
        connz = await system.request("$SYS.REQ.SERVER.PING.CONNZ", asked, timeout=20)
        await bearer.close()
        await system.close()
        return msgspec.json.decode(connz.data)["data"]["connections"]

    (found,) = run(ask)
    assert found["issuer_key"] == SHOP.public
    assert "jwt" not in found


def test_traces_of_an_account(nodes: Nodes) -> None:
    parent = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}

    async def ask(node: LocalNode) -> list[Any]:
        client, _ = await connected(node, user(TIERED))
        traces, got = await client.subscribe("traces"), await client.subscribe("a")
        await client.publish("a", b"1", headers=parent)
        trace = msgspec.json.decode((await traces.next_msg(timeout=20)).data)
        message = await got.next_msg(timeout=20)
        await client.close()
        return [*trace, *({**one, "ts": "", "cid": 0} for one in trace["events"]), message.headers]

    assert len(alike(nodes, ask)) > 0
