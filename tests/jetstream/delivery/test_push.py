"""Push delivery: flow control, rate limit, replay pace, headers only, bounded pumps, fair runs."""

from __future__ import annotations

import pytest

from broker.jetstream.delivery.dispatch import PUMP_MESSAGES_MIN, PUMP_S, PumpLimits
from broker.jetstream.delivery.effects import Deliver, StatusMessage, headers_only_block
from broker.jetstream.delivery.flow_control import WINDOW_MIN_BYTES, FlowControl, RateLimit
from tests.support.consumer_rig import MS, START, Bench, S

KIB = 1 << 10


def push(**fields: object) -> Bench:
    return Bench(deliver_subject="d", durable_name="C", **fields)


def test_flow_control_requests_at_half_the_window_and_stops_above_it() -> None:
    bench = push(ack_policy="none", flow_control=True, idle_heartbeat=S)
    bench.publish(*["a"] * 30, data=b"x" * 200 * KIB)
    bench.bind()
    lines = bench.out()
    requested = [line for line in lines if "FlowControl" in line]
    assert requested == ["status d 100 FlowControl Request reply=$JS.FC.S.C.0001"]
    # 2 MiB window: eleven messages of 200 KiB are the first to exceed it.
    assert len(bench.delivered) == 11
    bench.advance(S)
    assert bench.out() == [
        "status d 100 Idle Heartbeat | Nats-Last-Consumer: 11 | Nats-Last-Stream: 11"
        " | Nats-Consumer-Stalled: $JS.FC.S.C.0001"
    ]
    bench.delivery.flow_control_reply(b"$JS.FC.S.C.0000")
    assert bench.out() == [], "only the latest request counts"
    bench.delivery.flow_control_reply(b"$JS.FC.S.C.0001")
    assert "status d 100 FlowControl Request reply=$JS.FC.S.C.0002" in bench.out()
    # 6 messages had been sent at the request: 5 are in flight in a window of 4 MiB now.
    assert len(bench.delivered) == 11 + 16


def test_flow_window_doubles_up_to_its_maximum() -> None:
    flow = FlowControl("p.")
    for _ in range(6):
        flow.sent(flow.window + 1)
        assert flow.blocked
        assert flow.answered(flow.request())
        assert not flow.blocked
    assert flow.window == 32 << 20
    assert flow.request() == b""


def test_flow_control_starts_over_with_a_new_subscriber() -> None:
    flow = FlowControl("p.")
    flow.sent(WINDOW_MIN_BYTES + 1)
    request = flow.request()
    flow.restart()
    assert not flow.blocked
    assert not flow.answered(request)


def test_rate_limit_allows_a_burst_and_then_keeps_the_rate() -> None:
    rate = RateLimit(bits_per_s=8000, burst_bytes=500)
    now = START
    sent = 0
    while rate.ready_at() <= now:
        rate.sent(100, now)
        sent += 1
    assert sent == 6, "a burst of 500 bytes, and the message that exceeds it"
    assert rate.ready_at() == START + 100 * MS
    now += 100 * MS
    rate.sent(100, now)
    assert rate.ready_at() == START + 200 * MS


def test_rate_limited_consumer_sets_a_deadline_for_the_next_message() -> None:
    bench = push(ack_policy="none", rate_limit_bps=8 * 1000)
    bench.limits = PumpLimits(rate_burst_bytes=1)
    bench.crash()
    bench.bind()
    bench.publish(*["a"] * 3, data=b"x" * 960)
    assert bench.seqs() == [1]
    at = bench.delivery.next_deadline()
    assert at is not None
    bench.commit()
    bench.now = START + 998 * MS
    assert bench.seqs() == []
    bench.now = START + 1010 * MS
    assert bench.seqs() == [2]


def test_original_replay_pace_is_kept_for_messages_stored_before_the_start() -> None:
    bench = Bench()
    for gap in (0, 50, 0, 200):
        bench.advance(gap * MS)
        bench.publish("a")
    bench.advance(S)
    bench.create(deliver_subject="d", durable_name="C", replay_policy="original")
    bench.bind()
    began = bench.now
    bench.advance(MS)
    assert bench.seqs() == [1]
    times = []
    while len(bench.delivered) < 4:
        at = bench.delivery.next_deadline()
        assert at is not None
        bench.now = max(at, bench.now)
        times += [(seq, (bench.now - began) // MS) for seq in bench.seqs()]
    assert times == [(2, 51), (3, 51), (4, 251)]
    bench.publish("a", "a")
    assert bench.seqs() == [5, 6], "later messages are delivered at once"


def test_headers_only_adds_the_size_of_the_payload() -> None:
    bench = push(ack_policy="none", headers_only=True)
    bench.publish("a", data=b"four")
    bench.publish("a", data=b"five!", headers=b"NATS/1.0\r\nK: v\r\n\r\n")
    bench.bind()
    (effect,) = bench.pump()
    assert isinstance(effect, Deliver)
    assert effect.headers_only
    blocks = [headers_only_block(effect.rows, index) for index in effect.indices]
    assert blocks == [
        b"NATS/1.0\r\nNats-Msg-Size: 4\r\n\r\n",
        b"NATS/1.0\r\nK: v\r\nNats-Msg-Size: 5\r\n\r\n",
    ]


def test_a_pump_is_bounded_and_sets_more_work() -> None:
    bench = push(ack_policy="explicit", max_ack_pending=-1)
    bench.publish(*["a"] * 2500)
    bench.bind()
    counts = []
    while not counts or bench.delivery.more_work:
        before = len(bench.delivered)
        bench.pump()
        counts.append(len(bench.delivered) - before)
    assert counts == [1000, 1000, 500]
    bench.advance(31 * S)
    counts = []
    while not counts or bench.delivery.more_work:
        before = len(bench.delivered)
        bench.pump()
        counts.append(len(bench.delivered) - before)
    assert counts[:3] == [1000, 1000, 500]


def test_big_messages_end_a_pump_early() -> None:
    bench = push(ack_policy="none")
    bench.publish(*["a"] * 8, data=b"x" * 300 * KIB)
    bench.bind()
    bench.pump()
    assert len(bench.delivered) == 3
    assert bench.delivery.more_work


@pytest.mark.parametrize(("each", "effects_max"), [(500, 8), (50, 10), (10, 20)])
def test_requests_share_many_messages_in_runs(each: int, effects_max: int) -> None:
    bench = Bench(ack_policy="explicit", durable_name="C", max_ack_pending=-1)
    bench.publish(*["a"] * 2 * each)
    for name in ("r", "q"):
        bench.pull(name, str(each))
    effects = bench.pump()
    got = {b"r": 0, b"q": 0}
    for effect in effects:
        assert isinstance(effect, Deliver)
        got[effect.to] += len(effect.indices)
        assert abs(got[b"r"] - got[b"q"]) <= max(each // 4, 1)  # neither is far ahead
    assert got == {b"r": each, b"q": each}
    assert len(effects) <= effects_max
    consumer_seqs = [cseq for _, cseq, _ in bench.delivered]
    assert consumer_seqs == list(range(1, 2 * each + 1))


def test_closed_engine_sends_nothing() -> None:
    bench = Bench(ack_policy="explicit", durable_name="C")
    bench.pull("r", '{"batch":1,"expires":1000000000}')
    (ended,) = bench.delivery.close("409 Leadership Change")
    assert isinstance(ended, StatusMessage)
    bench.publish("a")
    bench.pull("r", "1")
    assert bench.pump() == []
    assert bench.delivery.next_deadline() is None
    assert bench.of.watcher is None


def test_a_pump_that_took_long_is_followed_by_shorter_ones() -> None:
    """A thousand messages that are routed one by one held the loop for 15 ms."""
    bench = Bench()
    bench.publish(*["s.x"] * 3000)
    bench.create(deliver_subject="to", ack_policy="none")
    bench.delivery.set_interest(bound=True, now=bench.now)

    def pumped(used_s: float) -> int:
        effects = bench.delivery.pump(bench.now)
        bench.delivery.took(used_s)
        return sum(len(e.indices) for e in effects if isinstance(e, Deliver))

    counts = [pumped(2 * PUMP_S), pumped(2 * PUMP_S), pumped(PUMP_S / 2), pumped(0.0), pumped(0.0)]
    assert counts == [1000, 500, 250, 250, 500]
    for _ in range(10):
        bench.delivery.took(1.0)
    assert pumped(1.0) == PUMP_MESSAGES_MIN
