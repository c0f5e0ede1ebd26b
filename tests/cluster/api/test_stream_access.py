"""One permission model: every way to read or change a stream, for who may and who may not.

A real server in this process. The user who may is allowed that one subject; the other one is
allowed everything else."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from broker.accounts.permissions import PermissionSet
from broker.cluster.api.write_batches import _check_rules
from broker.config.options import (
    Authorization,
    JetStreamOptions,
    Options,
    Permissions,
    SubjectRules,
    User,
)
from broker.jetstream.api.stream_access import READ_WAYS, scan_subject
from broker.jetstream.api.subjects import _ENDPOINTS, SYSTEM_KINDS, parse_api_subject
from broker.jetstream.errors import JetStreamError
from broker.server.server import Server
from broker.store.block.codec import Block, BlockBuilder
from broker.subjects import finish, intersection
from tests.support.server import RawClient, local, run, running_broker

API = "$JS.API."
CONSUMER = {"config": {"name": "C", "ack_policy": "explicit"}}
CONFIG = {"name": "S", "subjects": ["s.>"], "allow_direct": True}
INBOX = "_INBOX.test"


@dataclass(frozen=True)
class Action:
    """`subject` is what the user must be allowed to publish to, for stream S."""

    subject: str
    body: object = ""
    sent_to: str = ""  # if it is another subject
    needs: tuple[str, ...] = ()  # subjects that are allowed to both users, and denied to none

    @property
    def target(self) -> str:
        return self.sent_to or self.subject


def create(**config: object) -> dict[str, object]:
    return {"name": "NEW", **config}


REQUESTS = [
    Action(API + "STREAM.CREATE.S", CONFIG),
    Action(API + "STREAM.UPDATE.S", CONFIG),
    Action(API + "STREAM.INFO.S"),
    Action(API + "STREAM.PURGE.S"),
    Action(API + "STREAM.MSG.GET.S", {"seq": 1}),
    Action(API + "STREAM.MSG.DELETE.S", {"seq": 1}),
    Action(API + "STREAM.SNAPSHOT.S", {"deliver_subject": "_INBOX.snapshot"}),
    Action(API + "STREAM.RESTORE.NEW", {"config": create(subjects=["n"])}),
    Action(API + "STREAM.PEER.REMOVE.S", {"peer": "x"}),
    Action(API + "STREAM.PEER.EVACUATE.S", {"peer": "x"}),
    Action(API + "STREAM.CANCEL_MOVE.S"),
    Action(API + "STREAM.LEADER.STEPDOWN.S"),
    Action(API + "CONSUMER.CREATE.S.C", {"stream_name": "S", **CONSUMER}),
    Action(API + "CONSUMER.DURABLE.CREATE.S.C", {"stream_name": "S", **CONSUMER}),
    Action(API + "CONSUMER.NAMES.S"),
    Action(API + "CONSUMER.LIST.S"),
    Action(API + "CONSUMER.INFO.S.C"),
    Action(API + "CONSUMER.DELETE.S.C"),
    Action(API + "CONSUMER.PAUSE.S.C", {}),
    Action(API + "CONSUMER.UNPIN.S.C", {"group": "g"}),
    Action(API + "CONSUMER.RESET.S.C"),
    Action(API + "CONSUMER.LEADER.STEPDOWN.S.C"),
    Action(API + "CONSUMER.MSG.NEXT.S.PULLED", {"batch": 1, "no_wait": True}),
    Action(API + "DIRECT.GET.S", {"seq": 1}),
    Action(API + "STREAM.SCAN.PLAN.S"),
    Action("$SYS.REQ.USER.INFO"),
    Action("s.1", "stored"),
    Action(API + "STREAM.DELETE.S"),
]
NEW = API + "STREAM.CREATE.NEW"
RESTORE = API + "STREAM.RESTORE.NEW"
# What a user makes the server do for it.
INDIRECT = {
    "mirror": Action(API + "CONSUMER.CREATE.S", create(mirror={"name": "S"}), NEW, (NEW,)),
    "source": Action(API + "STREAM.MSG.GET.S", create(sources=[{"name": "S"}]), NEW, (NEW,)),
    "restore of a mirror": Action(
        API + "CONSUMER.CREATE.S", {"config": create(mirror={"name": "S"})}, RESTORE, (RESTORE,)
    ),
    "source of another domain": Action(
        "$JS.west.API.CONSUMER.CREATE.S",
        create(sources=[{"name": "S", "external": {"api": "$JS.west.API"}}]),
        NEW,
        (NEW,),
    ),
    "republish": Action(
        API + "STREAM.PURGE.S",
        create(subjects=["n"], republish={"src": "n", "dest": API + "STREAM.PURGE.S"}),
        NEW,
        (NEW,),
    ),
    "push": Action(
        API + "STREAM.PURGE.S",
        {"stream_name": "S", "config": {"name": "P", "deliver_subject": API + "STREAM.PURGE.S"}},
        API + "CONSUMER.CREATE.S.P",
        (API + "CONSUMER.CREATE.S.*",),
    ),
    "snapshot": Action(
        API + "STREAM.PURGE.S",
        {"deliver_subject": API + "STREAM.PURGE.S"},
        API + "STREAM.SNAPSHOT.S",
        (API + "STREAM.SNAPSHOT.S",),
    ),
    "added source": Action(
        API + "CONSUMER.CREATE.S",
        {"name": "OTHER", "subjects": ["o"], "sources": [{"name": "S"}]},
        API + "STREAM.UPDATE.OTHER",
        (API + "STREAM.UPDATE.OTHER",),
    ),
}


def users(action: Action, number: int = 0) -> list[User]:
    """For a copy, one way to read the origin is enough: all of them are denied to the other."""
    reads = [API + way.format(stream="S") for way in READ_WAYS]
    reads += [way.replace(API, "$JS.west.API.") for way in reads]
    denied = {action.subject, *reads} - set(action.needs) if action.needs else {action.subject}
    allowed = (action.subject, INBOX, *action.needs)
    may = SubjectRules(allow=tuple(one.encode() for one in allowed))
    may_not = SubjectRules(deny=tuple(one.encode() for one in denied))
    return [
        User(f"may{number}", "pw", Permissions(publish=may)),
        User(f"may_not{number}", "pw", Permissions(publish=may_not)),
    ]


async def login(server: Server, user: str) -> RawClient:
    options = {"verbose": False, "pedantic": False, "headers": True, "user": user, "pass": "pw"}
    client = await RawClient.open(
        server, connect=b"CONNECT " + json.dumps(options).encode() + b"\r\n"
    )
    client.send(f"SUB {INBOX} 1\r\n".encode())
    await client.flush()
    return client


async def answer(client: RawClient) -> bytes:
    """The next message with its payload, or the next error."""
    while True:
        line = await client.line()
        if line.startswith(b"-ERR"):
            return line
        if line.startswith((b"MSG ", b"HMSG ")):
            size = int(line.split()[-1])
            return await client.reader.readexactly(size + 2)


async def request(client: RawClient, subject: str, body: object) -> bytes:
    payload = (body if isinstance(body, str) else json.dumps(body)).encode()
    client.send(
        b"PUB %b %b %d\r\n%b\r\n" % (subject.encode(), INBOX.encode(), len(payload), payload)
    )
    return await answer(client)


@asynccontextmanager
async def prepared(others: list[User], place: Path, domain: str = "") -> AsyncIterator[Server]:
    options: Options = local(
        server_name="n",
        authorization=Authorization(users=(User("root", "pw"), *others)),
        jetstream=JetStreamOptions(store_dir=str(place), domain=domain),
    )
    async with running_broker(options) as broker:
        root = await login(broker.server, "root")
        for name, subject in (("S", "s.>"), ("OTHER", "o")):
            made = {"name": name, "subjects": [subject], "allow_direct": True}
            assert b'"error"' not in await request(root, f"{API}STREAM.CREATE.{name}", made)
        for _ in range(3):
            assert b'"seq"' in await request(root, "s.1", "secret")
        pulled = {"stream_name": "S", "config": {"name": "PULLED", "durable_name": "PULLED"}}
        assert b'"error"' not in await request(root, f"{API}CONSUMER.CREATE.S.PULLED", pulled)
        root.close()
        yield broker.server


def denial(subject: str) -> bytes:
    return f"-ERR 'Permissions Violation for Publish to \"{subject}\"'\r\n".encode()


def test_a_request_needs_its_own_subject(tmp_path: Path) -> None:
    async def test() -> None:
        everybody = [user for at, action in enumerate(REQUESTS) for user in users(action, at)]
        async with prepared(everybody, tmp_path) as server:
            for at, action in enumerate(REQUESTS):
                may_not = await login(server, f"may_not{at}")
                assert await request(may_not, action.target, action.body) == denial(action.subject)
                may = await login(server, f"may{at}")
                got = await request(may, action.target, action.body)
                assert b"Permissions Violation" not in got, (action, got)
                for client in (may, may_not):
                    client.close()

    run(test())


@pytest.mark.parametrize("name", INDIRECT)
def test_what_the_server_does_for_a_user_needs_its_subject(name: str, tmp_path: Path) -> None:
    action = INDIRECT[name]

    async def test() -> None:
        async with prepared(users(action), tmp_path) as server:
            may_not = await login(server, "may_not0")
            got = json.loads(await request(may_not, action.target, action.body))
            assert got["error"]["err_code"] == 10052, got
            assert "no permission to " in got["error"]["description"]
            may = await login(server, "may0")
            got = json.loads(await request(may, action.target, action.body))
            assert "permission" not in json.dumps(got)
            for client in (may, may_not):
                client.close()

    run(test())


def test_the_table_has_every_request_that_names_a_stream() -> None:
    walked = {parse_api_subject(action.subject.encode()) for action in REQUESTS}
    kinds = {request.kind for request in walked if request is not None}
    named = {endpoint.kind for endpoint in _ENDPOINTS.values() if "stream" in endpoint.names}
    assert named - SYSTEM_KINDS == kinds


SCAN = b'SCAN {"stream":"S","first":1,"last":3}\r\n'
CLOSED = (
    "$JS.API.STREAM.MSG.GET.S",
    "$JS.API.DIRECT.GET.S",
    "$JS.API.CONSUMER.CREATE.S",
    "$JS.API.CONSUMER.CREATE.S.>",
    "$JS.API.CONSUMER.DURABLE.CREATE.S.*",
)


PLAN = "$JS.API.STREAM.SCAN.PLAN."
READERS: dict[str, tuple[tuple[str, ...] | None, tuple[str, ...], bool]] = {
    "no rules": (None, (), True),
    "only the plan": ((PLAN + "S", INBOX), (), True),
    "plans": ((PLAN + "*", INBOX), (), True),
    "nothing": ((INBOX,), (), False),
    "the plan of no stream": ((PLAN[:-1], INBOX), (), False),
    "another stream": ((PLAN + "OTHER", INBOX), (), False),
    "the plan is denied": (None, (PLAN + "S",), False),
    "gets and consumers are denied": (None, CLOSED, False),
    "by pattern": (None, ("$JS.API.*.MSG.GET.>", "$JS.API.CONSUMER.>"), False),
    "only gets are denied": (None, CLOSED[:2], True),
    "only consumers are denied": (None, CLOSED[2:], True),
    "denied on another stream": (None, tuple(one.replace(".S", ".OTHER") for one in CLOSED), True),
}


def encoded(subjects: tuple[str, ...]) -> tuple[bytes, ...]:
    return tuple(one.encode() for one in subjects)


def test_plan_and_scan_need_the_same_permission(tmp_path: Path) -> None:
    readers = [
        User(name, "pw", Permissions(publish=SubjectRules(allow and encoded(allow), encoded(deny))))
        for name, (allow, deny, _) in READERS.items()
    ]

    async def test() -> None:
        async with prepared(readers, tmp_path) as server:
            for name, (_, _, permitted) in READERS.items():
                planner = await login(server, name)
                got = await request(planner, PLAN + "S", "")
                assert (b'"last_seq":3' in got) is permitted, (name, got)
                assert (b"ermission" in got) is not permitted, (name, got)
                planner.close()
                reader = await login(server, name)
                reader.send(SCAN)
                line = await reader.line()
                assert line.startswith(b"+SCAN ") is permitted, (name, line)
                assert permitted or line == denial(scan_subject("S").decode())
                reader.close()

    run(test())


def test_the_alias_of_a_domain_does_not_evade_a_deny(tmp_path: Path) -> None:
    action = Action(API + "STREAM.PURGE.S")

    async def test() -> None:
        async with prepared(users(action), tmp_path, domain="hub") as server:
            client = await login(server, "may_not0")
            got = json.loads(await request(client, "$JS.hub.API.STREAM.PURGE.S", ""))
            assert "Permissions Violation" in got["error"]["description"]
            got = json.loads(await request(client, "$JS.hub.API.STREAM.INFO.S", ""))
            assert got["state"]["messages"] == 3
            client.close()

    run(test())


def test_a_reply_names_a_service_only_if_the_user_may_ask_it(tmp_path: Path) -> None:
    """Whoever answers has other permissions than who asked."""
    purge = API + "STREAM.PURGE.S"

    async def test() -> None:
        async with prepared(users(Action(purge, needs=("ask",))), tmp_path) as server:
            text = f"-ERR 'Permissions Violation for Publish with Reply of \"{purge}\"'\r\n"
            for user, refused in (("may_not0", True), ("root", False), ("may0", False)):
                client = await login(server, user)
                client.send(f"PUB ask {purge} 0\r\n\r\n".encode())
                assert await client.flush() == (text.encode() if refused else b"")
                client.close()

    run(test())


@pytest.mark.parametrize("header", ["Nats-Schedule-Target", "Nats-Scheduler"])
def test_a_schedule_names_only_what_the_user_may_publish_to(header: str, tmp_path: Path) -> None:
    """Also if another line of the same name comes first, and in the block of a writer."""

    async def test() -> None:
        async with prepared(users(Action("s.closed", needs=("s.open",))), tmp_path) as server:
            lines = f"NATS/1.0\r\n{header}: s.open\r\n{header}: s.closed\r\n\r\n".encode()
            size = len(lines)
            for user, refused in (("may_not0", True), ("root", False), ("may0", False)):
                client = await login(server, user)
                client.send(b"HPUB s.open %d %d\r\n%b\r\n" % (size, size, lines))
                got = await client.flush()
                assert got == (denial("s.closed") if refused else b""), (user, got)
                client.close()

    run(test())
    builder = BlockBuilder()
    builder.append(b"s.open", lines_of(header, "s.closed"), b"")
    block = Block(builder.build())
    rules = PermissionSet(Permissions(publish=SubjectRules(deny=(b"s.closed",))))
    with pytest.raises(JetStreamError, match=r"s\.closed"):
        finish(_check_rules(block, [b"s.open"], rules))


def lines_of(name: str, value: str) -> bytes:
    return f"NATS/1.0\r\n{name}: {value}\r\n\r\n".encode()


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        (b"a.*", b"a.b", b"a.b"),
        (b"a.>", b"*.b.*", b"a.b.*"),
        (b">", b"a.b", b"a.b"),
        (b"a.>", b"a", None),
        (b"a.b", b"a.c", None),
        (b"a.*.c", b"*.b.*", b"a.b.c"),
        (b"a.*", b"a.*.c", None),
    ],
)
def test_intersection_of_patterns(one: bytes, other: bytes, both: bytes | None) -> None:
    assert intersection(one, other) == intersection(other, one) == both


def test_rules_answer_for_patterns_as_well() -> None:
    rules = PermissionSet(
        Permissions(publish=SubjectRules(allow=(b"a.>", b"b.x"), deny=(b"a.secret.>", b"a.*.no")))
    )
    assert rules.allows(b"a.open.x")
    assert not rules.allows(b"a.*.x")  # a.secret.x is among them
    assert not rules.allows(b"a.>")
    assert not rules.allows(b"c")
    assert rules.allows_some(b"a.>")
    assert rules.allows_some(b"*.x")
    assert not rules.allows_some(b"a.secret.*")
    assert not rules.allows_some(b"c.*")
    assert rules.denies(b"a.secret.x")
    assert not rules.denies(b"c")
