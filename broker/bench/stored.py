"""Scenarios of large streams: lookups, memory, restarts, and whether costs grow with the size.

Owns: scenarios with up to 10 million messages, 100,000 subjects, 1,000 consumers.
May not touch: which servers run it, how often, what is printed."""

from __future__ import annotations

import multiprocessing
import os
import random
import statistics
import time

from broker.bench.load import PUB_ACK, LoadClient, Requests, cpu_seconds, resident_bytes
from broker.bench.scenarios import (
    CPU,
    FILL_SUBJECT,
    WINDOW,
    Figures,
    Run,
    connect,
    create_consumer,
    create_stream,
    measured,
    settle,
)
from broker.local import LocalCluster, LocalNode

DIRECT_ANSWER = b"Nats-Subject:"
SMALL_BYTES = 16
RESTART_WITHIN_S = 120.0
MB = 1 << 20
PROBE_MESSAGES = 200_000


def _subjects(count: int, *, prefix: str = "BENCH.key") -> list[bytes]:
    return [f"{prefix}.{i:06d}".encode() for i in range(count)]


def _fill_subjects(client: LoadClient, *, subjects: int, messages: int, size: int = 128) -> None:
    requests = Requests.of(_subjects(subjects), b"x" * size)
    client.exchange(requests, PUB_ACK, count=messages, window=WINDOW)


def last_values(*, subjects: int = 100_000, messages: int = 1_000_000) -> Run:
    """Direct gets of random keys, and consumers of one subject each."""

    def run(cluster: LocalCluster) -> Figures:
        with connect(cluster) as client:
            create_stream(client, "BENCH", replicas=1, allow_direct=True)
            _fill_subjects(client, subjects=subjects, messages=messages)
            names = _subjects(subjects, prefix="$JS.API.DIRECT.GET.BENCH.BENCH.key")
            random.Random(7).shuffle(names)
            gets = Requests.of(names)
            many = measured(
                cluster,
                lambda: client.exchange(gets, DIRECT_ANSWER, count=50_000, window=1024),
            )
            seconds = client.one_by_one(gets, DIRECT_ANSWER, count=2_000)
            first = [_first_message(client, subjects, messages, draw) for draw in range(50)]
        return {
            "gets/s, 1,024 under way": many["msgs/s"],
            CPU: many[CPU],
            "gets/s, one by one": 1 / statistics.mean(seconds),
            "get p99 ms": 1e3 * seconds[len(seconds) * 99 // 100],
            "consumer's first message ms, median": 1e3 * statistics.median(first),
            "consumer's first message ms, worst": 1e3 * max(first),
        }

    return run


def _first_message(client: LoadClient, subjects: int, messages: int, draw: int) -> float:
    """Seconds from a pull request to its message, for a consumer of one subject that starts at a
    random sequence."""
    dice = random.Random(draw)
    subject = _subjects(subjects)[dice.randrange(subjects)].decode()
    start = {
        "filter_subject": subject,
        "deliver_policy": "by_start_sequence",
        "opt_start_seq": dice.randrange(1, messages // 2),
    }
    create_consumer(client, f"C{draw}", ack_policy="explicit", **start)
    fetch = Requests.of([f"$JS.API.CONSUMER.MSG.NEXT.BENCH.C{draw}".encode()], b"1")
    return client.one_by_one(fetch, f"MSG {subject} ".encode(), count=1)[0]


def many_messages(*, messages: int = 10_000_000) -> Run:
    """Memory and restarts with many small messages."""

    def run(cluster: LocalCluster) -> Figures:
        node = cluster.nodes[0]
        with connect(cluster) as client:
            create_stream(client, "BENCH", replicas=1)
            before = resident_bytes(node.pid)
            client.publish_acked(FILL_SUBJECT, size=SMALL_BYTES, count=messages, window=WINDOW)
            grown = resident_bytes(node.pid) - before
        node.stop()
        stopped = _restart(node, messages)
        after, used = resident_bytes(node.pid), cpu_seconds(node.pid)
        node.kill()
        killed = _restart(node, messages + 1)
        return {
            "memory grown MB": grown / MB,
            "memory after restart MB": after / MB,
            "restart s": stopped,
            "restart CPU s": used,
            "restart after kill -9 s": killed,
        }

    return run


def _restart(node: LocalNode, messages: int) -> float:
    """Seconds until the stream reports its messages and acks a publish."""
    started = time.perf_counter()
    node.start()
    while time.perf_counter() < started + RESTART_WITHIN_S:
        try:
            client = LoadClient(node.client_port, timeout_s=RESTART_WITHIN_S)
        except OSError:
            time.sleep(0.01)
            continue
        try:
            state = client.request("$JS.API.STREAM.INFO.BENCH").get("state")
            if isinstance(state, dict):
                if state["messages"] != messages:
                    raise RuntimeError(
                        f"{state['messages']} of {messages} messages after the restart"
                    )
                client.publish_acked(FILL_SUBJECT, size=SMALL_BYTES, count=1, window=1)
                return time.perf_counter() - started
        except ConnectionError:  # the API is not ready yet
            time.sleep(0.01)
        finally:
            client.close()
    raise TimeoutError(f"{node.name} does not serve its stream: {node.log_tail()}")


def many_subjects(*, subjects: int = 1_000_000) -> Run:
    """Memory of the whole server per subject, one message each."""

    def run(cluster: LocalCluster) -> Figures:
        pid = cluster.nodes[0].pid
        with connect(cluster) as client:
            create_stream(client, "BENCH", replicas=1)
            before = resident_bytes(pid)
            _fill_subjects(client, subjects=subjects, messages=subjects, size=SMALL_BYTES)
            grown = resident_bytes(pid) - before
            started = time.perf_counter()
            client.request("$JS.API.STREAM.INFO.BENCH", b'{"subjects_filter":"BENCH.key.0001*"}')
            listed = time.perf_counter() - started
        return {"bytes/subject, server": grown / subjects, "subjects listed ms": 1e3 * listed}

    return run


def index_memory(*, subjects: int = 1_000_000, per_subject: int = 10) -> Run:
    """Memory of the subject index alone, in a process of its own."""

    def run(_: LocalCluster) -> Figures:
        context = multiprocessing.get_context("fork")
        receiving, sending = context.Pipe(duplex=False)
        child = context.Process(target=_grow_index, args=(sending, subjects, per_subject))
        child.start()
        counted, grown = receiving.recv()
        child.join()
        return {
            "bytes/subject, index": counted / subjects,
            "bytes/subject, its process": grown / subjects,
        }

    return run


def _grow_index(answer: object, subjects: int, per_subject: int) -> None:
    from multiprocessing.connection import Connection

    from broker.store.index import SubjectIndex

    assert isinstance(answer, Connection)
    before = resident_bytes(os.getpid())
    index = SubjectIndex()
    seq = 0
    for _ in range(per_subject):
        for i in range(subjects):
            seq += 1
            index.added(b"BENCH.key.%06d" % i, count=1, first=seq, last=seq)
    grown = resident_bytes(os.getpid()) - before
    assert (
        sum(1 for _ in index.matching(b"BENCH.>")) == subjects
    )  # builds the sorted order, whose memory counts too
    answer.send((index.nbytes, grown))


def growing_stream(*, sizes: tuple[int, ...] = (10**4, 10**5, 10**6, 10**7)) -> Run:
    """Cost of publishing to, and reading the end of, a stream that already holds many messages."""

    def run(cluster: LocalCluster) -> Figures:
        figures: Figures = {}
        with connect(cluster) as client:
            for size in sizes:
                create_stream(client, "BENCH", replicas=1)
                client.publish_acked(FILL_SUBJECT, size=SMALL_BYTES, count=size, window=WINDOW)
                _probe(cluster, client, figures, label=f"{size:,} stored", stored=size)
                client.request("$JS.API.STREAM.DELETE.BENCH")
        return _with_growth(figures, f"{sizes[0]:,} stored", f"{sizes[-1]:,} stored")

    return run


def idle_consumers(*, counts: tuple[int, ...] = (1, 100, 1_000)) -> Run:
    """Cost of publishing to, and reading from, a stream with idle consumers."""

    def run(cluster: LocalCluster) -> Figures:
        figures: Figures = {}
        made = stored = 0
        with connect(cluster) as client:
            create_stream(client, "BENCH", replicas=1)
            for count in counts:
                while made < count:
                    create_consumer(client, f"IDLE{made}", ack_policy="explicit")
                    made += 1
                _probe(cluster, client, figures, label=f"{count:,} consumers", stored=stored)
                stored += PROBE_MESSAGES
        return _with_growth(figures, f"{counts[0]:,} consumers", f"{counts[-1]:,} consumers")

    return run


def _probe(
    cluster: LocalCluster, client: LoadClient, figures: Figures, *, label: str, stored: int
) -> None:
    """CPU seconds per million messages of publishing, and of pulling these messages with acks."""
    count = PROBE_MESSAGES
    settle(cluster)
    published = measured(
        cluster,
        lambda: client.publish_acked(FILL_SUBJECT, size=SMALL_BYTES, count=count, window=WINDOW),
    )
    start = {"deliver_policy": "by_start_sequence", "opt_start_seq": stored + 1}
    create_consumer(client, "PROBE", ack_policy="explicit", max_ack_pending=20_000, **start)
    settle(cluster)
    pulled = measured(
        cluster, lambda: client.pull_acked("BENCH", "PROBE", count=count // 2, batch=500)
    )
    deleted = client.request("$JS.API.CONSUMER.DELETE.BENCH.PROBE")
    assert deleted["success"], deleted
    figures[f"publish {CPU}, {label}"] = published[CPU]
    figures[f"pull {CPU}, {label}"] = pulled[CPU]


def _with_growth(figures: Figures, first: str, last: str) -> Figures:
    for what in ("publish", "pull"):
        ratio = figures[f"{what} {CPU}, {last}"] / figures[f"{what} {CPU}, {first}"]
        figures[f"{what} growth factor"] = ratio
    return figures
