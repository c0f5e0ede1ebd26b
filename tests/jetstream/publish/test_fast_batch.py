"""Fast batches as replicated state: whole blocks, snapshots, idle batches, limits."""

from __future__ import annotations

from typing import Any

from broker.jetstream.commands.publish_entry import Bounds, FastOp, fast_spans
from broker.jetstream.publish.fast_batch import IDLE_NS, OPEN_MAX
from broker.jetstream.publish.sessions import FastBatchReply, Stored
from tests.support.stream_rig import Driver, Row

DISABLED, MALFORMED, LONG_ID, UNKNOWN, TOO_MANY = 10205, 10206, 10207, 10208, 10211


def reply(seq: int, op: int, batch: str = "b", flow: int = 4, gap: str = "fail") -> str:
    return f"_INBOX.x.{batch}.{flow}.{gap}.{seq}.{op}.$FI"


def batch_of(count: int, **named: Any) -> list[str]:
    """A start, appends, and a commit."""
    appends = [reply(seq, FastOp.APPEND, **named) for seq in range(2, count)]
    return [reply(1, FastOp.START, **named), *appends, reply(count, FastOp.COMMIT, **named)]


def rows(count: int) -> list[Row]:
    return [(b"s.a", {}, b"%d" % i) for i in range(count)]


def send(driver: Driver, replies: list[str], **named: Any) -> Any:
    return driver.noted(rows(len(replies)), replies=replies, **named)


def flow(seq: int, msgs: int) -> FastBatchReply:
    return FastBatchReply(f'{{"type":"ack","seq":{seq},"msgs":{msgs}}}')


def test_consecutive_appends_are_one_span() -> None:
    spans = fast_spans(enumerate(r.encode() for r in batch_of(100)))
    assert [(s.row, s.count, s.seq, s.op) for s in spans] == [
        (0, 1, 1, FastOp.START), (1, 98, 2, FastOp.APPEND), (99, 1, 100, FastOp.COMMIT),
    ]  # fmt: skip
    apart = [reply(2, 1), reply(3, 1, batch="c"), reply(4, 1), reply(6, 1), reply(7, 1, flow=9)]
    assert len(fast_spans(enumerate(r.encode() for r in apart))) == len(apart)


def test_a_block_of_one_batch_is_stored_in_one_call_and_acked_at_its_end() -> None:
    driver = Driver(allow_batched=True)
    assert send(driver, batch_of(10)) == [
        (0, flow(0, 4)), (8, flow(8, 4)), (9, Stored(10, batch="b", count=10)),
    ]  # fmt: skip
    assert driver.seqs() == list(range(1, 11))
    assert not driver.stream._publishes.fast_batches


def test_a_block_and_single_rows_lead_to_the_same_state() -> None:
    replies = [*batch_of(9), *batch_of(7, batch="c", flow=1)]
    at_once, one_by_one = Driver(allow_batched=True), Driver(allow_batched=True)
    answers = send(at_once, replies)
    for one in replies:
        last = send(one_by_one, [one])
    assert answers[-1][1] == last[-1][1] == Stored(16, batch="c", count=7)
    assert at_once.seqs() == one_by_one.seqs()


def test_a_block_with_a_gap_is_processed_row_by_row() -> None:
    driver = Driver(allow_batched=True)
    gap = FastBatchReply('{"type":"gap","last_seq":3,"seq":4}')
    replies = [reply(1, 0), reply(2, 1), reply(4, 1), reply(5, 1)]
    assert send(driver, replies) == [
        (0, flow(0, 4)), (2, gap), (2, Stored(2, batch="b", count=2)),
        (3, (UNKNOWN, "batch publish ID unknown")),
    ]  # fmt: skip
    assert driver.seqs() == [1, 2]


def test_rows_between_those_of_a_batch_are_acked_by_their_sequence() -> None:
    driver = Driver(allow_batched=True)
    replies = ["", reply(1, 0), "", reply(2, 1), ""]
    assert send(driver, replies) == [(1, flow(0, 4)), (2, Stored(3)), (4, Stored(5))]


def test_open_batches_survive_replay_checkpoint_and_snapshot() -> None:
    driver = Driver(allow_batched=True)
    send(driver, batch_of(6, gap="ok")[:-1])
    send(driver, batch_of(6, batch="c")[:3])
    replayed = Driver(allow_batched=True)
    for entry in driver.log:
        replayed.entry(entry)
    assert replayed.stream.digest() == driver.stream.digest()
    written = driver.db.begin()
    driver.stream.checkpoint(written)
    driver.db.write(written)
    reopened = driver.open()
    assert reopened.digest() == driver.stream.digest()
    copy = Driver(allow_batched=True)
    copy.stream.restore(list(reopened.snapshot()))
    copy.log = list(driver.log)
    assert copy.stream.digest() == driver.stream.digest()
    end = [reply(6, FastOp.COMMIT, gap="ok"), reply(4, FastOp.COMMIT, batch="c")]
    expected = [(0, Stored(9, batch="b", count=6)), (1, Stored(10, batch="c", count=4))]
    assert send(copy, end) == send(driver, end) == expected


def test_idle_batches_are_dropped_without_a_reply() -> None:
    driver = Driver(allow_batched=True)
    send(driver, [reply(1, 0)])
    assert driver.stream.next_expiry(0) == driver.now + IDLE_NS
    driver.now += IDLE_NS - 1
    driver.expire()
    assert send(driver, [reply(2, 1)]) == []
    driver.now += IDLE_NS
    driver.expire()
    assert send(driver, [reply(3, 1)]) == [(0, (UNKNOWN, "batch publish ID unknown"))]
    assert driver.stream.next_expiry(0) is None


def test_the_limit_on_open_batches_applies_to_whole_blocks() -> None:
    driver = Driver(allow_batched=True)
    starts = [reply(1, 0, batch=f"n{i}") for i in range(OPEN_MAX + 2)]
    answers = send(driver, starts)
    refused = (TOO_MANY, "batch publish too many inflight")
    assert [row for row, answer in answers if answer == refused] == [OPEN_MAX, OPEN_MAX + 1]
    assert len(driver.stream._publishes.fast_batches) == OPEN_MAX


def test_disabling_fast_batches_drops_open_ones() -> None:
    driver = Driver(allow_batched=True)
    send(driver, [reply(1, 0)])
    driver.configure(allow_batched=False)
    assert send(driver, [reply(2, 1)]) == [(0, (DISABLED, "batch publish is disabled"))]
    driver.configure(allow_batched=True)
    assert send(driver, [reply(2, 1)]) == [(0, (UNKNOWN, "batch publish ID unknown"))]


def test_a_full_account_refuses_members_and_leaves_the_batch_open() -> None:
    driver = Driver(allow_batched=True)
    send(driver, [reply(1, 0)])
    full = Bounds(account=driver.stream.store.bytes + 10)
    refused = (10002, "resource limits exceeded for account")
    assert send(driver, [reply(2, 1)], bounds=full) == [(0, refused)]
    assert send(driver, [reply(2, 2)]) == [(0, Stored(2, batch="b", count=2))]
