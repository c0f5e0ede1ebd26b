"""Attacks by reading: requests that make a server search a large stream.

Owns: their preparations and floods; attacks.py lists them.
May not touch: the measurement (neighbours.py)."""

from __future__ import annotations

import json

from attack import Attack, publish

STORED = 400_000  # messages of the searched stream, with as many subjects
UNMATCHED = "s.*.none"  # no message has such a subject, and no index says so


async def large_stream(attack: Attack) -> None:
    client = await attack.client()
    config = {"name": "S", "subjects": ["s.>"], "allow_direct": True}
    await client.api("STREAM.CREATE.S", config)
    body = bytes(100)
    for first in range(0, STORED, 1000):
        lines = b"".join(publish(f"s.{at}.x", body) for at in range(first, first + 999))
        client.send(lines)
        await client.request(b"s.%d.x" % (first + 999), body)


async def unmatched_gets(attack: Attack) -> None:
    """The next message of a subject that the stream does not have."""
    body = {"next_by_subj": UNMATCHED, "seq": 2}
    await attack.requests(lambda _: "STREAM.MSG.GET.S", lambda _: body, under_way=16)


async def unmatched_direct_gets(attack: Attack) -> None:
    body = json.dumps({"next_by_subj": UNMATCHED, "seq": 2, "batch": 10}).encode()
    line = publish("$JS.API.DIRECT.GET.S", body, b"nobody")
    await attack.flood(lambda _: line)


async def last_gets(attack: Attack) -> None:
    body = {"last_by_subj": UNMATCHED}
    await attack.requests(lambda _: "STREAM.MSG.GET.S", lambda _: body, under_way=16)


async def pending_counts(attack: Attack) -> None:
    """Consumers that begin at the second message: what is pending has to be counted."""
    config = {
        "filter_subject": "s.*.x", "ack_policy": "explicit", "deliver_policy": "by_start_sequence",
        "opt_start_seq": 2, "inactive_threshold": 10**9,
    }  # fmt: skip
    await attack.requests(
        lambda _: "CONSUMER.CREATE.S",
        lambda at: {"stream_name": "S", "config": config},
        under_way=16,
    )


async def unmatched_pulls(attack: Attack) -> None:
    """Consumers of a subject that the stream does not have, each with a pull request."""
    config = {
        "filter_subject": UNMATCHED, "ack_policy": "explicit", "inactive_threshold": 10**9,
        "deliver_policy": "by_start_sequence", "opt_start_seq": 2,
    }  # fmt: skip
    client = await attack.client()
    while attack.running:
        made = await client.api("CONSUMER.CREATE.S", {"stream_name": "S", "config": config})
        subject = f"$JS.API.CONSUMER.MSG.NEXT.S.{made['name']}"
        client.send(publish(subject, b'{"batch":10,"expires":1000000000}', b"nobody"))
        attack.done += 1


async def last_per_subject(attack: Attack) -> None:
    """Consumers that begin with the last message of every subject."""
    config = {
        "filter_subject": "s.>", "ack_policy": "none", "deliver_policy": "last_per_subject",
        "inactive_threshold": 10**9,
    }  # fmt: skip
    await attack.requests(
        lambda _: "CONSUMER.CREATE.S",
        lambda at: {"stream_name": "S", "config": config},
        under_way=4,
    )


async def many_last(attack: Attack) -> None:
    """The last messages up to a point in the past, of a thousand subjects."""
    subjects = [f"s.{at}.x" for at in range(0, STORED, STORED // 1000)]
    body = json.dumps({"multi_last": subjects, "up_to_seq": STORED // 2}).encode()
    line = publish("$JS.API.DIRECT.GET.S", body, b"nobody")
    await attack.flood(lambda _: line)


async def scan_plans(attack: Attack) -> None:
    """Plans with as many pieces and times as a request may ask for, also of unknown streams."""
    asked = {"piece_bytes": 1, "first": 1, "behind": STORED, "times": [2**62] * 16}
    line = publish("$JS.API.STREAM.SCAN.PLAN.S", json.dumps(asked).encode(), b"nobody")
    other = publish("$JS.API.STREAM.SCAN.PLAN.NONE", b"", b"nobody")
    await attack.flood(lambda _: line + other)


READS = {
    "scan plans": (large_stream, scan_plans),
    "unmatched gets": (large_stream, unmatched_gets),
    "unmatched direct gets": (large_stream, unmatched_direct_gets),
    "last gets": (large_stream, last_gets),
    "pending counts": (large_stream, pending_counts),
    "unmatched pulls": (large_stream, unmatched_pulls),
    "last per subject": (large_stream, last_per_subject),
    "many last": (large_stream, many_last),
}
