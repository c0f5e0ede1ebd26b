"""The journal: every operation of every client, as invoked and as answered.

Owns: the list of operations, with the times of a clock: virtual ones in the simulator.
May not touch: clients, nodes.
Spec: an operation is ok, definitely failed, or unknown (no answer). The checks use the journal
afterwards; it is the only record of what was promised."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

SHOWN_MAX = 60  # characters of a value


class JournalClock(Protocol):
    @property
    def now_ns(self) -> int: ...


class Result(Enum):
    UNKNOWN = "unknown"
    OK = "ok"
    FAILED = "failed"


@dataclass(slots=True)
class Operation:
    """`kind` and `fields` are the request; `answer` is the answer."""

    number: int
    client: str
    kind: str
    fields: dict[str, Any]
    invoked_ns: int
    result: Result = Result.UNKNOWN
    completed_ns: int = 0
    answer: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        asked = ", ".join(f"{name}={_short(value)}" for name, value in self.fields.items())
        told = ", ".join(f"{name}={_short(value)}" for name, value in self.answer.items())
        until = f" at {self.completed_ns / 1e9:.4f}" if self.result is not Result.UNKNOWN else ""
        head = f"{self.invoked_ns / 1e9:9.4f} {self.client} {self.kind}({asked})"
        return f"{head} -> {self.result.value}{until} {told}".rstrip()


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}..."


class Journal:
    def __init__(self, world: JournalClock) -> None:
        self.operations: list[Operation] = []
        self._world = world

    def invoke(self, client: str, kind: str, **fields: Any) -> Operation:
        number = len(self.operations)
        operation = Operation(number, client, kind, fields, self._world.now_ns)
        self.operations.append(operation)
        return operation

    def ok(self, operation: Operation, **answer: Any) -> None:
        operation.result = Result.OK
        operation.completed_ns = self._world.now_ns
        operation.answer = answer

    def failed(self, operation: Operation, **answer: Any) -> None:
        """Definite: it was not done and will not be."""
        operation.result = Result.FAILED
        operation.completed_ns = self._world.now_ns
        operation.answer = answer

    def of_kind(self, kind: str) -> list[Operation]:
        return [operation for operation in self.operations if operation.kind == kind]
