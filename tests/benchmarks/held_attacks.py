"""Attacks by what is left behind: batches never ended, pulls never served, circles, schedules.

Owns: their preparations and floods; attacks.py lists them.
May not touch: the measurement (neighbours.py)."""

from __future__ import annotations

import asyncio
import itertools
import json

from attack import Attack, publish, publish_headers
from plain_client import PlainClient

from broker.store.block.codec import BlockBuilder

HOUR_NS = 3_600 * 10**9


async def _stream(attack: Attack, name: str, **config: object) -> PlainClient:
    client = await attack.client()
    base = {"name": name, "subjects": [f"{name.lower()}.>"], "max_bytes": 64 << 20}
    await client.api(f"STREAM.CREATE.{name}", base | config)
    return client


async def _consumer(client: PlainClient, stream: str, name: str, **config: object) -> None:
    body = {"stream_name": stream, "config": {"durable_name": name} | config}
    await client.api(f"CONSUMER.CREATE.{stream}.{name}", body)


async def one_stream(attack: Attack) -> None:
    attack.kept["client"] = await _stream(attack, "S", allow_msg_ttl=True)


# -- blocks of writers


def _written(writer: str, subjects: list[bytes]) -> bytes:
    builder = BlockBuilder()
    for subject in subjects:
        builder.append(subject, b"", b"", time_ns=0)
    head = json.dumps({"writer": writer, "epoch": 1, "row": 0}).encode()
    return head + b"\n" + builder.build()


async def write_subjects(attack: Attack) -> None:
    """Blocks of 30,000 new subjects each."""

    def line(at: int) -> bytes:
        subjects = [b"s.%x.%x" % (at, i) for i in range(30_000)]
        return publish("$JS.API.STREAM.WRITE.S", _written(f"w{at}", subjects), b"nobody")

    lines = [line(at) for at in range(24)]
    await attack.flood(lambda at: lines[at % len(lines)])


async def writer_ids(attack: Attack) -> None:
    """A new writer for each block, with the longest name there is."""

    def lines(at: int) -> bytes:
        return b"".join(
            publish(
                "$JS.API.STREAM.WRITE.S",
                _written(f"{at}.{i}." + "\U0001f600" * 240, [b"s.w"]), b"nobody",
            )
            for i in range(20)
        )  # fmt: skip

    await attack.flood(lines)


# -- pull requests


async def served_pulls(attack: Attack) -> None:
    """Each request is served at once, and would have waited for an hour."""
    client = await attack.client()
    for _ in range(200):
        client.send(publish("s.x", b"x") * 1000)
        await client.request(b"s.x", b"x")
    await _consumer(client, "S", "P", ack_policy="none", max_waiting=100_000)
    beat = {"batch": 10**9, "expires": HOUR_NS, "idle_heartbeat": 10**9}
    client.send(b"SUB pulled.> 77\r\n")
    body = json.dumps({"batch": 1, "expires": HOUR_NS}).encode()
    line = publish("$JS.API.CONSUMER.MSG.NEXT.S.P", body, b"pulled.x") * 100
    slow = await attack.client()
    slow.send(publish("$JS.API.CONSUMER.MSG.NEXT.S.P", json.dumps(beat).encode(), b"gone"))
    filling = asyncio.create_task(attack.flood(lambda _: publish("s.x", b"x") * 100))

    for at in itertools.count():
        if not attack.running or client.closed:
            break
        await client.flood(line)
        attack.done += 100 * (at >= 0)
    await filling


async def short_pulls(attack: Attack) -> None:
    """Requests that expire after a microsecond."""
    client = await attack.client()
    await _consumer(client, "S", "P", ack_policy="explicit", max_waiting=100_000)
    client.send(b"SUB pulled.> 77\r\n")
    body = b'{"batch":1,"expires":1000}'
    line = publish("$JS.API.CONSUMER.MSG.NEXT.S.P", body, b"pulled.x") * 200
    await attack.flood(lambda _: line, connections=4)


async def unmet_pulls(attack: Attack) -> None:
    """Requests of a group whose condition is never met, looked at for every message."""
    client = await attack.client()
    await _consumer(
        client, "S", "P", ack_policy="explicit", max_waiting=1_000_000,
        priority_groups=["g"], priority_policy="overflow",
    )  # fmt: skip
    client.send(b"SUB pulled.> 77\r\n")
    asked = {"batch": 1, "expires": HOUR_NS, "group": "g", "min_pending": 10**9}
    line = publish("$JS.API.CONSUMER.MSG.NEXT.S.P", json.dumps(asked).encode(), b"pulled.x")
    for _ in range(100):
        await client.flood(line * 1000)
    message = publish("s.x", b"x")
    while attack.running:
        await client.flood(message)
        attack.done += 1
        await asyncio.sleep(0.001)


# -- batches


async def batch_streams(attack: Attack) -> None:
    for at in range(40):
        client = await _stream(
            attack, f"B{at}", subjects=[f"b.{at}.>"], allow_atomic=True, allow_batched=True
        )
    attack.kept["client"] = client


async def held_batches(attack: Attack) -> None:
    """Fifty batches open in each of forty streams, all of them growing."""
    body = bytes(100_000)

    def line(at: int) -> bytes:
        stream, batch = at % 40, at // 40 % 50
        head = b"Nats-Batch-Id: b%d\r\nNats-Batch-Sequence: %d\r\n" % (batch, at // 2000 + 1)
        return publish_headers(f"b.{stream}.x", head, body)

    await attack.flood(line, connections=1)


async def fast_batches(attack: Attack) -> None:
    """A thousand fast batches open in each stream."""

    def lines(at: int) -> bytes:
        stream, first = at % 40, at // 40 * 100
        return b"".join(
            publish(f"b.{stream}.x", b"x", b"in.id%d.10.ok.1.0.$FI" % (first + i))
            for i in range(100)
        )

    await attack.flood(lines)


# -- schedules


async def schedule_stream(attack: Attack) -> None:
    attack.kept["client"] = await _stream(attack, "S", allow_msg_schedules=True)


async def cron_schedules(attack: Attack) -> None:
    """Five thousand schedules of every second, in a time zone."""
    headers = (
        b"Nats-Schedule: */1 0-59 0-23 1-31 1-12 0-6\r\nNats-Schedule-Target: s.target\r\n"
        b"Nats-Schedule-Time-Zone: America/New_York\r\n"
    )
    client: PlainClient = attack.kept["client"]
    for at in range(5000):
        await client.flood(publish_headers(f"s.{at}", headers, b"x" * 1000))
        attack.done += 1
    while attack.running:
        await asyncio.sleep(0.05)


async def purged_schedules(attack: Attack) -> None:
    """Schedules of a later day, removed all at once."""
    headers = b"Nats-Schedule: @at 2099-01-01T00:00:00Z\r\nNats-Schedule-Target: s.target\r\n"
    client: PlainClient = attack.kept["client"]
    while attack.running:
        for first in range(0, 20_000, 100):
            some = range(first, first + 100)
            await client.flood(b"".join(publish_headers(f"s.{i}", headers, b"x") for i in some))
        await client.request(b"s.last", b"x")
        await client.api("STREAM.PURGE.S")
        attack.done += 1


# -- circles


async def two_streams(attack: Attack) -> None:
    for name in ("A", "B"):
        attack.kept["client"] = await _stream(attack, name)


async def delivery_circle(attack: Attack) -> None:
    """Three consumers of each stream deliver into the other one: messages that multiply."""
    client: PlainClient = attack.kept["client"]
    for name, other in (("A", "b"), ("B", "a")):
        for at in range(3):
            await _consumer(
                client, name, f"C{at}", ack_policy="none", deliver_subject=f"{other}.x{at}"
            )
    client.send(publish("a.begin", b"x" * 100))
    while attack.running:
        await asyncio.sleep(0.05)


async def pull_circle(attack: Attack) -> None:
    """What a pull request gets is stored in the stream that it reads."""
    client: PlainClient = attack.kept["client"]
    for at in range(3):
        await _consumer(client, "A", f"C{at}", ack_policy="none")
        body = json.dumps({"batch": 10**9, "expires": HOUR_NS}).encode()
        client.send(publish(f"$JS.API.CONSUMER.MSG.NEXT.A.C{at}", body, b"a.again"))
    client.send(publish("a.begin", b"x" * 100))
    while attack.running:
        await asyncio.sleep(0.05)


async def answer_circle(attack: Attack) -> None:
    """The answers of requests are requests, and stored."""
    client: PlainClient = attack.kept["client"]
    await _consumer(client, "A", "C", ack_policy="none", deliver_subject="$JS.API.INFO")
    lines = publish("$JS.API.STREAM.LIST", b"", b"a.answers") * 50
    await attack.flood(lambda _: lines)


# -- consumers


async def many_consumers(attack: Attack) -> None:
    client = await _stream(attack, "S")
    attack.kept["client"] = client
    for first in range(0, 3000, 50):
        await asyncio.gather(
            *(_consumer(client, "S", f"C{at}", ack_policy="explicit")
              for at in range(first, first + 50))
        )  # fmt: skip


async def watched_by_many(attack: Attack) -> None:
    """Every message wakes three thousand consumers, each of which waits."""
    client: PlainClient = attack.kept["client"]
    client.send(b"SUB pulled.> 77\r\n")
    body = json.dumps({"batch": 10**6, "expires": HOUR_NS}).encode()
    for at in range(3000):
        await client.flood(publish(f"$JS.API.CONSUMER.MSG.NEXT.S.C{at}", body, b"pulled.%d" % at))
    line = publish("s.x", b"x")
    await attack.flood(lambda _: line, connections=1)


async def heartbeats(attack: Attack) -> None:
    """Three thousand consumers that send a heartbeat ten times a second."""
    client: PlainClient = attack.kept["client"]
    client.send(b"SUB pulled.> 77\r\n")
    asked = {"batch": 1, "expires": HOUR_NS, "idle_heartbeat": 10_000_000}
    body = json.dumps(asked).encode()
    for at in range(3000):
        await client.flood(publish(f"$JS.API.CONSUMER.MSG.NEXT.S.C{at}", body, b"pulled.%d" % at))
    while attack.running:
        await asyncio.sleep(0.05)


async def last_deliveries(attack: Attack) -> None:
    """Messages that are delivered once, and an advisory for each."""
    client: PlainClient = attack.kept["client"]
    client.send(b"SUB once 77\r\nSUB $JS.EVENT.ADVISORY.> 78\r\n")
    await _consumer(
        client, "S", "M", ack_policy="explicit", deliver_subject="once", ack_wait=1_000_000,
        max_deliver=1, max_ack_pending=200_000,
    )  # fmt: skip
    line = publish("s.x", b"x") * 100
    await attack.flood(lambda _: line)


async def step_downs(attack: Attack) -> None:
    await attack.requests(lambda _: "STREAM.LEADER.STEPDOWN.S", lambda _: {}, under_way=4)


# -- bodies


async def long_numbers(attack: Attack) -> None:
    """Numbers of a megabyte where a number is wanted."""
    digits = b"9" * 900_000
    bodies = [
        b'{"name":"J","subjects":["j"],"max_msgs":%s}' % digits,
        b'{"name":"J","subjects":["j"],"max_msgs":0.%s}' % digits,
        b'{"name":"J","subjects":["j"],"max_msgs":1e%s}' % digits[:5000],
    ]
    lines = [publish("$JS.API.STREAM.CREATE.J", body, b"nobody") for body in bodies]
    lines.append(publish("$JS.API.CONSUMER.MSG.NEXT.S.C", b'{"batch":%s}' % digits, b"nobody"))
    await attack.flood(lambda at: lines[at % len(lines)])


async def repeated_keys(attack: Attack) -> None:
    """The same fields again and again, in another case each time."""
    some = b'"subjects":["a"],"SUBJECTS":["b"],"sUbjects":["c"],"max_msgs":1,"MAX_msgs":2,'
    body = b'{"name":"J",' + some * 10_000 + b'"retention":"limits"}'
    line = publish("$JS.API.STREAM.CREATE.J", body, b"nobody")
    await attack.flood(lambda _: line)


async def same_headers(attack: Attack) -> None:
    """A header that is there 100,000 times, in messages to a stream, to a reader and to the API."""
    client = await attack.client()
    client.send(b"SUB read 77\r\n")
    headers = b"Nats-Msg-Id:\r\n" * 60_000
    lines = [
        publish_headers(subject, headers, b"x")
        for subject in ("s.h", "read", "$JS.API.STREAM.INFO.S", "$JS.API.DIRECT.GET.S")
    ]
    await attack.flood(lambda at: lines[at % len(lines)])


# -- gaps


async def gaps(attack: Attack) -> None:
    """A million messages, of which every second one is removed."""
    client = await _stream(attack, "S", allow_direct=True)
    attack.kept["client"] = client
    pairs = publish("s.keep", b"x") + publish("s.drop", b"x")
    for _ in range(1000):
        client.send(pairs * 500)
        await client.request(b"s.keep", b"x")
    await client.api("STREAM.PURGE.S", {"filter": "s.drop"})


async def reads_of_gaps(attack: Attack) -> None:
    """Consumers, infos and gets that cross all gaps."""
    client: PlainClient = attack.kept["client"]

    async def ask(name: str, body: dict[str, object]) -> None:
        while attack.running:
            await client.api(name, body)
            attack.done += 1

    consumer = {
        "ack_policy": "none", "filter_subject": "s.drop", "deliver_policy": "all",
        "inactive_threshold": 10**9,
    }  # fmt: skip
    await asyncio.gather(
        ask("CONSUMER.CREATE.S", {"stream_name": "S", "config": consumer}),
        ask("STREAM.INFO.S", {"deleted_details": True}),
        ask("STREAM.MSG.GET.S", {"seq": 2, "next_by_subj": "s.drop"}),
        ask("STREAM.MSG.GET.S", {"seq": 2}),
    )


HELD = {
    "write subjects": (one_stream, write_subjects),
    "writer ids": (one_stream, writer_ids),
    "served pulls": (one_stream, served_pulls),
    "short pulls": (one_stream, short_pulls),
    "unmet pulls": (one_stream, unmet_pulls),
    "held batches": (batch_streams, held_batches),
    "fast batches": (batch_streams, fast_batches),
    "cron schedules": (schedule_stream, cron_schedules),
    "purged schedules": (schedule_stream, purged_schedules),
    "delivery circle": (two_streams, delivery_circle),
    "pull circle": (two_streams, pull_circle),
    "answer circle": (two_streams, answer_circle),
    "watched by many": (many_consumers, watched_by_many),
    "heartbeats": (many_consumers, heartbeats),
    "last deliveries": (one_stream, last_deliveries),
    "step downs": (one_stream, step_downs),
    "long numbers": (one_stream, long_numbers),
    "repeated keys": (None, repeated_keys),
    "same headers": (one_stream, same_headers),
    "reads of gaps": (gaps, reads_of_gaps),
}
