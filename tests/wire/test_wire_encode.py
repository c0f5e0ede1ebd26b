"""Runs, replies and acks, as bytes on the wire, in both implementations."""

from types import ModuleType
from typing import Any

import pytest

from broker.wire import ClientParser, Op, _encode, _run, encode_py, run_py

BLOCK = b"NATS/1.0\r\nA: 10\r\n\r\n"


@pytest.fixture(params=["python", "cython"])
def codec(request: pytest.FixtureRequest) -> tuple[Any, ModuleType]:
    return (run_py.PubRun, encode_py) if request.param == "python" else (_run.PubRun, _encode)


def test_message_text(codec: Any) -> None:
    encode_msg = codec[1].encode_msg
    assert encode_msg(b"a", b"1", b"", b"", b"hi") == b"MSG a 1 2\r\nhi\r\n"
    assert encode_msg(b"a", b"1", b"r", b"", b"") == b"MSG a 1 r 0\r\n\r\n"
    assert encode_msg(b"a", b"1", b"r", BLOCK, b"hi") == (
        b"HMSG a 1 r 19 21\r\n" + BLOCK + b"hi\r\n"
    )


def test_run_strips_headers_for_clients_without_header_support(codec: Any) -> None:
    run = codec[0].of([(b"a", b"", BLOCK, b"hi"), (b"b", b"r", b"", b"yo")])
    assert run.encode(0, 2, b"9", True) == (
        b"HMSG a 9 19 21\r\n" + BLOCK + b"hi\r\nMSG b 9 r 2\r\nyo\r\n"
    )
    assert run.encode(0, 2, b"9", False) == b"MSG a 9 2\r\nhi\r\nMSG b 9 r 2\r\nyo\r\n"
    assert run.encode(1, 1, b"9", True) == b""
    assert run.total_bytes == 23
    assert run.size(1, 2) == 2


def test_a_run_encoded_as_publishes_parses_to_the_same_run(codec: Any) -> None:
    messages = [(b"a", b"", BLOCK, b"hi"), (b"b", b"r", b"", b"yo"), (b"c", b"r", BLOCK, b"")]
    text = codec[1].encode_pub(codec[0].of(messages), 0, 3)
    assert text == (
        b"HPUB a 19 21\r\n"
        + BLOCK
        + b"hi\r\nPUB b r 2\r\nyo\r\nHPUB c r 19 19\r\n"
        + BLOCK
        + b"\r\n"
    )
    [(op, run)] = ClientParser(max_control_line=4096, max_payload=-1).receive(text)
    assert op is Op.PUB
    assert [run.message(i) for i in range(3)] == messages


def test_segments_join_consecutive_equal_subjects(codec: Any) -> None:
    run = codec[0].of([(s, b"", b"", b"") for s in (b"a", b"a", b"b", b"a", b"ab")])
    assert run.segments() == [(b"a", 0, 2), (b"b", 2, 3), (b"a", 3, 4), (b"ab", 4, 5)]
    assert codec[0].of([]).segments() == []


def test_ranges_outside_the_run_are_refused(codec: Any) -> None:
    run = codec[0].of([(b"a", b"", b"", b"")])
    for start, stop in ((-1, 1), (0, 2), (1, 0)):
        with pytest.raises(IndexError):
            run.encode(start, stop, b"1", True)
    for i in (-1, 1):
        with pytest.raises(IndexError):
            run.message(i)


@pytest.mark.parametrize(
    ("replies", "prefix"),
    [
        ([b"_INBOX.a.1", b"_INBOX.a.22"], b"_INBOX.a."),
        ([b"_INBOX.a.1"], b"_INBOX.a."),
        ([b"_INBOX.a.1", b"_INBOX.b.1"], None),
        ([b"_INBOX.a.1", b""], None),
        ([b"_INBOX.a.1", b"_INBOX.a.b.1"], None),
        ([b"_INBOX.a.b.1", b"_INBOX.a.1"], None),
        ([b"_INBOX.a."], None),
        ([b"plain"], None),
        ([], None),
    ],
)
def test_prefix_is_the_common_prefix_of_all_replies(
    codec: Any, replies: list[bytes], prefix: bytes | None
) -> None:
    column = codec[1].ReplyColumn()
    for reply in replies:
        column.append(reply)
    assert column.prefix(0, len(column)) == prefix


def test_rows_without_a_reply_consume_a_sequence(codec: Any) -> None:
    column = codec[1].ReplyColumn()
    run = codec[0].of([(b"s", reply, b"", b"x") for reply in (b"r.1", b"", b"r.3")])
    column.append_run(run, 0, 3)
    column.append(b"r.4")
    acks = codec[1].encode_pub_acks(column, 0, 4, b"7", b"ORDERS", 98, b"")
    assert acks == (
        b'MSG r.1 7 28\r\n{"stream":"ORDERS","seq":98}\r\n'
        b'MSG r.3 7 29\r\n{"stream":"ORDERS","seq":100}\r\n'
        b'MSG r.4 7 29\r\n{"stream":"ORDERS","seq":101}\r\n'
    )
    tail = codec[1].encode_pub_acks(column, 3, 4, b"7", b"S", 5, b',"domain":"hub"')
    assert tail == b'MSG r.4 7 37\r\n{"stream":"S","seq":5,"domain":"hub"}\r\n'


def test_replies_by_their_ending(codec: Any) -> None:
    column = codec[1].ReplyColumn()
    for reply in (b"", b"a.$FI", b".$FI", b"a.$FI.b", b"$FI", b"x.1.$FI"):
        column.append(reply)
    assert column.ending(b".$FI") == [1, 5]
    assert codec[1].ReplyColumn().ending(b".$FI") == []
