"""Gets of stored messages, DIRECT.GET and MSG.GET, at the node the client is connected to.

Owns: whether a get is answered here or by the stream's leader, and the loop that answers many gets
of single keys together.
May not touch: how a message is found (direct_get.py).
A get is answered here if this node leads the stream and its reads are current. A direct get is also
answered by a follower that has applied exactly as much as its leader. Every other get is forwarded
to the leader.
Spec: NATS JetStream API, STREAM.MSG.GET and DIRECT.GET (ADR-31)."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, cast

import msgspec

from broker.cluster.api.direct_get import (
    Answer,
    ReadableStream,
    direct_get,
    last_of_subject,
    message_at,
    sequence_asked,
)
from broker.cluster.api.leader_api import LeaderApi
from broker.cluster.api.leader_calls import ApiCall, LeaderCalls, decode_api_call
from broker.cluster.meta.assignments import Assignment, AssignmentTable
from broker.cluster.peers.rpc import CallFailed, CallRefused
from broker.cluster.replica.read_indexes import ReadIndexes
from broker.cluster.replica.replica import Replica
from broker.cluster.replica.replica_table import ReplicaTable
from broker.jetstream.errors import JetStreamError
from broker.server.routing.fair_queue import some_steps
from broker.store.block.codec import BlockDamaged
from broker.subjects import Steps, Subscription, has_wildcard
from broker.wire import PubRun, encode_msg
from raft import Index, NodeId

if TYPE_CHECKING:
    from broker.accounts import Account
    from broker.server.client.client_sink import ClientSink
    from broker.server.routing.router import Router

DIRECT_GET: Final = b"$JS.API.DIRECT.GET."
DIRECT_WITHIN_S: Final = 2.0
AT_ONCE_BYTES: Final = 16 * 1024  # answers up to this size are written without queueing
LOOK_BYTES: Final = 64 * 1024  # answered between two reads of the clock
ANSWERS_PER_STEP: Final = 32  # messages of one batch

# Creates the coroutine of a task when the task starts: one that a cancelled task never started
# would cause a warning.
StartWork = Callable[[], Awaitable[None]]

_encode = msgspec.msgpack.Encoder().encode
_answers = msgspec.msgpack.Decoder(list[tuple[bytes, bytes]])
_index = msgspec.msgpack.Decoder(int)


class _Answers:
    """Answers to one subscription, collected and sent together."""

    __slots__ = ("_account", "_bytes", "_encoded", "_prefix", "_router", "_target")

    def __init__(self, router: Router, account: Account) -> None:
        self._router = router
        self._account = account
        self._prefix = b""
        self._target: Subscription | None = None
        self._encoded: list[bytes] = []
        self._bytes = 0

    def add(self, reply: bytes, headers: bytes, payload: bytes) -> None:
        prefix = reply[: reply.rfind(b".") + 1]
        if prefix != self._prefix:
            self.send()
            self._prefix = prefix
            self._target = self._router.bulk_family(self._account, prefix)
        target = self._target
        if target is None:
            self._router.publish(self._account, reply, b"", headers, payload)
            return
        if not cast("ClientSink", target.sink).headers_ok:
            headers = b""
        self._encoded.append(encode_msg(reply, target.sid, b"", headers, payload))
        self._bytes += len(headers) + len(payload)

    def send(self) -> None:
        if self._encoded and self._target is not None:
            data, count = b"".join(self._encoded), len(self._encoded)
            sink = cast("ClientSink", self._target.sink)
            at_once = len(data) <= AT_ONCE_BYTES and not self._target.max_msgs
            deliver = sink.deliver_answers if at_once else sink.deliver_encoded
            deliver(self._target, data, messages=count, payload_bytes=self._bytes)
        self._encoded, self._bytes = [], 0


class AppliedStream(Protocol):
    @property
    def applied(self) -> int: ...


@dataclass(slots=True)
class MessageGets:
    """One per node."""

    node: NodeId
    router: Router
    assignments: AssignmentTable
    replicas: ReplicaTable
    leader_api: LeaderApi
    calls: LeaderCalls
    disk_failed: Callable[[], bool]
    spawn: Callable[[Awaitable[None], str], object]
    read_indexes: ReadIndexes = field(init=False)

    def __post_init__(self) -> None:
        self.read_indexes = ReadIndexes(self._ask_index, self.spawn)

    def start(self) -> None:
        self.calls.rpc.register("direct", self._serve)
        self.calls.rpc.register("read index", self._serve_index)

    # -- many gets of single keys ---------------------------------------------------------------

    def answer_run(
        self,
        account: Account,
        run: PubRun,
        start: int,
        stop: int,
        *,
        deadline: float,
        otherwise: Callable[[int], bool],
    ) -> tuple[int, list[int]]:
        """Answer the rows that ask a stream led here for the last message of one subject, or for a
        message by sequence, and pass the others to `otherwise`. Returns the row reached at
        `deadline`, and the rows that have no responder."""
        answers = _Answers(self.router, account)
        missing: list[int] = []
        current: bytes | None = None
        stream: ReadableStream | None = None
        unseen = 0  # bytes answered since the clock was last read
        for row in range(start, stop):
            if unseen > LOOK_BYTES:
                if time.perf_counter() > deadline:
                    stop = row
                    break
                unseen = 0
            subject, reply, headers, payload = run.message(row)
            name, dot, key = subject[len(DIRECT_GET) :].partition(b".")
            if not subject.startswith(DIRECT_GET):
                stream = current = None
            elif name != current:
                current, stream = name, self._led_here(account.name, name)
            answer: Answer | None = None
            if stream is not None and reply and not headers:
                try:
                    answer = _simple_get(stream, key if dot else None, payload)
                except BlockDamaged:
                    unseen += LOOK_BYTES + 1
                    continue  # the replica will be rebuilt; the client retries without an answer
            if answer is None:
                answers.send()
                if not otherwise(row):
                    missing.append(row)
                unseen += LOOK_BYTES + 1
                continue
            found, data = answer
            answers.add(reply, found, data)
            unseen += len(data) if dot else len(data) + LOOK_BYTES // 4  # it may read a block
        answers.send()
        return stop, missing

    def answer_one(self, account: Account, message: tuple[bytes, bytes, bytes, bytes]) -> bool:
        """Like answer_run, for one request. False: it does not qualify, and nothing was done."""
        subject, reply, headers, payload = message
        if headers or not reply:
            return False
        name, dot, key = subject[len(DIRECT_GET) :].partition(b".")
        stream = self._led_here(account.name, name)
        if stream is None:
            return False
        try:
            answer = _simple_get(stream, key if dot else None, payload)
        except BlockDamaged:
            return True  # the replica will be rebuilt; the client retries without an answer
        if answer is None:
            return False
        found, data = answer
        target = self.router.bulk_family(account, reply[: reply.rfind(b".") + 1])
        if target is None:
            self.router.publish(account, reply, b"", found, data)
            return True
        sink = cast("ClientSink", target.sink)
        if not sink.headers_ok:
            found = b""
        encoded, size = encode_msg(reply, target.sid, b"", found, data), len(found) + len(data)
        deliver = sink.deliver_answers if len(encoded) <= AT_ONCE_BYTES else sink.deliver_encoded
        deliver(target, encoded, messages=1, payload_bytes=size)
        return True

    def _led_here(self, account: str, name: bytes) -> ReadableStream | None:
        """The stream, if it allows direct gets and this node can answer for it."""
        assignment = self.assignments.get(account, name.decode(errors="replace"))
        if assignment is None or not assignment.config.allow_direct:
            return None
        replica = self.replicas.led(assignment.group)
        return replica.stream if replica is not None and replica.reads_are_current else None

    # -- one get --------------------------------------------------------------------------------

    def direct(self, call: ApiCall, spawn: Callable[[StartWork], None]) -> bool:
        """False when there is no such stream, or none that allows direct gets."""
        assignment = self._answering(call.account.name, call.request.stream)
        if assignment is None:
            return False
        if not call.reply:
            return True
        if assignment.name != call.request.stream:
            call = _to_mirror(call, assignment.name)
        replica = self.replicas.get(assignment.group)
        ours = replica is not None and replica.leading is not None and replica.reads_are_current
        if replica is not None and (ours or self._only_copy(assignment, replica)):
            self._answer(call, replica.stream, spawn)
        else:
            spawn(partial(self._get_elsewhere, call, assignment.group))
        return True

    def _answering(self, account: str, name: str) -> Assignment | None:
        """The stream of this name, if it allows direct gets. If it is not in this cluster, a mirror
        of it that may answer in its place, preferably one without a filter. While the origin is
        here, its mirrors do not answer: they may lack what the origin has acknowledged."""
        assignment = self.assignments.get(account, name)
        if assignment is not None:
            return assignment if assignment.config.allow_direct else None
        mirrors = [
            mirror
            for mirror in self.assignments.sums.mirrors_of(account, name)
            if mirror.config.mirror_direct
        ]
        return min(mirrors, key=_is_filtered, default=None)

    def _answer(
        self, call: ApiCall, stream: ReadableStream, spawn: Callable[[StartWork], None]
    ) -> None:
        """Answer now, within the client's time slice. A search that takes longer is started again
        as a task, in turns and within the account's budget."""
        rest = call.request.rest
        done, answers = some_steps(direct_get(stream, rest, call.headers, call.payload))
        if done and answers is not None and len(answers) <= ANSWERS_PER_STEP:
            self._send(call, answers)
        elif done and answers is not None:
            spawn(partial(self._in_turns, call, _found(answers)))
        else:
            again = direct_get(stream, rest, call.headers, call.payload)
            spawn(partial(self._in_turns, call, again))

    def _send(self, call: ApiCall, answers: list[Answer]) -> None:
        for headers, payload in answers:
            self.router.publish(call.account, call.reply, b"", headers, payload)

    def _steps(self, call: ApiCall, found: Steps[list[Answer]]) -> Steps[None]:
        answers = yield from found
        for at in range(0, len(answers), ANSWERS_PER_STEP):
            self._send(call, answers[at : at + ANSWERS_PER_STEP])
            yield

    async def _in_turns(self, call: ApiCall, found: Steps[list[Answer]]) -> None:
        steps = self._steps(call, found)
        await self.leader_api.turns.run(steps, call.account.name, id(call.publisher))

    def get_message(self, call: ApiCall) -> bytes | None:
        """The answer to MSG.GET, if this node can give it now. It runs in the client's time slice:
        as tasks, many requests of one client would all run in one turn of the event loop. Raises
        the JetStreamError to answer with, or BlockDamaged."""
        replica = self.replicas.of_stream(call.account.name, call.request.stream)
        if replica is None or replica.leading is None or not replica.reads_are_current:
            return None
        return self.leader_api.get_message(replica, call.payload)

    def _only_copy(self, assignment: Assignment, replica: Replica) -> bool:
        """Whether this node holds the only replica, with everything that was acknowledged, but its
        disk accepts no writes, so that no node leads the stream. A replica that was reopened has
        everything only after it has led: by then its log is applied."""
        return assignment.holders == {self.node} and self.disk_failed() and replica.led_last

    async def _get_elsewhere(self, call: ApiCall, group: int) -> None:
        """Answer from this node's replica once the leader has confirmed that it is current, or
        forward the request to the leader. The leader may be this node, which then first confirms
        that it still leads."""
        if not await self._answer_as_follower(call, group):
            await self._ask_leader(call, group)

    async def _answer_as_follower(self, call: ApiCall, group: int) -> bool:
        replica = self.replicas.get(group)
        if replica is None or replica.leading is not None:
            return False
        index = await self.read_indexes.get(group)
        replica = self.replicas.get(group)  # another object, if it was reopened meanwhile
        if replica is None or index is None or not self.is_level(replica.stream, index):
            return False
        steps = direct_get(replica.stream, call.request.rest, call.headers, call.payload)
        try:
            found = await self.leader_api.turns.run(steps, call.account.name, id(call.publisher))
        except BlockDamaged:
            return False  # the replica will be rebuilt
        await self._in_turns(call, _found(found))
        return True

    @staticmethod
    def is_level(stream: AppliedStream, index: Index) -> bool:
        """Whether a follower shows exactly what its leader shows. Not less, and not more either:
        the leader's own disk may be the slowest, and a later read at the leader must not show an
        older state."""
        return stream.applied == index

    async def _ask_leader(self, call: ApiCall, group: int) -> None:
        try:
            answer = await self.calls.call(
                group, "direct", call.encoded(), within_s=DIRECT_WITHIN_S
            )
        except (CallFailed, JetStreamError, TimeoutError):
            return  # the client retries without an answer
        await self._in_turns(call, _found(_answers.decode(answer)))

    async def _serve(self, _peer: NodeId, body: bytes) -> bytes:
        account, subject, headers, payload = decode_api_call(body)
        request, replica = self.leader_api.find(account, subject)
        await self.leader_api.wait_current(replica)
        steps = direct_get(replica.stream, request.rest, headers, payload)
        try:
            return _encode(await self.leader_api.turns.run(steps, account, replica))
        except BlockDamaged as damage:  # logged where it was read
            raise CallFailed(f"{replica.name} is damaged here: {damage}") from damage

    async def _ask_index(self, group: int) -> Index:
        """The leader's applied index. A leader of an older version does not know this call and
        refuses it."""
        leader = self.calls.leader(group)
        if leader is None:
            raise CallRefused("no leader is known")
        rpc = self.calls.rpc
        answer = await rpc.call(leader, "read index", _encode(group), timeout_s=DIRECT_WITHIN_S)
        return Index(_index.decode(answer))

    async def _serve_index(self, _peer: NodeId, body: bytes) -> bytes:
        replica = self.replicas.led(_index.decode(body))
        if replica is None:
            raise CallRefused("not led here")
        await self.leader_api.wait_current(replica)
        return _encode(replica.stream.applied)


def _simple_get(stream: ReadableStream, key: bytes | None, payload: bytes) -> Answer | None:
    """The answer, if the request has no other conditions than a subject or a sequence."""
    if key is not None:
        simple = key and not payload and not has_wildcard(key)
        return last_of_subject(stream, key) if simple else None
    seq = sequence_asked(payload)
    return message_at(stream, seq) if seq else None


def _is_filtered(mirror: Assignment) -> bool:
    origin = mirror.config.mirror
    return origin is not None and bool(origin.filter_subject or origin.subject_transforms)


def _to_mirror(call: ApiCall, name: str) -> ApiCall:
    """The same get with the mirror's name in the subject, by which the leader finds the stream."""
    rest = f".{call.request.rest}" if call.request.rest else ""
    subject = DIRECT_GET + f"{name}{rest}".encode()
    return replace(call, request=replace(call.request, stream=name), subject=subject)


def _found(answers: list[Answer]) -> Steps[list[Answer]]:
    yield from ()
    return answers
