"""Floods of ordinary requests, more of them than a well-behaved client would send.

Owns: their preparations and floods; attacks.py lists them.
May not touch: the measurement (neighbours.py)."""

from __future__ import annotations

import asyncio
import json

from attack import Attack, publish, publish_headers
from door_attacks import many_assets
from read_attacks import large_stream


async def streams(attack: Attack) -> None:
    client = await attack.client()
    base = {"subjects": ["s.>"], "allow_direct": True, "max_bytes": 512 << 20}
    await client.api("STREAM.CREATE.S", base | {"name": "S", "allow_msg_ttl": True})


async def stored(attack: Attack, count: int = 200_000) -> None:
    """One stream, ten subjects."""
    client = await attack.client()
    config = {"name": "S", "subjects": ["s.>"], "allow_direct": True, "allow_msg_ttl": True}
    await client.api("STREAM.CREATE.S", config)
    for _ in range(0, count, 1000):
        client.send(b"".join(publish(f"s.{at % 10}", b"x") for at in range(999)))
        await client.request(b"s.0", b"x")


async def holes(attack: Attack) -> None:
    """A stream with a message for every second sequence."""
    client = await attack.client()
    config = {"name": "S", "subjects": ["s.>"], "max_msgs_per_subject": 1}
    await client.api("STREAM.CREATE.S", config)
    for first in range(0, 200_000, 1000):
        lines = (publish(f"s.{at}" if at & 1 else "s.x", b"x") for at in range(first, first + 1000))
        client.send(b"".join(lines))
        await client.request(b"s.x", b"x")


async def subscriptions(attack: Attack) -> None:
    """SUB and UNSUB, literal and wild."""

    def lines(at: int) -> bytes:
        return b"".join(
            b"SUB f.%d.*.%d %d\r\nSUB f.%d.%d g %d\r\nUNSUB %d\r\nUNSUB %d\r\n"
            % (at, i, i + 10, at, i, i + 9000, i + 10, i + 9000)
            for i in range(200)
        )

    await attack.flood(lines, connections=8)


async def kept_subscriptions(attack: Attack) -> None:
    """Each connection subscribes to 100,000 subjects and goes."""

    async def one(number: int) -> None:
        while attack.running:
            client = await attack.client()
            for first in range(0, 100_000, 1000):
                some = range(first, first + 1000)
                lines = [b"SUB k.%d.%d.* %d\r\n" % (number, at, at) for at in some]
                await client.flood(b"".join(lines))
                if not attack.running:
                    break
            await client.close()
            attack.clients.remove(client)
            attack.done += 1

    await asyncio.gather(*(one(number) for number in range(4)))


async def consumer_churn(attack: Attack) -> None:
    client = await attack.client()

    async def one(number: int) -> None:
        name = f"D{number}"
        body = {"stream_name": "S", "config": {"durable_name": name, "ack_policy": "explicit"}}
        while attack.running:
            await client.api(f"CONSUMER.CREATE.S.{name}", body)
            await client.api(f"CONSUMER.DELETE.S.{name}")
            attack.done += 1

    await asyncio.gather(*(one(number) for number in range(16)))


async def watches(attack: Attack) -> None:
    """What a key-value watcher of everything creates, again and again."""
    client = await attack.client()

    async def one(number: int) -> None:
        at = 0
        while attack.running:
            at += 1
            config = {
                "deliver_subject": f"deliver.{number}", "ack_policy": "none",
                "filter_subject": "s.>",
                "deliver_policy": "last_per_subject", "flow_control": True, "mem_storage": True,
                "idle_heartbeat": 5_000_000_000, "inactive_threshold": 10**9, "num_replicas": 1,
            }  # fmt: skip
            body = {"stream_name": "S", "config": config}
            made = await client.api("CONSUMER.CREATE.S", body)
            attack.done += 1
            if "name" in made and at % 2:
                await client.api(f"CONSUMER.DELETE.S.{made['name']}")

    client.send(b"SUB deliver.* 77\r\n")
    await asyncio.gather(*(one(number) for number in range(8)))


async def tiny_streams(attack: Attack) -> None:
    """Memory streams, each with one message."""
    client = await attack.client()
    numbers = iter(range(10**9))

    async def one() -> None:
        while attack.running:
            at = next(numbers)
            config = {"name": f"T{at}", "subjects": [f"t.{at}"], "storage": "memory"}
            await client.api(f"STREAM.CREATE.T{at}", config)
            await client.request(b"t.%d" % at, b"x")
            attack.done += 1

    await asyncio.gather(*(one() for _ in range(8)))


async def uploads(attack: Attack) -> None:
    """Objects in chunks of 128 KB, each chunk acknowledged, by 20 clients."""
    client = await attack.client()
    config = {
        "name": "OBJ_o", "subjects": ["$O.o.C.>", "$O.o.M.>"], "max_bytes": 1 << 30,
        "discard": "old", "allow_direct": True, "allow_rollup_hdrs": True,
    }  # fmt: skip
    await client.api("STREAM.CREATE.OBJ_o", config)
    chunk = bytes(128 << 10)

    async def one(number: int) -> None:
        own = await attack.client()
        while attack.running:
            subject = b"$O.o.C.object%d" % number
            await asyncio.gather(*(own.request(subject, chunk) for _ in range(8)))
            attack.done += 8

    await asyncio.gather(*(one(number) for number in range(20)))


async def message_ids(attack: Attack) -> None:
    def lines(at: int) -> bytes:
        return b"".join(
            publish_headers("s.i", b"Nats-Msg-Id: %d.%d.%s\r\n" % (at, i, b"z" * 40), b"x")
            for i in range(100)
        )

    await attack.flood(lines)


async def short_lives(attack: Attack) -> None:
    """Messages that expire after a second."""
    lines = publish_headers("s.t", b"Nats-TTL: 1s\r\n", b"x") * 100
    await attack.flood(lambda _: lines)


async def deleted_details(attack: Attack) -> None:
    body = {"deleted_details": True}
    await attack.requests(lambda _: "STREAM.INFO.S", lambda _: body, under_way=16)


async def message_deletes(attack: Attack) -> None:
    await attack.requests(
        lambda _: "STREAM.MSG.DELETE.S", lambda at: {"seq": 2 * at + 1, "no_erase": True},
        under_way=64,
    )  # fmt: skip


async def secure_deletes(attack: Attack) -> None:
    await attack.requests(
        lambda _: "STREAM.MSG.DELETE.S", lambda at: {"seq": 2 * at + 1}, under_way=64
    )


async def redeliveries(attack: Attack) -> None:
    """Everything is delivered, nothing acknowledged, and again after a tenth of a second."""
    client = await attack.client()
    config = {
        "durable_name": "R", "ack_policy": "explicit", "deliver_subject": "again",
        "ack_wait": 100_000_000, "max_ack_pending": 200_000,
    }  # fmt: skip
    client.send(b"SUB again 77\r\n")
    await client.api("CONSUMER.CREATE.S.R", {"stream_name": "S", "config": config})
    while attack.running:
        await asyncio.sleep(0.05)


async def full_purges(attack: Attack) -> None:
    """A stream of many subjects is purged, filled again and deleted."""
    client = await attack.client()
    while attack.running:
        await client.api("STREAM.PURGE.S")
        for first in range(0, 50_000, 1000):
            client.send(b"".join(publish(f"s.{at}.x", b"x") for at in range(first, first + 999)))
            await client.request(b"s.x", b"x")
        attack.done += 1


async def stream_lists(attack: Attack) -> None:
    await attack.requests(
        lambda _: "STREAM.LIST", lambda at: {"offset": at % 8 * 256}, under_way=32
    )


async def account_infos(attack: Attack) -> None:
    await attack.requests(lambda _: "INFO", lambda _: {}, under_way=64)


async def traced(attack: Attack) -> None:
    for _ in range(50):
        client = await attack.client()
        client.send(b"SUB traced.> 9\r\n")
    line = publish_headers("traced.a", b"Nats-Trace-Dest: traces\r\n", b"x") * 20
    await attack.flood(lambda _: line)


async def queue_members(attack: Attack) -> None:
    for _ in range(20):
        client = await attack.client()
        client.send(b"".join(b"SUB job g%d %d\r\n" % (at % 500, at + 9) for at in range(1000)))
    line = publish("job", b"x" * 100)
    await attack.flood(lambda _: line, connections=2)


async def no_responders(attack: Attack) -> None:
    line = publish("nobody.is.there", b"x", b"_INBOX.me") * 200
    await attack.flood(lambda _: line, connections=8)


async def bad_lines(attack: Attack) -> None:
    """Subjects that are none: each is an error, and a line of the log."""
    line = b"PUB a..b 0\r\n\r\nSUB a..b 1\r\n" * 200
    await attack.flood(lambda _: line, connections=4)


async def idle_pulls(attack: Attack) -> None:
    """Pull requests of many consumers of many streams."""
    body = json.dumps({"batch": 1, "expires": 10**9}).encode()

    def lines(at: int) -> bytes:
        return b"".join(
            publish(f"$JS.API.CONSUMER.MSG.NEXT.A{(at * 50 + i) % 2000}.C", body, b"nobody")
            for i in range(50)
        )

    await attack.flood(lines)


# Two texts of each pair lead FNV-1a from the state after "s." to the same state.
PAIRS = [("fwzx", "06cd"), ("yyao", "1kia")] + 6 * [
    ("g3zx", "1pad"), ("epvu", "33ea"), ("zwfo", "2uja")
]  # fmt: skip


async def colliding_subjects(attack: Attack) -> None:
    """Subjects that are all alike for a hash function without a key."""

    def lines(at: int) -> bytes:
        numbers = range(200 * at, 200 * at + 200)
        return b"".join(
            publish("s." + "".join(p[n >> i & 1] for i, p in enumerate(PAIRS)), b"x")
            for n in numbers
        )

    await attack.flood(lines)


FLOODS = {
    "colliding subjects": (streams, colliding_subjects),
    "subscriptions": (None, subscriptions),
    "kept subscriptions": (None, kept_subscriptions),
    "consumer churn": (stored, consumer_churn),
    "watches": (large_stream, watches),
    "tiny streams": (None, tiny_streams),
    "uploads": (None, uploads),
    "message ids": (streams, message_ids),
    "short lives": (streams, short_lives),
    "deleted details": (holes, deleted_details),
    "message deletes": (stored, message_deletes),
    "secure deletes": (stored, secure_deletes),
    "redeliveries": (stored, redeliveries),
    "full purges": (large_stream, full_purges),
    "stream lists": (many_assets, stream_lists),
    "account infos": (many_assets, account_infos),
    "idle pulls": (many_assets, idle_pulls),
    "traced messages": (None, traced),
    "queue members": (None, queue_members),
    "no responders": (None, no_responders),
    "bad lines": (None, bad_lines),
}
