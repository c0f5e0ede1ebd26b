"""Small files of a node: replaced whole, and nothing is left of an interrupted attempt."""

from __future__ import annotations

from pathlib import Path

from broker.cluster.node_files import DirectoryFiles


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    files = DirectoryFiles(tmp_path)
    (tmp_path / "file.new").write_bytes(b"left behind by a crash, and longer than what follows")
    assert files.read("file.json") is None
    files.write("file.json", b"one")
    assert files.read("file.json") == b"one"
    files.write("file.json", b"two")
    assert files.read("file.json") == b"two"
    assert list(tmp_path.iterdir()) == [tmp_path / "file.json"]


def test_a_removed_file_is_gone_and_removing_it_again_is_harmless(tmp_path: Path) -> None:
    files = DirectoryFiles(tmp_path)
    files.write("mark", b"")
    assert files.read("mark") == b""
    files.remove("mark")
    files.remove("mark")
    assert files.read("mark") is None
