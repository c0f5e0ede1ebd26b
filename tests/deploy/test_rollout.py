"""Pods of the rendered chart, with mutual TLS and logins, under load: nothing fails.

The short form of rollout.py: a rotated certificate and one restarted pod."""

from __future__ import annotations

import asyncio
from pathlib import Path

from .conftest import Helm
from .rollout import HOSTS, release, reloads


def test_publishers_notice_neither_a_rotated_certificate_nor_a_restarted_pod(
    helm: Helm, tmp_path: Path
) -> None:
    assert helm

    async def test() -> None:
        async with release(tmp_path) as (kubelet, load, authority):
            kubelet.rotate("bus-tls", authority.sign("second", HOSTS))
            await reloads(kubelet, 1)
            await load.flows()
            await kubelet.stop(2)
            await kubelet.start(2)
            await load.flows()

    asyncio.run(test())
