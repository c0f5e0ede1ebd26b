"""What a scan sends: the rows and columns that were asked for, with little work for the rest."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.scan.admission import BlockMemory
from broker.scan.arrow import arrow_schema, batch_of, header_lists, stored_columns
from broker.scan.byte_cuts import STEP_EDGES, edges
from broker.scan.columns import read_columns
from broker.scan.projection import COLUMNS, omitted_by, only_sequences, projected
from broker.scan.protocol import (
    PlanRequest,
    ScanCode,
    ScanRefused,
    ScanRequest,
    decode_plan_request,
    decode_request,
    encode_plan_request,
    encode_request,
)
from broker.scan.selection import RowPicker, Selection
from broker.store import persistence, state_db
from broker.store.block.block_format import BlockDamaged
from broker.store.block.codec import BlockBuilder
from broker.store.encryption.directory_cipher import DirectoryCipher
from broker.store.state_keys import BLOCK, key
from broker.subjects import finish
from tests.store.test_block_files import Disk
from tests.support.scan_peers import START_NS, Store, block_of, data_of, subject_of


def table(raw: bytes, names: tuple[str, ...], low: int = 1, high: int = 10**9) -> list[dict]:
    batch = batch_of(
        read_columns(raw, verify=True), low=low, high=high, schema=arrow_schema(names), stream="S"
    )
    batch.validate(full=True)
    return batch.to_pylist()


@pytest.mark.parametrize(
    "names",
    [
        ("seq",),
        ("seq", "time"),
        ("subject",),
        ("data", "seq"),
        ("headers", "time"),
        ("stream", "time_ns"),
        COLUMNS,
    ],
)
@pytest.mark.parametrize("gaps", [False, True])
def test_a_projected_block_has_the_same_values(names: tuple[str, ...], *, gaps: bool) -> None:
    raw = block_of(5, 300)
    if gaps:
        builder = BlockBuilder()
        for seq in range(5, 300, 3):
            builder.append(subject_of(seq), b"", data_of(seq), time_ns=START_NS + seq, seq=seq)
        raw = builder.build()
    cut = projected(raw, omitted_by(stored_columns(names)))
    assert table(cut, names) == table(raw, names)
    assert len(cut) <= len(raw)
    if "data" not in names:
        assert b"5:" + b"x" * 5 not in cut


def test_a_column_that_was_not_sent_is_an_error_and_not_a_crash() -> None:
    cut = projected(block_of(1, 10), omitted_by(("seq",)))
    for name in ("subject", "time", "headers", "data", "time_ns"):
        with pytest.raises(BlockDamaged, match="did not send"):
            table(cut, (name,))
    assert len(only_sequences(1, 8192)) == 64
    assert table(only_sequences(7, 9), ("seq",)) == [{"seq": 7}, {"seq": 8}, {"seq": 9}]


@pytest.mark.parametrize("at", [6, 30, 60])
def test_damage_of_a_projected_block_is_detected(at: int) -> None:
    raw = bytearray(projected(block_of(1, 100), omitted_by(("seq", "time"))))
    raw[at] ^= 0x7F
    with pytest.raises(BlockDamaged):
        read_columns(bytes(raw), verify=True)


def found(store: Store, first: int, last: int, selection: Selection) -> tuple[list[int], int, int]:
    """Sequences that were sent, stored rows that were counted, and turns that it took."""
    seqs: list[int] = []
    rows = turns = 0
    cursor = first
    picker = RowPicker(store, selection)
    while cursor <= last:
        turns += 1
        part = picker.next(cursor, last)
        if part is None:
            break
        if part.block:
            low = seqs[-1] + 1 if seqs else first
            seqs += [row["seq"] for row in table(bytes(part.block), ("seq",), low, last)]
        rows += part.rows
        assert part.last_seq >= cursor
        cursor = part.last_seq + 1
    assert not picker.holds_rows
    return seqs, rows, turns


@settings(max_examples=60, deadline=None)
@given(
    deleted=st.sets(st.integers(1, 1200), max_size=30),
    block_rows=st.sampled_from([7, 100, 5000]),
    span=st.tuples(st.integers(1, 1200), st.integers(0, 1200)),
    subjects=st.sampled_from([(), ("orders.eu.3",), ("orders.us.>",), ("none", "orders.eu.1")]),
    columns=st.sampled_from([(), ("seq",), ("seq", "subject")]),
)
def test_any_range_of_any_store_is_selected_exactly(
    deleted: set[int],
    block_rows: int,
    span: tuple[int, int],
    subjects: tuple[str, ...],
    columns: tuple[str, ...],
) -> None:
    from broker.subjects.grammar import matches

    store = Store.filled(1200, block_rows=block_rows)
    store.delete(*sorted(deleted))
    first, last = span[0], min(sum(span), 1200)
    stored = [seq for seq in range(max(first, store.first_seq), last + 1) if seq not in deleted]
    expected = [
        seq
        for seq in stored
        if not subjects or any(matches(subject_of(seq), s.encode()) for s in subjects)
    ]
    seqs, rows, _ = found(store, max(first, store.first_seq), last, Selection.of(subjects, columns))
    assert seqs == expected
    assert rows == len(stored)


@pytest.fixture
def rare() -> Store:
    """A hundred blocks; one of them has the subject `rare`."""
    store = Store()
    for seq in range(1, 1001):
        subject = b"rare" if seq == 555 else subject_of(seq)
        store.append(subject, b"", data_of(seq), time_ns=START_NS + seq)
        if seq % 10 == 0:
            store.segments.seal()
    for segment in store.segments.all:
        segment.set_subjects(store.segments.subjects(segment))
    return store


def test_blocks_without_the_subject_are_not_read(
    rare: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: set[int] = set()
    view = type(rare.segments).view

    def watched(segments, segment):  # type: ignore[no-untyped-def]
        read.add(segment.first_seq)
        return view(segments, segment)

    monkeypatch.setattr(type(rare.segments), "view", watched)
    assert found(rare, 1, 1000, Selection.of(("rare",), ())) == ([555], 1000, 4)
    assert read == {551}
    read.clear()
    assert found(rare, 1, 1000, Selection.of((), ("seq",)))[0] == list(range(1, 1001))
    assert read == set()  # what the summaries tell is not read


class OnDisk:
    """A store whose blocks are in files, and not in the cache."""

    def __init__(self, rows: int, *, cipher: DirectoryCipher | None = None) -> None:
        self.disk = Disk()
        self.state = self.disk.open(cipher)
        self.store = Store(self.state.files(3))
        self.damaged: list[int] = []
        self.store.segments.cache.on_damage = lambda group, _error: self.damaged.append(group)
        self.store.grow(rows, block_rows=200)
        self.write()

    def write(self) -> None:
        batch = self.state.begin()
        persistence.checkpoint(self.store, batch)
        assert self.state.values is not None
        self.state.write(batch, self.state.values.write(list(batch.large.items())))
        persistence.written(self.store)
        self.store.segments.cache.discard_group(3)


@pytest.fixture
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_db, "FILE_BYTES_MIN", 100)


SELECTIONS = [
    Selection.of(subjects, columns)
    for subjects in ((), ("orders.eu.3",), ("orders.us.>",), ("orders.eu.1", "orders.us.2"))
    for columns in ((), ("seq", "subject"))
]


@pytest.mark.usefixtures("small_files")
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("cipher", [None, DirectoryCipher(bytes(32), "aes")])
def test_blocks_are_read_past_the_cache(cipher: DirectoryCipher | None, *, packed: bool) -> None:
    there = OnDisk(2000, cipher=cipher)
    if packed:
        there.store.segments.packs = lambda: True
        there.store.grow(2000, block_rows=200)
        there.write()
    plain = Store.filled(there.store.last_seq, block_rows=200)
    for selection in SELECTIONS:
        seqs, rows, _ = found(there.store, 150, 1900, selection)
        assert (seqs, rows) == found(plain, 150, 1900, selection)[:2]
    kept = there.store.segments.cache.get(3, 201)
    assert (kept is None) == (cipher is None)
    assert there.damaged == []


@pytest.mark.usefixtures("small_files")
@pytest.mark.parametrize("at", [20, 5000, -3])
def test_a_damaged_block_is_not_sent_and_its_owner_is_told(at: int) -> None:
    for selection in SELECTIONS:
        there = OnDisk(600)
        assert there.state.values is not None
        place = there.state.values.place(key(3, BLOCK, 201))
        assert place is not None
        data = there.disk.files._names[f"{place.file:010d}.values"].data
        data[place.offset + 40 + (at % place.size)] ^= 1
        with pytest.raises(BlockDamaged):
            found(there.store, 1, 600, selection)
        assert there.damaged == [3]


def test_rows_of_many_blocks_are_sent_together() -> None:
    store = Store.filled(3000, block_rows=20)
    picker = RowPicker(store, Selection.of(("orders.eu.3",), ()))
    cursor, sizes = 1, []
    while (part := picker.next(cursor, 3000)) is not None:
        sizes += [read_columns(part.block, verify=True).count] if part.block else []
        cursor = part.last_seq + 1
    assert len(sizes) == 3  # of 150 blocks, 64 at a time
    assert sum(sizes) == sum(subject_of(seq) == b"orders.eu.3" for seq in range(1, 3001))


def test_sequences_alone_are_sent_for_many_blocks_at_once() -> None:
    store = Store.filled(3000, block_rows=20)
    store.delete(1500)
    seqs, rows, turns = found(store, 5, 2990, Selection.of((), ("seq",)))
    assert seqs == [seq for seq in range(5, 2991) if seq != 1500]
    assert (rows, turns) == (2985, 3)


def test_memory_is_used_again_unless_something_refers_to_it() -> None:
    memory = BlockMemory()
    mine = memory.borrow()
    block = mine.of_size(300_000)
    block[:3] = b"abc"
    frame = mine.framed(b"12345678", block.toreadonly())
    assert frame is not None
    assert bytes(frame[:11]) == b"12345678abc"
    assert mine.framed(b"12345678", b"abc") is None
    mine.give_back()  # the socket has not sent it
    del block
    other = memory.borrow().of_size(1)
    other[:] = b"x"
    assert bytes(frame[8:11]) == b"abc"
    first = memory.borrow()
    piece = first.of_size(10).obj
    first.give_back()
    second = memory.borrow()
    assert second.of_size(20).obj is piece
    assert memory.borrow().of_size(20).obj is not piece


def test_a_range_is_cut_by_bytes() -> None:
    store = Store.filled(3000, block_rows=200)
    piece = store.bytes // 10
    cuts = finish(edges(store.segments, first=1, behind=3001, piece_bytes=piece))
    assert len(cuts) in (9, 10)
    sizes = [
        sum(
            store.sizing.of(m.subject, m.headers, m.data)
            for m in map(store.get, range(low, high))
            if m is not None
        )
        for low, high in zip((1, *cuts), (*cuts, 3001), strict=True)
    ]
    assert all(size <= piece * 1.3 for size in sizes)
    assert all(size >= piece * 0.7 for size in sizes[:-1])
    tiny = finish(edges(store.segments, first=100, behind=110, piece_bytes=1))
    assert tiny == tuple(range(101, 110))  # a message is never cut
    assert finish(edges(store.segments, first=5000, behind=6000, piece_bytes=10)) == ()


def test_many_cuts_are_made_in_steps() -> None:
    store = Store.filled(3000, block_rows=200)
    steps = sum(1 for _ in edges(store.segments, first=1, behind=3001, piece_bytes=1))
    assert steps == 2999 // STEP_EDGES


def test_a_plan_request_survives_the_wire_and_bad_ones_are_told() -> None:
    request = PlanRequest(times=(1, 2), piece_bytes=9, first=3, behind=8)
    assert decode_plan_request(encode_plan_request(request)) == request
    assert encode_plan_request(PlanRequest()) == b""
    for body in (b"{", b'{"times":"x"}', b"[]", b'{"piece_bytes":-1}'):
        with pytest.raises(ScanRefused) as refused:
            decode_plan_request(body)
        assert refused.value.code is ScanCode.BAD
    with pytest.raises(ScanRefused, match="no column 'colour'"):
        decode_request(b'{"stream":"S","first":1,"last":2,"columns":["colour"]}')


def test_a_scan_names_only_what_it_asks_for() -> None:
    """An earlier version refuses fields that it does not know, also empty ones."""
    asked = encode_request(ScanRequest(stream="S", first=1, last=2))
    assert asked == b'SCAN {"stream":"S","first":1,"last":2}\r\n'
    columns = ScanRequest(stream="S", first=1, last=2, columns=("seq",), subjects=("a",))
    assert decode_request(encode_request(columns)[5:-2]) == columns


def test_headers_become_lists_and_odd_bytes_do_no_harm() -> None:
    raw = b"NATS/1.0 404 None\r\nA: 1\r\nB: x:y\r\nA:2 \r\nodd\r\nC: \xff\r\n\r\n"
    assert header_lists(raw) == {"A": ["1", "2"], "B": ["x:y"], "C": ["\ufffd"]}
    builder = BlockBuilder(1)
    builder.append("straße".encode(), raw, b"d", time_ns=1, seq=1)
    builder.append(b"bad\xffone", b"", b"d", time_ns=1, seq=2)
    rows = table(builder.build(), ("subject", "header_map"))
    assert [row["subject"] for row in rows] == ["straße", "bad\ufffdone"]
    assert dict(rows[0]["header_map"])["A"] == ["1", "2"]
    assert rows[1]["header_map"] is None
