"""Messages from peers: decoded, checked and given to the core of their group.

Owns: which messages are accepted, the counts of those that are not, and which of these rejections
were logged.
May not touch: what messages do (raft.core), sockets.
Spec: Raft thesis 4.1 (messages of nodes that are not members). A malformed frame ends its
connection; a message for a group that is not here does not. Each kind of rejection is logged once
per peer and group, however often it is repeated. Messages for groups that are not here are normal
while nodes start and groups come and go: they are logged for debugging only, and as a warning when
they keep coming. The first pre-vote of a new group often arrives before the group is added here: it
is kept and answered then, or the candidate would have to repeat it."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from raft.core.messages import Message, MessageKind
from raft.host.group import Group
from raft.transport.codec import CodecError, decode_frame
from raft.types import GroupId, NodeId

_log = logging.getLogger("raft.host")
_REMEMBERED_MAX: Final = 256  # then all are forgotten, and may be logged again
EARLY_MAX: Final = 4096  # kept requests; then the oldest one is dropped
STRAYS_NORMAL: Final = 300  # from one peer for one group: half a minute of heartbeats


class Rejections:
    """Counts what peers and callers do wrong, and logs it once per peer and group."""

    def __init__(self) -> None:
        self.refused_messages = self.stray_messages = self.refused_entries = 0
        self._strays: Counter[tuple[NodeId, GroupId]] = Counter()
        self._logged: set[tuple[NodeId, GroupId, str]] = set()

    def unknown_group(self, sender: NodeId, group: GroupId) -> None:
        self.stray_messages += 1
        if len(self._strays) >= _REMEMBERED_MAX:
            self._strays.clear()
        self._strays[sender, group] += 1
        if self._strays[sender, group] <= STRAYS_NORMAL:
            self._log_once(sender, group, "dropped a message for an unknown group", logging.DEBUG)
        else:
            self._log_once(sender, group, "messages for an unknown group keep arriving")

    def not_a_member(self, sender: NodeId, group: GroupId) -> None:
        self.refused_messages += 1
        text = "dropped a message: the sender is not a member of the group"
        self._log_once(sender, group, text, logging.INFO)

    def entry_too_large(self, node: NodeId, group: GroupId, size: int) -> None:
        self.refused_entries += 1
        self._log_once(node, group, f"refused an entry of {size} bytes: it is too large")

    def _log_once(
        self, sender: NodeId, group: GroupId, text: str, level: int = logging.WARNING
    ) -> None:
        rejection = (sender, group, text)
        if rejection in self._logged:
            return
        if len(self._logged) >= _REMEMBERED_MAX:
            self._logged.clear()
        self._logged.add(rejection)
        _log.log(level, "%s (from node %d, group %d)", text, sender, group)


class EarlyRequests:
    """The last pre-vote of each candidate for groups that are not on this node, or not yet. A
    pre-vote promises nothing, so it may be answered late or never."""

    def __init__(self) -> None:
        self._requests: dict[tuple[GroupId, NodeId], Message] = {}
        self._senders: dict[GroupId, set[NodeId]] = {}

    def keep(self, group: GroupId, request: Message) -> None:
        place = (group, request.sender)
        self._requests.pop(place, None)
        self._requests[place] = request
        self._senders.setdefault(group, set()).add(request.sender)
        if len(self._requests) > EARLY_MAX:
            self._drop(*next(iter(self._requests)))

    def take(self, group: GroupId) -> list[Message]:
        senders = sorted(self._senders.get(group, ()))
        return [self._drop(group, sender) for sender in senders]

    def _drop(self, group: GroupId, sender: NodeId) -> Message:
        senders = self._senders[group]
        senders.discard(sender)
        if not senders:
            del self._senders[group]
        return self._requests.pop((group, sender))


class PeerWatch(Protocol):
    def heard(self, node: NodeId) -> None:
        """A frame of this node has arrived."""


class Inbound:
    def __init__(
        self,
        *,
        node: NodeId,
        groups: Mapping[GroupId, Group],
        peers: PeerWatch,
        rejections: Rejections,
        touch: Callable[[Group], None],
        group_failed: Callable[[Group, Exception], None],
    ) -> None:
        self.open = False  # while False, everything is dropped
        self._node = node
        self._groups = groups
        self._peers = peers
        self._rejections = rejections
        self._touch = touch
        self._group_failed = group_failed
        self._early = EarlyRequests()

    def added(self, group: Group) -> None:
        """Answer the pre-votes that arrived before this group was added."""
        for request in self._early.take(group.id):
            self._step(group, request)

    def received(self, sender: NodeId, view: memoryview) -> None:
        """Messages of a peer. An empty frame only says that the peer is alive. Raises CodecError,
        which ends that connection."""
        self._peers.heard(sender)
        for group_id, message in decode_frame(view):
            if message.sender != sender or message.to != self._node:
                raise CodecError(
                    f"message from {message.sender} to {message.to} on a link from {sender}"
                )
            group = self._groups.get(group_id)
            if group is None:
                self._rejections.unknown_group(sender, group_id)
                if message.kind is MessageKind.PRE_VOTE:
                    self._early.keep(group_id, message)
            else:
                self._step(group, message)

    def _step(self, group: Group, message: Message) -> None:
        if group.stopped is not None or not self.open:
            return
        if not group.admits(message.sender, message.term):
            self._rejections.not_a_member(message.sender, group.id)
            return
        if message.kind is MessageKind.SNAPSHOT:
            return  # a snapshot counts only after its chunks (raft/host/snapshots.py)
        try:
            group.core.step(message)
        except Exception as error:  # noqa: BLE001 - stops this group
            self._group_failed(group, error)
        else:
            self._touch(group)
