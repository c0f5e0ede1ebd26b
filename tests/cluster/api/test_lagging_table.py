"""A node whose table of streams lags does not say that a stream does not exist."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any, cast

from broker.accounts import Account
from broker.cluster.api.jetstream_api import ApiService
from broker.cluster.api.leader_calls import ApiCall
from broker.jetstream.api.subjects import parse_api_subject

INFO = b"$JS.API.STREAM.INFO.S"
DELETE = b"$JS.API.STREAM.DELETE.S"


def answer_of_a_node(*, subject: bytes = INFO, before: int = 0, after: int = 0) -> dict[str, Any]:
    """The answer about a stream that is of this group in the table of the node that is asked,
    `after` once the table is current; 0: there is none."""
    known: dict[str, Any] = {"S": SimpleNamespace(group=before, created_ns=1)} if before else {}

    async def barrier() -> None:
        known.update({"S": SimpleNamespace(group=after, created_ns=1)} if after else {})

    async def call_leader(*_: Any, **__: Any) -> bytes:
        return b'\0{"config":{}}'

    async def decoded(_: Any) -> None:
        return None

    async def answer(*_: Any) -> bytes:
        return json.dumps({"deleted": known["S"].group}).encode()

    answers: list[bytes] = []
    nothing = cast(Any, SimpleNamespace(audit=lambda *_: None))
    founded = asyncio.Event()
    founded.set()
    streams = SimpleNamespace(
        members=SimpleNamespace(founded=founded), decoded=decoded, answer=answer
    )
    service = ApiService(
        domain=b"",
        strict=False,
        router=cast(Any, SimpleNamespace(publish=lambda *message: answers.append(message[-1]))),
        account=cast(Any, None),
        assignments=cast(Any, SimpleNamespace(get=lambda _, name: known.get(name))),
        replicas=nothing,
        clustered=lambda: True,
        requests=nothing,
        meta_requests=cast(Any, SimpleNamespace(barrier=barrier)),
        calls=cast(Any, SimpleNamespace(call=call_leader)),
        advisories=nothing,
        streams=cast(Any, streams),
        gets=nothing,
        spawn=cast(Any, None),
        budget=nothing,
    )
    request = parse_api_subject(subject, domain=b"")
    assert request is not None
    call = ApiCall(Account("A"), request, subject, b"in.1", b"", b"")
    asyncio.run(service._answer(call))
    return cast(dict[str, Any], json.loads(answers[0]))


def test_a_stream_that_was_created_elsewhere_is_found() -> None:
    assert "error" not in answer_of_a_node(after=7)


def test_a_stream_that_does_not_exist_is_not_found() -> None:
    assert answer_of_a_node()["error"]["err_code"] == 10059


def test_a_delete_is_about_the_stream_of_the_current_table() -> None:
    assert answer_of_a_node(subject=DELETE, before=7, after=8) == {"deleted": 8}
