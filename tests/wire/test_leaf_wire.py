"""The grammar of a leaf node connection, on both parsers and both encoders, cut anywhere."""

from types import ModuleType
from typing import Any

import pytest

from broker.wire import _encode, _parser, _run, encode_py, parser_py, run_py
from broker.wire.ops import Op, ProtocolViolation

BLOCK = b"NATS/1.0\r\nA: 10\r\n\r\n"
MESSAGES = [(b"a", b"", BLOCK, b"hi"), (b"b", b"r", b"", b"yo"), (b"c", b"r", BLOCK, b"")]
CODECS = {
    "python": (parser_py.ClientParser, run_py.PubRun, encode_py),
    "cython": (_parser.ClientParser, _run.PubRun, _encode),
}
Codec = tuple[Any, Any, ModuleType]


@pytest.fixture(params=CODECS)
def codec(request: pytest.FixtureRequest) -> Codec:
    return CODECS[request.param]


def parsed(codec: Codec, data: bytes, step: int) -> tuple[list[Any], Any]:
    """Events with runs expanded, and the text of the violation ("none" if there was none)."""
    parser = codec[0](max_control_line=256, max_payload=1024, leaf=True)
    found: list[Any] = []
    try:
        for at in range(0, len(data), step):
            found += parser.receive(data[at : at + step])
        text: Any = "none"
    except ProtocolViolation as violation:
        found += violation.events
        text = violation.text
    flat: list[Any] = []
    for event in found:
        if event[0] is Op.LMSG:
            flat += [(*event[1].message(row), event[2]) for row in range(len(event[1]))]
        else:
            flat.append(event)
    return flat, text


@pytest.mark.parametrize(
    ("data", "events", "violation"),
    [
        (b"LS+ foo\r\nls- foo\r\n", [(Op.LSUB, b"foo", b"", 1), (Op.LUNSUB, b"foo", b"")], "none"),
        (b"LS+ foo q 12\r\n", [(Op.LSUB, b"foo", b"q", 12)], "none"),
        (b"LS- foo q\r\n", [(Op.LUNSUB, b"foo", b"q")], "none"),
        (b"LS+ foo q x\r\n", [(Op.LSUB, b"foo", b"q", 1)], "none"),
        (b"LMSG foo 2\r\nhi\r\n", [(b"foo", b"", b"", b"hi", b"")], "none"),
        (b"LMSG foo r 2\r\nhi\r\n", [(b"foo", b"r", b"", b"hi", b"")], "none"),
        (b"LMSG foo | q 2\r\nhi\r\n", [(b"foo", b"", b"", b"hi", b"q")], "none"),
        (b"LMSG foo | q1\tq2 2 \r\nhi\r\n", [(b"foo", b"", b"", b"hi", b"q1 q2")], "none"),
        (b"LMSG foo + r q1 q2 q3 2\r\nhi\r\n", [(b"foo", b"r", b"", b"hi", b"q1 q2 q3")], "none"),
        (
            b"HMSG foo 19 21\r\n" + BLOCK + b"hi\r\nHMSG foo + r q 19 19\r\n" + BLOCK + b"\r\n",
            [(b"foo", b"", BLOCK, b"hi", b""), (b"foo", b"r", BLOCK, b"", b"q")],
            "none",
        ),
        (
            b"HMSG foo | q1 q2 q3 19 19\r\n" + BLOCK + b"\r\nPING\r\n",
            [(b"foo", b"", BLOCK, b"", b"q1 q2 q3"), (Op.PING,)],
            "none",
        ),
        (b"INFO {}\r\n-ERR 'x'\r\n", [(Op.INFO, b"{}"), (Op.ERR, b"'x'")], "none"),
        (b"LMSG foo x q 2\r\nhi\r\n", [], None),
        (b"LMSG foo xx q 2\r\nhi\r\n", [], None),
        (b"LMSG foo\r\n", [], None),
        (b"LS+ foo q\r\n", [], None),
        (b"LS- foo q 1\r\n", [], None),
        (b"LMSG foo | q x\r\n", [], None),
        (b"HMSG foo | q 9 2\r\n", [], None),
        (b"LMSG foo 2\r\nhixx", [], "Unknown Protocol Operation"),
        (b"PUB foo 2\r\nhi\r\n", [], "Unknown Protocol Operation"),
        (b"SUB foo 1\r\n", [], "Unknown Protocol Operation"),
        (b"LMSG foo 2000\r\n", [], "Maximum Payload Violation"),
    ],
)
def test_grammar(codec: Codec, data: bytes, events: list[Any], violation: str | None) -> None:
    for step in (len(data), 1, 3, 7):
        assert parsed(codec, data, step) == (events, violation)


def test_messages_for_the_same_groups_are_one_run(codec: Codec) -> None:
    parser = codec[0](max_control_line=256, max_payload=1024, leaf=True)
    plain, queued = b"LMSG a 1\r\nx\r\n", b"LMSG a | q 1\r\nx\r\n"
    events = parser.receive(plain * 3 + queued * 2 + plain)
    assert [(event[0], len(event[1]), event[2]) for event in events] == [
        (Op.LMSG, 3, b""),
        (Op.LMSG, 2, b"q"),
        (Op.LMSG, 1, b""),
    ]


@pytest.mark.parametrize("queues", [b"", b"q1 q2"])
def test_an_encoded_run_parses_to_the_same_run(codec: Codec, queues: bytes) -> None:
    text = codec[2].encode_leaf(codec[1].of(MESSAGES), 0, 3, queues)
    expected = [(*message, queues) for message in MESSAGES]
    assert parsed(codec, text, len(text)) == (expected, "none")
    assert codec[2].encode_leaf(codec[1].of(MESSAGES), 1, 1, queues) == b""


def test_text_of_messages(codec: Codec) -> None:
    run = codec[1].of(MESSAGES)
    assert codec[2].encode_leaf(run, 1, 2, b"") == b"LMSG b r 2\r\nyo\r\n"
    assert codec[2].encode_leaf(run, 1, 2, b"q") == b"LMSG b + r q 2\r\nyo\r\n"
    assert codec[2].encode_leaf(run, 0, 1, b"q") == b"HMSG a | q 19 21\r\n" + BLOCK + b"hi\r\n"
