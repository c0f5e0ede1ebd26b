"""A cluster that somebody has: what is asked of kubectl, and what is said when it does not work."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from pathlib import Path

import pytest
from click.testing import CliRunner

from broker.cli.chaos import PlanOptions, errors_only
from broker.cli.end_by_signal import end_by_signal, run_to_end
from broker.cli.main import cli
from broker.local import LocalCluster, NodeFailed, free_ports
from chaos.campaign.foreign_target import ForeignSettings, ForeignTarget, foreign_usable
from chaos.campaign.plan import KINDS


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A kubectl that notes its arguments, and says what is in the file `answer`."""
    script = tmp_path / "kubectl"
    script.write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$*" >> {tmp_path}/asked\ncat {tmp_path}/answer\n'
        f"test ! -e {tmp_path}/fails\n"
    )
    script.chmod(0o755)
    (tmp_path / "answer").write_text("yes\n")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def target(**settings: str) -> ForeignTarget:
    one = ForeignTarget(ForeignSettings(("nats://127.0.0.1:1",), **settings), ["CHAOS"])
    one._names = ["jetraft-0", "jetraft-1", "jetraft-2"]
    return one


def test_pods_are_deleted_at_once_or_gently(kubectl: Path) -> None:
    one = target(kube="shop")
    one._hit(["jetraft-1", "jetraft-2"], gently=False)
    one._hit(["jetraft-0"], gently=True)
    assert (kubectl / "asked").read_text().splitlines() == [
        "-n shop delete pod jetraft-1 jetraft-2 --wait=false --grace-period=0 --force",
        "-n shop delete pod jetraft-0 --wait=false",
    ]


def test_a_deletion_that_fails_is_told(kubectl: Path) -> None:
    (kubectl / "fails").touch()
    (kubectl / "answer").write_text("pods is forbidden")
    with pytest.raises(NodeFailed, match=r"kubectl -n shop delete pod .* pods is forbidden"):
        target(kube="shop")._hit(["jetraft-0"], gently=True)


def test_the_command_gets_the_name_of_the_node(tmp_path: Path) -> None:
    target(command=f"touch '{tmp_path}/hit {{node}}'")._hit(["jetraft-2"], gently=True)
    assert (tmp_path / "hit jetraft-2").exists()


def test_what_cannot_be_tried_there_is_named() -> None:
    kinds, not_tried = foreign_usable(list(KINDS), ForeignSettings((), kube="shop"))
    assert "kill-all" in kinds
    assert "power-cut-all: not by deleting pods" in not_tried
    assert len(kinds) + len(not_tried) == len(KINDS)


def run(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(cli, ["chaos", "run", "all", "--minutes", "0.1", *words])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


def test_a_cluster_that_does_not_answer_is_a_sentence() -> None:
    url = f"nats://127.0.0.1:{free_ports(1)[0]}"
    code, said = run("--servers", url, "--fault-command", "true")
    assert code == 1
    assert f"{url} does not answer" in said


@pytest.mark.parametrize(
    "words", [["run", "leader-kill"], ["run", "kill-rounds"], ["run", "kill"], ["damage"]]
)
def test_a_cluster_that_does_not_start_is_a_sentence(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(_: LocalCluster) -> None:
        raise NodeFailed("n1 exited: the port is in use")

    monkeypatch.setattr(LocalCluster, "start", start)
    done = CliRunner().invoke(cli, ["chaos", *words])
    assert isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code == 1
    assert "Error: n1 exited: the port is in use" in done.output


def test_options_that_do_not_fit_are_named() -> None:
    assert "--servers needs --kube or --fault-command" in run("--servers", "nats://a")[1]
    assert "go with --servers" in run("--kube", "shop")[1]
    assert "need --nodes 3 or more" in run("--nodes", "1")[1]
    assert "there is no package broker in" in run("--previous", str(Path(__file__).parent))[1]


def test_no_permission_to_delete_pods_is_a_sentence(
    kubectl: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (kubectl / "answer").write_text("no\n")

    class Connected:
        _server_info = {"go": "python3"}

        async def close(self) -> None: ...

    async def connect(_: object) -> Connected:
        return Connected()

    monkeypatch.setattr("chaos.campaign.foreign_target.connect", connect)
    with pytest.raises(NodeFailed, match="pods in the namespace shop cannot be deleted"):
        asyncio.run(target(kube="shop").open())
    assert (kubectl / "asked").read_text() == "-n shop auth can-i delete pods\n"


def test_the_command_that_repeats_a_run_has_no_password() -> None:
    options = PlanOptions(
        "all", minutes=1, nodes=3, seed=None, rate=50, previous=None, peer=False,
        servers="nats://me:secret@a:4222,nats://me:secret@b:4222", kube="shop", fault_command=None,
    )  # fmt: skip
    told = options.command(7)
    assert "secret" not in told
    assert "--seed 7 --rate 50 --servers nats://...@a:4222,nats://...@b:4222 --kube shop" in told


def test_work_that_swallows_a_cancellation_is_ended_by_a_signal() -> None:
    ended = []

    async def work() -> None:
        for _ in range(3):
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                ended.append("swallowed")
        await asyncio.sleep(60)

    async def signalled() -> None:
        task = asyncio.get_running_loop().create_task(work())
        asyncio.get_running_loop().call_later(0.1, signal.raise_signal, signal.SIGTERM)
        await task

    with pytest.raises(SystemExit), end_by_signal():
        run_to_end(signalled())
    assert ended == ["swallowed"] * 3


def test_tasks_that_work_leaves_behind_are_ended() -> None:
    left: list[asyncio.Task[object]] = []

    async def work() -> None:
        left.append(asyncio.get_running_loop().create_task(asyncio.Event().wait()))

    run_to_end(work())
    assert left[0].cancelled()


def test_a_run_leaves_the_level_of_the_log_as_it_was() -> None:
    logger = logging.getLogger("jetraft")
    before = logger.level
    with errors_only():
        assert logger.level == logging.ERROR
    assert logger.level == before != logging.ERROR


class SignalledAtItsEnd:
    def __del__(self) -> None:
        signal.raise_signal(signal.SIGTERM)


def test_a_signal_that_comes_in_a_finalizer_ends_the_run() -> None:
    async def signalled() -> None:
        SignalledAtItsEnd()
        await asyncio.Event().wait()  # for ever

    with pytest.raises(SystemExit) as ended, end_by_signal():
        run_to_end(signalled())
    assert ended.value.code == 128 + signal.SIGTERM
