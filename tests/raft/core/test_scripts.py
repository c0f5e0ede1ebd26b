"""Scenario scripts: text files of commands and their expected output.

A file is a list of cases: one or more commands, `----`, and the expected output. The cases of one
file share one group of cores. With REWRITE=1 in the environment the expected output is rewritten;
commit that only if every changed line can be explained.

    group voters=3 learners=1 [log_<node>=1,1,2] [option=value]   start, with logs of these terms
    campaign|tick|propose|transfer|change|read|lease|restart|lose|compact|snapshot|sleep|wake ...
    deliver [drop=a->bc,...] [passes=N]   until no message is left, or N times; drop cuts links
    show [nodes]              role, term, log and members of each"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from raft.core.messages import EntryKind, Message
from raft.core.ready import CoreConfig, ReadState
from raft.types import Index, NodeId, RaftError
from tests.support.core_rig import Group

SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.txt"))


def node_of(name: str) -> NodeId:
    return NodeId(ord(name) - ord("a") + 1)


def name_of(node: int) -> str:
    return chr(ord("a") + node - 1)


def nodes_of(names: str) -> list[NodeId]:
    return [node_of(name) for name in names]


class Scene:
    """One group, and the commands that act on it or print its state."""

    def __init__(self) -> None:
        self.group = Group(3)
        self.reads: list[tuple[NodeId, ReadState]] = []
        self.proposed = 0

    def run(self, line: str) -> str:
        verb, *words = line.split()
        options = dict(word.split("=", 1) for word in words if "=" in word)
        plain = [word for word in words if "=" not in word]
        command: Callable[..., str | None] = getattr(self, f"do_{verb}")
        try:
            return command(*plain, **options) or "ok"
        except RaftError as error:
            return f"{type(error).__name__}: {error}"

    def do_group(self, voters: str = "3", learners: str = "0", **options: str) -> None:
        logs = {
            node_of(key[4:]): [int(term) for term in value.split(",")]
            for key, value in options.items()
            if key.startswith("log_")
        }
        terms = {node: log[-1] for node, log in logs.items()}
        settings = {key: bool(int(options[key])) for key in options if not key.startswith("log_")}
        self.group = Group(
            int(voters),
            learners=int(learners),
            logs=dict(logs),
            terms=terms,
            config=CoreConfig(**settings),  # type: ignore[arg-type]
        )
        self.group.on_reads = lambda node, reads: self.reads.extend((node, r) for r in reads)

    def do_add(self, name: str) -> None:
        """Add a node outside the group, which knows the members that the group began with."""
        self.group.add(node_of(name))

    def do_campaign(self, name: str) -> None:
        self.group[node_of(name)].campaign()

    def do_tick(self, count: str, names: str = "") -> None:
        for _ in range(int(count)):
            for node in nodes_of(names) or list(self.group.hosts):
                if not self.group[node].asleep:
                    self.group[node].tick()

    def do_propose(self, name: str, count: str = "1") -> str:
        indexes = []
        for _ in range(int(count)):
            self.proposed += 1
            indexes.append(self.group[node_of(name)].propose(b"p%d" % self.proposed))
        return "at " + " ".join(map(str, indexes))

    def do_transfer(self, name: str, to: str) -> None:
        self.group[node_of(name)].transfer_leader(node_of(to))

    def do_change(self, name: str, voters: str, learners: str = "") -> str:
        core = self.group[node_of(name)]
        index = core.change_members(voters=nodes_of(voters), learners=nodes_of(learners))
        return f"at {index}"

    def do_read(self, name: str, context: str) -> None:
        self.group[node_of(name)].read_index(int(context))

    def do_lease(self, name: str) -> str:
        age = self.group[node_of(name)].lease_age()
        return "no lease" if age is None else f"lease began {age} ticks ago"

    def do_reads(self) -> str:
        shown = [f"{name_of(n)}: read {r.context} at {r.index}" for n, r in self.reads]
        self.reads.clear()
        return "\n".join(shown) or "none"

    def do_restart(self, name: str) -> None:
        self.group.restart(node_of(name))

    def do_lose(self, name: str) -> None:
        self.group.lose_log(node_of(name))

    def do_compact(self, name: str, upto: str) -> None:
        self.group.hosts[node_of(name)].reader.compact(Index(int(upto)))

    def do_snapshot(self, name: str, to: str) -> str:
        meta = self.group.send_snapshot(node_of(name), node_of(to))
        return f"at {meta.index}"

    def do_sleep(self, name: str, there: str) -> str:
        core = self.group[node_of(name)]
        if not core.may_sleep(set(nodes_of(there))):
            return "may not sleep"
        core.sleep()
        return "sleeps"

    def do_wake(self, name: str) -> None:
        self.group[node_of(name)].wake()

    def do_lost(self, name: str) -> None:
        self.group[node_of(name)].leader_lost()

    def do_deliver(self, drop: str = "", passes: str = "1000") -> None:
        links = [link.split("->") for link in drop.split(",") if link]
        cut = {(a, b) for left, right in links for a in left for b in right}

        def linked(message: Message) -> bool:
            return (name_of(message.sender), name_of(message.to)) not in cut

        self.group.passes = linked
        self.group.settle(int(passes))

    def do_show(self, names: str = "") -> str:
        lines = []
        for node in nodes_of(names) or list(self.group.hosts):
            core = self.group[node]
            log = " ".join(
                f"{i}:{core.log.term(Index(i))}{self._kind(node, Index(i))}"
                for i in range(core.log.first_index, core.last_index + 1)
            )
            members = core.members
            who = "".join(map(name_of, members.voters))
            if members.joint:
                who += "+" + "".join(map(name_of, members.outgoing))
            if members.learners:
                who += "/" + "".join(map(name_of, members.learners))
            state = core.role.value + (" asleep" if core.asleep else "")
            state += " recovering" if core.recovering else ""
            lines.append(
                f"{name_of(node)} {state} term={core.term} commit={core.commit} "
                f"members={who} log=[{log}]"
            )
        return "\n".join(lines)

    def _kind(self, node: NodeId, index: Index) -> str:
        entries = self.group[node].log.entries(index, Index(index + 1), 1 << 20)
        if not entries:
            return ""
        return {EntryKind.NORMAL: "", EntryKind.NOOP: "n", EntryKind.CONFIG: "c"}[entries[0].kind]


def parse(text: str) -> list[tuple[list[str], str, str]]:
    """Cases: comment lines before, command, expected output."""
    cases = []
    for block in text.strip().split("\n\n"):
        lines = block.split("\n")
        comments = [line for line in lines if line.startswith("#")]
        body = [line for line in lines if not line.startswith("#")]
        if body:
            command, _, expected = "\n".join(body).partition("\n----")
            cases.append((comments, command.strip(), expected.strip()))
        else:
            cases.append((comments, "", ""))
    return cases


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_scenario_produces_the_expected_output(path: Path) -> None:
    scene = Scene()
    written = []
    for comments, command, expected in parse(path.read_text()):
        if not command:
            written.append("\n".join(comments))
            continue
        printed = [scene.run(line) for line in command.split("\n")]
        shown = "\n".join(text for text in printed if text != "ok") or "ok"
        written.append("\n".join([*comments, command, "----", shown]))
        if not os.environ.get("REWRITE"):
            assert shown == expected, f"{path.name}: {command}"
    if os.environ.get("REWRITE"):
        path.write_text("\n\n".join(written) + "\n")


def test_there_are_scripts() -> None:
    assert SCRIPTS
