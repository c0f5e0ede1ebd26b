"""Encoding and decoding messages; bytes that cannot be decoded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raft.core.messages import Entry, EntryKind, Message, MessageKind
from raft.transport.codec import FRAME_BYTES_GOAL, CodecError, decode_frame, encode_frames
from raft.types import GroupId, Index, NodeId, Term

numbers = st.integers(0, 2**63 - 1)


@st.composite
def messages(draw: st.DrawFn) -> tuple[GroupId, Message]:
    index = draw(numbers)
    data = draw(st.lists(st.binary(max_size=40), max_size=4))
    entries = [
        Entry(
            Index(index + 1 + i),
            Term(draw(numbers)),
            d,
            draw(st.sampled_from([EntryKind.NORMAL, EntryKind.NOOP])),
        )
        for i, d in enumerate(data)
    ]
    fields = [draw(numbers) for _ in range(9)]
    return GroupId(draw(st.integers(0, 2**64 - 1))), Message(
        kind=draw(st.sampled_from(MessageKind)),
        sender=NodeId(fields[0]),
        to=NodeId(fields[1]),
        term=Term(fields[2]),
        index=Index(index),
        log_term=Term(fields[4]),
        commit=Index(fields[5]),
        reject=draw(st.booleans()),
        hint_index=Index(fields[6]),
        hint_term=Term(fields[7]),
        context=fields[8],
        entries=entries,
    )


@given(st.lists(messages(), max_size=6))
def test_messages_of_many_groups_come_back(batch: list[tuple[GroupId, Message]]) -> None:
    frames = encode_frames(batch)
    assert len(frames) <= 1
    assert [m for frame in frames for m in decode_frame(b"".join(frame))] == batch


@given(st.lists(messages(), min_size=1, max_size=3), st.data())
def test_a_truncated_frame_is_an_error_or_whole_messages(
    batch: list[tuple[GroupId, Message]], data: st.DataObject
) -> None:
    whole = b"".join(encode_frames(batch)[0])
    cut = data.draw(st.integers(0, len(whole) - 1))
    try:
        found = decode_frame(memoryview(whole)[:cut])
    except CodecError:
        return
    assert found == batch[: len(found)]
    assert len(found) < len(batch)


@given(st.binary(max_size=300))
def test_garbage_raises_only_codec_error(raw: bytes) -> None:
    try:
        decode_frame(raw)
    except CodecError:
        return


def test_large_batches_become_several_frames_in_order() -> None:
    data = bytes(FRAME_BYTES_GOAL // 2 + 1)
    batch = [
        (
            GroupId(i),
            Message(
                MessageKind.APPEND,
                NodeId(1),
                NodeId(2),
                Term(1),
                entries=[Entry(Index(1), Term(1), data)],
            ),
        )
        for i in range(5)
    ]
    frames = encode_frames(batch)
    assert len(frames) == 3
    assert frames[0][2] is data  # not copied
    assert [g for frame in frames for g, _ in decode_frame(b"".join(frame))] == [0, 1, 2, 3, 4]


def test_a_wrong_entry_count_is_refused() -> None:
    whole = bytearray(
        b"".join(
            encode_frames([(GroupId(1), Message(MessageKind.VOTE, NodeId(1), NodeId(2), Term(1)))])[
                0
            ]
        )
    )
    whole[-4:] = b"\xff\xff\xff\xff"
    with pytest.raises(CodecError):
        decode_frame(bytes(whole))
