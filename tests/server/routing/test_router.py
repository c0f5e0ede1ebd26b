"""Runs with many subjects: few deliveries, in order, to every subscriber."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from broker.accounts import Account
from broker.server.routing.router import SERVICE_ROWS, Router
from broker.subjects import PublishingConnection, Sink, SinkKind, Subscription
from broker.wire import PubRun


@dataclass(eq=False)
class Taker:
    """A sink that records what it was given, and in how many calls."""

    name: str
    log: list[tuple[str, list[bytes]]]
    kind: SinkKind = SinkKind.STREAM
    takes: bool = True
    cid: int = 1
    echo: bool = True
    timed_prefixes: tuple[bytes, ...] = (b"$JS.API.DIRECT.GET.",)
    family_prefix: bytes = b"$JS.API.DIRECT.GET."
    compact_prefix: bytes = b"$JS.ACK."

    def compact_spans(self, run: PubRun) -> list[tuple[int, int, object]]:
        return []

    def deliver_compact(self, sub: Subscription, compact: object) -> None: ...

    def deliver(
        self, sub: Subscription, subject: bytes, reply: bytes, headers: bytes, payload: bytes
    ) -> bool:
        self.log.append((self.name, [headers or subject]))
        return self.takes

    def deliver_timed(
        self,
        sub: Subscription,
        run: PubRun,
        start: int,
        stop: int,
        publisher: PublishingConnection | None,
        *,
        deadline: float,
    ) -> tuple[int, list[int]]:
        asked = {row: run.message(row)[0] for row in range(start, stop)}
        self.log.append((self.name, list(asked.values())))
        return stop, [row for row, subject in asked.items() if subject.endswith(b".missing")]

    def deliver_timed_one(
        self, sub: Subscription, run: PubRun, publisher: PublishingConnection | None
    ) -> bool:
        return not self.deliver_timed(sub, run, 0, 1, publisher, deadline=0.0)[1]

    def deliver_run(
        self,
        sub: Subscription,
        run: PubRun,
        start: int,
        stop: int,
        publisher: PublishingConnection | None,
    ) -> bool:
        self.log.append((self.name, [run.message(row)[0] for row in range(start, stop)]))
        return self.takes


@dataclass(eq=False)
class Client(Taker):
    account: Account = field(default_factory=lambda: Account("A"))
    no_responders: bool = True
    guarded: bool = False
    refused: tuple[bytes, ...] = ()
    kind: SinkKind = SinkKind.CLIENT
    groups: frozenset[bytes] | None = None

    def skips(self, sink: Sink) -> bool:
        return sink is self and not self.echo

    def check_publish(self, subject: bytes, start: int, stop: int) -> int:
        if subject in self.refused:
            self.log.append(("refused", [subject]))
            return start
        return stop

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


def routed(
    subjects: list[bytes], takers: dict[bytes, Taker], client: Client
) -> list[tuple[str, list[bytes]]]:
    for pattern, taker in takers.items():
        client.account.subs.insert(
            Subscription(sink=taker, account=client.account, subject=pattern)
        )
    client.account.subs.insert(
        Subscription(sink=client, account=client.account, subject=b"reply.>", sid=b"1")
    )
    run = PubRun.of([(subject, b"reply.1", b"", b"x") for subject in subjects])
    router = Router()
    for taker in takers.values():
        if taker.kind is SinkKind.SERVICE:
            router.serve_in_bulk(taker)
    publish_all(router, client, run)
    return client.log


def publish_all(router: Router, client: Client, run: PubRun) -> None:
    """On a busy machine the time slice may end within the run."""
    row = 0
    while row < len(run):
        row = router.publish_run(client, run, row)


def client(**more: object) -> Client:
    return Client("client", [], **more)  # type: ignore[arg-type]


def test_adjacent_rows_of_one_subscriber_are_one_delivery() -> None:
    who = client()
    log = routed([b"k.1", b"k.2", b"k.2", b"k.3"], {b"k.>": Taker("S", who.log)}, who)
    assert log == [("S", [b"k.1", b"k.2", b"k.2", b"k.3"])]


def test_alternating_subscribers_are_served_in_order() -> None:
    who = client()
    takers = {b"k.>": Taker("K", who.log), b"l.>": Taker("L", who.log)}
    log = routed([b"k.1", b"k.2", b"l.1", b"k.3", b"l.2"], takers, who)
    assert log == [("K", [b"k.1", b"k.2"]), ("L", [b"l.1"]), ("K", [b"k.3"]), ("L", [b"l.2"])]


def test_a_service_gets_one_subject_per_call() -> None:
    who = client()
    log = routed([b"k.1", b"k.2"], {b"k.>": Taker("S", who.log, kind=SinkKind.SERVICE)}, who)
    assert log == [("S", [b"k.1"]), ("S", [b"k.2"])]


def test_rows_that_are_refused_get_no_responders_each() -> None:
    who = client()
    log = routed([b"k.1", b"k.2", b"z"], {b"k.>": Taker("S", who.log, takes=False)}, who)
    missing = [
        b"NATS/1.0 503\r\nNats-Subject: %b\r\n\r\n" % name for name in (b"k.1", b"k.2", b"z")
    ]
    assert log == [("S", [b"k.1", b"k.2"]), *(("client", [status]) for status in missing)]


def test_a_permission_error_keeps_its_place_in_the_order() -> None:
    who = client(guarded=True, refused=(b"k.2",))
    log = routed([b"k.1", b"k.2", b"k.3"], {b"k.>": Taker("S", who.log)}, who)
    assert log == [("S", [b"k.1"]), ("refused", [b"k.2"]), ("S", [b"k.3"])]


@pytest.mark.parametrize("subject", [b"$JS.API.DIRECT.GET..a", b"$JS.API.DIRECT.GET.S.a."])
def test_gets_with_empty_tokens_match_nothing(subject: bytes) -> None:
    who = client()
    log = routed([subject], {b"$JS.API.>": Taker("api", who.log, kind=SinkKind.SERVICE)}, who)
    assert [name for name, _ in log] == ["client"]


def test_gets_also_reach_a_subscriber_of_a_single_subject() -> None:
    who = client()
    service = Taker("api", who.log, kind=SinkKind.SERVICE)
    takers = {b"$JS.API.>": service, b"$JS.API.DIRECT.GET.S.a": Taker("spy", who.log)}
    log = routed([b"$JS.API.DIRECT.GET.S.a", b"$JS.API.DIRECT.GET.S.b"], takers, who)
    assert sorted(log[:2]) == [
        ("api", [b"$JS.API.DIRECT.GET.S.a"]),
        ("spy", [b"$JS.API.DIRECT.GET.S.a"]),
    ]
    assert log[2:] == [("api", [b"$JS.API.DIRECT.GET.S.b"])]


def test_gets_are_answered_together_and_other_requests_alone() -> None:
    who = client()
    takers = {b"$JS.API.>": Taker("api", who.log, kind=SinkKind.SERVICE)}
    get = b"$JS.API.DIRECT.GET.S."
    log = routed([get + b"a", get + b"b", b"$JS.API.INFO", get + b"c"], takers, who)
    assert log == [
        ("api", [get + b"a", get + b"b"]),
        ("api", [b"$JS.API.INFO"]),
        ("api", [get + b"c"]),
    ]


def test_a_message_beside_the_services_subjects_takes_the_short_way() -> None:
    """Keys of a bucket begin with the same byte as requests of the API."""
    who = client()
    stream = Taker("stream", who.log)
    who.account.subs.insert(Subscription(sink=stream, account=who.account, subject=b"$KV.B.>"))
    router = Router()
    router.serve_in_bulk(Taker("api", who.log, kind=SinkKind.SERVICE))
    assert router.publish_one(who, PubRun.of([(b"$KV.B.key", b"reply.1", b"", b"x")]))
    assert who.log == [("stream", [b"$KV.B.key"])]


def test_a_get_that_is_not_served_gets_no_responders() -> None:
    who = client()
    takers = {b"$JS.API.>": Taker("api", who.log, kind=SinkKind.SERVICE)}
    get = b"$JS.API.DIRECT.GET.S."
    log = routed([get + b"a", get + b"missing", get + b"b"], takers, who)
    assert log[0] == ("api", [get + b"a", get + b"missing", get + b"b"])
    assert log[1:] == [
        ("client", [b"NATS/1.0 503\r\nNats-Subject: %bmissing\r\n\r\n" % get]),
    ]


def test_a_service_that_is_not_registered_gets_one_subject_per_call() -> None:
    """Only the registered service takes runs of different subjects."""
    who = client()
    other = Taker("other", who.log, kind=SinkKind.SERVICE)
    who.account.subs.insert(Subscription(sink=other, account=who.account, subject=b"$JS.API.>"))
    router = Router()
    router.serve_in_bulk(Taker("api", who.log, kind=SinkKind.SERVICE))
    get = b"$JS.API.DIRECT.GET.S."
    run = PubRun.of([(get + b"a", b"", b"", b""), (get + b"b", b"", b"", b"")])
    publish_all(router, who, run)
    assert who.log == [("other", [get + b"a"]), ("other", [get + b"b"])]


def test_requests_of_one_subject_end_with_the_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk may hold 3,000 pull requests for one consumer."""
    monkeypatch.setattr("broker.server.routing.router.TURN_S", -1.0)
    who = client()
    asked = [b"k.1"] * 100
    log = routed(asked, {b"k.>": Taker("S", who.log, kind=SinkKind.SERVICE)}, who)
    assert max(len(subjects) for _, subjects in log) == SERVICE_ROWS
    assert [subject for _, subjects in log for subject in subjects] == asked
