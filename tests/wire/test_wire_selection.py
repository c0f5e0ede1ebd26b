"""The codec is chosen once; the compiled one is the default, and a missing one is an error."""

import os
import subprocess
import sys

REPORT = (
    "import broker.wire as w, broker.store.block.codec as b;"
    "print(w.IMPLEMENTATION, w.PubRun.__module__, w.ClientParser.__module__,"
    " w.ReplyColumn.__module__, b.Block.__module__, b.BlockBuilder.__module__,"
    " b.encode_deliveries.__module__)"
)
BLOCKER = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name == {blocked!r}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Blocked())
"""


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if name != "JETRAFT_PURE"}
    return subprocess.run(
        [sys.executable, "-c", code],
        env=clean | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_compiled_codecs_are_there_and_the_default() -> None:
    done = run(REPORT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [
        "cython",
        "broker.wire._run",
        "broker.wire._parser",
        "broker.wire._encode",
        "broker.store.block._block",
        "broker.store.block._builder",
        "broker.store.block._deliveries",
    ]


def test_switch_selects_the_twins() -> None:
    done = run(REPORT, JETRAFT_PURE="1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [
        "python",
        "broker.wire.run_py",
        "broker.wire.parser_py",
        "broker.wire.encode_py",
        "broker.store.block.block_format",
        "broker.store.block.builder_py",
        "broker.store.block.deliveries_py",
    ]


def test_missing_extension_is_an_error_that_says_what_to_do() -> None:
    for blocked in ("broker.wire._parser", "broker.store.block._builder"):
        done = run(BLOCKER.format(blocked=blocked) + REPORT)
        assert done.returncode != 0
        assert "python setup.py build_ext --inplace" in done.stderr
        assert run(BLOCKER.format(blocked=blocked) + REPORT, JETRAFT_PURE="1").returncode == 0
