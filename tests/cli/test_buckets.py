"""`jetraft kv`, `object`, `config check`, `completion`, and the options of a login."""

from __future__ import annotations

import io
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from broker.cli.buckets.key_value import key_checked
from broker.cli.buckets.objects import CHUNK_BYTES, put_object
from broker.cli.connect.blocking import connected
from broker.cli.connect.failures import CommandFailed
from broker.cli.connect.options import Destination
from broker.cli.interrupts import end_between_steps
from broker.cli.main import cli, main
from broker.local import LocalCluster
from tests.support.clients import open_client
from tests.support.clusters import run


def jetraft(url: str, *words: str, code: int = 0, given: bytes | None = None) -> str:
    result = CliRunner().invoke(cli, [*words, "-s", url], input=given)
    assert result.exit_code == code, result.output
    return result.output


def answered(url: str, *words: str, given: bytes | None = None) -> Any:
    return json.loads(jetraft(url, *words, "--json", given=given))


def test_a_file_that_is_there_is_replaced_after_a_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = tmp_path / "letter"
    there.write_text("mine")
    monkeypatch.setattr("broker.cli.output.questions.can_ask", lambda: True)
    words = ["object", "get", "B", "letter", "--output", str(there)]
    said = jetraft("nats://127.0.0.1:1", *words, code=1, given=b"n\n")
    assert f"Replace {there}? [y/N]: n" in said
    assert "nothing was done" in said
    assert "connection refused" in jetraft("nats://127.0.0.1:1", *words, "--yes", code=3)
    assert there.read_text() == "mine"


def test_a_bucket_from_creation_to_deletion(url: str) -> None:
    jetraft(url, "kv", "add", "B", "--history", "5", "--ttl", "1h")
    assert jetraft(url, "kv", "put", "B", "k", "one") == "revision 1\n"
    assert jetraft(url, "kv", "put", "B", "k", given=b"two") == "revision 2\n"
    assert jetraft(url, "kv", "get", "B", "k") == "two\n"
    assert jetraft(url, "kv", "get", "B", "k", "--revision", "1") == "one\n"
    assert jetraft(url, "kv", "get", "B", "k", "--raw") == "two"
    refused = jetraft(url, "kv", "put", "B", "k", "three", "--revision", "1", code=1)
    assert "wrong last sequence" in refused
    assert jetraft(url, "kv", "put", "B", "k", "three", "--revision", "2") == "revision 3\n"
    assert jetraft(url, "kv", "put", "B", "a/b.c", "new", "--revision", "0") == "revision 4\n"
    assert "B has no key a/b.c" in jetraft(
        url, "kv", "get", "B", "a/b.c", "--revision", "1", code=1
    )
    assert jetraft(url, "kv", "keys", "B") == "a/b.c\nk\n"
    assert jetraft(url, "kv", "watch", "B", "--count", "2") == "[3] k: three\n[4] a/b.c: new\n"
    assert jetraft(url, "kv", "history", "B", "k") == "[1] k: one\n[2] k: two\n[3] k: three\n"
    info = jetraft(url, "kv", "info", "B")
    assert "1h" in info
    jetraft(url, "kv", "del", "B", "k")
    assert "B has no key k" in jetraft(url, "kv", "get", "B", "k", code=1)
    assert jetraft(url, "kv", "get", "B", "k", "--revision", "2") == "two\n"
    assert jetraft(url, "kv", "keys", "B") == "a/b.c\n"
    jetraft(url, "kv", "purge", "B", "k")
    assert jetraft(url, "kv", "history", "B", "k") == "[6] k: deleted\n"
    assert "B " in jetraft(url, "kv", "ls")
    jetraft(url, "kv", "rm", "B")
    assert "there is no bucket B" in jetraft(url, "kv", "rm", "B", code=1)


def test_commands_of_buckets_print_json(url: str) -> None:
    assert answered(url, "kv", "add", "J")["config"]["subjects"] == ["$KV.J.>"]
    assert answered(url, "kv", "put", "J", "k", "v") == {"bucket": "J", "key": "k", "revision": 1}
    found = answered(url, "kv", "get", "J", "k")
    assert (found["data"], found["operation"], found["revision"]) == ("v", "PUT", 1)
    answered(url, "kv", "put", "J", "k", given=b"\xff")
    assert answered(url, "kv", "watch", "J", "--count", "1")["data_base64"] == "/w=="
    assert answered(url, "kv", "keys", "J") == ["k"]
    assert answered(url, "kv", "history", "J", "k")["revision"] == 2
    assert answered(url, "kv", "del", "J", "k")["revision"] == 3
    assert answered(url, "kv", "info", "J")["state"]["last_seq"] == 3
    assert "KV_J" in [one["config"]["name"] for one in answered(url, "kv", "ls")]
    assert answered(url, "kv", "rm", "J")["success"]


@pytest.mark.parametrize("key", ["a b", ".a", "a.", "a..b", "*", ">", ""])
def test_what_cannot_be_a_key_is_refused(key: str) -> None:
    with pytest.raises(CommandFailed, match="cannot be a key"):
        key_checked(key)


def test_the_client_library_and_the_command_understand_each_other(url: str, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(os.urandom(300_000))

    async def library() -> tuple[bytes, bytes]:
        nc = await open_client(url)
        js = nc.jetstream()
        bucket = await js.key_value("L")
        await bucket.put("theirs", b"1")
        value = (await bucket.get("ours")).value
        store = await js.object_store("L")
        await store.put("theirs", b"of the library")
        found = await store.get("ours")
        return value or b"", found.data or b""

    jetraft(url, "kv", "add", "L")
    jetraft(url, "kv", "put", "L", "ours", "2")
    jetraft(url, "object", "add", "L")
    jetraft(url, "object", "put", "L", str(tmp_path / "in"), "--name", "ours")
    assert run(library) == (b"2", (tmp_path / "in").read_bytes())
    assert jetraft(url, "kv", "get", "L", "theirs") == "1\n"
    jetraft(url, "object", "get", "L", "theirs", "--output", str(tmp_path / "out"))
    assert (tmp_path / "out").read_bytes() == b"of the library"
    jetraft(url, "object", "rm", "L")
    jetraft(url, "kv", "rm", "L")


def test_a_file_comes_back_as_it_was(url: str, tmp_path: Path) -> None:
    data = os.urandom(3_000_000)
    (tmp_path / "in").write_bytes(data)
    jetraft(url, "object", "add", "O")
    stored = jetraft(url, "object", "put", "O", str(tmp_path / "in"), "--name", "file")
    assert "2.9 MiB" in stored
    assert "file" in jetraft(url, "object", "ls", "O")
    assert "O " in jetraft(url, "object", "ls")
    target = tmp_path / "out"
    jetraft(url, "object", "get", "O", "file", "--output", str(target))
    assert target.read_bytes() == data
    missing = tmp_path / "missing"
    refused = jetraft(url, "object", "get", "O", "nothing", "--output", str(missing), code=1)
    assert "O has no object nothing" in refused
    assert sorted(one.name for one in tmp_path.iterdir()) == ["in", "out"]
    (tmp_path / "in").write_bytes(b"shorter")
    again = answered(url, "object", "put", "O", str(tmp_path / "in"), "--name", "file")
    assert (again["size"], again["chunks"]) == (7, 1)
    assert answered(url, "object", "info", "O", "file")["digest"] == again["digest"]
    assert messages(url, "OBJ_O") == 2, "chunks of the older file are still there"
    answered(url, "object", "rm", "O", "file")
    assert answered(url, "object", "ls", "O") == []
    assert messages(url, "OBJ_O") == 1
    jetraft(url, "object", "rm", "O")
    assert "there is no object store O" in jetraft(url, "object", "ls", "O", code=1)


class InterruptedFile(io.BytesIO):
    """Somebody presses Ctrl-C while the third chunk is read."""

    reads = 0

    def read(self, size: int | None = -1, /) -> bytes:
        self.reads += 1
        if self.reads == 3:
            signal.raise_signal(signal.SIGINT)
        return super().read(size)


def test_an_interrupted_put_leaves_the_older_file_and_nothing_else(
    url: str, tmp_path: Path
) -> None:
    (tmp_path / "in").write_bytes(b"older")
    jetraft(url, "object", "add", "I")
    jetraft(url, "object", "put", "I", str(tmp_path / "in"), "--name", "file")
    data = InterruptedFile(os.urandom(1_000_000))
    with (
        connected(Destination(servers=(url,))) as client,
        pytest.raises(KeyboardInterrupt),
        end_between_steps() as may_end,
    ):
        put_object(client, "I", "file", data, advance=lambda _: None, may_end=may_end)
    assert (data.reads, data.tell()) == (3, 3 * CHUNK_BYTES), "it ends between two chunks"
    assert messages(url, "OBJ_I") == 2
    jetraft(url, "object", "get", "I", "file", "--output", str(tmp_path / "out"))
    assert (tmp_path / "out").read_bytes() == b"older"
    jetraft(url, "object", "rm", "I")


def test_an_ended_get_leaves_nothing(
    ours: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGTERM, as `kill` sends it, while the file is written."""
    url, target = ours.urls[0], tmp_path / "out"
    (tmp_path / "in").write_bytes(b"x" * 1000)
    jetraft(url, "object", "add", "E")
    jetraft(url, "object", "put", "E", str(tmp_path / "in"), "--name", "file")
    before = signal.getsignal(signal.SIGTERM)

    def killed(*_: object, **__: object) -> None:
        assert len(list(tmp_path.glob(".jetraft-*/partial"))) == 1
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr("broker.cli.buckets.object_store.get_object", killed)
    words = ["jetraft", "object", "get", "E", "file", "--output", str(target), "-s", url]
    monkeypatch.setattr("sys.argv", words)
    try:
        with pytest.raises(SystemExit) as ended:
            main()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ended.value.code == 143
    assert [one.name for one in tmp_path.iterdir() if one.name != "config"] == ["in"]
    jetraft(url, "object", "rm", "E")


def test_a_damaged_object_is_not_written(url: str, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"x" * 200_000)
    jetraft(url, "object", "add", "D")
    jetraft(url, "object", "put", "D", str(tmp_path / "in"), "--name", "file")
    chunk = answered(url, "stream", "get", "OBJ_D", "2")
    jetraft(url, "stream", "rm-msg", "OBJ_D", "2")
    jetraft(url, "pub", chunk["subject"], given=b"y" * len(chunk["data"]))
    target = str(tmp_path / "out")
    refused = jetraft(url, "object", "get", "D", "file", "--output", target, code=1)
    assert "digest" in refused
    assert [one.name for one in tmp_path.iterdir()] == ["in"]
    jetraft(url, "object", "rm", "D")


def messages(url: str, stream: str) -> int:
    return int(answered(url, "stream", "info", stream)["state"]["messages"])


def test_a_wrong_password_is_one_line(ours: LocalCluster) -> None:
    login = ["--user", "ann", "--password", "wrong", "-s", ours.urls[0]]
    result = CliRunner().invoke(cli, ["kv", "ls", *login])
    assert result.exit_code == 3
    assert "Authorization Violation" in result.output
    assert result.output.count("\n") == 1


@pytest.mark.parametrize(
    ("server", "words"),
    [
        ("nats://127.0.0.1:1", "connection refused"),
        ("nats://no.such.host.invalid:4222", "name of the server is unknown"),
        ("http://127.0.0.1:4222", "the scheme must be one of"),
    ],
)
def test_each_failed_connection_has_its_own_sentence(server: str, words: str) -> None:
    result = CliRunner().invoke(cli, ["kv", "ls", "-s", server])
    assert result.exit_code == 3
    assert words in result.output


def test_files_of_a_login_that_are_missing_are_named() -> None:
    result = CliRunner().invoke(cli, ["kv", "ls", "--creds", "/no/such.creds"])
    assert result.exit_code == 1
    assert "/no/such.creds: no such file" in result.output


def test_config_check(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.conf", tmp_path / "bad.conf"
    good.write_text('listen: "0.0.0.0:4222"\n')
    bad.write_text("port: 4222\nno_such_key: 1\n")
    fine = CliRunner().invoke(cli, ["config", "check", str(good)])
    assert fine.exit_code == 0
    assert "warning: Clients need no credentials" in fine.output
    refused = CliRunner().invoke(cli, ["config", "check", str(bad)])
    assert refused.exit_code == 1
    assert 'bad.conf:2:1: unknown field "no_such_key"' in refused.output


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str) -> None:
    result = CliRunner().invoke(cli, ["completion", shell])
    assert result.exit_code == 0
    assert "_JETRAFT_COMPLETE" in result.output
