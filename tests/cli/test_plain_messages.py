"""`jetraft pub|sub|request|reply|rtt|info|events` against our server and against nats-server."""

from __future__ import annotations

import re
import signal

import pytest

from broker.cli.messages.templates import filled
from tests.support.jetraft_command import as_json, as_json_lines, jetraft, started


@pytest.fixture(scope="module")
def kept(url: str) -> str:
    jetraft(url, "stream", "add", "KEPT", "--subjects", "kept.>", "--max-msg-size", "1000")
    return "KEPT"


def test_templates() -> None:
    assert filled("{{Count}} {{ Count }} {{No}}", 7) == "7 7 {{No}}"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d\d:\d\d", filled("{{TimeStamp}}", 1))
    assert len(filled("{{Random}}", 1)) == 16
    assert {len(filled("{{ Random 2 4 }}", 1)) for _ in range(200)} == {2, 3, 4}
    assert len(filled("{{Random(3, 3)}}", 1)) == 3
    assert filled("{{ID}}", 1) != filled("{{ID}}", 1)
    assert filled("{{Unix}}{{UnixNano}}{{Time}}", 1)[:10].isdigit()


def test_many_messages_are_pipelined_and_summed_up(url: str, kept: str) -> None:
    before = as_json(url, "stream", "info", kept)["state"]["last_seq"]
    said = jetraft(url, "pub", "kept.many", "m {{Count}}", "--count", "3000")
    assert re.search(rf"3,000 stored in KEPT as {before + 1:,} to {before + 3000:,}\n$", said)
    shown = jetraft(url, "stream", "get", kept, str(before + 3000), "--raw")
    assert shown == "m 3000"


def test_standard_input(url: str, kept: str) -> None:
    jetraft(url, "pub", "kept.in", given=b"one\ntwo\n")
    assert jetraft(url, "stream", "get", kept, "--last", "kept.in", "--raw") == "one\ntwo\n"
    said = jetraft(url, "pub", "kept.in", "--send-on", "newline", given=b"one\ntwo\n")
    assert said.count("stored in KEPT") == 2
    assert jetraft(url, "stream", "get", kept, "--last", "kept.in", "--raw") == "two"
    jetraft(url, "pub", "kept.in", "{{Count}}", "--no-templates")
    assert jetraft(url, "stream", "get", kept, "--last", "kept.in", "--raw") == "{{Count}}"


def test_a_refused_message_fails_the_command(url: str, kept: str) -> None:
    said = jetraft(url, "pub", "kept.large", "{{Random 2000 2000}}", code=1)
    assert "message size exceeds maximum allowed (10054)" in said
    said = jetraft(url, "pub", "nowhere", "x", "--require-ack", code=1)
    assert "message 1: no stream stores nowhere" in said
    said = jetraft(url, "pub", "kept.x", given=b"x" * (2 << 20), code=1)
    assert "a message of 2,097,152 bytes; the server takes 1,048,576" in said


def test_an_endless_publisher_ends_with_ctrl_c(url: str, kept: str) -> None:
    """The publisher of the running example."""
    words = ("pub", "kept.us", "--count=-1", "--sleep=10ms", "Order # {{Count}} at {{TimeStamp}}")
    with started(url, *words) as child:
        assert child.stdout is not None
        for _ in range(3):
            assert child.stdout.readline().startswith("stored in KEPT as ")
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate(timeout=60)
    assert child.returncode == 130
    assert "Traceback" not in errors
    assert "Order # " in jetraft(url, "stream", "get", kept, "--last", "kept.us")


def test_request_and_reply(url: str) -> None:
    with started(url, "reply", "echo.*", "--echo", "--count", "3") as child:
        assert child.stderr is not None
        assert child.stderr.readline() == "answering on echo.*\n"
        said = jetraft(url, "request", "echo.a", "hi {{Count}}", "--count", "2", "-H", "A: b")
        assert re.fullmatch(
            r"\[\d.* [mu]?s\] echo.a: hi 1\n    A: b\n\[\d.* [mu]?s\] echo.a: hi 2\n    A: b\n",
            said,
        )
        assert as_json_lines(url, "request", "echo.a", "x")[0]["data"] == "x"
        shown, _ = child.communicate(timeout=60)
    assert shown.startswith("[1] echo.a: hi 1\n    A: b\n")
    assert "no responders" in jetraft(url, "request", "echo.a", "x", code=1)


def test_a_reply_from_a_program(url: str) -> None:
    with started(url, "reply", "upper", "--command", "tr a-z A-Z", "--count", "1") as child:
        assert child.stderr is not None
        child.stderr.readline()
        assert jetraft(url, "request", "upper", "loud", "--raw") == "LOUD\n"


def test_a_silent_service_is_exit_code_4(url: str) -> None:
    with started(url, "sub", "silent") as child:
        assert child.stderr is not None
        child.stderr.readline()
        said = jetraft(url, "request", "silent", "x", "--timeout", "100ms", code=4)
    assert "no answer from silent within 0.1 s" in said


def test_sub_as_json_and_with_a_wait(url: str) -> None:
    with started(url, "sub", "a.*", "b", "--json", "--count", "2") as child:
        assert child.stderr is not None
        assert child.stderr.readline() == "listening on a.*, b\n"
        jetraft(url, "pub", "a.x", "1", "-H", "K: v")
        jetraft(url, "pub", "b", given=b"\xff")
        shown, _ = child.communicate(timeout=60)
    assert '"headers":{"K":["v"]},"data":"1"}' in shown
    assert '"data_base64":"/w=="}' in shown
    assert jetraft(url, "sub", "quiet", "--wait", "10ms") == "listening on quiet\n"


def test_events(url: str) -> None:
    """A create has two events, in any order: nats-server sends them from different threads."""
    with started(url, "events", "--count", "2") as child:
        assert child.stderr is not None
        child.stderr.readline()
        jetraft(url, "stream", "add", "EVENT", "--subjects", "event")
        shown, _ = child.communicate(timeout=60)
    assert len(shown.splitlines()) == 2
    assert "stream_action  action create, stream EVENT" in shown
    assert "api_audit  subject $JS.API.STREAM.CREATE.EVENT" in shown
    jetraft(url, "stream", "rm", "EVENT")


def test_rtt_and_info(url: str) -> None:
    assert as_json(url, "rtt")[0]["seconds"]["min"] > 0
    found = as_json(url, "info")
    assert found["server"]["server_name"] in ("ours-1", "theirs-1")
    assert found["jetstream"]["streams"] >= 0
