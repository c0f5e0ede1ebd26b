"""One entry behind the last one is noted as any others are."""

from __future__ import annotations

import pytest

from raft.core.membership import encode_members
from raft.core.messages import Entry, EntryKind
from raft.store.group_log import GroupLog
from raft.types import GroupId, Index, Members, NodeId, Term

CASES = {
    "next": Entry(Index(3), Term(2), b"next"),
    "of another term": Entry(Index(3), Term(3), b"next"),
    "instead of the last one": Entry(Index(2), Term(3), b"other"),
    "instead of all": Entry(Index(1), Term(2), b"first"),
    "members": Entry(
        Index(3), Term(2), encode_members(Members((NodeId(1), NodeId(2)))), EntryKind.CONFIG
    ),
}


def log() -> GroupLog:
    made = GroupLog(GroupId(7), None)
    made.appended([Entry(Index(1), Term(1), b"a"), Entry(Index(2), Term(2), b"bc")], [100, 200])
    return made


def facts(of: GroupLog) -> tuple[object, ...]:
    terms = [of.term(Index(at)) for at in range(5)]
    places = of.entries_between(0, 1000, 10)
    return of.last_index(), terms, places, of.nbytes, of.configurations()


@pytest.mark.parametrize("entry", CASES.values(), ids=CASES)
def test_one_entry_is_noted_as_a_list_of_one(entry: Entry) -> None:
    alone, listed = log(), log()
    alone.appended_one(entry, 300)
    listed.appended([entry], [300])
    assert facts(alone) == facts(listed)


@pytest.mark.parametrize("index", range(1, 5))
def test_the_place_before_an_entry(index: int) -> None:
    known = log()
    start, last, before = known.place_before(Index(index))
    assert (start, last) == (0, 2)
    assert before == (known.term(Index(index - 1)) or 0)
