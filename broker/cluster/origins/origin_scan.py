"""Reads an origin in whole blocks, while it is far ahead of the copy.

Owns: plan and scan requests over the connection to the origin, and which origins can be scanned.
May not touch: the stream that is filled; messages after the backlog (read by consumer).
Only JetRaft serves scans. An origin with a retention other than limits is not scanned: there,
messages are removed or kept depending on their delivery to consumers.
Spec: broker/scan/protocol.py; docs/decisions/0039-copies-in-blocks.md."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from broker.cluster.origins.origin_connection import OriginConnection
from broker.cluster.origins.origin_errors import OriginRefused
from broker.jetstream.config import Retention
from broker.scan.protocol import (
    BLOCK_BYTES_MAX,
    FRAME,
    PLAN_SUBJECT,
    PlanRefused,
    ScanCode,
    ScanPlan,
    ScanProtocolError,
    ScanRefused,
    ScanRequest,
    check_frame,
    decode_end,
    decode_head,
    decode_plan,
    encode_request,
)
from broker.store.block.codec import Block, BlockDamaged

FILTERS_MAX: Final = 16  # a request is one line, and servers bound its length
BACKLOG_MIN: Final = 8  # messages; for fewer, a consumer is as fast
# The origin, or its replica, cannot serve this scan: read by consumer.
SCAN_FAILURES: Final = (
    OriginRefused,
    PlanRefused,
    ScanRefused,
    ScanProtocolError,
    BlockDamaged,
)


def can_scan(origin: OriginConnection, filters: tuple[str, ...]) -> bool:
    """Whether the origin is a JetRaft server (its INFO names Python), and the stream is its own: a
    scan reads the streams of the server that it is sent to."""
    info = origin.info
    here = origin.api in ("$JS.API", f"$JS.{info.get('domain')}.API")
    return here and str(info.get("go", "")).startswith("python") and len(filters) <= FILTERS_MAX


async def backlog(origin: OriginConnection, stream: str, *, start: int) -> ScanPlan | None:
    """The plan of the origin; None if it has to, or may as well, be read by consumer."""
    body = await origin.request(f"{PLAN_SUBJECT}{stream}", b"")
    plan = decode_plan(body)
    if plan.retention != Retention.LIMITS:
        return None
    return plan if plan.last_seq - max(start, plan.first_seq) >= BACKLOG_MIN else None


async def scanned(
    origin: OriginConnection, plan: ScanPlan, *, start: int, filters: tuple[str, ...]
) -> AsyncIterator[Block]:
    """The blocks from `start` to the last sequence of the plan, or as far as this replica has
    them."""
    request = ScanRequest(
        stream=plan.stream, id=plan.id, first=start, last=plan.last_seq, subjects=filters
    )
    try:
        await _begin(origin, request)
    except ScanRefused as refused:
        if refused.code is not ScanCode.BEHIND or refused.applied - start < BACKLOG_MIN:
            raise
        request = ScanRequest(
            stream=plan.stream, id=plan.id, first=start, last=refused.applied, subjects=filters
        )
        await _begin(origin, request)
    while (raw := await _frame(origin)) is not None:
        yield Block(raw)


async def _begin(origin: OriginConnection, request: ScanRequest) -> None:
    origin.writer.write(encode_request(request))
    async with asyncio.timeout(origin.patience_s):
        while True:
            line = await origin.waiting.line()
            if line.startswith((b"PING", b"INFO", b"+OK")):
                origin.between(line)
                continue
            decode_head(line)
            return


async def _frame(origin: OriginConnection) -> bytes | None:
    """One block; None at the end."""
    waiting = origin.waiting
    async with asyncio.timeout(origin.patience_s):
        size, check = FRAME.unpack(await waiting.exactly(FRAME.size))
        if not size:
            decode_end(await waiting.line())
            return None
        if size > BLOCK_BYTES_MAX:
            raise ScanProtocolError(f"a block of {size} bytes")
        raw = await waiting.exactly(size)
    check_frame(check, raw)
    return raw
