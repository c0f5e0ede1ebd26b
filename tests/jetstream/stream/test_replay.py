"""Replicas that apply the same entries are equal, even after restarts and snapshots."""

from __future__ import annotations

import random
from typing import Any

import pytest

from broker.jetstream.commands.stream_commands import PauseConsumer, ResetConsumer
from broker.jetstream.config import Discard, Retention, Storage, SubjectTransform
from broker.jetstream.consumer.consumer import Consumer
from broker.jetstream.publish import dedup_window as dedup
from broker.jetstream.publish.sessions import PublishResult
from broker.jetstream.stream.stream import Stream
from broker.store import persistence, segments
from broker.store.memory_db import MemoryDb
from tests.support.stream_rig import SECOND, Driver, comparable

SUBJECTS = [b"s.a", b"s.b", b"s.c.1", b"s.c.2"]


def random_config(draw: random.Random) -> dict[str, Any]:
    return {
        "retention": draw.choice(list(Retention)),
        "storage": draw.choice(list(Storage)),
        "max_msgs": draw.choice([-1, -1, 20]),
        "max_bytes": draw.choice([-1, -1, 900]),
        "max_msgs_per_subject": draw.choice([-1, 1, 3]),
        "max_age": draw.choice([0, 20 * SECOND]),
        "discard": draw.choice([Discard.OLD, Discard.OLD, Discard.NEW]),
        "duplicate_window": 10 * SECOND,
        "allow_rollup_hdrs": True,
        "first_seq": draw.choice([0, 50]),
        "allow_msg_ttl": True,
        "subject_delete_marker_ttl": draw.choice([0, 0, 3 * SECOND]),
        "allow_atomic": True,
        "allow_msg_schedules": True,
        "subject_transform": draw.choice([None, SubjectTransform("s.c.*", "s.{{random(3)}}.$1")]),
    }


def random_rows(draw: random.Random) -> list[tuple[bytes, dict[str, str], bytes]]:
    rows = []
    plain = draw.random() < 0.5
    for _ in range(draw.randint(1, 6)):
        pairs: dict[str, str] = {}
        if not plain and draw.random() < 0.5:
            name, value = draw.choice([
                ("Nats-Msg-Id", str(draw.randint(1, 30))),
                ("Nats-Expected-Last-Sequence", str(draw.randint(0, 60))),
                ("Nats-Expected-Last-Subject-Sequence", str(draw.randint(0, 60))),
                ("Nats-Expected-Last-Msg-Id", str(draw.randint(1, 3))),
                ("Nats-Msg-Id", str(draw.randint(1, 3))),
                ("Nats-Rollup", draw.choice(["sub"] * 9 + ["all"])),
                ("Nats-TTL", draw.choice(["1", "5s", "never", "0"])),
                ("Nats-Batch-Id", draw.choice(["a", "b", "c"])),
                ("Nats-Batch-Id", draw.choice(["a", "b", "c"])),
                ("Nats-Schedule", draw.choice(["@every 2s", "@at 1970-01-01T00:17:00Z"])),
                ("k", "v"),
            ])  # fmt: skip
            pairs[name] = value
            if name == "Nats-Batch-Id":
                pairs["Nats-Batch-Sequence"] = str(draw.choice([1, 1, 2, 2, 3]))
                pairs |= draw.choice([{}, {}, {"Nats-Batch-Commit": "1"}])
            if name == "Nats-Schedule":
                pairs["Nats-Schedule-Target"] = "s.d"
        rows.append((draw.choice(SUBJECTS), pairs, draw.randbytes(draw.randint(0, 12))))
    return rows


class History:
    """A driver that applies random commands; they are in its log."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.driver = Driver(**random_config(self.draw))
        self.batch_no = {1: 0, 2: 0}

    def step(self) -> None:
        driver, draw = self.driver, self.draw
        driver.now += draw.choice([0, 1, SECOND])
        names = list(driver.stream.consumers)
        match draw.randint(0, 13):
            case 0 | 1 | 2 | 3 | 4 | 5:
                from_node = draw.choice([1, 2])
                number = self.batch_no[from_node] + draw.choice([1, 1, 1, 1, 0, 2])
                result = driver.batch(
                    random_rows(draw), from_node=from_node, session=1, batch_no=number
                )
                if isinstance(result, PublishResult):
                    self.batch_no[from_node] = max(self.batch_no[from_node], number)
            case 6:
                driver.delete(draw.randint(1, 80), no_erase=draw.random() < 0.5)
            case 7 if draw.random() < 0.3:
                driver.purge(draw.choice(["", "s.a", "s.c.*"]), keep=draw.choice([0, 2]))
            case 8:
                for command in driver.stream.due_commands(driver.now):
                    driver.run(command)
            case 9:
                filters = draw.choice([(), ("s.a",), ("s.c.*", "s.b")])
                driver.consumer(draw.choice("xyz"), *filters)
            case 10 if names:
                if draw.random() < 0.3:
                    driver.drop_consumer(draw.choice(names))
                else:
                    driver.run(PauseConsumer(driver.now, names[0], driver.now + 5))
            case 11 if draw.random() < 0.3:
                driver.configure(max_msgs=draw.choice([-1, 5, 30]))
            case 12 if names and draw.random() < 0.2:
                driver.run(ResetConsumer(driver.now, draw.choice(names)))
            case _ if names:
                self.consume(draw.choice(names))

    def consume(self, name: str) -> None:
        driver, draw = self.driver, self.draw
        consumer = driver.stream.consumers[name]
        assert isinstance(consumer, Consumer)
        store = driver.stream.store
        seq = store.next_matching(consumer.config.filters, consumer.state.stream_seq + 1)
        if seq:
            driver.deliver(name, seq)
        if consumer.state.pending and draw.random() < 0.8:
            driver.ack(name, draw.choice(sorted(consumer.state.pending)))


class Replica:
    """Applies a log; sometimes it restarts from its checkpoint, or restores its own snapshot."""

    def __init__(self, driver: Driver, draw: random.Random) -> None:
        self.driver, self.draw = driver, draw
        self.forget()

    def forget(self) -> None:
        """Start over with an empty database."""
        self.db = MemoryDb()
        self.open()

    def open(self) -> None:
        files = self.db.files(3)
        config = self.driver.first_config
        self.stream = Stream.open(config, created_ns=1, files=files)

    def run(self) -> None:
        log = self.driver.log
        while self.stream.applied < len(log):
            at = self.stream.applied
            result = self.stream.apply(at + 1, log[at])
            assert comparable(result) == self.driver.results[at]
            chance = self.draw.random()
            if chance < 0.15:
                self.checkpoint()
            elif chance < 0.20:
                self.open()  # entries after the checkpoint are applied again
            elif chance < 0.25:
                chunks = list(self.stream.snapshot())
                if self.draw.random() < 0.5:
                    self.forget()
                self.db.wipe(3)
                self.stream.restore(chunks)
                self.checkpoint()

    def checkpoint(self) -> None:
        batch = self.db.begin()
        self.stream.checkpoint(batch)
        self.db.write(batch)


@pytest.mark.parametrize("seed", range(60))
def test_replicas_are_equal_after_restarts_and_snapshots(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "SEAL_ROWS", 7)
    monkeypatch.setattr(persistence, "SEAL_ROWS", 7)
    monkeypatch.setattr(dedup, "CHUNK_IDS", 3)
    monkeypatch.setattr(dedup, "CHUNK_BYTES", (4, 1 << 18)[seed % 2])
    history = History(seed)
    for _ in range(150):
        history.step()
    driver = history.driver
    for life in range(3):
        replica = Replica(driver, random.Random(seed * 10 + life))
        replica.run()
        assert replica.stream.state() == driver.stream.state(), f"seed {seed}, life {life}"
        assert replica.stream.digest() == driver.stream.digest(), f"seed {seed}, life {life}"
