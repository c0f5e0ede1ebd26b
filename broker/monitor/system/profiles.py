"""PROFILEZ: profiles of a running server, for `nats server request profile`.

Owns: the request, its limits and errors.
May not touch: how a profile is made (documents/interpreter.py).
Spec: nats-server: `name`, `debug` and, for `cpu`, `duration` (nanoseconds, at most 15 s). Of Go's
profiles there are `cpu` and `goroutine` (the stacks of threads); `debug` above 0 asks for text."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

from broker.monitor.documents.interpreter import CpuProfile, stacks, stacks_profile
from broker.monitor.system import requests
from broker.monitor.system.responder import Responder, failure
from broker.server.services import Document

DURATION_MAX_NS = 15_000_000_000


class ProfileRefused(Exception):
    """str() is the reason, in the words of nats-server."""


class Profiles:
    """Answers PROFILEZ; the CPU profile is taken on a thread."""

    def __init__(self, responder: Responder) -> None:
        self._responder = responder
        self._cpu = CpuProfile()

    def asked(self, _subject: bytes, reply: bytes, _headers: bytes, payload: bytes) -> None:
        observed = self._responder.observed
        if not reply:
            return
        try:
            filters, asked = requests.read(payload)
        except requests.BadRequest as error:
            refused: Document = {"server": observed.stamp(), "error": failure(400, error)}
            self._responder.send(reply, refused)
            return
        if filters.match(observed):
            observed.server.spawn(self._answer(reply, asked), name="profile")

    async def _answer(self, reply: bytes, asked: dict[str, Any]) -> None:
        data: Document = {"profile": None, "error": ""}
        try:
            data["profile"] = base64.b64encode(await self._made(asked)).decode()
        except ProfileRefused as error:
            data["error"] = str(error)
        self._responder.send(reply, {"server": self._responder.observed.stamp(), "data": data})

    async def _made(self, asked: dict[str, Any]) -> bytes:
        name, duration_ns = asked.get("name"), asked.get("duration", 0)
        if not name:
            raise ProfileRefused("Profile name not specified")
        if name == "goroutine":
            return stacks().encode() if asked.get("debug") else stacks_profile()
        if name != "cpu":
            raise ProfileRefused(f'Profile "{name}" not found')
        if not isinstance(duration_ns, int) or not 0 < duration_ns <= DURATION_MAX_NS:
            shown = f"{duration_ns / 1e9:g}s" if isinstance(duration_ns, int) else duration_ns
            raise ProfileRefused(f"Duration {shown} should be between 0s and 15s")
        made = await asyncio.get_running_loop().run_in_executor(
            None, self._cpu.take, duration_ns / 1e9
        )
        if made is None:
            raise ProfileRefused("Failed to start CPU profile: cpu profiling already in use")
        return made
