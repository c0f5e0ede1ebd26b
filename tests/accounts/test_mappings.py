"""Subject mappings of an account: which destination, and what clients and services see of it."""

from __future__ import annotations

import pytest

from broker.accounts.mappings import NOWHERE, AccountMappings
from broker.config.options import (
    AccountOptions,
    Authorization,
    Export,
    Import,
    MappingDestination,
    Permissions,
    SubjectMapping,
    SubjectRules,
    User,
)
from broker.monitor.documents.accountz import account_info
from broker.monitor.observed import Observed
from broker.server.routing.mapped_runs import mapped_run
from broker.server.server import Server
from broker.wire import PubRun
from tests.support.server import RawClient, run, running


def rule(source: str, *destinations: tuple[str, int] | tuple[str, int, str]) -> SubjectMapping:
    return SubjectMapping(source, tuple(MappingDestination(*one) for one in destinations))


def mapped(
    rules: list[SubjectMapping], subject: bytes, *, draw: int = 0, cluster: str = ""
) -> bytes:
    return AccountMappings(rules, cluster, lambda _below: draw).subject(subject)


def test_the_first_source_that_matches_decides() -> None:
    rules = [rule("a.>", ("b.>", 100)), rule("a.x", ("c", 100)), rule("d.*.*", ("e.$2.$1", 100))]
    assert mapped(rules, b"a.x") == b"b.x"
    assert mapped(rules, b"d.1.2") == b"e.2.1"
    assert mapped(rules, b"other") == b"other"


@pytest.mark.parametrize(
    ("draw", "to"), [(0, b"b"), (29, b"b"), (30, b"c"), (59, b"c"), (60, b"a"), (99, b"a")]
)
def test_weights_choose_and_the_source_keeps_the_rest(draw: int, to: bytes) -> None:
    assert mapped([rule("a", ("b", 30), ("c", 30))], b"a", draw=draw) == to


@pytest.mark.parametrize(("draw", "to"), [(29, b"b"), (59, b"a"), (60, NOWHERE)])
def test_a_source_that_is_its_own_destination_keeps_no_more(draw: int, to: bytes) -> None:
    assert mapped([rule("a", ("b", 30), ("a", 30))], b"a", draw=draw) == to


@pytest.mark.parametrize(("cluster", "to"), [("EAST", b"e"), ("WEST", b"b"), ("", b"b")])
def test_destinations_of_the_own_cluster_replace_the_others(cluster: str, to: bytes) -> None:
    assert mapped([rule("a", ("b", 100), ("e", 100, "EAST"))], b"a", cluster=cluster) == to


def test_each_message_of_a_run_is_drawn_for_itself() -> None:
    draws = iter([0, 99, 40])
    mappings = AccountMappings([rule("a", ("b", 50))], draw=lambda _below: next(draws))
    found = mapped_run(mappings, PubRun.of([(b"a", b"", b"", b"%d" % n) for n in range(3)]))
    assert [found.message(row)[::3] for row in range(3)] == [
        (b"b", b"0"),
        (b"a", b"1"),
        (b"b", b"2"),
    ]
    untouched = PubRun.of([(b"z", b"", b"", b"")])
    assert mapped_run(mappings, untouched) is untouched


ACCOUNTS = (
    AccountOptions(
        "A",
        exports=(Export(b"service", service=True),),
        mappings=(rule("a", ("b", 100)), rule("service", ("inner", 100)), rule("n", ("n", 0))),
    ),
    AccountOptions(
        "B",
        imports=(Import("A", b"service", b"ask", service=True),),
        mappings=(rule("please", ("ask", 100)),),
    ),
)
LIMITED = Permissions(publish=SubjectRules(allow=(b"a",)))
USERS = (User("a", account="A"), User("limited", "", LIMITED, account="A"), User("b", account="B"))


async def client(server: Server, user: str) -> RawClient:
    options = b'"verbose":false,"headers":true,"no_responders":true,"pass":""'
    line = b'CONNECT {"user":"%b",%b}\r\n' % (user.encode(), options)
    return await RawClient.open(server, connect=line)


def test_clients_and_services_of_an_account_with_mappings() -> None:
    async def test() -> None:
        async with running(authorization=Authorization(users=USERS), accounts=ACCOUNTS) as server:
            a, limited, b = [await client(server, user) for user in ("a", "limited", "b")]
            try:
                a.send(b"SUB a 1\r\nSUB b 2\r\nSUB inner 3\r\nSUB r 4\r\nPUB a 1\r\nx\r\n")
                assert await a.flush() == b"MSG b 2 1\r\nx\r\n"
                limited.send(b"PUB a 0\r\n\r\n")  # permissions are asked for the mapped subject
                assert b'Permissions Violation for Publish to "b"' in await limited.flush()
                b.send(b"PUB please answer 0\r\n\r\n")  # mapped in B, imported, mapped in A
                await b.flush()
                assert (await a.flush()).startswith(b"HMSG inner 3 _R_.")
                a.send(b"PUB n r 0\r\n\r\n")  # goes nowhere
                assert b"NATS/1.0 503" in await a.flush()
            finally:
                for one in (a, limited, b):
                    one.close()
            shown = account_info(Observed(server, None), "A")["mappings"]
            assert shown["a"] == [{"subject": "b", "weight": 100}]

    run(test())
