"""The loads of `jetraft bench`, over connections that are logged in as the options say.

Owns: their order, and the streams that they create and delete.
May not touch: how messages are sent and counted; that is broker.bench.load."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from broker.bench.load import PUB_ACK, LoadClient, Requests
from broker.cli.connect import api
from broker.cli.connect.blocking import BlockingClient, connected
from broker.cli.connect.failures import CannotConnect
from broker.cli.connect.options import Destination
from broker.cli.measure.figures import Measurement
from broker.cli.scanning import require_bulk_reads, scan_options

FETCHED = 500  # messages of one pull
KEYS = 1000
VALUE = b"Nats-Sequence:"  # in the headers of every direct answer


@contextmanager
def load_client(to: Destination) -> Iterator[LoadClient]:
    """Broken answers and lost connections are one line for the user."""
    client = BlockingClient(to)
    load = LoadClient(0, connected=client.take_socket())
    try:
        yield load
    except (OSError, ConnectionError) as error:
        raise CannotConnect(f"the measurement ended: {error}") from error
    finally:
        load.close()


@contextmanager
def new_stream(to: Destination, config: dict[str, Any]) -> Iterator[str]:
    """A stream that is deleted at the end, also after Ctrl-C."""
    name = f"{config.pop('prefix', '')}BENCH_{time.time_ns() % 10**9}"
    subjects = [f"$KV.{name.removeprefix('KV_')}.>" if name.startswith("KV_") else f"{name}.>"]
    with connected(to) as admin:
        made = {"name": name, "subjects": subjects, "storage": "file", "allow_direct": True}
        api.call(admin, f"STREAM.CREATE.{name}", made | config)
    try:
        yield name
    finally:
        with connected(to) as admin:
            api.call(admin, f"STREAM.DELETE.{name}")


def stored(
    to: Destination, size: int, count: int, window: int, replicas: int, *, samples: int,
    consume: bool,
) -> list[Measurement]:  # fmt: skip
    """Publish with acks, one by one, and fetch with acks."""
    found = []
    with new_stream(to, {"num_replicas": replicas}) as name, load_client(to) as client:
        load = client.publish_acked(f"{name}.a", size=size, count=count, window=window)
        found.append(Measurement("publish, acked", load.messages, load.seconds, size * count))
        if samples:
            line = Requests.of([f"{name}.a".encode()] * 64, b"x" * size)
            found.append(_one_by_one("publish, one by one", client, line, PUB_ACK, samples))
        if consume:
            with connected(to) as admin:
                config = {"durable_name": "bench", "name": "bench", "ack_policy": "explicit",
                          "max_ack_pending": 10 * FETCHED}  # fmt: skip
                body = {"stream_name": name, "config": config}
                api.call(admin, f"CONSUMER.CREATE.{name}.bench", body)
            load = client.pull_acked(name, "bench", count=count, batch=min(FETCHED, count))
            found.append(Measurement("fetch and ack", load.messages, load.seconds, size * count))
    return found


def _one_by_one(
    name: str, client: LoadClient, requests: Requests, answer: bytes, samples: int
) -> Measurement:
    started = time.perf_counter()
    latencies = client.one_by_one(requests, answer, count=samples)
    return Measurement(name, samples, time.perf_counter() - started, latencies=latencies)


def received(to: Destination, size: int, count: int) -> list[Measurement]:
    """One publisher and one subscriber, each with a connection."""
    subject = f"bench.{time.time_ns()}"
    chunks = max(count // 256, 1)
    with load_client(to) as source, load_client(to) as sink:
        sink.subscribe(subject)
        sender = threading.Thread(
            target=source.publish, args=(subject,), kwargs={"size": size, "count": chunks * 256}
        )
        started = time.perf_counter()
        sender.start()
        load = sink.receive(subject, count=chunks * 256)
        seconds = time.perf_counter() - started
        sender.join()
    name = "publish and receive"
    return [Measurement(name, load.messages, seconds, size * load.messages)]


def requested(to: Destination, size: int, samples: int) -> list[Measurement]:
    """The responder is a thread of this process, so its time is in the latency."""
    subject = f"bench.{time.time_ns()}"
    with connected(to) as responder, load_client(to) as client:
        responder.subscribe(subject)
        responder.flush()

        def respond() -> None:
            for _ in range(samples):
                message = responder.next(to.timeout_s)
                if message is None:
                    return
                responder.publish(message.reply, b"answered")
                responder.send()

        thread = threading.Thread(target=respond)
        thread.start()
        line = Requests.of([subject.encode()] * 64, b"x" * size)
        try:
            found = _one_by_one("request and answer", client, line, b"answered", samples)
        finally:
            thread.join()
    return [found]


def keyed(
    to: Destination, size: int, count: int, window: int, replicas: int, *, samples: int
) -> list[Measurement]:
    """Puts and gets of keys in turn."""
    config = {
        "prefix": "KV_", "num_replicas": replicas, "max_msgs_per_subject": 1,
        "allow_rollup_hdrs": True, "discard": "new", "deny_delete": True,
    }  # fmt: skip
    with new_stream(to, config) as name, load_client(to) as client:
        bucket = name.removeprefix("KV_")
        keys = [f"$KV.{bucket}.key{i:06}" for i in range(KEYS)]
        puts = Requests.of([key.encode() for key in keys], b"x" * size)
        gets = Requests.of([f"{to.api_prefix}.DIRECT.GET.{name}.{key}".encode() for key in keys])
        found = []
        for word, lines, answer in (("put", puts, PUB_ACK), ("get", gets, VALUE)):
            load = client.exchange(lines, answer, count=max(count, KEYS), window=window)
            found.append(Measurement(word, load.messages, load.seconds, size * load.messages))
            found.append(_one_by_one(f"{word}, one by one", client, lines, answer, samples))
    return found


def scanned(to: Destination, name: str) -> list[Measurement]:
    """The whole stream, in blocks."""
    with connected(to) as client:
        require_bulk_reads(client)
    from broker.client import scan_batches

    rows = volume = 0
    started = time.perf_counter()
    with scan_options(to) as options:
        for batch in scan_batches(name, **options):
            rows += batch.num_rows
            volume += batch.nbytes
    seconds = time.perf_counter() - started
    return [Measurement("messages read in bulk", rows, seconds, volume)]
