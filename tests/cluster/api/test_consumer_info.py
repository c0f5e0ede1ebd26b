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
    consumer = SimpleNamespace(config=SimpleNamespace(ack_policy=AckPolicy.EXPLICIT), state=state)

    async def wait_current(_replica: object) -> None:
        """It is."""

    async def settle(_replica: object) -> None:
        state.floor_stream_seq = committed

    def info(_replica: object, _consumer: object, *, shown: bool, fresh: bool = False) -> object:
        assert shown
        floor = state.floor_stream_seq if fresh else 8
        return SimpleNamespace(ack_floor=SimpleNamespace(stream_seq=floor))

    api = SimpleNamespace(
        wait_current=wait_current, _settle=settle, info=SimpleNamespace(consumer=info)
    )

    async def test() -> None:
        answer: Any = await LeaderApi._consumer_info(
            cast(Any, api), cast(Any, None), cast(Any, consumer)
        )
        assert answer.ack_floor.stream_seq == shown

    run(test())
