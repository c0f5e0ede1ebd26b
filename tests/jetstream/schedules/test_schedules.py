"""Message schedules: refusals, when they fire, and what they publish. Spec: NATS ADR-51."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from broker.jetstream.commands.publish_entry import mirror_prefix
from broker.jetstream.commands.stream_commands import Fire
from broker.jetstream.errors import JetStreamError
from broker.jetstream.incoming_message import IncomingMessage
from broker.jetstream.schedules import pattern as pattern_module
from broker.jetstream.schedules.fire import due_firings
from broker.jetstream.schedules.pattern import BadPattern, parse_schedule
from broker.jetstream.schedules.schedules import LOOKED_AT, PendingSchedule, Schedules
from broker.store.memory_db import MemoryDb
from broker.store.messages import MessageStore
from broker.wire import headers as wire_headers
from tests.support.stream_rig import SECOND, Driver


def scheduling(db: Any = None, **config: Any) -> Driver:
    config.setdefault("allow_rollup_hdrs", True)
    driver = Driver(db, allow_msg_schedules=True, **config)
    driver.now = at("2026-01-05T10:00:00")
    return driver


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * SECOND


def schedule(driver: Driver, pattern: str, subject: str = "s.sched", **more: str) -> Any:
    more.setdefault("Nats_Schedule_Target", "s.target")
    data = more.pop("data", "body")
    return driver.publish(subject, data, Nats_Schedule=pattern, **more)


def run_due(driver: Driver, *, until: str) -> list[int]:
    """Propose due commands as a leader does until that time; returns the times they were due."""
    times: list[int] = []
    while True:
        due = driver.stream.next_expiry(0)
        if due is None or due > at(until):
            driver.now = at(until)
            return times
        driver.now = max(driver.now, due)
        times.append(driver.now)
        for command in driver.stream.due_commands(driver.now):
            driver.run(command)


def stored(driver: Driver) -> list[tuple[bytes, bytes, bytes]]:
    found = [driver.stream.store.get(seq) for seq in driver.seqs()]
    return [(m.subject, m.headers, m.data) for m in found if m is not None]


NEXT = [
    ("@at 2030-01-01T00:00:00Z", "", "2030-01-01T00:00:00"),
    ("@at 2030-01-01T00:00:00+01:00", "", "2029-12-31T23:00:00"),
    ("@at 2020-01-01T00:00:00Z", "", "2020-01-01T00:00:00"),
    ("@every 90s", "", "2026-01-05T10:01:30"),
    ("@hourly", "", "2026-01-05T11:00:00"),
    ("@daily", "", "2026-01-06T00:00:00"),
    ("@midnight", "", "2026-01-06T00:00:00"),
    ("@weekly", "", "2026-01-11T00:00:00"),
    ("@monthly", "", "2026-02-01T00:00:00"),
    ("@yearly", "", "2027-01-01T00:00:00"),
    ("@annually", "", "2027-01-01T00:00:00"),
    ("* * * * * *", "", "2026-01-05T10:00:01"),
    ("*/15 * * * * *", "", "2026-01-05T10:00:15"),
    ("30 10/20 * * * *", "", "2026-01-05T10:10:30"),
    ("0 0 12 * * mon-fri", "", "2026-01-05T12:00:00"),
    ("0 0 9 * * MON-FRI", "", "2026-01-06T09:00:00"),
    ("0 0 0 29 feb ?", "", "2028-02-29T00:00:00"),
    ("0 0 0 13 * fri", "", "2026-01-09T00:00:00"),
    ("0 0 0 1,15 jan,jul *", "", "2026-01-15T00:00:00"),
    ("0 0 0 * * *", "Europe/Berlin", "2026-01-05T23:00:00"),
    ("0 30 2 29 mar *", "Europe/Berlin", "2027-03-29T00:30:00"),
    ("0 0 9 * jul *", "America/New_York", "2026-07-01T13:00:00"),
]


@pytest.mark.parametrize(("pattern", "zone", "expected"), NEXT)
def test_when_a_schedule_fires_next(pattern: str, zone: str, expected: str) -> None:
    now = at("2026-01-05T10:00:00")
    following = parse_schedule(pattern).following(now, now_ns=now, zone=zone)
    assert following == at(expected)


def test_a_flood_of_one_schedule_searches_the_calendar_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Day by day through the years, each message with a schedule of February 29 took 0.3 ms."""
    searched = []
    search = pattern_module._next_match
    monkeypatch.setattr(
        pattern_module, "_next_match", lambda *given: searched.append(given) or search(*given)
    )
    now = at("2026-01-05T10:00:00")
    for second in range(1000):
        moment = now + second * SECOND
        due = parse_schedule("1 2 3 29 2 *").following(moment, now_ns=moment)
        assert due == at("2028-02-29T03:02:01")
    assert len(searched) <= 2  # to validate the pattern, and to find the date


def test_months_without_a_match_are_skipped_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = []
    forward = pattern_module._forward
    monkeypatch.setattr(
        pattern_module, "_forward", lambda *given: steps.append(given) or forward(*given)
    )
    parsed = parse_schedule("59 59 23 29 2 *")
    steps.clear()
    now = at("2028-03-01T00:00:00")
    assert parsed.following(now, now_ns=now) == at("2032-02-29T23:59:59")
    assert len(steps) <= 24 + 4  # hour by hour, then to the minute and the second


def test_a_midnight_that_the_zone_leaves_out_does_not_hide_a_match() -> None:
    now = at("1985-12-31T12:00:00")  # Nepal set its clocks forward at midnight, by 15 minutes
    parsed = parse_schedule("0 39 * 1 1 *")
    assert parsed.following(now, now_ns=now, zone="Asia/Kathmandu") == at("1985-12-31T18:54:00")


BAD = [
    "0," * 600 + "0 * * * * *",
    "", "@nope", "@at nonsense", "@at 2030-01-01", "@every x", "@every 500ms", "* * * * *",
    "60 * * * * *", "* * 24 * * *", "* * * 0 * *", "* * * * 13 *", "* * * * * 7", "5-1 * * * * *",
    "*/0 * * * * *", "0 0 0 31 2 *", "1-2-3 * * * * *", "1/2/3 * * * * *", "-1 * * * * *",
    "x * * * * *", "* * * * * * *",
]  # fmt: skip


@pytest.mark.parametrize("pattern", BAD)
def test_invalid_patterns(pattern: str) -> None:
    with pytest.raises(BadPattern):
        parse_schedule(pattern)


def test_missed_repeats_are_skipped() -> None:
    now = at("2026-01-05T10:00:00")
    long_ago = at("2026-01-01T00:00:00")
    every = parse_schedule("@every 1h")
    assert every.following(long_ago, now_ns=now) == at("2026-01-05T11:00:00")
    assert parse_schedule("@daily").following(long_ago, now_ns=now) == at("2026-01-06T00:00:00")


TARGET = {"Nats_Schedule_Target": "s.target"}
REFUSED: list[tuple[int, dict[str, str], dict[str, Any]]] = [
    (10188, {"Nats_Schedule": "@daily", **TARGET}, {"allow_msg_schedules": False}),
    (10188, {"Nats_Schedule": "bad", **TARGET}, {"allow_msg_schedules": False}),
    (10188, {"Nats_Schedule_Time_Zone": "bad"}, {"allow_msg_schedules": False}),
    (10189, {"Nats_Schedule": "bad", **TARGET}, {}),
    (10189, {"Nats_Schedule": "@every 5s", "Nats_Schedule_Time_Zone": "UTC", **TARGET}, {}),
    (10223, {"Nats_Schedule": "@daily", "Nats_Schedule_Time_Zone": "Mars/X", **TARGET}, {}),
    (10223, {"Nats_Schedule": "@daily", "Nats_Schedule_Time_Zone": "", **TARGET}, {}),
    (10190, {"Nats_Schedule": "@daily"}, {}),
    (10190, {"Nats_Schedule": "@daily", "Nats_Schedule_Target": "s.sched"}, {}),
    (10190, {"Nats_Schedule": "@daily", "Nats_Schedule_Target": "s.*"}, {}),
    (10190, {"Nats_Schedule": "@daily", "Nats_Schedule_Target": "other"}, {}),
    (10203, {"Nats_Schedule": "@daily", "Nats_Schedule_Source": "s.target", **TARGET}, {}),
    (10203, {"Nats_Schedule": "@daily", "Nats_Schedule_Source": "s.>", **TARGET}, {}),
    (10203, {"Nats_Schedule": "@daily", "Nats_Schedule_Source": "other", **TARGET}, {}),
    (10191, {"Nats_Schedule": "@daily", "Nats_Schedule_TTL": "x", **TARGET}, {}),
    (10166, {"Nats_Schedule": "@daily", "Nats_Schedule_TTL": "5s", **TARGET}, {}),
    (10192, {"Nats_Schedule": "@daily", "Nats_Schedule_Rollup": "all", **TARGET}, {}),
    (10192, {"Nats_Schedule": "@daily", "Nats_Rollup": "all", **TARGET}, {}),
    (10212, {"Nats_Schedule_Next": "purge"}, {}),
    (10212, {"Nats_Schedule_Next": "soon", "Nats_Scheduler": "s.other"}, {}),
    (10212, {"Nats_Schedule_Next": "purge", "Nats_Scheduler": "s.sched"}, {}),
    (10212, {"Nats_Schedule_Next": "purge", "Nats_Scheduler": "s.plain"}, {}),
    (10212, {"Nats_Scheduler": "s.other"}, {}),
    (10188, {"Nats_Schedule_Next": "purge", "Nats_Scheduler": "s.other"},
     {"allow_msg_schedules": False}),
]  # fmt: skip


@pytest.mark.parametrize(("err_code", "pairs", "config"), REFUSED)
def test_refused(err_code: int, pairs: dict[str, str], config: dict[str, Any]) -> None:
    driver = Driver(**({"allow_msg_schedules": True, "allow_rollup_hdrs": True} | config))
    driver.publish("s.plain")
    refused = driver.publish("s.sched", "body", **pairs)
    assert isinstance(refused, JetStreamError)
    assert refused.err_code == err_code
    assert driver.stream.store.last_seq == 1


def test_a_schedule_that_fires_once_is_removed_when_it_fires() -> None:
    driver = scheduling(allow_msg_ttl=True)
    pairs = {"X": "y", "Nats_Msg_Id": "m", "Nats_Schedule_TTL": "60s"}
    schedule(driver, "@at 2026-01-05T10:00:10Z", **pairs)
    assert run_due(driver, until="2026-01-05T10:00:20") == [at("2026-01-05T10:00:10")]
    headers = (
        b"NATS/1.0\r\nX: y\r\nNats-Scheduler: s.sched\r\nNats-Schedule-Next: purge\r\n"
        b"Nats-TTL: 60s\r\n\r\n"
    )
    assert stored(driver) == [(b"s.target", headers, b"body")]
    assert driver.stream.next_expiry(0) == at("2026-01-05T10:01:10")


def test_the_message_of_a_repeating_schedule_has_the_next_time() -> None:
    driver = scheduling()
    driver.publish("s.source", "last", Z="z")
    more = {"Nats_Schedule_Source": "s.source", "Nats_Schedule_Rollup": "sub"}
    schedule(driver, "@every 5s", **more)
    fired = run_due(driver, until="2026-01-05T10:00:12")
    assert fired == [at("2026-01-05T10:00:05"), at("2026-01-05T10:00:10")]
    headers = (
        b"NATS/1.0\r\nZ: z\r\nNats-Scheduler: s.sched\r\n"
        b"Nats-Schedule-Next: 2026-01-05T10:00:15Z\r\nNats-Rollup: sub\r\n\r\n"
    )
    assert stored(driver)[-1] == (b"s.target", headers, b"last")
    assert [subject for subject, _, _ in stored(driver)] == [b"s.source", b"s.sched", b"s.target"]


def test_without_a_source_message_the_schedule_publishes_its_own_content() -> None:
    driver = scheduling()
    schedule(driver, "@every 5s", Nats_Schedule_Source="s.source")
    run_due(driver, until="2026-01-05T10:00:05")
    assert stored(driver)[-1][2] == b"body"


def test_a_newer_message_on_the_subject_replaces_a_schedule() -> None:
    driver = scheduling()
    schedule(driver, "@every 5s")
    schedule(driver, "@every 7s", data="second")
    assert driver.stream.next_expiry(0) == at("2026-01-05T10:00:07")
    driver.publish("s.sched", "plain")
    assert driver.stream.next_expiry(0) is None


@pytest.mark.parametrize("way", ["purge", "delete", "message"])
def test_a_schedule_that_is_removed_does_not_fire(way: str) -> None:
    driver = scheduling()
    schedule(driver, "@every 5s")
    if way == "purge":
        driver.purge("s.sched")
    elif way == "delete":
        driver.delete(1)
    else:
        driver.publish("s.other", Nats_Schedule_Next="purge", Nats_Scheduler="s.sched")
        assert [subject for subject, _, _ in stored(driver)] == [b"s.other"]
    assert run_due(driver, until="2026-01-05T11:00:00") == []


def test_a_repeated_command_fires_once() -> None:
    driver = scheduling()
    schedule(driver, "@every 5s")
    driver.now += 6 * SECOND
    proposed = driver.stream.due_commands(driver.now)
    again = driver.stream.due_commands(driver.now + 1)
    for command in (*proposed, *again):
        driver.run(command)
    assert [subject for subject, _, _ in stored(driver)] == [b"s.sched", b"s.target"]


def test_a_firing_for_a_schedule_that_was_replaced_has_no_effect() -> None:
    driver = scheduling()
    schedule(driver, "@every 5s")
    driver.now += 6 * SECOND
    proposed = driver.stream.due_commands(driver.now)
    schedule(driver, "@every 5s")
    assert [driver.run(command) for command in proposed if isinstance(command, Fire)] == [0]


def test_schedules_are_restored_with_their_messages() -> None:
    driver = scheduling()
    schedule(driver, "@at 2026-01-05T10:00:07Z", subject="s.once")
    schedule(driver, "@every 5s")
    schedule(driver, "@every 9s", subject="s.replaced")
    driver.publish("s.replaced", "plain")
    restored = scheduling()
    for raw in driver.stream.store.blocks(1, driver.stream.store.last_seq):
        restored.entry(mirror_prefix(time_ns=restored.now) + raw)
    assert restored.seqs() == driver.seqs()
    assert run_due(restored, until="2026-01-05T10:00:10") == [
        at("2026-01-05T10:00:05"),
        at("2026-01-05T10:00:07"),
        at("2026-01-05T10:00:10"),
    ]


def test_schedules_survive_a_checkpoint() -> None:
    db = MemoryDb()
    driver = scheduling(db)
    schedule(driver, "@every 5s")
    schedule(driver, "@at 2026-01-05T10:00:07Z", subject="s.once")
    schedule(driver, "@daily", subject="s.gone")
    driver.purge("s.gone")
    run_due(driver, until="2026-01-05T10:00:06")
    batch = db.begin()
    driver.stream.checkpoint(batch)
    db.write(batch)
    reopened = driver.open()
    assert reopened.digest() == driver.stream.digest()
    driver.stream = reopened
    assert run_due(driver, until="2026-01-05T10:00:10") == [
        at("2026-01-05T10:00:07"),
        at("2026-01-05T10:00:10"),
    ]


@pytest.mark.parametrize("every", ["999999999999h", "9" * 5000 + "s", "2562048h"])
def test_an_interval_that_overflows_is_refused(every: str) -> None:
    driver = scheduling()
    assert isinstance(schedule(driver, f"@every {every}"), JetStreamError)


def test_a_schedule_at_the_latest_time_survives_a_restart() -> None:
    db = MemoryDb()
    driver = scheduling(db)
    schedule(driver, "@every 2562047h")
    schedule(driver, "@at 9999-12-31T23:59:59Z", "s.other")
    batch = db.begin()
    driver.stream.checkpoint(batch)
    db.write(batch)
    driver.stream = driver.open()
    assert driver.seqs() == [1, 2]


def pending(seq: int, due_ns: int) -> tuple[IncomingMessage, int]:
    headers = wire_headers.build(b"", [(b"Nats-Schedule", b"@at 2099-01-01T00:00:00Z")])
    return IncomingMessage.of(b"s.%d" % seq, headers, b"", due_ns), seq


def test_removed_schedules_are_dropped_some_at_a_time() -> None:
    schedules = Schedules()
    for seq in range(3000):
        schedules.stored(*pending(seq, 1))
    looked = 0

    def is_stored(_: int) -> bool:
        nonlocal looked
        looked += 1
        return False

    assert schedules.next_due(is_stored) is not None  # of one that is not known to be gone
    assert looked == LOOKED_AT
    while schedules.next_due(is_stored) is not None:
        pass
    assert (looked, len(schedules)) == (3000, 0)


def test_schedules_that_come_and_go_leave_nothing_behind() -> None:
    """The first one stays, and is due before all others."""
    schedules = Schedules()
    schedules._put(PendingSchedule(b"first", 0, 1))
    stored = {0}
    for seq in range(1, 20_000):
        stored = {0, seq}
        schedules.stored(*pending(seq, 1), stored.__contains__)
        assert schedules.next_due(stored.__contains__) == 1
    assert len(schedules) < 5000
    assert len(schedules._heap) < 12_000
    assert schedules.get(b"first") is not None


def test_many_firings_are_several_commands() -> None:
    store, schedules = MessageStore(), Schedules()
    headers = wire_headers.build(b"", [(b"Nats-Schedule", b"@every 1s")])
    for at in range(250):
        subject = b"s.%d" % at
        store.append(subject, headers, b"", time_ns=1)
        schedules.stored(IncomingMessage.of(subject, headers, b"", 1), store.last_seq)
    made = due_firings(schedules, store, 5 * 10**9)
    assert [len(fire.fired) for fire in made] == [100, 100, 50]
    assert len({firing.seq for fire in made for firing in fire.fired}) == 250
