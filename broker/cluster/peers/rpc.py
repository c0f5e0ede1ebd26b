"""Calls between nodes: request, answer, timeout.

Owns: the ids of outstanding calls, and their frames.
May not touch: the meaning of calls; methods are registered by name.
A failure is definite (CallRefused: nothing was done) or indefinite (CallFailed)."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from raft import NodeId

logger = logging.getLogger("jetraft.cluster")

_CALL, _ANSWER, _FAILURE, _REFUSAL = _KINDS = (0, 1, 2, 3)
_HEAD = struct.Struct("<BQB")  # kind, call id, length of the method name
# For all accounts together; each has its own bounds (api/jetstream_api.py, write_batches.py).
CALLS_MAX = 32_000  # outstanding; further calls are refused
SERVED_MAX = 32_000  # being served here; further calls are refused

Method = Callable[[NodeId, bytes], Awaitable[bytes]]
Send = Callable[[NodeId, bytes], bool]


class CallFailed(Exception):
    """Indefinite: the other node may or may not have performed the call."""


class CallRefused(CallFailed):
    """Definite: the other node did nothing. It is the wrong one to ask, or busy."""


@dataclass(slots=True)
class Rpc:
    """Calls to other nodes over one ordered link per peer, and to this node."""

    node: NodeId
    send: Send
    spawn: Callable[[Awaitable[None], str], object]
    _methods: dict[str, Method] = field(default_factory=dict)
    _calls: dict[int, tuple[NodeId, asyncio.Future[bytes]]] = field(default_factory=dict)
    _next_id: int = 1
    _served: int = 0

    def register(self, name: str, method: Method) -> None:
        self._methods[name] = method

    async def call(self, to: NodeId, name: str, body: bytes, *, timeout_s: float = 5.0) -> bytes:
        """The other node's answer. Raises CallFailed if there is none in time.

        A call to this node also raises whatever the method raises."""
        if to == self.node:
            try:
                async with asyncio.timeout(timeout_s):
                    return await self._methods[name](self.node, body)
            except TimeoutError as error:
                raise CallFailed(f"{name}: not done in {timeout_s} s") from error
        if len(self._calls) >= CALLS_MAX:
            raise CallRefused("too many calls outstanding")
        call_id = self._next_id
        self._next_id += 1
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        method = name.encode()
        if not self.send(to, _HEAD.pack(_CALL, call_id, len(method)) + method + body):
            raise CallRefused(f"node {to} is not connected")
        self._calls[call_id] = (to, future)
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError as error:
            raise CallFailed(f"{name}: node {to} did not answer in {timeout_s} s") from error
        finally:
            self._calls.pop(call_id, None)

    def received(self, peer: NodeId, frame: bytes) -> None:
        """A frame from a peer. Raises ValueError if it is malformed."""
        if len(frame) < _HEAD.size:
            raise ValueError("short rpc frame")
        kind, call_id, name_len = _HEAD.unpack_from(frame)
        if kind not in _KINDS or len(frame) < _HEAD.size + name_len:
            raise ValueError("not an rpc frame")
        body = frame[_HEAD.size + name_len :]
        if kind == _CALL:
            name = frame[_HEAD.size : _HEAD.size + name_len].decode(errors="replace")
            self._serve(peer, call_id, name, body)
            return
        peer_and_future = self._calls.get(call_id)
        if peer_and_future is None or peer_and_future[0] != peer or peer_and_future[1].done():
            return  # too late, or not one of our calls
        if kind == _ANSWER:
            peer_and_future[1].set_result(body)
        elif kind == _REFUSAL:
            peer_and_future[1].set_exception(CallRefused(body.decode(errors="replace")))
        else:
            peer_and_future[1].set_exception(CallFailed(body.decode(errors="replace")))

    def peer_lost(self, peer: NodeId) -> None:
        for to, future in list(self._calls.values()):
            if to == peer and not future.done():
                future.set_exception(CallFailed(f"lost the link to node {peer}"))

    def _serve(self, peer: NodeId, call_id: int, name: str, body: bytes) -> None:
        method = self._methods.get(name)
        if method is None or self._served >= SERVED_MAX:
            reason = "unknown method" if method is None else "too busy"
            self.send(peer, _HEAD.pack(_REFUSAL, call_id, 0) + f"{name}: {reason}".encode())
            return
        self._served += 1
        self.spawn(self._answer(peer, call_id, name, method, body), f"rpc {name}")

    async def _answer(
        self, peer: NodeId, call_id: int, name: str, method: Method, body: bytes
    ) -> None:
        try:
            answer = _HEAD.pack(_ANSWER, call_id, 0) + await method(peer, body)
        except CallRefused as error:
            answer = _HEAD.pack(_REFUSAL, call_id, 0) + str(error).encode()
        except CallFailed as error:
            answer = _HEAD.pack(_FAILURE, call_id, 0) + str(error).encode()
        except Exception:
            # Nothing may raise out of here. The caller gets an indefinite failure; the reason is
            # logged.
            logger.exception("call %s from node %s failed", name, peer)
            answer = _HEAD.pack(_FAILURE, call_id, 0) + b"internal error"
        finally:
            self._served -= 1
        self.send(peer, answer)
