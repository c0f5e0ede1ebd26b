"""The grammar, case by case, on both parsers: whole, byte by byte, and cut anywhere."""

from typing import Any

import pytest

from broker.wire import _parser, _run, parser_py, run_py
from broker.wire.ops import Op, ProtocolViolation

PARSERS = {"python": parser_py.ClientParser, "cython": _parser.ClientParser}
RUNS = (run_py.PubRun, _run.PubRun)

SILENT = None
UNKNOWN = "Unknown Protocol Operation"
LINE = "maximum control line exceeded"
PAYLOAD = "Maximum Payload Violation"


@pytest.fixture(params=PARSERS)
def new_parser(request: pytest.FixtureRequest) -> Any:
    def build(max_control_line: int = 4096, max_payload: int = 1024) -> Any:
        kind = PARSERS[request.param]
        return kind(max_control_line=max_control_line, max_payload=max_payload)

    return build


def flat(events: list[Any]) -> list[Any]:
    """Runs expanded into single events, so that different chunkings compare equal."""
    out: list[Any] = []
    for event in events:
        if isinstance(event[-1], RUNS):
            out.extend(("PUB", *event[-1].message(i)) for i in range(len(event[-1])))
        else:
            out.append(event)
    return out


def feed(parser: Any, data: bytes, step: int) -> tuple[list[Any], Any]:
    """Events and the violation that ended them ("none" if there was none)."""
    events: list[Any] = []
    for at in range(0, len(data), step):
        try:
            events += parser.receive(data[at : at + step])
        except ProtocolViolation as violation:
            return flat(events + violation.events), violation.text
    return flat(events), "none"


def pub(subject: bytes, payload: bytes, *, reply: bytes = b"", headers: bytes = b"") -> Any:
    return ("PUB", subject, reply, headers, payload)


BLOCK = b"NATS/1.0\r\nA: 10\r\n\r\n"
GOOD = {
    b"PUB a 5\r\nhello\r\n": [pub(b"a", b"hello")],
    b"pub a r 2\r\nhi\r\n": [pub(b"a", b"hi", reply=b"r")],
    b"PuB\ta  5\nhello\r\n": [pub(b"a", b"hello")],
    b"PUB   a  \t r   0  \r\n\r\n": [pub(b"a", b"", reply=b"r")],
    b"PUB a 000000003\r\na\r\n\r\n": [pub(b"a", b"a\r\n")],
    b"HPUB a 19 21\r\n" + BLOCK + b"hi\r\n": [pub(b"a", b"hi", headers=BLOCK)],
    b"hpub a r 19 19\r\n" + BLOCK + b"\r\n": [pub(b"a", b"", headers=BLOCK, reply=b"r")],
    b"HPUB a 0 1\r\nx\r\n": [pub(b"a", b"x")],
    b"SUB a 1\r\n": [(Op.SUB, b"a", None, b"1")],
    b"SUB a  1\r\n": [(Op.SUB, b"a", None, b"1")],
    b"sub a.> workers sid-7 \n": [(Op.SUB, b"a.>", b"workers", b"sid-7")],
    b"UNSUB 1 \r\n": [(Op.UNSUB, b"1", 0)],
    b"UNSUB 1 20\r\n": [(Op.UNSUB, b"1", 20)],
    b"UNSUB 1 x\r\n": [(Op.UNSUB, b"1", 0)],
    b"UNSUB 1 1234567890\r\n": [(Op.UNSUB, b"1", 0)],
    b"PING\r\n": [(Op.PING,)],
    b"ping any noise\n": [(Op.PING,)],
    b"PONG\r\n+OK\r\n": [(Op.PONG,), (Op.OK,)],
    b'CONNECT {"a":1}\r\n': [(Op.CONNECT, b'{"a":1}')],
    b'CONNECT{"a":1} \r\n': [(Op.CONNECT, b'{"a":1}')],
    b"CONNECT\r\n": [(Op.CONNECT, b"")],
    b"INFO {}\r\n": [(Op.INFO, b"{}")],
    b"-ERR 'gone away'\r\n": [(Op.ERR, b"'gone away'")],
    b'SCAN {"stream":"S"}\r\n': [(Op.SCAN, b'{"stream":"S"}')],
}
BAD = {
    b"X": UNKNOWN,
    b"\r\n": UNKNOWN,
    b"\x0bOK\r\n": UNKNOWN,
    b"GET / HTTP/1.1\r\n": UNKNOWN,
    b"MSG a 1 1\r\n": UNKNOWN,
    b"HMSG a 1 1 1\r\n": UNKNOWN,
    b"RS+ a\r\n": UNKNOWN,
    b"PUB\r\n": UNKNOWN,
    b"PUBX a 1\r\n": UNKNOWN,
    b"SUB\r\n": UNKNOWN,
    b"-ERR\r\n": UNKNOWN,
    b"SCAN{}\r\n": UNKNOWN,
    b"PUB \r\n": SILENT,
    b"PUB a\r\n": SILENT,
    b"PUB a b c 1\r\n": SILENT,
    b"PUB a b c d e f g 1\r\n": SILENT,
    b"PUB a -1\r\n": SILENT,
    b"PUB a +1\r\n": SILENT,
    b"PUB a 1x\r\n": SILENT,
    b"PUB a 1234567890\r\n": SILENT,
    b"PUB a 2\r\nabc\r\n": UNKNOWN,
    b"PUB a 2\r\nab\n\n": UNKNOWN,
    b"HPUB a 1\r\n": SILENT,
    b"HPUB a 5 3\r\n": SILENT,
    b"HPUB a x 3\r\n": SILENT,
    b"HPUB a r q 1 3\r\n": SILENT,
    b"SUB a\r\n": SILENT,
    b"SUB a b c d\r\n": SILENT,
    b"UNSUB \r\n": SILENT,
    b"UNSUB 1 2 3\r\n": SILENT,
    b"PUB a 1025\r\n": PAYLOAD,
    b"PUB a 999999999\r\n": PAYLOAD,
    b"HPUB a 10 1025\r\n": PAYLOAD,
}


@pytest.mark.parametrize("data", GOOD, ids=repr)
def test_operation_yields_its_event_under_any_chunking(new_parser: Any, data: bytes) -> None:
    for step in (1, 2, 3, 7, len(data)):
        parser = new_parser()
        assert feed(parser, data, step) == (GOOD[data], "none")
        assert parser.unparsed == b""


@pytest.mark.parametrize("data", BAD, ids=repr)
def test_violation_keeps_the_events_before_it(new_parser: Any, data: bytes) -> None:
    before = b"PING\r\nPUB a 1\r\nx\r\n"
    for step in (1, 2, 3, 7, len(before + data)):
        events, text = feed(new_parser(), before + data, step)
        assert events == [(Op.PING,), pub(b"a", b"x")]
        assert text == BAD[data]


def test_parser_repeats_its_violation(new_parser: Any) -> None:
    parser = new_parser()
    for chunk in (b"PING\r\nnonsense", b"PING\r\n"):
        with pytest.raises(ProtocolViolation) as raised:
            parser.receive(chunk)
        assert raised.value.text == UNKNOWN
    assert raised.value.events == []


def test_consecutive_publishes_of_a_chunk_are_one_run(new_parser: Any) -> None:
    one = b"PUB a 1\r\nx\r\n"
    events = new_parser().receive(one * 3 + b"PING\r\n" + one * 2 + b"PUB a")
    assert [event[0] for event in events] == [Op.PUB, Op.PING, Op.PUB]
    assert [len(events[0][1]), len(events[2][1])] == [3, 2]


def test_run_says_whether_the_peer_used_headers(new_parser: Any) -> None:
    [(_, plain)] = new_parser().receive(b"PUB a 1\r\nx\r\n")
    [(_, with_headers)] = new_parser().receive(b"PUB a 1\r\nx\r\nHPUB a 0 0\r\n\r\n")
    assert (bool(plain.has_headers), bool(with_headers.has_headers)) == (False, True)


@pytest.mark.parametrize("step", [1, 5, 1000])
def test_arguments_may_fill_the_control_line_exactly(new_parser: Any, step: int) -> None:
    subject = b"s" * 30
    line = b"PUB    " + subject + b" 1"
    for ending in (b"\r\n", b"\n"):
        events, text = feed(new_parser(max_control_line=32), line + ending + b"x\r\n", step)
        assert (events, text) == ([pub(subject, b"x")], "none")
        longer = line.replace(b" 1", b"s 1") + ending + b"x\r\n"
        assert feed(new_parser(max_control_line=32), longer, step) == ([], LINE)


def test_control_line_limit_does_not_wait_for_the_end_of_the_line(new_parser: Any) -> None:
    assert feed(new_parser(max_control_line=32), b"CONNECT " + b"x" * 33, 1000) == ([], LINE)


@pytest.mark.parametrize("data", [b"PING" + b"x" * 5000, b"SUB" + b" " * 5000], ids=["word", "sub"])
def test_ignored_text_and_blanks_are_not_buffered(new_parser: Any, data: bytes) -> None:
    parser = new_parser()
    for at in range(0, len(data), 100):
        assert parser.receive(data[at : at + 100]) == []
        assert len(parser.unparsed) <= 5


def test_payload_limit_can_be_changed_and_lifted(new_parser: Any) -> None:
    parser = new_parser(max_payload=1)
    parser.max_payload = 3
    assert feed(parser, b"PUB a 3\r\nabc\r\n", 4) == ([pub(b"a", b"abc")], "none")
    parser.max_payload = -1
    assert feed(parser, b"PUB a 9\r\nabcdefghi\r\n", 4)[1] == "none"


def test_large_payload_in_many_chunks_is_joined_once(new_parser: Any) -> None:
    size = 2_000_000
    parser = new_parser(max_payload=size)
    body = bytes(range(256)) * (size // 256)
    data = b"PUB a %d\r\n%b\r\nPING\r\n" % (len(body), body)
    # 20,000 chunks: joining the buffered bytes for each of them would copy 20 GB.
    events, text = feed(parser, data, 100)
    assert (events, text) == ([pub(b"a", body), (Op.PING,)], "none")
