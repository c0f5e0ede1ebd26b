"""Frames of peers, taken apart and given to the cores they are for.

Owns: who is listened to.
May not touch: what messages do (raft.core), sockets.
Spec: thesis 4.1 (messages of nodes that are no members); a frame that is wrong in itself ends its
connection, a message that is for nobody here does not."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from raft.core.messages import MessageKind
from raft.host.group import Group
from raft.host.peer_errors import PeerErrors
from raft.host.quiescence import Vigil
from raft.transport.codec import CodecError, decode_frame
from raft.types import GroupId, NodeId


class Inbound:
    def __init__(
        self,
        *,
        node: NodeId,
        groups: Mapping[GroupId, Group],
        vigil: Vigil,
        complaints: PeerErrors,
        touch: Callable[[Group], None],
        failed: Callable[[Group, Exception], None],
    ) -> None:
        self.open = False  # before and after, what comes is thrown away
        self._node = node
        self._groups = groups
        self._vigil = vigil
        self._complaints = complaints
        self._touch = touch
        self._failed = failed

    def received(self, sender: NodeId, view: memoryview) -> None:
        """Messages of a peer, perhaps none: then it only says that it is there. Raises
        CodecError, which ends that connection."""
        self._vigil.heard(sender)
        for group_id, message in decode_frame(view):
            if message.sender != sender or message.to != self._node:
                raise CodecError(f"a message from {message.sender} to {message.to}")
            group = self._groups.get(group_id)
            if group is None:
                self._complaints.stray(sender, group_id)
                continue
            if group.stopped is not None or not self.open:
                continue
            if not group.admits(sender, message.term):
                self._complaints.no_member(sender, group_id)
                continue
            if message.kind is MessageKind.SNAPSHOT:
                continue  # it is believed only after its chunks (raft.exchange)
            try:
                group.core.step(message)
            except Exception as error:  # noqa: BLE001 - ends this group, loudly
                self._failed(group, error)
            else:
                self._touch(group)
