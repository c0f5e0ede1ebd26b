"""Attacks on what every replica does: entries that are short to send and long to apply.

Owns: their preparations and floods; attacks.py lists them.
May not touch: the measurement (neighbours.py)."""

from __future__ import annotations

import asyncio
import json

from attack import Attack, publish, publish_headers
from plain_client import PlainClient

FILLED = 200_000  # messages of a stream that one request shall change as a whole


async def filled(attack: Attack, *, subjects: int = 10, **config: object) -> PlainClient:
    """A stream S with FILLED messages."""
    client = await attack.client()
    base = {"name": "S", "subjects": ["s.>"], "allow_direct": True}
    attack.kept["config"] = base | config
    await client.api("STREAM.CREATE.S", attack.kept["config"])
    await fill(client, FILLED, subjects)
    return client


async def fill(client: PlainClient, count: int, subjects: int) -> None:
    for first in range(0, count, 1000):
        numbers = range(first, first + 999)
        client.send(b"".join(publish(f"s.{at % subjects}", b"x") for at in numbers))
        await client.request(b"s.0", b"x")


async def rollup_stream(attack: Attack) -> None:
    attack.kept["client"] = await filled(attack, allow_rollup_hdrs=True)


async def rollups(attack: Attack) -> None:
    """One message replaces twenty thousand of its subject, and another one all of the stream."""
    client: PlainClient = attack.kept["client"]
    while attack.running:
        client.send(publish_headers("s.1", b"Nats-Rollup: sub\r\n", b"x"))
        client.send(publish_headers("s.2", b"Nats-Rollup: all\r\n", b"x"))
        await fill(client, 20_000, 1)
        attack.done += 1


async def many_rollups(attack: Attack) -> None:
    """Every message replaces those of its subject."""

    def lines(at: int) -> bytes:
        some = (f"s.{(at * 50 + i) % 100_000}" for i in range(50))
        return b"".join(publish_headers(one, b"Nats-Rollup: sub\r\n", b"x") for one in some)

    await attack.flood(lines)


async def _updates(attack: Attack, changes: dict[str, object], subjects: int) -> None:
    """The limit of a full stream is lowered and raised, and the stream filled again."""
    client: PlainClient = attack.kept["client"]
    config: dict[str, object] = attack.kept["config"]
    while attack.running:
        await client.api("STREAM.UPDATE.S", config | changes)
        await client.api("STREAM.UPDATE.S", config)
        attack.done += 1
        await fill(client, 50_000, subjects)


async def many_subjects_twice(attack: Attack) -> None:
    attack.kept["client"] = await filled(attack, subjects=FILLED // 2)


async def few_subjects(attack: Attack) -> None:
    attack.kept["client"] = await filled(attack)


async def subject_limits(attack: Attack) -> None:
    await _updates(attack, {"max_msgs_per_subject": 1}, 25_000)


async def message_limits(attack: Attack) -> None:
    await _updates(attack, {"max_msgs": 5}, 50_000)


async def wide_stream(attack: Attack) -> None:
    """A transform whose destination repeats a token of the subject."""
    dest = "s." + ".".join(["{{wildcard(1)}}"] * 20_000)
    await _transforming(attack, {"src": "s.*", "dest": dest})


async def hashing_stream(attack: Attack) -> None:
    """A transform whose destination has many hashes of the subject."""
    dest = "s." + ".".join(["{{partition(10,1)}}"] * 20_000)
    await _transforming(attack, {"src": "s.*", "dest": dest})


async def _transforming(attack: Attack, transform: dict[str, str]) -> None:
    client = await attack.client()
    config = {"name": "S", "subjects": ["s.*"], "max_bytes": 256 << 20}
    answer = await client.api("STREAM.CREATE.S", config | {"subject_transform": transform})
    if "error" in answer:
        config["subjects"] = ["s.>"]
        await client.api("STREAM.CREATE.S", config)


async def long_tokens(attack: Attack) -> None:
    tail = "x" * 3000
    await attack.flood(lambda at: publish(f"s.{at}{tail}", b"x"))


async def one_reader(attack: Attack) -> None:
    """A hundred thousand subscriptions of one connection to one subject."""
    client = await attack.client()
    for first in range(0, 100_000, 1000):
        client.send(b"".join(b"SUB wide %d\r\n" % (at + 9) for at in range(first, first + 1000)))
    await client.request(b"nobody.listens", b"")


async def small_fan_out(attack: Attack) -> None:
    line = publish("wide", b"x")
    await attack.flood(lambda _: line, connections=1)


async def large_fan_out(attack: Attack) -> None:
    line = publish("wide", bytes(1_000_000))
    await attack.flood(lambda _: line, connections=1)


async def acked_stream(attack: Attack) -> None:
    """A stream that removes what its consumer acks. A work queue would refuse such a consumer."""
    client = attack.kept["client"] = await attack.client()
    config = {"name": "S", "subjects": ["s.>"], "retention": "interest"}
    await client.api("STREAM.CREATE.S", config)
    wanted = {
        "durable_name": "W", "ack_policy": "all", "deliver_subject": "work",
        "max_ack_pending": 1_000_000,
    }  # fmt: skip
    await client.api("CONSUMER.CREATE.S.W", {"stream_name": "S", "config": wanted})
    await fill(client, FILLED, 10)


async def ack_all(attack: Attack) -> None:
    """One ack for all messages of a stream."""
    client: PlainClient = attack.kept["client"]
    reader = await attack.client()
    reader.send(b"SUB work 77\r\n")
    while attack.running:
        await asyncio.sleep(0.5)
        info = await client.api("CONSUMER.INFO.S.W")
        at = info["delivered"]
        subject = f"$JS.ACK.S.W.1.{at['stream_seq']}.{at['consumer_seq']}.0.0"
        await client.request(subject.encode(), b"+ACK")
        attack.done += 1
        await fill(client, 20_000, 10)


async def interest_stream(attack: Attack) -> None:
    client = await attack.client()
    attack.kept["client"] = client
    config = {"name": "S", "subjects": ["s.>"], "retention": "interest"}
    await client.api("STREAM.CREATE.S", config)
    for name in ("I", "J"):
        wanted = {"durable_name": name, "ack_policy": "explicit"}
        await client.api(f"CONSUMER.CREATE.S.{name}", {"stream_name": "S", "config": wanted})
    await fill(client, FILLED, FILLED)


async def filter_changes(attack: Attack) -> None:
    """A consumer of a stream with interest retention changes what it wants."""
    client: PlainClient = attack.kept["client"]
    for at in range(1_000_000):
        if not attack.running:
            return
        filters = {"filter_subjects": [f"s.{at % 7}", "s.*"][: 1 + at % 2]}
        wanted = {"durable_name": "I", "ack_policy": "explicit"} | filters
        await client.api("CONSUMER.CREATE.S.I", {"stream_name": "S", "config": wanted})
        attack.done += 1


async def origin(attack: Attack) -> None:
    attack.kept["client"] = await filled(attack, subjects=1000)


async def many_mirrors(attack: Attack) -> None:
    """Copies of a stream, one after the other."""
    await attack.requests(
        lambda at: f"STREAM.CREATE.M{at}",
        lambda at: {"name": f"M{at}", "mirror": {"name": "S"}},
        under_way=4,
    )


async def many_sources(attack: Attack) -> None:
    """A stream of a thousand sources, most of which do not exist, and its updates."""
    client: PlainClient = attack.kept["client"]
    sources = [{"name": f"X{at}"} for at in range(1000)] + [{"name": "S"}]
    while attack.running:
        await client.api("STREAM.CREATE.Y", {"name": "Y", "sources": sources})
        await client.api("STREAM.DELETE.Y")
        attack.done += 1


async def republish_circle(attack: Attack) -> None:
    """What one stream republishes the other one stores, and the other way around."""
    client = await attack.client()
    for name, other in (("a", "b"), ("b", "a")):
        config = {
            "name": name, "subjects": [f"{name}.>"], "max_bytes": 64 << 20,
            "republish": {"src": f"{name}.>", "dest": f"{other}.>"},
        }  # fmt: skip
        await client.api(f"STREAM.CREATE.{name}", config)
    for at in range(1000):
        client.send(publish(f"a.{at}", b"x" * 100))
    while attack.running:
        await asyncio.sleep(0.05)


async def id_stream(attack: Attack) -> None:
    client = await attack.client()
    config = {"name": "S", "subjects": ["s.>"], "max_bytes": 16 << 20}
    await client.api("STREAM.CREATE.S", config)


async def long_ids(attack: Attack) -> None:
    """Message ids of 50 KB, each of which is to be remembered for two minutes."""
    tail = b"z" * 50_000
    await attack.flood(
        lambda at: publish_headers("s.i", b"Nats-Msg-Id: %d.%s\r\n" % (at, tail), b"x")
    )


async def short_lived(attack: Attack) -> None:
    attack.kept["client"] = await filled(attack, allow_msg_ttl=True, max_age=3_000_000_000)


async def expiry_at_once(attack: Attack) -> None:
    """Everything in the stream expires in the same moment."""
    client: PlainClient = attack.kept["client"]
    while attack.running:
        lines = publish_headers("s.t", b"Nats-TTL: 1s\r\n", b"x") * 500
        await client.flood(lines)
        attack.done += 500


async def schedule_stream(attack: Attack) -> None:
    client = await attack.client()
    config = {"name": "S", "subjects": ["s.>"], "allow_msg_schedules": True, "max_bytes": 64 << 20}
    await client.api("STREAM.CREATE.S", config)


async def schedules_at_once(attack: Attack) -> None:
    """Schedules of every second, one for each subject."""
    headers = b"Nats-Schedule: @every 1s\r\nNats-Schedule-Target: s.target\r\n"

    def lines(at: int) -> bytes:
        some = (f"s.{at * 50 + i}" for i in range(50))
        return b"".join(publish_headers(one, headers, b"x") for one in some)

    await attack.flood(lines)


async def batch_stream(attack: Attack) -> None:
    client = await attack.client()
    config = {"name": "S", "subjects": ["s.>"], "allow_atomic": True, "max_bytes": 64 << 20}
    await client.api("STREAM.CREATE.S", config)


async def atomic_batches(attack: Attack) -> None:
    """Batches of a thousand messages, each of which expects something."""

    def lines(at: int) -> bytes:
        parts = []
        for i in range(1, 1001):
            head = b"Nats-Batch-Id: b%d\r\nNats-Batch-Sequence: %d\r\n" % (at, i)
            head += b"Nats-Expected-Last-Subject-Sequence: 0\r\n"
            if i == 1000:
                head += b"Nats-Batch-Commit: 1\r\n"
            parts.append(publish_headers(f"s.{at}.{i}", head, b"x"))
        return b"".join(parts)

    await attack.flood(lines)


async def waiting_pulls(attack: Attack) -> None:
    """Pull requests that all end in the same moment."""
    client = await attack.client()
    config = {"durable_name": "P", "ack_policy": "explicit", "max_waiting": 1_000_000}
    config["filter_subject"] = "s.none"
    await client.api("CONSUMER.CREATE.S.P", {"stream_name": "S", "config": config})
    body = json.dumps({"batch": 1, "expires": 2_000_000_000}).encode()
    line = publish("$JS.API.CONSUMER.MSG.NEXT.S.P", body, b"nobody") * 100
    await attack.flood(lambda _: line)


async def long_filters(attack: Attack) -> None:
    """Consumers with a hundred thousand filters."""
    filters = [f"s.{i}" for i in range(80_000)]
    config = {"filter_subjects": filters, "ack_policy": "none", "name": "F"}
    client = await attack.client()
    while attack.running:
        body = {"stream_name": "S", "config": config}
        await client.api("CONSUMER.CREATE.S.F", body)
        await client.api("CONSUMER.DELETE.S.F")
        attack.done += 1


async def starts_by_time(attack: Attack) -> None:
    config = {
        "ack_policy": "none", "deliver_policy": "by_start_time", "inactive_threshold": 10**9,
        "opt_start_time": "2020-01-01T00:00:00Z", "filter_subject": "s.1",
    }  # fmt: skip
    await attack.requests(
        lambda _: "CONSUMER.CREATE.S",
        lambda _: {"stream_name": "S", "config": config},
    )


async def refused_messages(attack: Attack) -> None:
    """All messages are delivered, and refused at once."""
    client = await attack.client()
    config = {
        "durable_name": "N", "ack_policy": "explicit", "deliver_subject": "again",
        "max_ack_pending": 200_000,
    }  # fmt: skip
    client.send(b"SUB again 77\r\n")
    await client.api("CONSUMER.CREATE.S.N", {"stream_name": "S", "config": config})

    def lines(at: int) -> bytes:
        numbers = range(at * 200 % FILLED + 1, at * 200 % FILLED + 201)
        return b"".join(publish(f"$JS.ACK.S.N.1.{n}.{n}.0.0", b"-NAK") for n in numbers)

    await attack.flood(lines)


APPLIES = {
    "rollups": (rollup_stream, rollups),
    "many rollups": (rollup_stream, many_rollups),
    "subject limits": (many_subjects_twice, subject_limits),
    "message limits": (few_subjects, message_limits),
    "wide transforms": (wide_stream, long_tokens),
    "hashing transforms": (hashing_stream, long_tokens),
    "100,000 SUBs, small": (one_reader, small_fan_out),
    "100,000 SUBs, large": (one_reader, large_fan_out),
    "ack all": (acked_stream, ack_all),
    "filter changes": (interest_stream, filter_changes),
    "mirrors": (origin, many_mirrors),
    "many sources": (origin, many_sources),
    "republish circle": (None, republish_circle),
    "long ids": (id_stream, long_ids),
    "expiry at once": (short_lived, expiry_at_once),
    "schedules at once": (schedule_stream, schedules_at_once),
    "atomic batches": (batch_stream, atomic_batches),
    "waiting pulls": (few_subjects, waiting_pulls),
    "long filters": (few_subjects, long_filters),
    "starts by time": (few_subjects, starts_by_time),
    "refused messages": (few_subjects, refused_messages),
}
