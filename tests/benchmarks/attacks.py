"""Attacks of one tenant on the others, as data: a preparation and what is done for some seconds.

Owns: the table ATTACKS, and the process that carries out one of them.
May not touch: the measurement (neighbours.py); anything but one account of the server."""

from __future__ import annotations

import asyncio
import json
import sys
import time

from apply_attacks import APPLIES
from attack import Attack, Step, publish, publish_headers
from door_attacks import DOORS
from flood_attacks import FLOODS
from held_attacks import HELD
from login_attacks import LOGINS
from read_attacks import READS

# -- preparations


async def nothing(_attack: Attack) -> None:
    """No preparation."""


async def many_subjects(attack: Attack, count: int = 100_000) -> None:
    client = await attack.client()
    config = {"name": "S", "subjects": ["s.>"], "allow_direct": True}
    await client.api("STREAM.CREATE.S", config)
    for first in range(0, count, 1000):
        lines = b"".join(publish(f"s.{at}", b"x") for at in range(first, first + 999))
        client.send(lines)
        await client.request(b"s.%d" % (first + 999), b"x")


async def scheduling_stream(attack: Attack) -> None:
    client = await attack.client()
    config = {"name": "T", "subjects": ["t.>"], "allow_msg_schedules": True, "max_bytes": 50 << 20}
    await client.api("STREAM.CREATE.T", config)


async def plain_stream(attack: Attack) -> None:
    client = await attack.client()
    config = {
        "name": "S", "subjects": ["s.>"], "max_bytes": 256 << 20, "allow_atomic": True,
        "allow_direct": True,
    }  # fmt: skip
    await client.api("STREAM.CREATE.S", config)


async def small_archive(attack: Attack) -> None:
    """A backup of 120 MB of zeros, and the stream deleted."""
    client = await attack.client()
    await client.api("STREAM.CREATE.Z", {"name": "Z", "subjects": ["z"]})
    for _ in range(240):
        await client.request(b"z", bytes(500_000))
    chunks: list[bytes] = []
    ended = asyncio.get_running_loop().create_future()

    def received(subject: bytes, payload: bytes) -> None:
        if subject.endswith(b".snapshot"):
            if payload and not payload.startswith(b"NATS/1.0"):
                chunks.append(payload)
            elif not ended.done():
                ended.set_result(None)

    client.on_answer = received
    client.acknowledges = True
    deliver = (client.inbox + b".snapshot").decode()
    client.send(b"UNSUB 1\r\nSUB %s 2\r\nSUB %s.* 1\r\n" % (deliver.encode(), client.inbox))
    body = {"deliver_subject": deliver, "no_consumers": True, "window_size": 32 << 20}
    told = await client.api("STREAM.SNAPSHOT.Z", body)
    async with asyncio.timeout(60):
        await ended
    await client.api("STREAM.DELETE.Z")
    attack.kept = {"chunks": chunks, "config": told["config"], "state": told["state"]}


# -- attacks


async def overlapping_create(attack: Attack) -> None:
    subjects = [f"q.a{i}.x" for i in range(8000)] + [f"q.*.y{i}" for i in range(8000)]
    await attack.requests(
        lambda at: f"STREAM.CREATE.O{at}",
        lambda at: {"name": f"O{at}", "subjects": subjects},
        under_way=1,
    )


async def literal_creates(attack: Attack) -> None:
    """Streams of 50,000 subjects, created and deleted."""
    client = await attack.client()
    subjects = [f"s{i}" for i in range(50_000)]
    while attack.running:
        await client.api("STREAM.CREATE.L", {"name": "L", "subjects": subjects})
        await client.api("STREAM.DELETE.L")
        attack.done += 1


async def subjects_info(attack: Attack) -> None:
    await attack.requests(
        lambda _: "STREAM.INFO.S", lambda _: {"subjects_filter": ">"}, under_way=64
    )


async def restores(attack: Attack) -> None:
    kept = attack.kept

    async def one() -> None:
        client = await attack.client()
        body = {"config": kept["config"], "state": kept["state"]}
        while attack.running:
            answer = await client.api("STREAM.RESTORE.Z", body)
            if "deliver_subject" not in answer:
                await asyncio.sleep(0.01)
                continue
            subject = answer["deliver_subject"].encode()
            for chunk in kept["chunks"]:
                await client.request(subject, chunk)
            await client.request(subject, b"")
            attack.done += 1
            await client.api("STREAM.DELETE.Z")

    await asyncio.gather(*(one() for _ in range(12)))


async def metadata(attack: Attack) -> None:
    config = {"name": "M", "metadata": {f"key{i}": "v" * 20 for i in range(25_000)}}
    line = publish("$JS.API.STREAM.CREATE.M", json.dumps(config).encode(), b"nobody")
    await attack.flood(lambda _: line)


async def leap_schedules(attack: Attack) -> None:
    headers = b"Nats-Schedule: 0 0 0 29 2 *\r\nNats-Schedule-Target: t.target\r\n"
    lines = b"".join(publish_headers(f"t.{i}", headers, b"x") for i in range(100))
    await attack.flood(lambda _: lines)


async def long_subscriptions(attack: Attack) -> None:
    tail = ".".join(["abc"] * 899)
    await attack.flood(lambda at: f"SUB s{at}.{tail} {at + 10}\r\nUNSUB {at + 10}\r\n".encode())


async def many_headers(attack: Attack) -> None:
    headers = b"".join(b"Key-%d: value\r\n" % i for i in range(5000))
    line = publish_headers("s.h", headers, b"x")
    await attack.flood(lambda _: line)


async def stream_creates(attack: Attack) -> None:
    await attack.requests(
        lambda at: f"STREAM.CREATE.C{at}",
        lambda at: {"name": f"C{at}", "subjects": [f"c.{at}"]},
        under_way=4,
    )


async def many_publishers(attack: Attack) -> None:
    lines = publish("s.big", bytes(64 << 10))
    await attack.flood(lambda _: lines, connections=300)


async def consumer_filters(attack: Attack) -> None:
    filters = [f"s.{i}" for i in range(10_000)]
    config = {"filter_subjects": filters, "ack_policy": "none", "name": "F"}
    await attack.requests(
        lambda _: "CONSUMER.CREATE.S.F",
        lambda _: {"stream_name": "S", "config": config},
        under_way=4,
    )


async def last_values(attack: Attack) -> None:
    body = json.dumps({"multi_last": ["s.*"], "batch": 1000}).encode()
    line = publish("$JS.API.DIRECT.GET.S", body, b"nobody")
    await attack.flood(lambda _: line)


async def filtered_purges(attack: Attack) -> None:
    await attack.requests(
        lambda _: "STREAM.PURGE.S", lambda at: {"filter": f"s.*.{at}"}, under_way=16
    )


async def stream_names(attack: Attack) -> None:
    client = await attack.client()
    for at in range(200):
        subjects = [f"n{at}.{i}" for i in range(200)]
        await client.api(f"STREAM.CREATE.N{at}", {"name": f"N{at}", "subjects": subjects})


async def names_by_subject(attack: Attack) -> None:
    await attack.requests(
        lambda _: "STREAM.NAMES", lambda at: {"subject": f"*.x{at}"}, under_way=64
    )


async def reconnects(attack: Attack) -> None:
    async def one() -> None:
        while attack.running:
            client = await attack.client()
            client.send(b"SUB a.* 9\r\n" * 20)
            await client.close()
            attack.clients.remove(client)
            attack.done += 1

    await asyncio.gather(*(one() for _ in range(20)))


async def cache_misses(attack: Attack) -> None:
    """Every publish is to a new subject, every SUB of a wildcard empties the cache."""

    def lines(at: int) -> bytes:
        published = b"".join(publish(f"c.{at}.{i}.{i}", b"x") for i in range(100))
        return b"SUB c.*.%d.> %d\r\nUNSUB %d\r\n" % (at, at + 10, at + 10) + published

    await attack.flood(lines)


async def fan_out(attack: Attack) -> None:
    for _ in range(500):
        client = await attack.client()
        client.send(b"SUB wide 9\r\n")
    line = publish("wide", bytes(1000))
    await attack.flood(lambda _: line, connections=1)


async def silent_reader(attack: Attack) -> None:
    for _ in range(20):
        client = await attack.client()
        client.send(b"SUB big 9\r\n")
        client._transport.pause_reading()
    line = publish("big", bytes(64 << 10))
    await attack.flood(lambda _: line, connections=2)


async def pulls(attack: Attack) -> None:
    client = await attack.client()
    config = {"durable_name": "P", "ack_policy": "explicit", "max_waiting": 100_000}
    await client.api("CONSUMER.CREATE.S.P", {"stream_name": "S", "config": config})
    line = b"".join(
        publish(
            "$JS.API.CONSUMER.MSG.NEXT.S.P", b'{"batch":10,"expires":100000000}', b"nobody.%d" % i
        )
        for i in range(50)
    )
    await attack.flood(lambda _: line)


async def open_batches(attack: Attack) -> None:
    def lines(at: int) -> bytes:
        return b"".join(
            publish_headers(
                "s.b", b"Nats-Batch-Id: b%d\r\nNats-Batch-Sequence: %d\r\n" % (at, i), bytes(2000)
            )
            for i in range(1, 50)
        )

    await attack.flood(lines)


async def bad_json(attack: Attack) -> None:
    """Deeply nested and long bodies that no request has."""
    deep = b"[" * 200_000 + b"]" * 200_000
    line = publish("$JS.API.STREAM.CREATE.J", b'{"name":"J","subjects":' + deep + b"}", b"nobody")
    await attack.flood(lambda _: line)


async def empty_lists(attack: Attack) -> None:
    """A megabyte of JSON values that no request has."""
    body = b'{"name":"J","subjects":[' + b"[]," * 330_000 + b"[]]}"
    line = publish("$JS.API.STREAM.CREATE.J", body, b"nobody")
    await attack.flood(lambda _: line)


async def new_subjects(attack: Attack) -> None:
    """One stream, and every message has a subject of its own."""

    def lines(at: int) -> bytes:
        return b"".join(publish(f"s.{at}.{i}", b"x") for i in range(200))

    await attack.flood(lines)


async def silent_scans(attack: Attack) -> None:
    """Scans of all of a stream, never read."""
    for _ in range(32):
        client = await attack.client()
        client.send(b'SCAN {"stream":"S","first":1,"last":100000}\r\n')
        client._transport.pause_reading()
        attack.done += 1
    await asyncio.sleep(max(0.0, attack.until - time.perf_counter()))


async def silent_snapshots(attack: Attack) -> None:
    """Backups of a stream, none of whose chunks is acknowledged."""
    body = {"deliver_subject": "nobody.reads", "no_consumers": True, "chunk_size": 1 << 20}
    await attack.requests(lambda _: "STREAM.SNAPSHOT.S", lambda _: body, under_way=16)


async def ephemeral_consumers(attack: Attack) -> None:
    config = {"ack_policy": "explicit", "inactive_threshold": 10**9}
    await attack.requests(
        lambda _: "CONSUMER.CREATE.S",
        lambda at: {"stream_name": "S", "config": config | {"filter_subject": f"s.{at}"}},
        under_way=16,
    )


async def wrong_acks(attack: Attack) -> None:
    """Acks of messages that were never delivered."""
    client = await attack.client()
    config = {"durable_name": "A", "ack_policy": "explicit"}
    await client.api("CONSUMER.CREATE.S.A", {"stream_name": "S", "config": config})

    def lines(at: int) -> bytes:
        return b"".join(
            publish(f"$JS.ACK.S.A.1.{at * 100 + i}.{at * 100 + i}.0.0", b"+ACK")
            for i in range(1, 100)
        )

    await attack.flood(lines)


async def many_streams(attack: Attack) -> None:
    """Publishers of 16 KB messages to fifty streams."""
    client = await attack.client()
    for at in range(50):
        config = {"name": f"W{at}", "subjects": [f"w.{at}"], "max_bytes": 16 << 20}
        await client.api(f"STREAM.CREATE.W{at}", config)
    await attack.flood(lambda at: publish(f"w.{at % 50}", bytes(16 << 10)), connections=20)


ATTACKS: dict[str, tuple[Step | None, Step]] = {
    "nothing": (nothing, nothing),
    "overlapping create": (nothing, overlapping_create),
    "50,000 subject creates": (nothing, literal_creates),
    "subjects info": (many_subjects, subjects_info),
    "restores": (small_archive, restores),
    "metadata": (nothing, metadata),
    "leap schedules": (scheduling_stream, leap_schedules),
    "900 token SUBs": (nothing, long_subscriptions),
    "5,000 headers": (plain_stream, many_headers),
    "stream creates": (nothing, stream_creates),
    "300 publishers": (plain_stream, many_publishers),
    "consumer filters": (many_subjects, consumer_filters),
    "last values": (many_subjects, last_values),
    "filtered purges": (many_subjects, filtered_purges),
    "names by subject": (stream_names, names_by_subject),
    "reconnects": (nothing, reconnects),
    "cache misses": (nothing, cache_misses),
    "fan out": (nothing, fan_out),
    "silent readers": (nothing, silent_reader),
    "pulls": (plain_stream, pulls),
    "open batches": (plain_stream, open_batches),
    "deep json": (nothing, bad_json),
    "empty lists": (nothing, empty_lists),
    "60,000 subjects": (plain_stream, new_subjects),
    "silent scans": (many_subjects, silent_scans),
    "silent snapshots": (many_subjects, silent_snapshots),
    "ephemeral consumers": (many_subjects, ephemeral_consumers),
    "wrong acks": (plain_stream, wrong_acks),
    "fifty streams": (nothing, many_streams),
    **READS,
    **DOORS,
    **FLOODS,
    **APPLIES,
    **HELD,
    **LOGINS,
}


async def _carry_out(
    name: str, port: int, seconds: float, replicas: int, ports: dict[str, int]
) -> None:
    prepare, act = ATTACKS[name]
    attack = Attack(port, seconds, replicas, ports)
    if prepare is not None:
        await prepare(attack)
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    attack.until = time.perf_counter() + seconds
    try:
        async with asyncio.timeout(seconds + 5):
            await act(attack)
        ended = ""
    except TimeoutError:
        ended = ", still waiting"
    except ConnectionError:
        ended = ", disconnected"
    print(f"{attack.done} done{ended}", flush=True)


def main(name: str, port: int, seconds: float, replicas: int, ports: dict[str, int]) -> None:
    asyncio.run(_carry_out(name, port, seconds, replicas, ports))
