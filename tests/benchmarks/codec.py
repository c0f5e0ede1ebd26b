"""Messages per second of each codec on one core: `python tests/benchmarks/codec.py [messages]`.

128-byte payloads with a reply, as a JetStream publisher sends them, from 64 KB chunks. Counts CPU
time, so that neighbours on the machine matter less, and prints the best of five rounds of both
implementations and their ratio; a ratio under 2 means: delete the compiled one."""

import sys
from collections.abc import Callable
from time import process_time
from types import SimpleNamespace
from typing import Any

from broker.store.block import (
    _block,
    _builder,
    _deliveries,
    block_format,
    builder_py,
    deliveries_py,
)
from broker.wire import _encode, _parser, _run, encode_py, parser_py, run_py

CODECS = {
    "cython": SimpleNamespace(
        ClientParser=_parser.ClientParser,
        PubRun=_run.PubRun,
        ReplyColumn=_encode.ReplyColumn,
        encode_pub_acks=_encode.encode_pub_acks,
        Block=_block.Block,
        BlockBuilder=_builder.BlockBuilder,
        encode_deliveries=_deliveries.encode_deliveries,
    ),
    "python": SimpleNamespace(
        ClientParser=parser_py.ClientParser,
        PubRun=run_py.PubRun,
        ReplyColumn=encode_py.ReplyColumn,
        encode_pub_acks=encode_py.encode_pub_acks,
        Block=block_format.Block,
        BlockBuilder=builder_py.BlockBuilder,
        encode_deliveries=deliveries_py.encode_deliveries,
    ),
}
CHUNK = 64 * 1024
ROUNDS = 5
ROWS_PER_BLOCK = 8192


def best(work: Callable[[], Any]) -> tuple[float, Any]:
    seconds = []
    for _ in range(ROUNDS):
        started = process_time()
        result = work()
        seconds.append(process_time() - started)
    return min(seconds), result


def measure(codec: Any, messages: int) -> dict[str, float]:
    one = b"PUB orders.eu.1 _INBOX.uVb6RPXdEcOBXrhTwpPRCy.%06d 128\r\n" + b"x" * 128 + b"\r\n"
    text = b"".join(one % i for i in range(messages))
    chunks = [text[at : at + CHUNK] for at in range(0, len(text), CHUNK)]

    def parse() -> list[Any]:
        parser = codec.ClientParser(max_control_line=4096, max_payload=1 << 20)
        return [event[1] for chunk in chunks for event in parser.receive(chunk)]

    def build(runs: list[Any]) -> list[bytes]:
        blocks, builder = [], codec.BlockBuilder()
        for run in runs:
            builder.append_run(run, 0, len(run))
            if builder.rows >= ROWS_PER_BLOCK:
                blocks.append(builder.build())
                builder.clear()
        return [*blocks, builder.build()]

    def restamp(raws: list[bytes]) -> Any:
        tail = codec.BlockBuilder(first_seq=1)
        for raw in raws:
            tail.append_block(codec.Block(raw), time_ns=1_700_000_000_000_000_000)
        return tail

    def collect(runs: list[Any]) -> Any:
        column = codec.ReplyColumn()
        for run in runs:
            column.append_run(run, 0, len(run))
        return column

    def deliver(tail: Any) -> int:
        size = 0
        for start in range(0, messages, 256):
            indices = list(range(start, min(start + 256, messages)))
            prefix = b"$JS.ACK.ORDERS.worker"
            size += len(
                codec.encode_deliveries(tail, indices, b"1", prefix, None, start, messages, True)
            )
        return size

    seconds: dict[str, float] = {}
    seconds["parse"], runs = best(parse)
    seconds["segments"], _ = best(lambda: [run.segments() for run in runs])
    seconds["run.encode"], _ = best(lambda: [run.encode(0, len(run), b"1", True) for run in runs])
    seconds["append_run + build"], raws = best(lambda: build(runs))
    seconds["Block + append_block"], tail = best(lambda: restamp(raws))
    seconds["replies"], column = best(lambda: collect(runs))
    seconds["encode_pub_acks"], _ = best(
        lambda: codec.encode_pub_acks(column, 0, messages, b"1", b"ORDERS", 1, b"")
    )
    seconds["encode_deliveries"], _ = best(lambda: deliver(tail))
    return {name: messages / taken / 1e6 for name, taken in seconds.items()}


def main(messages: int) -> None:
    rates = {name: measure(codec, messages) for name, codec in CODECS.items()}
    print(f"{'million messages/s':24}{'cython':>10}{'python':>10}{'ratio':>8}")
    for name, compiled in rates["cython"].items():
        plain = rates["python"][name]
        print(f"{name:24}{compiled:10.2f}{plain:10.2f}{compiled / plain:8.0f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 50_000)
