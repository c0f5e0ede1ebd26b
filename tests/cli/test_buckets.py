"""`jetraft kv`, `object`, `config check`, `completion`, and the options of a login."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from broker.cli.main import cli
from broker.local import LocalCluster

USERS = "authorization { users: [ { user: ann, password: secret } ] }"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with LocalCluster(tmp_path_factory.mktemp("cli"), size=1, more=USERS) as server:
        yield server.nodes[0].url


def jetraft(url: str, *words: str, code: int = 0, given: bytes | None = None) -> str:
    login = ["--user", "ann", "--password", "secret", "-s", url]
    result = CliRunner().invoke(cli, [*words, *login], input=given)
    assert result.exit_code == code, result.output
    return result.output


def test_a_bucket_from_creation_to_deletion(url: str) -> None:
    assert "no buckets" in jetraft(url, "kv", "ls")
    jetraft(url, "kv", "add", "B", "--history", "5")
    assert jetraft(url, "kv", "put", "B", "k", "one") == "revision 1\n"
    assert jetraft(url, "kv", "put", "B", "k", given=b"two") == "revision 2\n"
    assert jetraft(url, "kv", "get", "B", "k") == "two\n"
    assert jetraft(url, "kv", "get", "B", "k", "--revision", "1") == "one\n"
    assert jetraft(url, "kv", "get", "B", "k", "--raw") == "two"
    refused = jetraft(url, "kv", "put", "B", "k", "three", "--revision", "1", code=1)
    assert "wrong last sequence" in refused
    assert jetraft(url, "kv", "put", "B", "k", "three", "--revision", "2") == "revision 3\n"
    assert jetraft(url, "kv", "keys", "B") == "k\n"
    assert jetraft(url, "kv", "watch", "B", "--count", "1") == "[3] k: three\n"
    jetraft(url, "kv", "del", "B", "k")
    assert "B has no key k" in jetraft(url, "kv", "get", "B", "k", code=1)
    assert "B" in jetraft(url, "kv", "ls")
    jetraft(url, "kv", "rm", "B")
    assert "no buckets" in jetraft(url, "kv", "ls")


def test_a_file_comes_back_as_it_was(url: str, tmp_path: Path) -> None:
    data = os.urandom(3_000_000)
    (tmp_path / "in").write_bytes(data)
    jetraft(url, "object", "add", "O")
    stored = jetraft(url, "object", "put", "O", str(tmp_path / "in"), "--name", "file")
    assert "2.9 MiB" in stored
    assert "file" in jetraft(url, "object", "ls", "O")
    target = tmp_path / "out"
    jetraft(url, "object", "get", "O", "file", "--output", str(target))
    assert target.read_bytes() == data
    missing = tmp_path / "missing"
    refused = jetraft(url, "object", "get", "O", "nothing", "--output", str(missing), code=1)
    assert "O has no object nothing" in refused
    assert sorted(one.name for one in tmp_path.iterdir()) == ["in", "out"]
    jetraft(url, "object", "rm", "O", "file")
    assert "O is empty" in jetraft(url, "object", "ls", "O")


def test_a_wrong_password_is_one_line(url: str) -> None:
    login = ["--user", "ann", "--password", "wrong", "-s", url]
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


def test_files_of_a_login_that_are_missing_are_named(url: str) -> None:
    result = CliRunner().invoke(cli, ["kv", "ls", "--creds", "/no/such.creds", "-s", url])
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
