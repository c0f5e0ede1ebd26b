"""Gets of single keys, a run at a time.

Owns: the loop that answers many requests for the last message of a subject.
May not touch: other requests; they go back to the caller, in order.
Spec: JetStream sheet 1.6 (DIRECT.GET.<stream>.<subject>)."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Final, cast

from broker.cluster.api.direct_get import last_of_subject
from broker.subjects import Subscription, has_wildcard
from broker.wire import PubRun, encode_msg

if TYPE_CHECKING:
    from broker.accounts import Account
    from broker.cluster.node import JetStreamNode
    from broker.jetstream.stream.stream import Stream
    from broker.server.client.client_sink import ClientSink

DIRECT_GET: Final = b"$JS.API.DIRECT.GET."
LOOK_BYTES: Final = 64 * 1024  # answered between two looks at the clock


class _Answers:
    """What goes back, gathered while it is for one subscription."""

    __slots__ = ("_account", "_bytes", "_encoded", "_node", "_prefix", "_taker")

    def __init__(self, node: JetStreamNode, account: Account) -> None:
        self._node = node
        self._account = account
        self._prefix = b""
        self._taker: Subscription | None = None
        self._encoded: list[bytes] = []
        self._bytes = 0

    def add(self, reply: bytes, headers: bytes, payload: bytes) -> None:
        prefix = reply[: reply.rfind(b".") + 1]
        if prefix != self._prefix:
            self.send()
            self._prefix = prefix
            self._taker = self._node.server.router.bulk_family(self._account, prefix)
        taker = self._taker
        if taker is None:
            self._node.server.router.publish(self._account, reply, b"", headers, payload)
            return
        if not cast("ClientSink", taker.sink).headers_ok:
            headers = b""
        self._encoded.append(encode_msg(reply, taker.sid, b"", headers, payload))
        self._bytes += len(headers) + len(payload)

    def send(self) -> None:
        if self._encoded and self._taker is not None:
            data, count = b"".join(self._encoded), len(self._encoded)
            sink = cast("ClientSink", self._taker.sink)
            sink.deliver_encoded(self._taker, data, messages=count, payload_bytes=self._bytes)
        self._encoded, self._bytes = [], 0


def answer_gets(
    node: JetStreamNode,
    account: Account,
    run: PubRun,
    start: int,
    stop: int,
    *,
    deadline: float,
    otherwise: Callable[[int], bool],
) -> tuple[int, list[int]]:
    """Answer the rows that ask for the last message of one subject of a stream led here; pass
    the others to `otherwise`. Returns the row it came to when the clock showed `deadline`, and
    the rows that nobody serves."""
    answers = _Answers(node, account)
    missing: list[int] = []
    current: bytes | None = None
    stream: Stream | None = None
    unseen = 0  # bytes answered since the last look at the clock
    for row in range(start, stop):
        if unseen > LOOK_BYTES:
            if perf_counter() > deadline:
                stop = row
                break
            unseen = 0
        subject, reply, headers, payload = run.message(row)
        name, _, key = subject[len(DIRECT_GET) :].partition(b".")
        if not subject.startswith(DIRECT_GET):
            stream = current = None
        elif name != current:
            current, stream = name, _led_here(node, account.name, name)
        if stream is None or headers or payload or not (reply and key) or has_wildcard(key):
            answers.send()
            if not otherwise(row):
                missing.append(row)
            unseen += LOOK_BYTES + 1
            continue
        found, data = last_of_subject(stream, key)
        answers.add(reply, found, data)
        unseen += len(data)
    answers.send()
    return stop, missing


def _led_here(node: JetStreamNode, account: str, name: bytes) -> Stream | None:
    """The stream, if it may be asked this way and we are who answers for it."""
    assignment = node.meta.get(account, name.decode(errors="replace"))
    if assignment is None or not assignment.config.allow_direct:
        return None
    replica = node.replicas.get(assignment.group)
    if replica is None or replica.leading is None or not replica.reads_are_current:
        return None
    return replica.stream
