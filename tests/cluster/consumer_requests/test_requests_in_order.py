"""A client that does not wait for answers: what it asks about a consumer is done in order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from broker.config.options import JetStreamOptions
from tests.support.server import RawClient, run, running

ROUNDS = 10
STREAM = b'{"name":"S","subjects":["s"],"storage":"memory"}'
CONSUMER = b'{"stream_name":"S","config":{"name":"C","durable_name":"C","ack_policy":"explicit"}}'
PAUSE = b'{"pause_until":"2060-01-01T00:00:00Z"}'


def test_a_consumer_is_created_paused_and_deleted_in_one_go(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(jetstream=JetStreamOptions(store_dir=str(tmp_path))) as server:
            client = await RawClient.open(server)
            client.send(b"SUB R.* 1\r\n")

            def ask(number: int, subject: bytes, body: bytes = b"") -> None:
                line = b"PUB $JS.API.%b R.%d %d\r\n%b\r\n"
                client.send(line % (subject, number, len(body), body))

            ask(0, b"STREAM.CREATE.S", STREAM)
            await answers(client, 1)
            for first in range(0, 5 * ROUNDS, 5):
                ask(first, b"CONSUMER.CREATE.S.C", CONSUMER)
                ask(first + 1, b"CONSUMER.PAUSE.S.C", PAUSE)
                ask(first + 2, b"CONSUMER.INFO.S.C")
                ask(first + 3, b"CONSUMER.DELETE.S.C")
                ask(first + 4, b"CONSUMER.INFO.S.C")
            found = await answers(client, 5 * ROUNDS)
            for first in range(0, 5 * ROUNDS, 5):
                codes = [one.get("error", {}).get("err_code") for one in found[first : first + 5]]
                assert codes == [None, None, None, None, 10014]
                assert found[first + 2]["paused"] is True
            client.close()

    run(test())


async def answers(client: RawClient, count: int) -> list[dict[str, Any]]:
    """By the number in their subject."""
    found: dict[int, dict[str, Any]] = {}
    while len(found) < count:
        line = await client.line()
        if line.startswith(b"MSG "):
            _, subject, _, _ = line.split()
            found[int(subject.partition(b".")[2])] = msgspec.json.decode(await client.line())
    return [found[number] for number in sorted(found)]
