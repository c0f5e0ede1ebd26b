"""Consumer scenarios as scripts: commands, `----`, expected output.

Each paragraph of a script is one step. JETRAFT_REWRITE=1 writes the actual output into the
scripts; commit such a change only if each changed line can be explained."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import pytest

from broker.jetstream.errors import JetStreamError
from broker.subjects import finish
from tests.support.consumer_rig import MS, START, Bench, S

SCRIPTS = sorted((Path(__file__).parent / "consumer_scripts").glob("*.txt"))
ANSWERED = ("Stream", "Consumer")
UNITS = {"ms": MS, "s": S, "m": 60 * S, "ns": 1}


def duration(text: str) -> int:
    unit = text.lstrip("0123456789")
    return int(text[: -len(unit)]) * UNITS[unit]


def expand(seqs: str) -> list[int]:
    low, _, high = seqs.partition("-")
    return list(range(int(low), int(high or low) + 1))


def run_line(bench: Bench, line: str) -> list[str]:
    verb, _, rest = line.partition(" ")
    match verb:
        case "publish":
            subject, _, count = rest.partition(" ")
            bench.publish(*[subject] * int(count or 1))
        case "consumer":
            bench.create(**json.loads(rest or "{}"))
        case "update":
            bench.update(**json.loads(rest))
        case "pull":
            reply, _, body = rest.partition(" ")
            bench.pull(reply, body)
        case "ack":
            seqs, _, options = rest.partition(" ")
            parts = shlex.split(options)
            reply = "".join(part[6:] for part in parts if part.startswith("reply="))
            payload = " ".join(part for part in parts if not part.startswith("reply="))
            for seq in expand(seqs):
                bench.ack(seq, payload, reply)
        case "at":
            bench.now = START + duration(rest)
            return bench.out()
        case "deadline":
            at = bench.delivery.next_deadline()
            return ["none" if at is None else f"{(at - START) / MS:g}ms"]
        case "pump":
            return bench.out()
        case "remove":
            bench.remove(*expand(rest))
        case "drop":
            bench.drop(int(rest))
        case "purge":
            bench.purge(int(rest))
        case "crash":
            bench.crash()
        case "bind":
            bench.bind()
        case "unbind":
            bench.bind(bound=False)
        case "no_interest":
            bench.no_interest.add(rest.encode())
        case "pause":
            bench.pause(START + duration(rest))
        case "reset":
            result = bench.reset(int(rest or 0))
            if isinstance(result, JetStreamError):
                return [f"{result.err_code:d} {result.description}"]
            return [f"position {result}"]
        case "unpin":
            bench.delivery.unpin()
        case "answer":
            subject, *reached = rest.split(" ")  # acked up to: stream sequence, consumer sequence
            lines = [f"Nats-Last-{n}: {v}\r\n" for n, v in zip(ANSWERED, reached, strict=False)]
            headers = f"NATS/1.0\r\n{''.join(lines)}\r\n".encode() if lines else b""
            bench.delivery.flow_control_reply(subject.encode(), headers)
        case "close":
            return [f"status {e.to.decode()} {e.header!r}" for e in bench.delivery.close(rest)]
        case "settled":
            return [str(sorted(bench.stream.settled))]
        case "info":
            finish(bench.delivery.counting(bench.now))
            n = bench.delivery.numbers(bench.now)
            return [
                f"delivered {n.consumer_seq}/{n.stream_seq} floor {n.floor_consumer_seq}/"
                f"{n.floor_stream_seq} ack_pending {n.num_ack_pending} redelivered"
                f" {n.num_redelivered} waiting {n.num_waiting} pending {n.num_pending}"
                + (" bound" if n.push_bound else "")
                + (" paused" if n.paused_until_ns else "")
            ]
        case _:
            raise AssertionError(f"unknown verb: {line}")
    return []


def run_script(text: str) -> str:
    """The script with its expectations replaced by the actual output."""
    bench = Bench()
    done: list[str] = []
    for paragraph in text.strip().split("\n\n"):
        commands, _, _ = paragraph.partition("\n----")
        lines: list[str] = []
        for line in commands.split("\n"):
            if not line.startswith("#"):
                lines += run_line(bench, line)
        if all(line.startswith("#") for line in commands.split("\n")):
            done.append(commands)
        else:
            done.append("\n".join([commands, "----", *lines]))
    return "\n\n".join(done) + "\n"


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_consumer_behaves_as_its_script_says(path: Path) -> None:
    expected = path.read_text()
    found = run_script(expected)
    if os.environ.get("JETRAFT_REWRITE"):
        path.write_text(found)
    assert found == expected


def test_there_are_scripts() -> None:
    assert SCRIPTS
