"""Consumer info at the leader: it shows no ack floor that is not committed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.cluster.api import leader_api as module
from broker.cluster.api.leader_api import LeaderApi
from broker.jetstream.config import AckPolicy
from tests.support.cluster_fakes import run


@pytest.mark.parametrize(("committed", "shown"), [(8, 8), (7, 7)])
def test_acks_that_could_not_be_proposed_are_not_shown(
    committed: int, shown: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk the leader has acks up to 8, which are refused, and forgets them."""
    monkeypatch.setattr(module, "encode_response", lambda _kind, info: info)
    state = SimpleNamespace(floor_stream_seq=7)
    config = SimpleNamespace(ack_policy=AckPolicy.EXPLICIT)
    consumer = SimpleNamespace(config=config, state=state, num_pending=lambda: 0)

    async def wait_current(_replica: object) -> None:
        """It is."""

    async def count(_replica: object, _consumer: object) -> None:
        """Nothing is pending."""

    async def settle(_replica: object) -> None:
        state.floor_stream_seq = committed

    def info(
        _replica: object, _consumer: object, *, shown: bool, fresh_pending: int | None = None
    ) -> object:
        assert shown
        floor = 8 if fresh_pending is None else state.floor_stream_seq
        return SimpleNamespace(ack_floor=SimpleNamespace(stream_seq=floor))

    api = SimpleNamespace(
        wait_current=wait_current,
        _count=count,
        _settle=settle,
        info=SimpleNamespace(consumer=info),
    )

    async def test() -> None:
        answer: Any = await LeaderApi._consumer_info(
            cast(Any, api), cast(Any, None), cast(Any, consumer)
        )
        assert answer.ack_floor.stream_seq == shown

    run(test())
