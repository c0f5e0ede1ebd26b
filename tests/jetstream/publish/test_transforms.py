"""Subject transforms on ingest, and republishing. Spec: NATS ADR-30 and ADR-28."""

from __future__ import annotations

from typing import Any

from broker.jetstream.config import Republish, SubjectTransform
from broker.jetstream.errors import JetStreamError
from broker.jetstream.publish.republish import Republished
from broker.subjects.mapping import Mapping
from tests.support.stream_rig import SECOND, Driver


def subjects(driver: Driver) -> list[bytes]:
    found = [driver.stream.store.get(seq) for seq in driver.seqs()]
    return [message.subject for message in found if message is not None]


def transforming(src: str, dest: str, **config: Any) -> Driver:
    return Driver(subject_transform=SubjectTransform(src, dest), **config)


def test_messages_are_stored_under_the_transformed_subject() -> None:
    driver = transforming("s.*.*", "t.{{wildcard(2)}}.$1")
    rows: list[tuple[bytes, dict[str, str], bytes]] = [
        (b"s.a.b", {}, b"1"), (b"s.x", {}, b"2"), (b"s.a.c", {"k": "v"}, b"3"),
    ]  # fmt: skip
    assert driver.batch(rows).count == 3
    assert subjects(driver) == [b"t.b.a", b"s.x", b"t.c.a"]
    assert driver.stream.store.last_of_subject(b"t.b.a") == 1
    found = driver.stream.store.get(3)
    assert found is not None
    assert (found.headers, found.data) == (b"NATS/1.0\r\nk: v\r\n\r\n", b"3")


def test_checks_and_limits_see_the_transformed_subject() -> None:
    driver = transforming("s.*", "t.all", max_msgs_per_subject=2)
    assert driver.publish("s.a") == 1
    assert driver.publish("s.b", Nats_Expected_Last_Subject_Sequence="1") == 2
    refused = driver.publish("s.c", Nats_Expected_Last_Subject_Sequence="1")
    assert isinstance(refused, JetStreamError)
    assert refused.description == "wrong last sequence: 2"
    driver.publish("s.d")
    assert driver.seqs() == [2, 3]


def test_a_transform_can_be_added_and_removed() -> None:
    driver = Driver()
    driver.publish("s.a")
    driver.configure(subject_transform=SubjectTransform("s.>", "t.>"))
    driver.publish("s.a")
    driver.configure(subject_transform=None)
    driver.publish("s.a")
    assert subjects(driver) == [b"s.a", b"t.a", b"s.a"]


def test_replicas_draw_the_same_random_numbers() -> None:
    driver = transforming("s.>", "t.{{random(1000)}}.>")
    driver.batch([(b"s.a", {}, b"")] * 20)
    replica = transforming("s.>", "t.{{random(1000)}}.>")
    for entry in driver.log:
        replica.entry(entry)
    assert len(set(subjects(driver))) > 10
    assert subjects(replica) == subjects(driver)


def test_a_mapping_that_yields_no_valid_subject_keeps_the_subject() -> None:
    driver = transforming("s.*", "t.{{split(1,-)}}")
    driver.publish("s.--")
    assert subjects(driver) == [b"s.--"]


def republished(driver: Driver) -> list[Republished]:
    return driver.stream.leader_effects.take_republished()


def republishing(*, headers_only: bool = False, **config: Any) -> Driver:
    driver = Driver(republish=Republish("s.>", "r.>", headers_only), **config)
    driver.stream.leader_effects.start()
    return driver


def test_republished_messages_carry_their_position() -> None:
    driver = republishing()
    driver.now = 1_700_000_000 * SECOND + 5
    driver.batch([(b"s.a", {}, b"1"), (b"s.b", {}, b"2"), (b"s.a", {"k": "v"}, b"3")])
    first, _, third = republished(driver)
    assert first == Republished(
        b"r.a",
        b"NATS/1.0\r\nNats-Stream: S\r\nNats-Subject: s.a\r\nNats-Sequence: 1\r\n"
        b"Nats-Time-Stamp: 2023-11-14T22:13:20.000000005Z\r\nNats-Last-Sequence: 0\r\n\r\n",
        b"1",
    )
    assert third.headers.startswith(b"NATS/1.0\r\nk: v\r\nNats-Stream: S\r\n")
    assert b"Nats-Last-Sequence: 1\r\n" in third.headers
    driver.publish("s.a", Nats_Msg_Id="m")
    assert driver.publish("s.a", Nats_Msg_Id="m") != 5
    (fourth,) = republished(driver)
    assert b"Nats-Msg-Id: m\r\nNats-Stream: S\r\n" in fourth.headers
    assert b"Nats-Sequence: 4\r\n" in fourth.headers
    assert b"Nats-Last-Sequence: 3\r\n" in fourth.headers


def test_headers_only_republishes_the_size() -> None:
    driver = republishing(headers_only=True)
    driver.publish("s.a", "12345")
    (message,) = republished(driver)
    assert message.data == b""
    assert message.headers.endswith(b"Nats-Msg-Size: 5\r\n\r\n")


def test_only_matching_subjects_are_republished() -> None:
    driver = Driver(subjects=("s.>", "x"), republish=Republish("s.*", "r.$1"))
    driver.stream.leader_effects.start()
    for subject in ("s.a", "s.a.b", "x"):
        driver.publish(subject)
    assert [message.subject for message in republished(driver)] == [b"r.a"]


def test_a_follower_republishes_nothing() -> None:
    driver = republishing()
    driver.stream.leader_effects.stop()
    driver.publish("s.a")
    assert driver.stream.leader_effects.republished == []


def test_long_subjects_are_mapped_in_steps_before_the_entry_is_applied() -> None:
    """Hashing a subject of 4 KB takes fifty times as long as storing the message."""
    rows: list[tuple[bytes, dict[str, str], bytes]] = [
        (b"s.%d%s" % (at, b"x" * 1000), {}, b"") for at in range(40)
    ]
    ours, twin = (transforming("s.*", "t.{{partition(9,1)}}.$1") for _ in range(2))
    twin.batch(rows)
    entry = twin.log[-1]
    assert ours.stream.is_long(entry)
    asked: list[bytes] = []
    mapping = ours.stream._writer.transform
    assert mapping is not None
    ours.stream._writer.transform = _Noted(mapping, asked)  # type: ignore[assignment]
    assert sum(1 for _ in ours.stream.prepare(entry)) == len(asked) == 40
    ours.stream.apply(1, entry)
    assert len(asked) == 40  # not once more
    assert subjects(ours) == subjects(twin)
    assert subjects(ours)[0].startswith(b"t.")
    twin.batch([(b"s.short", {}, b"")])
    assert not ours.stream.is_long(twin.log[-1])


class _Noted:
    """A mapping that notes what it is asked about."""

    def __init__(self, mapping: Mapping, asked: list[bytes]) -> None:
        self.varies = mapping.varies
        self._mapping, self._asked = mapping, asked

    def __call__(self, subject: bytes, *, seed: int = 0) -> bytes | None:
        self._asked.append(subject)
        return self._mapping(subject, seed=seed)
