"""Both parsers, same bytes, any chunking: same events, same violation, same bytes left."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from broker.wire import _encode, _parser, _run, encode_py, parser_py, run_py, text_py
from broker.wire.ops import ProtocolViolation

MAX_CONTROL_LINE = 48
MAX_PAYLOAD = 64

blanks = st.sampled_from([b" ", b"  ", b"\t", b" \t "])
endings = st.sampled_from([b"\r\n", b"\n", b" \r\n", b"\t\n", b"\r\r\n"])
tokens = st.sampled_from([b"a", b"foo.bar", b"_INBOX.x.1", b">", b"q", b"s" * 40])
bodies = st.one_of(st.binary(max_size=20), st.just(b"\r\nPING\r\n"), st.just(b"x" * 60))
words = st.sampled_from(
    [b"PING", b"pong", b"+OK", b"SUB", b"UNSUB", b"Connect", b"INFO", b"-ERR", b"SCAN", b"sub"]
)


@st.composite
def publishes(draw: st.DrawFn) -> bytes:
    headers, payload = draw(st.sampled_from([b"", b"NATS/1.0\r\n\r\n"])), draw(bodies)
    hpub = bool(headers) or draw(st.booleans())
    parts = [draw(st.sampled_from([b"HPUB", b"hpub"] if hpub else [b"PUB", b"pUb"])), draw(tokens)]
    if draw(st.booleans()):
        parts.append(draw(tokens))
    if hpub:
        parts.append(b"%d" % len(headers))
    parts.append(b"%d" % (len(headers) + len(payload)))
    line = b"".join(part + draw(blanks) for part in parts[:-1]) + parts[-1]
    return line + draw(endings) + headers + payload + b"\r\n"


@st.composite
def lines(draw: st.DrawFn) -> bytes:
    fields = draw(st.lists(st.one_of(tokens, st.binary(max_size=4)), max_size=4))
    return draw(words) + b"".join(draw(blanks) + field for field in fields) + draw(endings)


@st.composite
def conversations(draw: st.DrawFn) -> bytes:
    """Mostly well-formed, sometimes with a few bytes changed."""
    data = bytearray(b"".join(draw(st.lists(st.one_of(publishes(), lines()), max_size=8))))
    for _ in range(draw(st.integers(0, 2)) if data and draw(st.booleans()) else 0):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data)


def described(events: list[Any], *, runs: type) -> list[Any]:
    return [
        (event[0], [event[1].message(i) for i in range(len(event[1]))], bool(event[1].has_headers))
        if len(event) > 1 and isinstance(event[1], runs)
        else event
        for event in events
    ]


def one_step(parser: Any, chunk: bytes, *, runs: type) -> tuple[Any, ...]:
    try:
        return ("events", described(parser.receive(chunk), runs=runs), parser.unparsed)
    except ProtocolViolation as violation:
        return ("violation", violation.text, described(violation.events, runs=runs))


def chunks_of(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


@settings(max_examples=400, deadline=None)
@given(data=conversations(), cuts=st.lists(st.integers(0, 2000), max_size=12))
@example(data=b"PING\r\nSUB a\r\n", cuts=[])
@example(data=b"PUB a 1\r\nx\r\nUNSUB \r\n", cuts=[3])
def test_parsers_agree_chunk_by_chunk(data: bytes, cuts: list[int]) -> None:
    limits = {"max_control_line": MAX_CONTROL_LINE, "max_payload": MAX_PAYLOAD}
    twin, compiled = parser_py.ClientParser(**limits), _parser.ClientParser(**limits)
    for chunk in chunks_of(data, cuts):
        expected = one_step(twin, chunk, runs=run_py.PubRun)
        assert one_step(compiled, chunk, runs=_run.PubRun) == expected


def everything(data: bytes, cuts: list[int]) -> tuple[list[Any], Any]:
    parser = _parser.ClientParser(max_control_line=MAX_CONTROL_LINE, max_payload=MAX_PAYLOAD)
    messages: list[Any] = []
    text: Any = "none"
    for chunk in chunks_of(data, cuts):
        try:
            events = parser.receive(chunk)
        except ProtocolViolation as violation:
            events, text = violation.events, violation.text
        for event in events:
            if len(event) > 1 and isinstance(event[1], _run.PubRun):
                messages.extend(event[1].message(i) for i in range(len(event[1])))
            else:
                messages.append(event)
        if text != "none":
            break
    return messages, text


@settings(max_examples=300, deadline=None)
@given(data=conversations(), cuts=st.lists(st.integers(0, 2000), max_size=12))
def test_chunking_changes_nothing(data: bytes, cuts: list[int]) -> None:
    assert everything(data, cuts) == everything(data, [])


small = st.binary(max_size=6)
replies = st.sampled_from([b"", b"_INBOX.a.1", b"_INBOX.a.22", b"_INBOX.b.1", b"x", b"_INBOX.a."])
messages = st.lists(st.tuples(st.sampled_from([b"a", b"b"]), replies, small, small), max_size=12)
edges = st.integers(-2, 14)


def outcome(call: Any, *arguments: Any) -> Any:
    try:
        return call(*arguments)
    except (IndexError, OverflowError) as error:
        return type(error)


@settings(max_examples=300, deadline=None)
@given(messages, edges, edges, st.booleans())
def test_runs_agree(rows: list[Any], start: int, stop: int, headers_ok: bool) -> None:
    twin, compiled = run_py.PubRun.of(rows), _run.PubRun.of(rows)
    assert len(twin) == len(compiled) == len(rows)
    assert twin.segments() == compiled.segments()
    assert twin.total_bytes == compiled.total_bytes
    assert bool(twin.has_headers) == bool(compiled.has_headers)
    for name in ("any_reply", "size"):
        expected = outcome(getattr(twin, name), start, stop)
        assert outcome(getattr(compiled, name), start, stop) == expected
    assert outcome(compiled.message, start) == outcome(twin.message, start)
    assert outcome(compiled.names, start) == outcome(twin.names, start)
    expected = outcome(encode_py.encode_pub, twin, start, stop)
    assert outcome(_encode.encode_pub, compiled, start, stop) == expected
    arguments = (start, stop, b"17", headers_ok)
    assert outcome(compiled.encode, *arguments) == outcome(twin.encode, *arguments)


parts = st.sampled_from(
    [b"NATS/1.0", b"\r\n", b"\n", b"Nats-Trace", b"nats-TRACE", b":", b": t", b"Nats-Trace-Dest:"]
)
blocks = st.lists(parts, max_size=8).map(b"".join)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.just(b"a"), st.just(b""), blocks, blocks), max_size=5))
def test_rows_that_name_a_header_agree(rows: list[Any]) -> None:
    twin, compiled = run_py.PubRun.of(rows), _run.PubRun.of(rows)
    assert compiled.rows_naming(b"nats-trace") == twin.rows_naming(b"nats-trace")


@pytest.mark.parametrize("runs", [run_py.PubRun, _run.PubRun])
def test_rows_name_a_header_by_whole_lines_and_not_in_payloads(runs: Any) -> None:
    first = b"NATS/1.0\r\n"
    rows = [
        (b"a", b"", first + b"Name: x\r\n\r\n", b""),
        (b"a", b"", first + b"Other: x\r\nnAmE:x\r\n\r\n", b""),
        (b"a", b"", first + b"Name-x: x\r\nx-Name: x\r\n\r\n", b"\r\nName: x"),
        (b"a", b"", b"", b"NATS/1.0\r\nName: x\r\n\r\n"),
        (b"a", b"", b"Name: x\r\n\r\n", b""),
    ]
    assert runs.of(rows).rows_naming(b"name") == [0, 1]
    assert runs.of(rows[3:4]).rows_naming(b"name") == []


@settings(max_examples=300, deadline=None)
@given(
    rows=messages,
    single=replies,
    start=edges,
    stop=edges,
    first_seq=st.one_of(st.integers(1, 2000), st.integers(1, 2**63 - 100)),
    extra=st.sampled_from([b"", b',"domain":"hub"', b',"x":"' + b"y" * 90 + b'"']),
)
def test_reply_columns_and_acks_agree(  # noqa: PLR0917
    rows: list[Any], single: bytes, start: int, stop: int, first_seq: int, extra: bytes
) -> None:
    twin, compiled = encode_py.ReplyColumn(), _encode.ReplyColumn()
    for column, runs in ((twin, run_py.PubRun), (compiled, _run.PubRun)):
        column.append_run(runs.of(rows), 0, len(rows))  # type: ignore[attr-defined]
        column.append(single)
    assert len(twin) == len(compiled)
    for i in range(len(rows) + 1):
        assert twin.get(i) == compiled.get(i)
    assert outcome(compiled.prefix, start, stop) == outcome(twin.prefix, start, stop)
    rest = (start, stop, b"1", b"S", first_seq, extra)
    expected = outcome(encode_py.encode_pub_acks, twin, *rest)
    assert outcome(_encode.encode_pub_acks, compiled, *rest) == expected


@given(st.tuples(small, small, small, small, st.binary(max_size=120)))
def test_single_messages_agree(fields: tuple[bytes, bytes, bytes, bytes, bytes]) -> None:
    assert _encode.encode_msg(*fields) == text_py.encode_msg(*fields)


@pytest.mark.parametrize("runs", [run_py.PubRun, _run.PubRun])
def test_what_a_row_begins_with(runs: Any) -> None:
    rows = [(b"a.b", b"in.1", b"", b"$X."), (b"$JS.x", b"", b"", b""), (b"", b"$X", b"", b"")]
    assert not runs.of(rows).begins((b"$X.", b"a.c", b"b"), (b"$JS.", b"$X."))
    assert runs.of(rows).begins((b"z", b"$JS."), (b"z",))
    assert runs.of(rows).begins((b"z",), (b"z", b"in."))
    assert not runs.of(rows[2:]).begins((b"$X",), (b"$XY",))
    assert runs.of(rows[2:]).begins((b"z",), (b"$X",))
    assert not runs.of([]).begins((b"a",), (b"a",))
