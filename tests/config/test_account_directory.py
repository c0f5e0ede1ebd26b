"""The directory of account JWTs: a change that was answered survives a power failure."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from broker.config.account_directory import AccountDirectory
from broker.credentials.nkeys import KeyKind
from tests.support.keys import Key

ACCOUNT = Key(KeyKind.ACCOUNT).public


def test_the_names_of_files_are_flushed_after_each_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[set[str]] = []  # the names in the directory when it was flushed

    def fsync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            flushed.append(set(os.listdir(descriptor)))

    monkeypatch.setattr(os, "fsync", fsync)
    directory = AccountDirectory(str(tmp_path / "jwt"))
    directory.save(ACCOUNT, "token")
    assert flushed == [{f"{ACCOUNT}.jwt"}]
    assert directory.delete(ACCOUNT)
    assert flushed[1:] == [{f"{ACCOUNT}.jwt.deleted"}]
    assert not directory.delete(ACCOUNT)
