"""A consumer under random operations, checked against invariants (hypothesis state machine).

The machine publishes, pulls, acks, naks, advances time, removes messages, commits proposals or
loses them, and crashes the leader. The bench compares the replicas after every commit."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from broker.subjects import finish
from tests.support.consumer_rig import Bench, S

ACK_WAIT = 10 * S
SUBJECTS = ("a", "b", "c.d")


class ConsumerMachine(RuleBasedStateMachine):
    """Explicit acks, one filter or none."""

    policy = "explicit"

    @initialize(filtered=st.booleans(), limit=st.sampled_from([3, 1000]), start=st.integers(0, 6))
    def create(self, filtered: bool, limit: int, start: int) -> None:
        fields: dict[str, Any] = {"filter_subject": "a"} if filtered else {}
        self.wanted = {"a"} if filtered else set(SUBJECTS)
        self.limit = limit
        self.bench = Bench()
        self.subjects: dict[int, str] = {}  # stored now, by sequence
        self.last_seq = 0
        for i in range(start):
            self.publish([SUBJECTS[i % 3]])
        self.bench.create(
            ack_policy=self.policy,
            durable_name="C",
            ack_wait=ACK_WAIT,
            max_ack_pending=limit,
            **fields,
        )
        self.acked_and_committed: set[int] = set()
        self.acked: set[int] = set()  # received by this leader, not committed yet
        self.in_flight: list[set[int]] = []  # the part of them in each proposal
        self.floor = 0
        self.requests = 0

    # Helpers

    def matching(self) -> set[int]:
        return {seq for seq, subject in self.subjects.items() if subject in self.wanted}

    def open_seqs(self) -> list[int]:
        return sorted(self.bench.delivery._cursor.live.pending)

    def receive(self) -> list[int]:
        """Pump once; an acked message must not be delivered again."""
        before = len(self.bench.delivered)
        self.bench.pump()
        fresh = self.bench.delivered[before:]
        for seq, _, _ in fresh:
            assert seq not in self.acked_and_committed, "redelivered after its ack committed"
            assert seq not in self.acked, "redelivered by the leader that received its ack"
            assert seq in self.subjects, "delivered a message that is not stored"
            assert self.subjects[seq] in self.wanted
        return [seq for seq, _, _ in fresh]

    # Rules

    @rule(subjects=st.lists(st.sampled_from(SUBJECTS), min_size=1, max_size=5))
    def publish(self, subjects: list[str]) -> None:
        for subject in subjects:
            self.last_seq += 1
            self.subjects[self.last_seq] = subject
        self.bench.publish(*subjects)

    @rule(subjects=st.lists(st.sampled_from(SUBJECTS), min_size=3, max_size=9))
    def publish_and_pull(self, subjects: list[str]) -> None:
        self.publish(subjects)
        self.pull(len(subjects), 2)

    @rule(batch=st.integers(1, 6), many=st.integers(1, 3))
    def pull(self, batch: int, many: int) -> None:
        for _ in range(many):
            self.requests += 1
            self.bench.pull(f"r{self.requests}", f'{{"batch":{batch},"expires":{5 * S}}}')
        self.receive()

    @rule(data=st.data(), count=st.integers(1, 4))
    def ack(self, data: st.DataObject, count: int) -> None:
        for _ in range(count):
            open_seqs = sorted(set(self.open_seqs()) - self.acked)
            if not open_seqs:
                return
            seq = data.draw(st.sampled_from(open_seqs))
            self.bench.ack(seq, data.draw(st.sampled_from(["", "+ACK", "+TERM"])))
            below = [s for s in open_seqs if s <= seq] if self.policy == "all" else [seq]
            self.acked.update(below)

    @rule(data=st.data(), payload=st.sampled_from(["-NAK", "-NAK 2s", "+WPI"]))
    def nak(self, data: st.DataObject, payload: str) -> None:
        open_seqs = sorted(set(self.open_seqs()) - self.acked)
        if open_seqs:
            self.bench.ack(data.draw(st.sampled_from(open_seqs)), payload)
            self.receive()

    @rule(by=st.sampled_from([1, S, 3 * S, ACK_WAIT]))
    def time_passes(self, by: int) -> None:
        self.bench.advance(by)
        self.receive()

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        if self.subjects:
            seq = data.draw(st.sampled_from(sorted(self.subjects)))
            del self.subjects[seq]
            self.bench.remove(seq)

    @rule(data=st.data(), rarely=st.integers(0, 7))
    def purge(self, data: st.DataObject, rarely: int) -> None:
        if self.subjects and rarely == 7:
            below = data.draw(st.integers(min(self.subjects), self.last_seq + 1))
            self.subjects = {s: subject for s, subject in self.subjects.items() if s >= below}
            self.bench.purge(below)

    @rule()
    def propose(self) -> None:
        before = len(self.bench.pending_proposals)
        self.bench.propose()
        if len(self.bench.pending_proposals) > before:
            self.in_flight.append(self.acked - set().union(*self.in_flight))

    @rule()
    def commit_oldest(self) -> None:
        """Commit one proposal; the others stay in flight, or are lost in a crash."""
        if self.in_flight:
            for command in self.bench.pending_proposals.pop(0).commands:
                self.bench.command(command)
            done = self.in_flight.pop(0)
            self.acked_and_committed |= done
            self.acked -= done

    @rule()
    def commit(self) -> None:
        self.bench.commit()
        self.in_flight.clear()
        self.acked_and_committed |= self.acked
        self.acked.clear()

    @rule()
    def crash(self) -> None:
        """Everything that is not committed is lost, acks included."""
        self.bench.crash()
        self.in_flight.clear()
        self.acked.clear()

    # Invariants

    @invariant()
    def floor_never_falls(self) -> None:
        if hasattr(self, "bench"):
            floor = self.bench.of.state.floor_stream_seq
            assert floor >= self.floor
            self.floor = floor

    @invariant()
    def numbers_are_exact(self) -> None:
        if not hasattr(self, "bench"):
            return
        finish(self.bench.delivery.counting(self.bench.now))
        numbers = self.bench.delivery.numbers(self.bench.now)
        later = [s for s in self.matching() if s >= self.bench.delivery._cursor.next_seq]
        assert numbers.num_pending == len(later)
        live = self.bench.delivery._cursor.live
        assert set(live.pending) <= set(self.subjects)

    @invariant()
    def pending_is_bounded(self) -> None:
        if hasattr(self, "bench"):
            assert len(self.bench.delivery._cursor.live.pending) <= self.limit

    def teardown(self) -> None:
        """Ack all deliveries until none is left: every matching message was delivered."""
        if not hasattr(self, "bench"):
            return
        for _ in range(50 + self.last_seq):  # each round delivers at least one message
            self.commit()
            self.bench.pull("last", "1000")
            for seq in self.receive():  # acks only what is delivered: all pending must come again
                self.bench.ack(seq)
                self.acked.add(seq)
            self.commit()
            self.bench.advance(ACK_WAIT)
        finish(self.bench.delivery.counting(self.bench.now))
        numbers = self.bench.delivery.numbers(self.bench.now)
        assert numbers.num_ack_pending == 0
        assert numbers.num_pending == 0
        seen = {seq for seq, _, _ in self.bench.delivered}
        assert self.matching() <= seen, "a matching message was skipped"
        assert self.bench.of.state.pack() == self.bench.delivery._cursor.live.pack()


class AckAllMachine(ConsumerMachine):
    policy = "all"


limits = settings(
    max_examples=60,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestExplicit = ConsumerMachine.TestCase
TestExplicit.settings = limits
TestAckAll = AckAllMachine.TestCase
TestAckAll.settings = limits
