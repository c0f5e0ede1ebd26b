"""The ledger of values in files against a model that counts everything anew."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from broker.store.values.ledger import ValueLedger, ValuePlace, extent

KEYS = st.sampled_from([owner + bytes([n]) for owner in (b"A" * 8, b"B" * 8) for n in range(5)])
FILE_BYTES = 64 << 10


class LedgerModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.ledger = ValueLedger()
        self.places: dict[bytes, ValuePlace] = {}
        self.ends: dict[int, int] = {}
        self.growing: int | None = None
        self.held: list[tuple[bytes, ValuePlace]] = []
        self.next = 1

    @rule(key=KEYS, size=st.integers(1, 20_000))
    def hold(self, key: bytes, size: int) -> None:
        if self.growing is None:
            self.growing, self.next = self.next, self.next + 1
            self.ledger.begin(self.growing)
            self.ends[self.growing] = 0
        place = ValuePlace(self.growing, self.ends[self.growing], size)
        self.ledger.hold(place)
        self.ends[self.growing] += extent(size)
        self.held.append((key, place))
        if self.ends[self.growing] >= FILE_BYTES:
            self.end()

    @rule()
    def end(self) -> None:
        if self.growing is not None:
            self.ledger.end(self.growing)
            self.growing = None

    @rule(used=st.booleans())
    def settle(self, *, used: bool) -> None:
        if self.held:
            key, place = self.held.pop(0)
            if used:
                self.ledger.refer(key, place)
                self.places[key] = place
            self.ledger.release([place])

    @rule(key=KEYS)
    def drop(self, key: bytes) -> None:
        self.ledger.drop(key)
        self.places.pop(key, None)

    @rule(owner=st.sampled_from([b"A" * 8, b"B" * 8]))
    def drop_owner(self, owner: bytes) -> None:
        self.ledger.drop_owner(owner)
        self.places = {k: p for k, p in self.places.items() if not k.startswith(owner)}

    @rule()
    def remove(self) -> None:
        for number in self.ledger.unused():
            self.ledger.forget(number)
            del self.ends[number]

    @rule(size=st.integers(0, 100_000))
    def found(self, size: int) -> None:
        for number in {*self.ends, self.next} - {self.growing}:
            self.ledger.found(number, size)
            self.ends[number] = max(self.ends.get(number, 0), -(-size // 4096) * 4096)
        self.next += 1

    @invariant()
    def counts(self) -> None:
        ledger = self.ledger
        assert ledger.files.keys() == self.ends.keys()
        for number, use in ledger.files.items():
            living = {k: p for k, p in self.places.items() if p.file == number}
            assert use.keys == living.keys()
            assert use.alive == sum(extent(p.size) for p in living.values())
            assert use.held == sum(place.file == number for _, place in self.held)
            assert use.size == self.ends[number]
            assert dict(ledger.of_file(number)) == living
        assert ledger.size == sum(self.ends.values())
        assert ledger.alive == sum(extent(p.size) for p in self.places.values())
        assert {**ledger.of_owner(b"A" * 8), **ledger.of_owner(b"B" * 8)} == self.places

    @invariant()
    def nothing_in_use_may_go(self) -> None:
        used = {p.file for p in self.places.values()} | {p.file for _, p in self.held}
        assert set(self.ledger.unused()) == self.ends.keys() - used - {self.growing}

    @invariant()
    def little_is_dead_for_long(self) -> None:
        for crowded in (False, True):
            chosen = self.ledger.wasteful(FILE_BYTES, crowded=crowded)
            if chosen is not None:
                use = self.ledger.files[chosen]
                assert use.keys
                assert use.dead
                assert not use.held
                assert chosen != self.growing
        settled = [u for u in self.ledger.files.values() if u.keys and not u.held and not u.growing]
        dead = sum(use.dead for use in settled)
        chosen = self.ledger.wasteful(FILE_BYTES, crowded=False)
        assert (chosen is not None) == (dead > self.ledger.alive // 5 + FILE_BYTES // 2)


TestLedger = LedgerModel.TestCase
TestLedger.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@given(st.integers(0, 1 << 30))
def test_a_value_takes_whole_borders_with_its_head(size: int) -> None:
    assert extent(size) % 4096 == 0
    assert 40 <= extent(size) - size < 40 + 4096
