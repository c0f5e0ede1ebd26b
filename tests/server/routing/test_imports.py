"""Accounts are isolated from each other, except for exports that are imported."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import msgspec

from broker.config.options import (
    SECOND,
    AccountOptions,
    Authorization,
    Export,
    Import,
    User,
)
from broker.server.routing import imports
from broker.server.server import Server
from tests.support.server import RawClient, run, running

USERS = tuple(User(name.lower(), account=name) for name in "ABC")


@dataclass(slots=True)
class Serving:
    """A server, and its clients until it stops."""

    server: Server
    opened: list[RawClient] = field(default_factory=list)

    async def open(self, connect: bytes) -> RawClient:
        found = await RawClient.open(self.server, connect=connect)
        self.opened.append(found)
        return found

    async def client(self, user: str) -> RawClient:
        options = {"verbose": False, "headers": True, "no_responders": True, "protocol": 1}
        line = msgspec.json.encode({**options, "user": user, "pass": ""})
        found = await self.open(b"CONNECT " + line + b"\r\n")
        await found.flush()
        return found


@asynccontextmanager
async def serving(*accounts: AccountOptions, system: str = "$SYS") -> AsyncIterator[Serving]:
    settings = {"accounts": accounts, "system_account": system}
    async with running(authorization=Authorization(users=USERS), **settings) as server:
        found = Serving(server)
        try:
            yield found
        finally:
            for one in found.opened:
                one.close()


def streams(*, to: bytes = b"p.s.>", accounts: tuple[str, ...] | None = None) -> tuple[
    AccountOptions, AccountOptions
]:  # fmt: skip
    return (
        AccountOptions("A", exports=(Export(b"s.>", accounts=accounts),)),
        AccountOptions("B", imports=(Import("A", b"s.>", to),)),
    )


def services(*, many: bool = False, threshold_ns: int = 120 * SECOND, share: bool = False) -> tuple[
    AccountOptions, AccountOptions
]:  # fmt: skip
    export = Export(b"q.>", service=True, many_answers=many, threshold_ns=threshold_ns)
    return (
        AccountOptions("A", exports=(export,)),
        AccountOptions("B", imports=(Import("A", b"q.>", b"l.>", service=True, share=share),)),
    )


async def request(asking: RawClient, answering: RawClient) -> tuple[bytes, bytes]:
    """B requests l.x; returns the reply subject and the header that A received."""
    asking.send(b"SUB mine 9\r\nPUB l.x mine 2\r\nhi\r\n")
    await asking.flush()
    subject, sid, reply, *_ = (await answering.line())[5:].split(b" ")
    assert (subject, sid) == (b"q.x", b"1")
    status, info, blank, payload = [await answering.line() for _ in range(4)]
    assert (status, blank, payload) == (b"NATS/1.0\r\n", b"\r\n", b"hi\r\n")
    return reply, info


# -- streams ---------------------------------------------------------------------------------------


def test_the_same_subject_in_two_accounts_never_meets() -> None:
    async def test() -> None:
        async with serving(AccountOptions("A"), AccountOptions("B")) as server:
            one, other = await server.client("a"), await server.client("b")
            other.send(b"SUB > 1\r\n")
            await other.flush()
            one.send(b"PUB x 2\r\nhi\r\n")
            assert await one.flush() == b""
            assert await other.flush() == b""

    run(test())


def test_an_imported_stream_shows_under_the_local_subject() -> None:
    async def test() -> None:
        async with serving(*streams()) as server:
            exporter, importer = await server.client("a"), await server.client("b")
            importer.send(b"SUB p.s.* 1\r\nSUB s.> 2\r\n")
            await importer.flush()
            exporter.send(b"PUB s.x back 2\r\nhi\r\nPUB t.x 2\r\nno\r\n")
            await exporter.flush()
            assert await importer.flush() == b"MSG p.s.x 1 back 2\r\nhi\r\n"
            importer.send(b"PUB p.s.x 2\r\nno\r\n")  # nothing flows the other way
            exporter.send(b"SUB > 3\r\n")
            assert b"MSG" not in await exporter.flush()

    run(test())


def test_an_export_without_subscribers_has_no_responders() -> None:
    async def test() -> None:
        async with serving(*streams()) as server:
            exporter = await server.client("a")
            exporter.send(b"SUB mine 1\r\nPUB s.x mine 0\r\n\r\n")
            assert b"503" in await exporter.flush()

    run(test())


# -- services --------------------------------------------------------------------------------------


def test_a_request_crosses_accounts_and_its_answer_returns() -> None:
    async def test() -> None:
        async with serving(*services()) as server:
            answering, asking = await server.client("a"), await server.client("b")
            answering.send(b"SUB q.* 1\r\n")
            await answering.flush()
            reply, info = await request(asking, answering)
            assert reply.startswith(b"_R_.")
            name, _, about = info.partition(b": ")
            assert name == b"Nats-Request-Info"
            assert msgspec.json.decode(about)["acc"] == "B"
            answering.send(b"PUB " + reply + b" 3\r\nyes\r\nPUB " + reply + b" 5\r\nagain\r\n")
            await answering.flush()
            assert await asking.flush() == b"MSG mine 9 3\r\nyes\r\n"  # the second has no effect

    run(test())


def test_a_request_may_have_wildcards_in_its_subject() -> None:
    """As requests for filtered consumers have them: `$JS.API.CONSUMER.CREATE.S.C.a.>`."""

    async def test() -> None:
        async with serving(*services()) as server:
            answering, asking = await server.client("a"), await server.client("b")
            answering.send(b"SUB q.> 1\r\n")
            await answering.flush()
            for subject in (b"x.>", b"x.*.y", b"*"):
                asking.send(b"PUB l.%b mine 0\r\n\r\n" % subject)
                await asking.flush()
                assert (await answering.line()).startswith(b"HMSG q.%b 1 " % subject)
                await answering.flush()

    run(test())


def test_all_streamed_answers_return() -> None:
    async def test() -> None:
        async with serving(*services(many=True)) as server:
            answering, asking = await server.client("a"), await server.client("b")
            answering.send(b"SUB q.* 1\r\n")
            await answering.flush()
            reply, _ = await request(asking, answering)
            for word in (b"one", b"two"):
                answering.send(b"PUB " + reply + b" 3\r\n" + word + b"\r\n")
            await answering.flush()
            assert await asking.flush() == b"MSG mine 9 3\r\none\r\nMSG mine 9 3\r\ntwo\r\n"

    run(test())


def test_an_answer_forged_by_another_account_has_no_effect() -> None:
    async def test() -> None:
        async with serving(*services(), AccountOptions("C")) as server:
            answering, asking = await server.client("a"), await server.client("b")
            forger = await server.client("c")
            answering.send(b"SUB q.* 1\r\n")
            await answering.flush()
            reply, _ = await request(asking, answering)
            for bad in (forger, asking):  # neither another account nor the requestor itself
                bad.send(b"PUB " + reply + b" 4\r\nevil\r\n")
                await bad.flush()
            forger.send(b"PUB mine 4\r\nevil\r\nPUB q.x 4\r\nevil\r\nPUB l.x 4\r\nevil\r\n")
            await forger.flush()
            assert await asking.flush() == b""
            answering.send(b"PUB " + reply + b" 3\r\nyes\r\n")
            assert await answering.flush() == b""  # nor does the forger get a request through
            assert await asking.flush() == b"MSG mine 9 3\r\nyes\r\n"

    run(test())


def test_a_request_without_a_service_gets_no_responders() -> None:
    async def test() -> None:
        async with serving(*services()) as server:
            asking = await server.client("b")
            asking.send(b"SUB mine 1\r\nPUB l.x mine 0\r\n\r\n")
            assert b"NATS/1.0 503\r\nNats-Subject: l.x" in await asking.flush()

    run(test())


def test_a_late_answer_is_dropped() -> None:
    async def test() -> None:
        async with serving(*services(threshold_ns=1)) as server:
            answering, asking = await server.client("a"), await server.client("b")
            answering.send(b"SUB q.* 1\r\n")
            await answering.flush()
            reply, _ = await request(asking, answering)
            answering.send(b"PUB " + reply + b" 3\r\nyes\r\n")
            await answering.flush()
            assert await asking.flush() == b""

    run(test())


def test_expected_answers_are_bounded() -> None:
    async def test() -> None:
        async with serving(*services()) as server:
            answering, asking = await server.client("a"), await server.client("b")
            answering.send(b"SUB q.* 1\r\n")
            await answering.flush()
            limit, imports.ANSWERS_MAX = imports.ANSWERS_MAX, 2
            try:
                asking.send(b"SUB mine.* 9\r\n")
                asking.send(b"".join(b"PUB l.x mine.%d 0\r\n\r\n" % i for i in range(3)))
                await asking.flush()
            finally:
                imports.ANSWERS_MAX = limit
            for line in (await answering.flush()).split(b"\r\n"):
                if line.startswith(b"HMSG"):
                    answering.send(b"PUB " + line.split(b" ")[3] + b" 0\r\n\r\n")
            await answering.flush()
            answers = await asking.flush()
            assert answers == b"MSG mine.1 9 0\r\n\r\nMSG mine.2 9 0\r\n\r\n"

    run(test())


def test_a_client_cannot_forge_the_request_info() -> None:
    async def test() -> None:
        async with serving(*services(share=True)) as server:
            answering, asking = await server.client("a"), await server.client("b")
            answering.send(b"SUB q.* 1\r\n")
            await answering.flush()
            head = b'NATS/1.0\r\nNats-Request-Info: {"acc":"A"}\r\nMine: 1\r\n\r\n'
            asking.send(b"HPUB l.x %d %d\r\n" % (len(head), len(head)) + head + b"\r\n")
            await asking.flush()
            got = await answering.flush()
            assert got.count(b"Nats-Request-Info") == 1
            assert b"Mine: 1" in got
            about = got.partition(b"Nats-Request-Info: ")[2].partition(b"\r\n")[0]
            found = msgspec.json.decode(about)
            assert (found["acc"], found["user"], found["kind"]) == ("B", "b", "Client")

    run(test())


def test_a_chain_of_services_passes_every_account() -> None:
    async def test() -> None:
        export = (Export(b"q", service=True),)
        chain = (
            AccountOptions("A", exports=export),
            AccountOptions("B", imports=(Import("A", b"q", b"q", service=True),), exports=export),
            AccountOptions("C", imports=(Import("B", b"q", b"ask", service=True),)),
        )
        async with serving(*chain) as server:
            answering, asking = await server.client("a"), await server.client("c")
            answering.send(b"SUB q 1\r\n")
            await answering.flush()
            asking.send(b"SUB mine 9\r\nPUB ask mine 0\r\n\r\n")
            await asking.flush()
            got = await answering.flush()
            assert b'{"acc":"C"' in got  # the requestor, not the account in between
            reply = got.split(b" ")[3]
            answering.send(b"PUB " + reply + b" 3\r\nyes\r\n")
            await answering.flush()
            assert await asking.flush() == b"MSG mine 9 3\r\nyes\r\n"

    run(test())


# -- limits ----------------------------------------------------------------------------------------


def test_account_limits_apply_to_its_clients_only() -> None:
    async def test() -> None:
        limited = AccountOptions("A", max_connections=1, max_subscriptions=1, max_payload=4)
        async with serving(limited, AccountOptions("B")) as server:
            first, free = await server.client("a"), await server.client("b")
            free.send(b"SUB x 1\r\nSUB y 2\r\nPUB z 5\r\n12345\r\n")
            assert await free.flush() == b""
            first.send(b"SUB x 1\r\nSUB y 2\r\n")
            assert await first.flush() == b"-ERR 'maximum subscriptions exceeded'\r\n"
            second = await server.open(b'CONNECT {"user":"a"}\r\n')
            assert b"-ERR 'maximum account active connections exceeded'" in await second.end()
            first.send(b"PUB z 5\r\n12345\r\n")
            assert b"-ERR 'Maximum Payload Violation'" in await first.end()

    run(test())


def test_clients_of_the_system_account_are_told_in_info() -> None:
    async def test() -> None:
        async with serving(AccountOptions("A"), AccountOptions("B"), system="B") as server:
            for user, is_system in (("a", None), ("b", True)):
                line = b'CONNECT {"user":"%b","protocol":1}\r\nPING\r\n' % user.encode()
                found = await server.open(line)
                while (got := await found.line()) != b"PONG\r\n":
                    assert got == b"+OK\r\n", got
                info = await found.read_info()
                assert info["remote_account"] == user.upper()
                assert info.get("acc_is_sys") is is_system

    run(test())
