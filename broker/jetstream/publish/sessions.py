"""Publish sessions: each batch of a node is applied exactly once, in the order it was sent.

Owns: per node the current session, the last batch applied, the results of recent batches,
and the types of those results.
May not touch: messages.
Spec: docs/decisions/0001-one-publish-through-all-layers.md.

A node resends its batches after a change of leader. A repeated batch gets its first result; a batch
that arrives too early is not applied, and the answer names the expected one. The session numbers of
a node only increase."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from broker.jetstream.errors import ErrCode, JetStreamError

RESULTS_KEPT = 64
RESULTS_KEPT_MIN = 8  # more than a node has in flight; kept even above EXCEPTIONS_KEPT
EXCEPTIONS_KEPT = 16384  # per session, in all remembered results together
ALIKE_MAX = 64  # different answers that are looked for among them


@dataclass(frozen=True, slots=True)
class Duplicate:
    """The message id is in the duplicate window: nothing is stored, `seq` is the first message's.
    `batch`: set if the message was a whole fast batch."""

    seq: int
    batch: str = ""


@dataclass(frozen=True, slots=True)
class Stored:
    """Stored, with an ack that says more than the next sequence: the value of a counter, or the
    batch that was committed. `seq` is the last sequence it took."""

    seq: int
    val: str = ""
    batch: str = ""
    count: int = 0


@dataclass(frozen=True, slots=True)
class Staged:
    """A member of an atomic batch that waits for its commit: the ack is empty."""


@dataclass(frozen=True, slots=True)
class FastBatchReply:
    """A message to the publisher of a fast batch (flow ack, gap or error), as it is sent."""

    text: str


RowAnswer = JetStreamError | Duplicate | Stored | Staged | FastBatchReply


@dataclass(frozen=True, slots=True)
class PublishResult:
    """The `count` rows that are not in `exceptions` got the sequences from `first_seq` on, in row
    order. Exceptions are sorted by row. Only a row of a fast batch can have several."""

    from_node: int
    session: int
    batch_no: int
    first_seq: int
    count: int
    exceptions: list[tuple[int, RowAnswer]]


@dataclass(frozen=True, slots=True)
class OutOfOrder:
    """The batch was not applied. `expected` is the batch number that must come first; 0: the
    session is older than the current one of that node."""

    from_node: int
    session: int
    batch_no: int
    expected: int


class ResultImage(msgspec.Struct, array_like=True, frozen=True):
    batch_no: int
    first_seq: int
    count: int
    # (row, sequence, err_code, text); the small codes below are answers that are not errors
    exceptions: list[tuple[int, int, int, str]]


# In place of an err_code. These numbers are on disk.
_DUPLICATE, _STORED, _COUNTED, _COMMITTED, _STAGED, _FAST_REPLY = range(6)


class SessionImage(msgspec.Struct, array_like=True, frozen=True):
    from_node: int
    session: int
    last: int
    results: list[ResultImage]


@dataclass(slots=True)
class _Session:
    number: int
    last: int = 0
    results: dict[int, PublishResult] = field(default_factory=dict)  # by batch number, ascending
    exceptions: int = 0
    _alike: dict[object, RowAnswer] = field(default_factory=dict)

    def share(self, exceptions: list[tuple[int, RowAnswer]]) -> None:
        """One object for all answers that say the same: thousands of refusals took 400 MB in forty
        streams."""
        alike = self._alike
        for at, (row, what) in enumerate(exceptions):
            if isinstance(what, JetStreamError):
                key: object = (what.err_code, what.description, what.definite)
            elif isinstance(what, FastBatchReply):
                key = what.text
            else:
                continue
            if len(alike) >= ALIKE_MAX and key not in alike:
                alike.clear()
            exceptions[at] = (row, alike.setdefault(key, what))


@dataclass(slots=True)
class Sessions:
    """The publish sessions of one stream, by publishing node."""

    _by_node: dict[int, _Session] = field(default_factory=dict)

    def admit(
        self, *, from_node: int, session: int, batch_no: int
    ) -> PublishResult | OutOfOrder | None:
        """None: apply the batch, then `remember` its result. Otherwise return this answer."""
        known = self._by_node.get(from_node)
        if known is None or session > known.number:
            if batch_no != 1:
                return OutOfOrder(from_node, session, batch_no, 1)
            self._by_node[from_node] = _Session(session)
            return None
        if session < known.number:  # from an earlier run of that node, which has restarted since
            return OutOfOrder(from_node, session, batch_no, 0)
        if batch_no == known.last + 1:
            return None
        return known.results.get(batch_no) or OutOfOrder(
            from_node, session, batch_no, known.last + 1
        )

    def remember(self, result: PublishResult) -> None:
        session = self._by_node[result.from_node]
        session.last = result.batch_no
        session.results[result.batch_no] = result
        session.share(result.exceptions)
        session.exceptions += len(result.exceptions)
        while len(session.results) > RESULTS_KEPT or (
            session.exceptions > EXCEPTIONS_KEPT and len(session.results) > RESULTS_KEPT_MIN
        ):
            oldest = session.results.pop(next(iter(session.results)))
            session.exceptions -= len(oldest.exceptions)

    def images(self) -> list[SessionImage]:
        return [
            SessionImage(
                from_node,
                session.number,
                session.last,
                [_image(result) for result in session.results.values()],
            )
            for from_node, session in sorted(self._by_node.items())
        ]

    @classmethod
    def of(cls, images: list[SessionImage]) -> Sessions:
        sessions = cls()
        for image in images:
            session = _Session(image.session, image.last)
            sessions._by_node[image.from_node] = session
            for stored in image.results:
                result = _result(image, stored)
                session.share(result.exceptions)
                session.results[result.batch_no] = result
                session.exceptions += len(result.exceptions)
        return sessions


def _image(result: PublishResult) -> ResultImage:
    exceptions = [(row, *_answer_image(what)) for row, what in result.exceptions]
    return ResultImage(result.batch_no, result.first_seq, result.count, exceptions)


def _answer_image(what: RowAnswer) -> tuple[int, int, str]:
    match what:
        case Duplicate():
            return what.seq, _DUPLICATE, what.batch
        case Staged():
            return 0, _STAGED, ""
        case FastBatchReply():
            return 0, _FAST_REPLY, what.text
        case Stored(batch=batch) if batch:
            return what.seq, _COMMITTED, f"{what.count} {batch}"
        case Stored():
            return what.seq, _COUNTED if what.val else _STORED, what.val
        case JetStreamError():
            return 0, int(what.err_code), what.description


def _answer(seq: int, err_code: int, text: str) -> RowAnswer:
    if err_code == _DUPLICATE:
        return Duplicate(seq, batch=text)
    if err_code in (_STORED, _COUNTED):
        return Stored(seq, val=text)
    if err_code == _COMMITTED:
        count, _, batch = text.partition(" ")
        return Stored(seq, batch=batch, count=int(count))
    if err_code == _STAGED:
        return Staged()
    if err_code == _FAST_REPLY:
        return FastBatchReply(text)
    return JetStreamError(ErrCode(err_code), text)


def _result(session: SessionImage, image: ResultImage) -> PublishResult:
    exceptions = [(row, _answer(seq, code, text)) for row, seq, code, text in image.exceptions]
    return PublishResult(
        session.from_node, session.session, image.batch_no, image.first_seq, image.count, exceptions
    )
