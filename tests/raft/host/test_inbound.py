"""Messages that arrive before their group is here."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from raft.core.messages import Message, MessageKind
from raft.host.group import Group
from raft.host.inbound import EARLY_MAX, Inbound, Rejections
from raft.transport.codec import encode_frames
from raft.types import GroupId, NodeId, Term

US, ONE, TWO = NodeId(1), NodeId(2), NodeId(3)
G = GroupId(7)


@dataclass
class NewGroup:
    id: GroupId = G
    stopped: str | None = None
    stepped: list[Message] = field(default_factory=list)

    @property
    def core(self) -> Any:
        return SimpleNamespace(step=self.stepped.append)

    def admits(self, _sender: NodeId, _term: Term) -> bool:
        return True


class Door:
    def __init__(self) -> None:
        self.groups: dict[GroupId, Group] = {}
        self.touched: list[object] = []
        self.rejections = Rejections()
        self.inbound = Inbound(
            node=US,
            groups=self.groups,
            peers=cast(Any, SimpleNamespace(heard=lambda _: None)),
            rejections=self.rejections,
            touch=self.touched.append,
            group_failed=lambda _group, error: (_ for _ in ()).throw(error),
        )
        self.inbound.open = True

    def receive(
        self, kind: MessageKind, *, sender: NodeId = ONE, term: int = 1, group: GroupId = G
    ) -> None:
        message = Message(kind, sender, US, Term(term))
        for frame in encode_frames([(group, message)]):
            self.inbound.received(sender, memoryview(b"".join(frame)))

    def add(self, group: GroupId = G) -> list[Message]:
        """What a group is given when it is added."""
        added = NewGroup(group)
        self.groups[group] = cast(Group, added)
        self.inbound.added(cast(Group, added))
        return added.stepped


def test_the_last_pre_vote_of_each_candidate_is_answered_when_the_group_is_added() -> None:
    door = Door()
    door.receive(MessageKind.PRE_VOTE, sender=TWO, term=3)
    door.receive(MessageKind.PRE_VOTE, sender=ONE, term=1)
    door.receive(MessageKind.PRE_VOTE, sender=ONE, term=2)
    assert [(m.sender, m.term) for m in door.add()] == [(ONE, 2), (TWO, 3)]
    assert door.touched
    assert door.rejections.stray_messages == 3
    assert door.add() == [], "it was answered already"


def test_votes_and_the_messages_of_leaders_are_not_kept() -> None:
    door = Door()
    for kind in (MessageKind.VOTE, MessageKind.HEARTBEAT, MessageKind.APPEND):
        door.receive(kind)
    assert door.add() == []


def test_only_so_many_are_kept_the_oldest_are_dropped() -> None:
    door = Door()
    for number in range(EARLY_MAX + 2):
        door.receive(MessageKind.PRE_VOTE, group=GroupId(number))
    assert [len(door.add(GroupId(n))) for n in (0, 1, 2, EARLY_MAX + 1)] == [0, 0, 1, 1]
