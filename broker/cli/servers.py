"""`jetraft serve`, `up` and `down`: servers on this machine.

Owns: the directory of a local cluster: ports and process ids of its nodes.
May not touch: processes it did not start."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from broker.cli.connect.options import connection_options, destination
from broker.server.process.private_files import create_private_files

if TYPE_CHECKING:
    from broker.local import LocalCluster

STATE_FILE = "cluster.json"
# Of the nodes of `up`: clients need no login; `cluster` and `server` need this one.
OPERATOR = 'accounts {{ $SYS {{ users: [ {{ user: admin, password: "{password}" }} ] }} }}'


@click.command(
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
    add_help_option=False,
)
@click.argument("flags", nargs=-1, type=click.UNPROCESSED)
def serve(flags: tuple[str, ...]) -> None:
    """Run one server in the foreground; `jetraft serve --help` lists its flags, which are those of
    nats-server."""
    from broker.cli.serve import serve as run

    raise SystemExit(run(list(flags)))


@click.command()
@click.option(
    "--nodes", type=click.IntRange(1, 9), help="Number of nodes.  [default: as before, or 3]"
)
@click.option(
    "--dir",
    "directory",
    default="run",
    show_default=True,
    help="Directory for data, logs and configuration.",
)
@click.option(
    "--port", type=click.IntRange(1, 61000),
    help="Client port of the first node.  [default: as before, or 4222]",
)  # fmt: skip
@click.option("--detach", is_flag=True, help="Run the nodes in the background.")
@click.option("--fresh", is_flag=True, help="First delete the data of an earlier run.")
def up(*, nodes: int | None, directory: str, port: int | None, detach: bool, fresh: bool) -> None:
    """Start nodes on this machine; nodes that are running already are left alone. Client ports
    count up from --port, monitoring ports from --port + 4000, route ports from --port + 2000.
    Existing configuration files are used unchanged."""
    from broker.cli.end_by_signal import end_by_signal
    from broker.local import LocalCluster

    create_private_files()
    place = Path(directory).resolve()
    running = _running(place)
    if fresh and running:
        raise click.ClickException("nodes are running; `jetraft down` stops them first")
    if fresh:
        _remove_nodes(place)
    nodes, port = _as_before(place, nodes, port)
    ports = [p for i in range(nodes) for p in (port + i, port + 4000 + i, port + 2000 + i)]
    starting = [i for i in range(nodes) if f"local-{i + 1}" not in running]
    _refuse_taken([p for i in starting for p in ports[3 * i : 3 * i + 3]])
    password = _operator_password(place) or secrets.token_hex(8)
    cluster = LocalCluster(
        place, size=nodes, name="local", ports=ports, more=OPERATOR.format(password=password)
    )
    cluster.prepare(keep=True)
    with end_by_signal():
        _start_and_stay(cluster, running, detach=detach)


def _start_and_stay(cluster: LocalCluster, running: dict[str, int], *, detach: bool) -> None:
    from broker.local import NodeFailed

    place = cluster.directory
    started = [node for node in cluster.nodes if node.name not in running]
    try:
        for node in started:
            node.start()
        for node in started:
            node.wait_healthy()
    except NodeFailed as problem:
        cluster.stop()
        raise click.ClickException(str(problem)) from problem
    except SystemExit:
        cluster.stop()
        raise
    pids = running | {node.name: node.pid for node in started}
    (place / STATE_FILE).write_text(json.dumps(pids))
    _tell(cluster, pids)
    if detach:
        return
    if not started:
        click.echo("They were running already; `jetraft down` stops them.")
        return
    rest = "; `jetraft down` stops the others" if running else ""
    names = ", ".join(node.name for node in started) if running else "them"
    click.echo(f"Ctrl-C stops {names}{rest}.")
    try:
        signal.pause()
    finally:
        click.echo("stopping")
        cluster.stop()  # what this command started
        (place / STATE_FILE).write_text(json.dumps(running))


def _tell(cluster: LocalCluster, pids: dict[str, int]) -> None:
    for node in cluster.nodes:
        click.echo(
            f"{node.name}  clients {node.url}  monitoring http://127.0.0.1:{node.http_port}  "
            f"pid {pids[node.name]}  log {node.log_path}"
        )
    if shutil.which("jetraft") is None:  # as after `make up`, which calls it by its path
        click.echo(f"command:       export PATH={Path(sys.executable).parent}:$PATH")
    click.echo(f"connect with:  export NATS_URL={','.join(cluster.urls)}")
    if password := _operator_password(cluster.directory):
        click.echo(f"operate with:  jetraft cluster status --user admin --password {password}")
    click.echo(f"console:       http://127.0.0.1:{cluster.nodes[0].http_port}/")


def _refuse_taken(ports: list[int]) -> None:
    """Raise if a port is in use, before anything is written: another cluster would answer there."""
    from broker.local import is_taken

    for port in ports:
        if is_taken(port):
            raise click.ClickException(
                f"another program listens on port {port}; stop it, or choose another --port "
                "(and --dir)"
            )


def _as_before(place: Path, nodes: int | None, port: int | None) -> tuple[int, int]:
    """Number of nodes and first port of the cluster in the directory; they cannot be changed."""
    found = sorted(place.glob("local-*/server.conf"))
    if not found:
        return nodes or 3, port or 4222
    listen = re.search(r'listen: "127\.0\.0\.1:(\d+)"', found[0].read_text())
    if listen is None:
        raise click.ClickException(f"{found[0]} has no port in `listen`")
    before = int(listen[1])
    for what, given, known in (("--nodes", nodes, len(found)), ("--port", port, before)):
        if given is not None and given != known:
            raise click.ClickException(
                f"{place} holds a cluster with {what} {known}, not {given}; --fresh removes it "
                "and its data, another --dir leaves it alone"
            )
    return len(found), before


def _operator_password(place: Path) -> str:
    """Of the cluster in the directory; empty if its files are those of somebody else."""
    for path in sorted(place.glob("local-*/server.conf")):
        found = re.search(r'user: admin, password: "(\w+)"', path.read_text())
        if found:
            return found[1]
    return ""


@click.command()
@click.argument("nodes", nargs=-1)
@click.option(
    "--dir",
    "directory",
    default="run",
    show_default=True,
    help="The directory that was given to `up`.",
)
@click.option("--kill", is_flag=True, help="Use kill -9, like a crash.")
@click.option("--leader-of", metavar="STREAM", help="Stop the node that leads this stream.")
@connection_options
def down(*, nodes: tuple[str, ...], directory: str, kill: bool, leader_of: str | None) -> None:
    """Stop nodes that `up --detach` started: the named ones, or all. Their data is kept."""
    create_private_files()
    place = Path(directory).resolve()
    running = _running(place)
    if leader_of is not None:
        nodes = (_leader_of(leader_of),)
    unknown = [name for name in nodes if name not in running]
    if unknown:
        raise click.ClickException(f"{', '.join(unknown)} is not running here")
    chosen = {name: pid for name, pid in running.items() if not nodes or name in nodes}
    for name, pid in chosen.items():
        os.kill(pid, signal.SIGKILL if kill else signal.SIGTERM)
        click.echo(f"{'killed' if kill else 'stopping'} {name} (pid {pid})")
    deadline = time.monotonic() + 10
    while any(_is_server(pid) for pid in chosen.values()) and time.monotonic() < deadline:
        time.sleep(0.05)
    for pid in chosen.values():
        if _is_server(pid):
            os.kill(pid, signal.SIGKILL)
    if not running:
        click.echo("nothing was running")


def _leader_of(stream: str) -> str:
    from broker.cli.connect import api
    from broker.cli.connect.blocking import connected

    with connected(destination()) as client:
        leader = (api.stream_info(client, stream).get("cluster") or {}).get("leader")
    if not leader:
        raise click.ClickException(f"{stream} has no leader now")
    return str(leader)


def _remove_nodes(place: Path) -> None:
    """Remove the directories of an earlier run's nodes, and nothing else."""
    if not place.exists():
        return
    ours = [path for path in place.iterdir() if (path / "server.conf").exists()]
    other = [path.name for path in place.iterdir() if path not in ours and path.name != STATE_FILE]
    if other:
        raise click.ClickException(
            f"{place} holds other files too ({', '.join(other[:3])}): nothing was removed"
        )
    for path in ours:
        shutil.rmtree(path)
    (place / STATE_FILE).unlink(missing_ok=True)


def _running(place: Path) -> dict[str, int]:
    """Nodes of the state file whose process is still a server of ours."""
    path = place / STATE_FILE
    if not path.exists():
        return {}
    state: dict[str, int] = json.loads(path.read_text())
    return {name: pid for name, pid in state.items() if _is_server(pid)}


def _is_server(pid: int) -> bool:
    """Process ids are reused: only a process that runs our server counts."""
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return b"broker" in arguments and b"serve" in arguments
