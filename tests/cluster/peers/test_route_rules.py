"""Permissions of routes: which subscriptions are announced, and which messages cross."""

from __future__ import annotations

import pytest

from broker.cluster.peers.channels import CHANNEL_DELIVER, CHANNEL_ROUTED
from broker.cluster.peers.peer_sink import DeliverFrame, RoutedFrame, encode_frame
from broker.cluster.peers.route_rules import RouteRules
from broker.config.options import Permissions, SubjectRules
from broker.wire import PubRun
from tests.support.cluster_fakes import pub_run, run, two


def rules(
    *,
    imports: SubjectRules | None = None,
    exports: SubjectRules | None = None,
) -> RouteRules:
    return RouteRules(Permissions(publish=imports, subscribe=exports))


def subjects(*names: bytes) -> PubRun:
    return PubRun.of([(name, b"", b"", name) for name in names])


@pytest.mark.parametrize(
    ("subscribed", "known"),
    [(b"a.b", True), (b"a.*", True), (b"a.>", True), (b">", False), (b"b", False)],
)
def test_only_subscriptions_that_may_be_imported_are_announced(
    subscribed: bytes, known: bool
) -> None:
    async def test() -> None:
        net, here, there = await two()
        there.interest.restrict(rules(imports=SubjectRules(allow=(b"a.>",))))
        there.subscribe(there.client(), subscribed)
        await net.settle()
        shown = here.interest.sinks[there.id].subscriptions
        assert [key[1] for key in shown] == ([subscribed] if known else [])

    run(test())


def test_empty_lists_allow_everything() -> None:
    made = rules(imports=SubjectRules(allow=()), exports=SubjectRules(allow=()))
    assert made.imports(b"a")
    assert made.exports(b"a", b"q")
    assert made.sends(b"a")


def test_a_subscription_that_may_not_be_exported_to_does_not_count() -> None:
    async def test() -> None:
        net, here, there = await two()
        here.interest.restrict(rules(exports=SubjectRules(allow=(b"a",))))
        for subject in (b"a", b"b"):
            there.subscribe(there.client(), subject)
        await net.settle()
        assert here.router.has_interest(here.account(), b"a")
        assert not here.router.has_interest(here.account(), b"b")

    run(test())


def test_denied_messages_of_a_broader_subscription_are_not_sent() -> None:
    async def test() -> None:
        net, here, there = await two()
        here.interest.restrict(rules(exports=SubjectRules(deny=(b"a.secret",))))
        subscriber = there.client()
        there.subscribe(subscriber, b"a.*")
        there.subscribe(subscriber, b"a.*", b"2", queue=b"q")
        await net.settle()
        sent = subjects(b"a.b", b"a.secret", b"a.secret", b"a.c", b"a.d", b"a.secret")
        here.router.publish_run(here.client(), sent)
        here.router.publish(here.account(), b"a.secret", b"", b"", b"one")
        await net.settle()
        assert subscriber.payloads(b"1") == [b"a.b", b"a.c", b"a.d"]
        assert subscriber.payloads(b"2") == [b"a.b", b"a.c", b"a.d"]

    run(test())


def test_denied_messages_are_dropped_on_arrival() -> None:
    async def test() -> None:
        net, here, there = await two()
        there.interest.restrict(rules(imports=SubjectRules(deny=(b"a.secret",))))
        subscriber = there.client()
        there.subscribe(subscriber, b"a.*")
        await net.settle()
        here.router.publish_run(here.client(), subjects(b"a.b", b"a.secret", b"a.c"))
        await net.settle()
        assert subscriber.payloads() == [b"a.b", b"a.c"]
        deliver = DeliverFrame("$G", b"a.secret", True, [], [(b"s", b"", b"", b"x")])
        net.send(here.id, there.id, CHANNEL_DELIVER, encode_frame(deliver))
        routed = RoutedFrame("$G", True, [], b"PUB a.secret 1\r\nx\r\n")
        net.send(here.id, there.id, CHANNEL_ROUTED, encode_frame(routed))
        await net.settle()
        assert subscriber.payloads() == [b"a.b", b"a.c"]

    run(test())


def test_a_reload_takes_interest_back_and_gives_it_again() -> None:
    async def test() -> None:
        net, here, there = await two()
        subscriber = there.client()
        there.subscribe(subscriber, b"a")
        await net.settle()
        for restricted, other in ((there, rules(imports=SubjectRules(deny=(b"a",)))),
                                  (here, rules(exports=SubjectRules(deny=(b"a",))))):  # fmt: skip
            restricted.interest.restrict(other)
            await net.settle()
            assert not here.router.has_interest(here.account(), b"a")
            restricted.interest.restrict(None)
            await net.settle()
            assert here.router.has_interest(here.account(), b"a")
        here.router.publish_run(here.client(), pub_run(b"a", b"x"))
        await net.settle()
        assert subscriber.payloads() == [b"x"]

    run(test())
