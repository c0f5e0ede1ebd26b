"""Every exchange: our server answers as nats-server does, or the difference is by design."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.local import LocalCluster, LocalNode
from tests.interop.parity import configuration, consumers, core, messages, monitoring, streams
from tests.interop.parity.compare import differences
from tests.interop.parity.differences import DIFFERENCES, DOCUMENT, Explained, document
from tests.interop.parity.exchange import Scene
from tests.interop.parity.pair import Conversation
from tests.support.clusters import nats_server, run

EXCHANGES_MIN = 7000  # the suite may not shrink unnoticed
SCENES: list[Scene] = [
    *streams.SCENES,
    *consumers.SCENES,
    *messages.SCENES,
    *monitoring.SCENES,
]
FRESH = {scene.name: f"p{number}" for number, scene in enumerate(SCENES) if not scene.user}
ACCOUNT = "{0} {{ jetstream: enabled, users [{{user: {1}, password: pw}}] }}"
ACCOUNTS = "\n".join(
    [
        "accounts {",
        "SYS { users [{user: admin, password: pw}] }",
        "CORE { users [{user: core, password: pw}] }",
        *(ACCOUNT.format(user.upper(), user) for user in ("watched", *FRESH.values())),
        "}",
        "system_account: SYS",
    ]
)

Nodes = tuple[LocalNode, LocalNode]
explained = Explained(DIFFERENCES)
completed: set[str] = set()  # sets of exchanges of which every answer was compared
COMPLETE = {*(scene.name for scene in SCENES), *map(str, core.OPTION_SETS), "configuration"}


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Ours, and nats-server with the same configuration and the same name."""
    place = tmp_path_factory.mktemp("parity")
    with (
        LocalCluster(place / "ours", size=1, name="one", more=ACCOUNTS) as ours,
        LocalCluster(place / "real", 1, "one", command=nats_server(), more=ACCOUNTS) as theirs,
    ):
        yield ours.nodes[0], theirs.nodes[0]


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.name)
def test_both_servers_answer_alike(nodes: Nodes, scene: Scene) -> None:
    shown = run(lambda: _differences(nodes, scene))
    assert not shown, "\n" + "\n".join(shown)
    assert "Traceback" not in nodes[0].log_path.read_text()


async def _differences(nodes: Nodes, scene: Scene) -> list[str]:
    conversation = await Conversation.begun(nodes, scene.user or FRESH[scene.name])
    found: list[str] = []
    try:
        for step in scene.steps:
            if (answers := await conversation.take(step)) is None:
                continue
            where = f"{scene.name}: {step}"
            unexplained = [
                str(one) for one in differences(*answers) if not explained(where, one.path)
            ]
            if unexplained:
                found.append("\n    ".join([str(step), *unexplained]))
    finally:
        await conversation.close()
    completed.add(scene.name)
    return found


@pytest.mark.parametrize("options", core.OPTION_SETS, ids=str)
def test_both_servers_speak_alike(nodes: Nodes, options: core.Options) -> None:
    async def work() -> list[str]:
        found = []
        for raw in core.TABLE:
            if raw.options != options:
                continue
            ours, theirs = await asyncio.gather(*(core.answer(node, raw) for node in nodes))
            known = core.RESET in (ours, theirs) or explained(f"core: {raw}", "bytes")
            if ours != theirs and not known:
                found.append(f"{raw}\n    ours   {ours!r}\n    theirs {theirs!r}")
        completed.add(str(options))
        return found

    shown = run(work)
    assert not shown, "\n" + "\n".join(shown)
    assert "Traceback" not in nodes[0].log_path.read_text()


def test_both_servers_read_configuration_files_alike(tmp_path: Path) -> None:
    shown = [
        f"{text!r}: ours {ours}, theirs {theirs}"
        for text, ours, theirs in configuration.verdicts(tmp_path)
        if ours != theirs and not explained(f"configuration: {text}", "verdict")
    ]
    completed.add("configuration")
    assert not shown, "\n" + "\n".join(shown)


def test_no_difference_is_listed_that_is_gone() -> None:
    """A difference that is new fails its own test, and hides none that is gone."""
    if missing := COMPLETE - completed:
        pytest.skip(f"only after all exchanges: {len(missing)} were not completed")
    assert not explained.idle()


def test_every_set_of_exchanges_has_a_name_of_its_own() -> None:
    assert len(COMPLETE) == len(SCENES) + len(core.OPTION_SETS) + 1


def test_there_are_enough_exchanges() -> None:
    of_scenes = sum(scene.exchanges for scene in SCENES)
    assert of_scenes + len(core.TABLE) + len(configuration.files()) >= EXCHANGES_MIN


def test_the_document_lists_the_differences() -> None:
    """Written by `python -m tests.interop.parity.differences`."""
    assert DOCUMENT.read_text() == document(DIFFERENCES)
