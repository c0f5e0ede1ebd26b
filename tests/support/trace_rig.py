"""Sends traced messages to any server and returns the trace events in a comparable form."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

WITHIN_S = 20.0
MARKER = "the.end"

CONFIG = """
listen: "127.0.0.1:-1"
server_name: one
jetstream {{ store_dir: "{store}" }}
accounts {{
  A {{
    jetstream: enabled
    users: [
      {{user: a}}
      {{user: narrow, permissions: {{
        publish: {{deny: ["no.>", "t.secret"]}}, subscribe: {{deny: ["deaf.x"]}} }} }}
    ]
    exports: [{{stream: "s.>"}}, {{stream: "u.>"}}]
    imports: [
      {{service: {{account: B, subject: "svc"}}, to: "ask"}}
      {{service: {{account: B, subject: "shy"}}}}
    ]
  }}
  B {{
    users: [{{user: b}}]
    exports: [{{service: "svc", allow_trace: true}}, {{service: "shy"}}]
    imports: [
      {{stream: {{account: A, subject: "s.>"}}, to: "from.s.>", allow_trace: true}}
      {{stream: {{account: A, subject: "u.>"}}, prefix: "from"}}
    ]
  }}
  C {{ users: [{{user: c}}], msg_trace: {{dest: "t", sampling: "100%"}} }}
}}
"""


@dataclass(slots=True)
class Client:
    """A client that writes the protocol itself, so that headers are sent byte for byte."""

    name: str
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    cid: int
    heard: list[tuple[str, str, bytes]] = field(default_factory=list)  # subject, headers, payload
    errors: list[str] = field(default_factory=list)

    @classmethod
    async def open(cls, port: int, user: str, name: str, **options: Any) -> Client:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        info = json.loads((await reader.readline())[5:])
        found = cls(name, reader, writer, info["client_id"])
        options = {"verbose": False, "headers": True, "no_responders": True, "user": user,
                   "name": name, "protocol": 1, **options}  # fmt: skip
        found.send(f"CONNECT {json.dumps(options)}\r\n")
        await found.flush()
        return found

    def send(self, text: str) -> None:
        self.writer.write(text.encode())

    def publish(self, subject: str, headers: str, payload: str = "hi", *, reply: str = "") -> None:
        block = "NATS/1.0\r\n" + "".join(f"{line}\r\n" for line in headers.split("|")) + "\r\n"
        total = len(block) + len(payload)
        self.send(f"HPUB {subject} {reply} {len(block)} {total}\r\n{block}{payload}\r\n")

    async def flush(self) -> None:
        self.send("PING\r\n")
        while await self.operation() != b"PONG":
            pass

    async def operation(self) -> bytes:
        """Read the next operation of the server; messages and errors are recorded."""
        async with asyncio.timeout(WITHIN_S):
            line = (await self.reader.readline()).strip()
            words = line.decode().split(" ")
            if words[0] in ("MSG", "HMSG"):
                body = await self.reader.readexactly(int(words[-1]) + 2)
                cut = int(words[-2]) if words[0] == "HMSG" else 0
                self.heard.append((words[1], body[:cut].decode(), body[cut:-2]))
            elif words[0] == "-ERR":
                self.errors.append(line.decode())
            return line

    def close(self) -> None:
        self.writer.close()


class Scene:
    """Clients of one server. `end` returns all trace events, messages and errors."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.clients: dict[str, Client] = {}

    async def client(self, name: str, user: str = "a", **options: Any) -> Client:
        found = await Client.open(self.port, user, name, **options)
        self.clients[name] = found
        return found

    async def subscriber(self, name: str, *subjects: str, user: str = "a") -> Client:
        """`subjects` may name a queue group: "subject queue"."""
        found = await self.client(name, user)
        for sid, subject in enumerate(subjects, 1):
            found.send(f"SUB {subject} {sid}\r\n")
        await found.flush()
        return found

    async def end(self, *, events: int, user: str = "a") -> dict[str, Any]:
        """Wait for this many events, because events of streams arrive late; then for the event of a
        last message, which shows that nothing else was traced."""
        tracer = self.clients["tracer"]
        while sum(subject == "t" for subject, _, _ in tracer.heard) < events:
            await tracer.operation()
        last = await self.client("last", user)
        last.publish(MARKER, "Nats-Trace-Dest: t.end")
        while not any(subject == "t.end" for subject, _, _ in tracer.heard):
            await tracer.operation()
        for one in self.clients.values():
            await one.flush()
        return self._report()

    def _report(self) -> dict[str, Any]:
        names = {one.cid: one.name for one in self.clients.values()}
        report: dict[str, Any] = {}
        for name, one in self.clients.items():
            heard = [
                [subject, headers, readable(payload)]
                for subject, headers, payload in one.heard
                if not subject.startswith("t")
            ]
            report[name] = {"heard": heard, "errors": one.errors}
        traced = [
            (subject, headers, comparable(json.loads(payload), names))
            for subject, headers, payload in self.clients["tracer"].heard
            if subject == "t"
        ]
        report["traced"] = sorted(traced, key=json.dumps)
        for one in self.clients.values():
            one.close()
        return report


def readable(payload: bytes) -> Any:
    """JSON is decoded, because blanks in it do not matter."""
    return json.loads(payload) if payload.startswith(b"{") else payload.decode()


def comparable(event: dict[str, Any], names: dict[int, str]) -> dict[str, Any]:
    """Without times and numbers that differ between runs; client ids become client names."""
    server = event["server"]
    server.pop("feature_flags", None)  # differs between server versions
    event["server"] = {"name": server["name"], "fields": list(server)}
    for one in event["events"]:
        assert len(one.pop("ts")) > len("2026-01-01T00:00:00")
        one["fields"] = list(one)
        if one.get("kind") == 0:
            one["cid"] = names[one["cid"]]
    # The order of subscriptions is not specified.
    first, *rest = event["events"]
    event["events"] = [first, *sorted(rest, key=json.dumps)]
    return event
