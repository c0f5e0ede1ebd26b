"""The subscriptions announced to the server at the other end of a leaf node connection.

Owns: how many members each subject and queue group has here, and the LS+ and LS- lines.
May not touch: connections, subscription trees; the caller decides which subscriptions count.
Spec: leaf node protocol, LS+ and LS-: a plain subject is announced once, a queue group again with
each change of its weight."""

from __future__ import annotations

Key = tuple[bytes, bytes]  # subject, queue


class AnnouncedInterest:
    __slots__ = ("_members",)

    def __init__(self) -> None:
        self._members: dict[Key, int] = {}

    def __len__(self) -> int:
        return len(self._members)

    def change(self, subject: bytes, queue: bytes, members: int) -> bytes:
        """Add `members` (negative: remove). Returns the line to send; b"" if nothing changes for
        the other side."""
        key = (subject, queue)
        before = self._members.get(key, 0)
        now = before + members
        if now > 0:
            self._members[key] = now
            if queue:
                return b"LS+ %b %b %d\r\n" % (subject, queue, now)
            return b"" if before else b"LS+ %b\r\n" % subject
        if not before:
            return b""
        del self._members[key]
        return b"LS- %b %b\r\n" % (subject, queue) if queue else b"LS- %b\r\n" % subject
