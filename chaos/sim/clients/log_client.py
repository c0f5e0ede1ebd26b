"""Writes and reads of one stream by a client, each journaled with its answer.

Owns: how a request and its answer become an operation of the journal.
May not touch: when and what workloads write and read; what answers mean (promises/log_answers.py).
Only a refusal with a known reason is definite; after any other error the outcome is unknown."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any, Final

from broker.scan.protocol import ScanProtocolError, ScanRefused, ScanRequest
from chaos.sim.clients.client import ClientMessage, header_block
from chaos.sim.clients.workload import WorkClient
from chaos.sim.promises.journal import Journal, Operation
from chaos.sim.promises.log_answers import READ, WRITE

ANSWER_WITHIN_S: Final = 4.0
_WRONG_LAST_SEQUENCE: Final = 10071
_CERTAIN: Final = {
    503,  # no responders
    10060,  # expected stream does not match
    10070,  # wrong last message id
    _WRONG_LAST_SEQUENCE,
}
_HEADERS: Final = {
    "stream": "Nats_Expected_Stream",
    "seq": "Nats_Expected_Last_Sequence",
    "subject_seq": "Nats_Expected_Last_Subject_Sequence",
    "msg_id": "Nats_Expected_Last_Msg_Id",
}
_NO_MESSAGE_FOUND: Final = 10037
_NOT_FOUND: Final = 404
_NO_SUCH_STREAM: Final = 10059
_END_OF_BATCH: Final = 204


class LogClient:
    """Reads return None if the result is unknown: no answer, or no leader."""

    def __init__(
        self,
        client: WorkClient,
        journal: Journal,
        stream: str,
        *,
        answer_within_s: float = ANSWER_WITHIN_S,
    ) -> None:
        self.client = client
        self._within_s = answer_within_s
        self._journal = journal
        self._stream = stream

    @property
    def name(self) -> str:
        return self.client.name

    # -- writes ---------------------------------------------------------------------------------

    async def write(
        self, subject: str, payload: bytes, expected: dict[str, Any], **headers: str
    ) -> int:
        """Returns the sequence, 0: refused or unknown."""
        operation = self._journal.invoke(
            self.name,
            WRITE,
            stream=self._stream,
            subject=subject,
            payload=payload,
            expected=expected,
        )
        fields = headers | {_HEADERS[name]: str(value) for name, value in expected.items()}
        try:
            answer = await self.client.request(
                subject.encode(),
                payload,
                headers=header_block(**fields) if fields else b"",
                timeout_s=self._within_s,
            )
        except TimeoutError:
            return 0
        if answer.status:
            if answer.status in _CERTAIN:
                self._journal.failed(operation)
            return 0
        body = json.loads(answer.data)
        error = body.get("error")
        if error is None:
            self._journal.ok(operation, seq=body["seq"])
            return int(body["seq"])
        if error["err_code"] == _WRONG_LAST_SEQUENCE:
            self._journal.failed(operation, last=int(error["description"].rpartition(": ")[2]))
        elif error["err_code"] in _CERTAIN:
            self._journal.failed(operation)
        return 0

    # -- reads ----------------------------------------------------------------------------------

    def _read(self, what: str, how: str, **fields: Any) -> Operation:
        node = self.client.node
        return self._journal.invoke(
            self.name,
            READ,
            stream=self._stream,
            what=what,
            how=how,
            node=node.name if node is not None else "",
            **fields,
        )

    async def last(self, subject: str, *, direct: bool) -> int | None:
        """The last sequence of a subject, 0 if there is none."""
        operation = self._read("last", "direct" if direct else "get", subject=subject)
        asked = {"last_by_subj": subject}
        found = await (self._direct(f".{subject}") if direct else self._get(operation, asked))
        if found is None:
            return None
        self._journal.ok(operation, seq=found[0], messages=[found] if found[0] else [])
        return found[0]

    async def one(self, seq: int, *, direct: bool) -> None:
        operation = self._read("one", "direct" if direct else "get", seq=seq)
        asked = {"seq": seq}
        found = await (self._direct("", asked) if direct else self._get(operation, asked))
        if found is not None:
            self._journal.ok(operation, found=found[0] > 0, messages=[found] if found[0] else [])

    async def last_of_each(self, pattern: str, subjects: list[str]) -> None:
        """One request for the last messages of all subjects that match."""
        operation = self._read("last of each", "direct", subjects=subjects)
        body = json.dumps({"multi_last": [pattern]}).encode()
        answers = await self._collect(f"$JS.API.DIRECT.GET.{self._stream}", body)
        if answers is None or any(one.status not in (0, _NOT_FOUND) for one in answers):
            return
        found = [_direct_message(one) for one in answers if not one.status]
        seqs = {subject: seq for subject, seq, _ in found}
        messages = [(seq, payload) for _, seq, payload in found]
        self._journal.ok(operation, seqs=seqs, messages=messages)

    async def scan(self) -> None:
        """Request a plan, then scan everything from the node of this client."""
        operation = self._read("last of all", "plan")
        try:
            plan = await self.client.api(f"STREAM.SCAN.PLAN.{self._stream}")
        except TimeoutError:
            return
        if "error" in plan:
            self._deny(operation, plan["error"]["err_code"])
            return
        last = plan["last_seq"]
        self._journal.ok(operation, seq=last)
        if not last:
            return
        operation = self._read("range", "scan", first=1, last=last)
        request = ScanRequest(stream=self._stream, first=1, last=last, id=plan["id"])
        try:
            rows = await self.client.scan(request, timeout_s=self._within_s)
        except (TimeoutError, ScanRefused, ScanProtocolError, ConnectionError):
            return
        # A block may have rows after the range; every reader trims them (broker/scan/protocol.py).
        self._journal.ok(operation, messages=[row for row in rows if row[0] <= last])

    # -- requests -------------------------------------------------------------------------------

    def _deny(self, operation: Operation, err_code: int) -> None:
        """The answer was an error. If it says that the stream does not exist, it is false."""
        if err_code == _NO_SUCH_STREAM:
            self._journal.failed(operation, denied=True)

    async def _get(self, operation: Operation, asked: dict[str, Any]) -> tuple[int, bytes] | None:
        """(0, b""): there is none. None: unknown."""
        try:
            answer = await self.client.api(f"STREAM.MSG.GET.{self._stream}", asked)
        except TimeoutError:
            return None
        if "error" in answer:
            self._deny(operation, answer["error"]["err_code"])
            return (0, b"") if answer["error"]["err_code"] == _NO_MESSAGE_FOUND else None
        message = answer["message"]
        return message["seq"], base64.b64decode(message.get("data", ""))

    async def _direct(
        self, suffix: str, asked: dict[str, Any] | None = None
    ) -> tuple[int, bytes] | None:
        subject = f"$JS.API.DIRECT.GET.{self._stream}{suffix}".encode()
        body = json.dumps(asked).encode() if asked else b""
        try:
            answer = await self.client.request(subject, body, timeout_s=self._within_s)
        except TimeoutError:
            return None
        if answer.status:
            return (0, b"") if answer.status == _NOT_FOUND else None
        return _direct_message(answer)[1:]

    async def _collect(self, subject: str, body: bytes) -> list[ClientMessage] | None:
        """All answers up to the end of the batch. None: it did not come."""
        client, answers = self.client, list[ClientMessage]()
        await client.until_connected()
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def take(message: ClientMessage) -> None:
            if message.status != _END_OF_BATCH:
                answers.append(message)
            if message.status and not done.done():
                done.set_result(None)

        inbox = client.new_inbox()
        sid = client.subscribe(inbox, take)
        try:
            client.publish(subject.encode(), body, reply=inbox)
            async with asyncio.timeout(self._within_s):
                await done
        except TimeoutError:
            return None
        finally:
            client.unsubscribe(sid)
        return answers


def _direct_message(message: ClientMessage) -> tuple[str, int, bytes]:
    """(subject, sequence, payload) of an answer to a direct get."""
    fields = dict(line.split(b": ", 1) for line in message.headers.split(b"\r\n") if b": " in line)
    return fields[b"Nats-Subject"].decode(), int(fields[b"Nats-Sequence"]), message.data
