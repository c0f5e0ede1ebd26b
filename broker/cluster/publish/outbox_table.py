"""The outboxes of one node: one per stream of the cluster.

Owns: the table of outboxes, and the subscriptions by which each captures its stream's subjects.
May not touch: how an outbox sends and resends (outbox_shell.py), the table of assignments (meta/).
Every node has an outbox for every stream, also where it holds no replica: clients may publish to
any node."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from broker.accounts import Account
from broker.cluster.meta.assignments import Assignment
from broker.cluster.publish.held_bytes import HeldPublishes
from broker.cluster.publish.outbox_core import OutboxCore
from broker.cluster.publish.outbox_shell import Outbox, Transmit
from broker.cluster.publish.outbox_turns import OutboxTurns
from broker.cluster.publish.pub_acks import ReplyRouter
from broker.cluster.publish.publish_batch import BatchAnswer
from broker.subjects import STEP_ITEMS, Steps, Subscription

# An outbox starts a new session whenever a memory stream has lost the previous one; the sessions of
# one run of a node are numbered with this many bits.
SESSION_BITS = 16
AT_ONCE_STEPS = 4  # steps of capturing subjects that are taken immediately: about 1 ms


class PublishAdmission(Protocol):
    def disk_refuses(self, account: str, stream: str, group: int) -> bool: ...

    def stored_as(self, account: str, stream: str, subject: bytes) -> tuple[bytes, bool]: ...


@dataclass(slots=True, eq=False)
class _Capture:
    """The subscriptions of one outbox, while they are changed to the wanted subjects."""

    outbox: Outbox
    wanted: tuple[str, ...] = ()
    changes: Steps[None] | None = None  # None: all of them are made
    _subs: dict[str, Subscription] = field(default_factory=dict)

    def align(self, wanted: tuple[str, ...]) -> Steps[None]:
        """Add new subjects before old ones are removed, so that none is missed in between."""
        self.wanted = wanted
        tree, subs = self.outbox.account.subs, self._subs
        kept = frozenset(wanted)
        new = [subject for subject in wanted if subject not in subs]
        old = [subject for subject in subs if subject not in kept]
        for at, subject in enumerate(new, 1):
            sub = Subscription(
                sink=self.outbox, account=self.outbox.account, subject=subject.encode()
            )
            tree.insert(sub)
            subs[subject] = sub
            if at % STEP_ITEMS == 0:
                yield
        for at, subject in enumerate(old, 1):
            tree.remove(subs.pop(subject))
            if at % STEP_ITEMS == 0:
                yield


@dataclass(slots=True, eq=False)
class OutboxTable:
    account: Callable[[str], Account]
    router: ReplyRouter
    transmit: Transmit
    admission: PublishAdmission
    session: int  # of this run of the node; rises with every restart
    later: Callable[[Callable[[], None], Hashable, Hashable], None]  # in another turn of the loop
    turns: OutboxTurns
    domain: str = ""
    buffered: tuple[int, int] = (0, 0)  # most messages and bytes that wait, of a stream
    held: HeldPublishes = field(default_factory=HeldPublishes)
    _outboxes: dict[int, Outbox] = field(default_factory=dict)  # by group
    _captures: dict[int, _Capture] = field(default_factory=dict)  # by group

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
            publishes=self.held.of(account),
            turns=self.turns,
            silent=assignment.config.no_ack,
            disk_refuses=partial(self.admission.disk_refuses, account, name),
            stored_as=partial(self.admission.stored_as, account, name),
            ack_extra=b',"domain":"%b"' % domain if domain else b"",
            buffered=self.buffered if any(self.buffered) else None,
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

    def left(self, assignment: Assignment) -> None:
        """This node was removed from the cluster."""
        self._release(assignment)
        outbox = self._outboxes.pop(assignment.group, None)
        if outbox is not None:
            outbox.left()

    def _capture(self, assignment: Assignment) -> None:
        """Subscribe the outbox to the stream's subjects, in place of the previous ones."""
        group, subjects = assignment.group, assignment.config.subjects
        capture = self._captures.get(group)
        if capture is None:
            capture = self._captures[group] = _Capture(self._outboxes[group])
        elif capture.wanted == subjects:
            return
        self._align(assignment, capture, subjects)

    def _release(self, assignment: Assignment) -> None:
        capture = self._captures.pop(assignment.group, None)
        if capture is not None:
            self._align(assignment, capture, ())

    def _align(self, assignment: Assignment, capture: _Capture, wanted: tuple[str, ...]) -> None:
        """A few subjects immediately, many in steps: see `captured`."""
        changes = capture.align(wanted)
        capture.changes = changes

        def go_on() -> None:
            if capture.changes is not changes:
                return  # the subjects have changed again
            for at, _ in enumerate(changes, 1):
                if at == AT_ONCE_STEPS:
                    self.later(go_on, assignment.account, self)
                    return
            capture.changes = None

        go_on()

    def captured(self, group: int) -> bool:
        """Whether the stream captures all its subjects on this node."""
        capture = self._captures.get(group)
        return capture is not None and capture.changes is None

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

    def in_turn(self, group: int, act: Callable[[], None]) -> None:
        """Call `act` in a turn of the group's account. For entries that take long to apply."""
        account = self.account_of(group)
        self.later(act, account.name if account is not None else None, group)

    def account_name(self, group: int) -> str:
        """The name of the account of the group's stream; "" if there is no such stream."""
        account = self.account_of(group)
        return "" if account is None else account.name

    def account_of(self, group: int) -> Account | None:
        """The account of the group's stream, or None if there is no such stream."""
        outbox = self._outboxes.get(group)
        return outbox.account if outbox is not None else None
