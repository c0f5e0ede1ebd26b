"""Checks the answers to writes and reads of one stream against its log.

Owns: the meaning of the answers that clients/log_client.py journals.
May not touch: running nodes; the order of the answers (log_order.py)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from chaos.sim.promises.broken import BrokenPromise
from chaos.sim.promises.journal import Journal, Operation, Result
from chaos.sim.promises.log_order import TrueWithin, WrittenLog, check_log_order
from chaos.sim.promises.stored import StoredRow

WRITE, READ = "write", "read"


def check_log(stream: str, journal: Journal, rows: Sequence[StoredRow]) -> None:
    """Every answer about this stream, from which nothing was removed."""
    log = WrittenLog(stream, rows)
    ours = [one for one in journal.operations if one.fields.get("stream") == stream]
    writes = [one for one in ours if one.kind == WRITE]
    sent = {one.fields["payload"] for one in writes}
    for row in rows:
        if row.data not in sent:
            raise BrokenPromise(f"{stream}: nobody wrote {row.data[:24]!r} at {row.seq}")
    answers = [answer for one in writes for answer in _of_write(log, one)]
    for one in ours:
        if one.kind == READ and one.result is Result.OK:
            answers.append(_of_read(log, one))
        elif "denied" in one.answer:
            node = one.fields["node"]
            raise BrokenPromise(f"{stream}: {node} says that there is no such stream")
    check_log_order(stream, answers)


def _of_write(log: WrittenLog, operation: Operation) -> Iterator[TrueWithin]:
    fields, answer = operation.fields, operation.answer
    written = log.written(operation)
    if written is not None:
        yield written
        _check_expectations(log, operation, written.lo)
    elif operation.result is Result.FAILED and "last" in answer:
        subject = fields["subject"] if "subject_seq" in fields["expected"] else ""
        yield log.last_was(operation, subject, answer["last"])


def _check_expectations(log: WrittenLog, operation: Operation, seq: int) -> None:
    fields = operation.fields
    for name, wanted in fields["expected"].items():
        match name:
            case "stream":
                actual: object = log.stream
            case "seq":
                actual = log.before(seq, "")
            case "subject_seq":
                actual = log.before(seq, fields["subject"])
            case _:
                before = log.rows.get(seq - 1)
                actual = _message_id(before) if before is not None else ""
        if actual != wanted:
            raise BrokenPromise(
                f"{log.stream}: {fields['payload'][:24]!r} was stored as {seq} although it "
                f"expected {name} {wanted!r} and this was {actual!r}"
            )


def _message_id(row: StoredRow) -> str:
    for line in row.headers.split(b"\r\n"):
        if line.startswith(b"Nats-Msg-Id: "):
            return line.removeprefix(b"Nats-Msg-Id: ").decode()
    return ""


def _of_read(log: WrittenLog, operation: Operation) -> TrueWithin:
    fields, answer = operation.fields, operation.answer
    for seq, payload in answer.get("messages", ()):
        log.check_content(operation, seq, payload)
    match fields["what"]:
        case "last":  # of one subject; 0: none was found
            return log.last_was(operation, fields["subject"], answer["seq"])
        case "last of all":
            return log.last_was(operation, "", answer["seq"])
        case "last of each":
            parts = (
                log.last_was(operation, subject, answer["seqs"].get(subject, 0))
                for subject in fields["subjects"]
            )
            return log.all_of(operation, parts)
        case "one":
            return log.existed(operation, fields["seq"], found=answer["found"])
        case "range":  # everything from `first` to `last`, at the position that the plan named
            told = [seq for seq, _ in answer["messages"]]
            if told != list(range(fields["first"], fields["last"] + 1)):
                raise BrokenPromise(
                    f"{log.stream}: a scan of {fields['first']} to {fields['last']} gave {told}"
                )
            return log.existed(operation, fields["last"], found=True)
        case what:
            raise AssertionError(what)
