"""The outboxes of one node: one per stream of the cluster.

Owns: the table of outboxes, and the subscriptions by which each captures its stream's subjects.
May not touch: how an outbox sends and resends (outbox_shell.py), the table of assignments (meta/).
Every node has an outbox for every stream, also where it holds no replica: clients may publish to
any node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from broker.accounts import Account
from broker.cluster.meta.assignments import Assignment
from broker.cluster.publish.outbox_core import OutboxCore
from broker.cluster.publish.outbox_shell import Outbox, Transmit
from broker.cluster.publish.pub_acks import ReplyRouter
from broker.cluster.publish.publish_batch import BatchAnswer
from broker.subjects import Subscription

# An outbox starts a new session whenever a memory stream has forgotten the previous one: each run
# of a node has this many bits for them.
SESSION_BITS = 16


class PublishAdmission(Protocol):
    def disk_refuses(self, group: int) -> bool: ...

    def stored_as(self, account: str, stream: str, subject: bytes) -> tuple[bytes, bool]: ...


@dataclass(slots=True)
class OutboxTable:
    account: Callable[[str], Account]
    router: ReplyRouter
    transmit: Transmit
    admission: PublishAdmission
    session: int  # of this run of the node; rises with every restart
    domain: str = ""
    _outboxes: dict[int, Outbox] = field(default_factory=dict)  # by group
    _captures: dict[int, list[Subscription]] = field(default_factory=dict)  # by group

    # -- assignments ----------------------------------------------------------------------------

    def assigned(self, assignment: Assignment) -> None:
        """A stream exists; repeated calls change nothing."""
        group = assignment.group
        if group in self._outboxes:
            return
        account, name = assignment.account, assignment.name
        domain = self.domain.encode()
        self._outboxes[group] = Outbox(
            stream=name.encode(),
            group=group,
            core=OutboxCore(self.session << SESSION_BITS),
            account=self.account(account),
            router=self.router,
            transmit=self.transmit,
            silent=assignment.config.no_ack,
            disk_refuses=self.admission.disk_refuses,
            stored_as=partial(self.admission.stored_as, account, name),
            ack_extra=b',"domain":"%b"' % domain if domain else b"",
        )
        self._capture(assignment)

    def reconfigured(self, assignment: Assignment) -> None:
        self._capture(assignment)
        self._outboxes[assignment.group].silent = assignment.config.no_ack

    def removed(self, assignment: Assignment) -> None:
        """The stream was deleted: publishers that wait for an ack get "no responders"."""
        self._release(assignment)
        outbox = self._outboxes.pop(assignment.group, None)
        if outbox is not None:
            outbox.removed()

    def _capture(self, assignment: Assignment) -> None:
        """Subscribe the outbox to the stream's subjects, in place of the previous ones."""
        self._release(assignment)
        outbox = self._outboxes[assignment.group]
        subs = [
            Subscription(sink=outbox, account=outbox.account, subject=pattern)
            for pattern in assignment.config.subject_patterns
        ]
        tree = outbox.account.subs
        for sub in subs:
            tree.insert(sub)
        self._captures[assignment.group] = subs

    def _release(self, assignment: Assignment) -> None:
        tree = self.account(assignment.account).subs
        for sub in self._captures.pop(assignment.group, []):
            tree.remove(sub)

    # -- leaders --------------------------------------------------------------------------------

    def answered(self, answer: BatchAnswer) -> None:
        """A leader's answer to one of our batches."""
        outbox = self._outboxes.get(answer.group)
        if outbox is not None:
            outbox.answered(answer)

    def resend(self, group: int) -> None:
        """The group has a new leader, or its leader serves from now on."""
        outbox = self._outboxes.get(group)
        if outbox is not None:
            outbox.resend()

    def link_restored(self, led_there: Callable[[int], bool]) -> None:
        """A link to a peer is up again: what was sent to the groups it leads may be lost."""
        for group, outbox in self._outboxes.items():
            if led_there(group):
                outbox.resend()

    # -- questions ------------------------------------------------------------------------------

    def all_answered(self) -> bool:
        return not any(outbox.unanswered for outbox in self._outboxes.values())

    def account_of(self, group: int) -> Account | None:
        """The account of the group's stream, or None if there is no such stream."""
        outbox = self._outboxes.get(group)
        return outbox.account if outbox is not None else None
