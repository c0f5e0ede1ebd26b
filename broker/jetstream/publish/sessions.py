"""Publish sessions: every batch of every node is applied once, in the order it was sent.

Owns: per origin node its present session, the last batch taken and the results of recent ones.
May not touch: messages. A repeated batch gets the result it had; one that came too early is not
applied and told which one is expected.
Spec: DESIGN sections 1 and 4 (re-sent publishes after a change of leader). Session numbers of one
origin only rise."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from broker.jetstream.errors import ErrCode, JetStreamError

RESULTS_KEPT = 64
RESULTS_KEPT_MIN = 8  # more than an origin has in flight, however long their exceptions are
EXCEPTIONS_KEPT = 16384  # bound on what remembered results hold together


@dataclass(frozen=True, slots=True)
class Duplicate:
    """The message id was seen before: nothing stored, the first one's sequence is the answer.
    `batch`: the fast batch of which it is all."""

    seq: int
    batch: str = ""


@dataclass(frozen=True, slots=True)
class Stored:
    """It is stored, but its ack says more than the next sequence: the value of a counter, or the
    batch it committed. `seq` is the last of those it took."""

    seq: int
    val: str = ""
    batch: str = ""
    count: int = 0


@dataclass(frozen=True, slots=True)
class Staged:
    """The member of a batch that waits for its commit: answered with nothing."""


@dataclass(frozen=True, slots=True)
class Said:
    """A message to the publisher of a fast batch, as it goes out."""

    text: str


RowAnswer = JetStreamError | Duplicate | Stored | Staged | Said


@dataclass(frozen=True, slots=True)
class PublishResult:
    """Rows that are not in `exceptions` got the sequences from `first_seq` on, in row order;
    `count` is how many. Exceptions are ascending by row. Only a row of a fast batch has several of
    them; it is not acked by its sequence."""

    origin: int
    session: int
    batch_no: int
    first_seq: int
    count: int
    exceptions: list[tuple[int, RowAnswer]]


@dataclass(frozen=True, slots=True)
class OutOfOrder:
    """The batch had no effect; `expected` is the number that has to come first."""

    origin: int
    session: int
    batch_no: int
    expected: int


class ResultImage(msgspec.Struct, array_like=True, frozen=True):
    batch_no: int
    first_seq: int
    count: int
    # (row, sequence, err_code, text); an err_code below any error's marks another answer
    exceptions: list[tuple[int, int, int, str]]


_DUPLICATE, _STORED, _COUNTED, _COMMITTED, _HELD, _SAID = range(6)


class SessionImage(msgspec.Struct, array_like=True, frozen=True):
    origin: int
    session: int
    last: int
    results: list[ResultImage]


@dataclass(slots=True)
class _Session:
    number: int
    last: int = 0
    results: dict[int, PublishResult] = field(default_factory=dict)  # by batch number, ascending
    exceptions: int = 0


@dataclass(slots=True)
class Sessions:
    _by_origin: dict[int, _Session] = field(default_factory=dict)

    def admit(
        self, *, origin: int, session: int, batch_no: int
    ) -> PublishResult | OutOfOrder | None:
        """None: apply the batch and `remember` its result. Otherwise this is its answer."""
        known = self._by_origin.get(origin)
        if known is None or session > known.number:
            if batch_no != 1:
                return OutOfOrder(origin, session, batch_no, 1)
            self._by_origin[origin] = _Session(session)
            return None
        if session < known.number:  # a ghost of an earlier run of that node: nobody waits for it
            return OutOfOrder(origin, session, batch_no, 0)
        if batch_no == known.last + 1:
            return None
        return known.results.get(batch_no) or OutOfOrder(origin, session, batch_no, known.last + 1)

    def remember(self, result: PublishResult) -> None:
        session = self._by_origin[result.origin]
        session.last = result.batch_no
        session.results[result.batch_no] = result
        session.exceptions += len(result.exceptions)
        while len(session.results) > RESULTS_KEPT or (
            session.exceptions > EXCEPTIONS_KEPT and len(session.results) > RESULTS_KEPT_MIN
        ):
            oldest = session.results.pop(next(iter(session.results)))
            session.exceptions -= len(oldest.exceptions)

    def images(self) -> list[SessionImage]:
        return [
            SessionImage(
                origin,
                session.number,
                session.last,
                [_image(result) for result in session.results.values()],
            )
            for origin, session in sorted(self._by_origin.items())
        ]

    @classmethod
    def of(cls, images: list[SessionImage]) -> Sessions:
        sessions = cls()
        for image in images:
            session = _Session(image.session, image.last)
            sessions._by_origin[image.origin] = session
            for stored in image.results:
                result = _result(image, stored)
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
            return 0, _HELD, ""
        case Said():
            return 0, _SAID, what.text
        case Stored(batch=batch) if batch:
            return what.seq, _COMMITTED, f"{what.count} {batch}"
        case Stored():
            return what.seq, _COUNTED if what.val else _STORED, what.val
        case JetStreamError():
            return 0, int(what.err_code), what.description


def _answer(seq: int, err_code: int, text: str) -> RowAnswer:
    match err_code:
        case 0:
            return Duplicate(seq, batch=text)
        case 1 | 2:
            return Stored(seq, val=text)
        case 3:
            count, _, batch = text.partition(" ")
            return Stored(seq, batch=batch, count=int(count))
        case 4:
            return Staged()
        case 5:
            return Said(text)
    return JetStreamError(ErrCode(err_code), text)


def _result(session: SessionImage, image: ResultImage) -> PublishResult:
    exceptions = [(row, _answer(seq, code, text)) for row, seq, code, text in image.exceptions]
    return PublishResult(
        session.origin, session.session, image.batch_no, image.first_seq, image.count, exceptions
    )
