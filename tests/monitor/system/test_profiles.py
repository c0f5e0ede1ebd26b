"""The inside of the process: variables, stacks, profiles."""

from __future__ import annotations

import base64
import gzip
import threading
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest

from broker.config.options import Http
from broker.monitor.documents.interpreter import CpuProfile, command_line
from broker.monitor.documents.pprof import encode
from tests.monitor.documents.test_http import document, get
from tests.support.server import run, running
from tests.support.system import SETTINGS, ask, client

PROFILE = "$SYS.REQ.SERVER.PING.PROFILEZ"


def varint(data: Iterator[int]) -> int:
    value = shift = 0
    for byte in data:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    return value


def packed(data: bytes) -> list[int]:
    rest, found = iter(data), list[int]()
    while rest.__length_hint__():  # type: ignore[attr-defined]
        found.append(varint(rest))
    return found


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Of a protocol buffer: number and value."""
    rest = iter(data)
    while rest.__length_hint__():  # type: ignore[attr-defined]
        key = varint(rest)
        value = varint(rest)
        yield key >> 3, bytes(islice(rest, value)) if key & 7 == 2 else value


def samples(profile: bytes) -> dict[tuple[str, ...], int]:
    """Function names of the stacks, and their values."""
    whole = list(fields(gzip.decompress(profile)))
    texts = [value.decode() for number, value in whole if number == 6]
    functions = {found[1]: texts[found[2]] for found in _messages(whole, 5)}
    lines = {found[1]: dict(fields(found[4])) for found in _messages(whole, 4)}
    result = {}
    for found in _messages(whole, 2):
        stack = tuple(functions[lines[place][1]] for place in packed(found[1]))
        (result[stack],) = packed(found[2])
    return result


def _messages(whole: list[tuple[int, Any]], number: int) -> list[dict[int, Any]]:
    return [dict(fields(value)) for found, value in whole if found == number]


def test_a_profile_is_what_pprof_reads() -> None:
    outer, inner = ("outer", "a.py", 3), ("inner", "b.py", 300)
    made = encode(
        {(inner, outer): 5000, (outer,): 1}, kind=("cpu", "nanoseconds"), began_ns=1, period_ns=10
    )
    assert samples(made) == {("inner", "outer"): 5000, ("outer",): 1}
    whole = list(fields(gzip.decompress(made)))
    assert next(value for number, value in whole if number == 6) == b""  # its rule
    assert {value[1]: value[2] for value in _messages(whole, 1)} == {1: 2}


def _burn(until: threading.Event) -> None:
    while not until.is_set():
        sum(range(1000))


def test_a_cpu_profile_shows_who_used_the_cpu_and_is_taken_once_at_a_time() -> None:
    done, second = threading.Event(), list[bytes | None]()
    burning = threading.Thread(target=_burn, args=(done,), name="burning")
    profile = CpuProfile()
    burning.start()
    try:
        first = profile.take(0.2)
        beside = threading.Thread(target=lambda: second.append(profile.take(0.01)))
        with profile._running:
            beside.start()
            beside.join()
    finally:
        done.set()
        burning.join()
    assert first is not None
    spent = {stack: value for stack, value in samples(first).items() if "_burn" in stack}
    assert sum(spent.values()) > 1_000_000
    assert all(stack[-1] == "burning" for stack in spent)
    assert second == [None]


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["serve", "--pass", "x", "-js"], ["serve", "--pass", "[REDACTED]", "-js"]),
        (["serve", "--auth=x"], ["serve", "--auth=[REDACTED]"]),
        (["serve", "-p", "4222"], ["serve", "-p", "4222"]),
    ],
)  # fmt: skip
def test_passwords_of_the_command_line_are_not_shown(words: list[str], shown: list[str]) -> None:
    assert command_line(words) == shown


def test_a_server_shows_its_inside() -> None:
    async def test() -> None:
        async with running(**SETTINGS, http=Http("127.0.0.1", -1)) as server:
            asking = await client(server)
            shown = await document(server, "/debug/vars")
            assert shown["memstats"]["Sys"] > 1 << 20
            told = await ask(asking, "$SYS.REQ.SERVER.PING.EXPVARZ")
            assert told["data"].keys() == shown.keys()
            assert told["data"]["cmdline"] == shown["cmdline"]
            code, _, text = await get(server, "/stacksz")
            assert code == 200
            assert b"thread MainThread:" in text
            assert b"task " in text
            whole = await ask(asking, PROFILE, {"name": "cpu", "duration": 20_000_000})
            assert not whole["data"]["error"]
            whole_fields = fields(gzip.decompress(base64.b64decode(whole["data"]["profile"])))
            assert dict(whole_fields)[10] >= 20_000_000  # how long it took
            told = await ask(asking, PROFILE, {"name": "goroutine"})
            found = samples(base64.b64decode(told["data"]["profile"]))
            assert any(stack[-1] == "MainThread" for stack in found)
            told = await ask(asking, PROFILE, {"name": "goroutine", "debug": 1})
            assert b"thread MainThread:" in base64.b64decode(told["data"]["profile"])
            told = await ask(asking, PROFILE, {"name": "heap"})
            assert told["data"] == {"profile": None, "error": 'Profile "heap" not found'}

    run(test())
