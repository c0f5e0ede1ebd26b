"""What clients of consumers have in common: publish, create, fetch, read an ack subject.

Owns: the life of one pull request.
May not touch: what a workload decides about a message.
Spec: NATS JetStream API, consumers; pull requests end with a full batch or a status."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from chaos.sim.clients.client import ClientMessage
from chaos.sim.clients.workload import Scene, WorkClient
from chaos.sim.promises.consumed import Fetch, Received
from chaos.sim.world.virtual_time import NS

FINAL_STATUS = 200  # a status below it, such as a heartbeat, does not end a pull request
ACK_TOKENS = 9
CONSUMER_NOT_FOUND = 10014


def received_of(message: ClientMessage) -> Received | None:
    """None: not a stored message."""
    tokens = message.reply.split(b".")
    if tokens[:2] != [b"$JS", b"ACK"] or len(tokens) != ACK_TOKENS:
        return None
    deliveries, seq, consumer_seq, time_ns, _pending = (int(token) for token in tokens[4:])
    return Received(
        deliveries=deliveries,
        seq=seq,
        consumer_seq=consumer_seq,
        time_ns=time_ns,
        subject=message.subject,
        reply=message.reply,
        headers=message.headers,
        data=message.data,
    )


@dataclass(frozen=True, slots=True)
class Published:
    """A publish that was answered. `seq`: of its ack."""

    seq: int
    subject: str
    data: bytes
    invoked_ns: int


async def publish_some(
    scene: Scene, client: WorkClient, subjects: Sequence[str], count: int, *, gap_s: float
) -> list[Published]:
    """One after the other. Returns those that were acked; others may be stored as well."""
    acked: list[Published] = []
    for number in range(count):
        subject, data, invoked_ns = scene.rng.choice(subjects), b"%d" % number, scene.now_ns()
        try:
            answer = await client.request(subject.encode(), data, timeout_s=2.0)
        except TimeoutError:
            scene.mark("publish for consumers unanswered")
        else:
            if not answer.status and "error" not in answer.json():
                acked.append(Published(answer.json()["seq"], subject, data, invoked_ns))
        await asyncio.sleep(gap_s * scene.rng.random())
    return acked


async def create_consumer(client: WorkClient, stream: str, config: dict[str, Any]) -> None:
    """Retry until it exists."""
    name = config.get("durable_name") or config["name"]
    while True:
        try:
            answer = await client.api(
                f"CONSUMER.CREATE.{stream}.{name}", {"stream_name": stream, "config": config}
            )
        except TimeoutError:
            continue
        if "error" not in answer:
            return
        await asyncio.sleep(0.1)


async def delete_consumer(client: WorkClient, stream: str, name: str) -> None:
    """Retry until it is deleted."""
    while True:
        try:
            answer = await client.api(f"CONSUMER.DELETE.{stream}.{name}")
        except TimeoutError:
            continue
        if answer.get("error", {}).get("err_code") in (None, CONSUMER_NOT_FOUND):
            return
        await asyncio.sleep(0.1)


async def fetch(
    client: WorkClient,
    stream: str,
    consumer: str,
    *,
    batch: int,
    expires_s: float,
    no_wait: bool = False,
    heartbeat_s: float = 0.0,
    late_s: float = 1.0,
) -> Fetch:
    """One pull request, until it ends, the connection is lost, or nothing has arrived for `late_s`
    longer than its expiry: a node may have held it until there was a leader."""
    await client.until_connected()
    result = Fetch()
    ended = asyncio.Event()
    connects = client.connects

    def take(message: ClientMessage) -> None:
        received = received_of(message)
        if received is not None:
            result.messages.append(received)
            result.told = len(result.messages) >= batch
        elif message.status >= FINAL_STATUS:
            result.told = True
            result.status = message.status
        if result.told:
            ended.set()

    body: dict[str, Any] = {"batch": batch, "expires": int(expires_s * NS), "no_wait": no_wait}
    if heartbeat_s:
        body["idle_heartbeat"] = int(heartbeat_s * NS)
    inbox = client.new_inbox()
    sid = client.subscribe(inbox, take)
    client.publish(
        f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}".encode(),
        json.dumps(body).encode(),
        reply=inbox,
    )
    waits_s = expires_s + late_s
    while not ended.is_set() and waits_s > 0 and client.connects == connects and client.connected:
        try:
            async with asyncio.timeout(min(waits_s, 0.5)):
                await ended.wait()
        except TimeoutError:
            waits_s -= 0.5
    result.connection_lost = client.connects != connects or not client.connected
    client.unsubscribe(sid)
    return result
