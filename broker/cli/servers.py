"""`jetraft serve`, `up` and `down`: servers on this machine.

Owns: the directory of a local cluster (its nodes' ports and process ids).
May not touch: processes it did not start."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from pathlib import Path

import click

from broker.local import LocalCluster, NodeFailed

STATE_FILE = "cluster.json"


@click.command(
    context_settings={"ignore_unknown_options": True, "help_option_names": []}, add_help_option=False
)
@click.argument("flags", nargs=-1, type=click.UNPROCESSED)
def serve(flags: tuple[str, ...]) -> None:
    """Run one server in the foreground; `jetraft serve --help` lists nats-server's flags."""
    from broker.cli.serve import serve as run

    raise SystemExit(run(list(flags)))


@click.command()
@click.option("--nodes", default=3, show_default=True, help="How many nodes.")
@click.option("--dir", "directory", default="run", show_default=True, help="Where they keep data.")
@click.option("--port", default=4222, show_default=True, help="Client port of the first node.")
@click.option("--detach", is_flag=True, help="Leave them running and return.")
@click.option("--fresh", is_flag=True, help="Forget the data of an earlier run first.")
def up(*, nodes: int, directory: str, port: int, detach: bool, fresh: bool) -> None:
    """Start nodes on this machine. Client ports count up from --port, monitoring ports from
    --port + 4000, route ports from --port + 2000."""
    place = Path(directory).resolve()
    if _running(place):
        raise click.ClickException(f"nodes from {place} are running; `jetraft down` stops them")
    if fresh and place.exists():
        shutil.rmtree(place)
    ports = [p for i in range(nodes) for p in (port + i, port + 4000 + i, port + 2000 + i)]
    cluster = LocalCluster(place, size=nodes, name="local", ports=ports)
    try:
        cluster.start()
    except NodeFailed as problem:
        raise click.ClickException(str(problem)) from problem
    for node in cluster.nodes:
        click.echo(
            f"{node.name}  clients {node.url}  monitoring http://127.0.0.1:{node.http_port}  "
            f"pid {node.pid}  log {node.log_path}"
        )
    state = {node.name: node.pid for node in cluster.nodes}
    (place / STATE_FILE).write_text(json.dumps(state))
    click.echo(f"connect with:  NATS_URL={','.join(cluster.urls)}")
    if detach:
        return
    click.echo("Ctrl-C stops them.")
    try:
        signal.pause()
    except KeyboardInterrupt:
        click.echo("stopping")
    finally:
        cluster.stop()
        (place / STATE_FILE).unlink(missing_ok=True)


@click.command()
@click.option("--dir", "directory", default="run", show_default=True, help="As given to `up`.")
def down(*, directory: str) -> None:
    """Stop the nodes that `up --detach` started. Their data stays."""
    place = Path(directory).resolve()
    running = _running(place)
    for name, pid in running.items():
        os.kill(pid, signal.SIGTERM)
        click.echo(f"stopping {name} (pid {pid})")
    deadline = time.monotonic() + 10
    while _running(place) and time.monotonic() < deadline:
        time.sleep(0.05)
    for pid in _running(place).values():
        os.kill(pid, signal.SIGKILL)
    (place / STATE_FILE).unlink(missing_ok=True)
    if not running:
        click.echo("nothing was running")


def _running(place: Path) -> dict[str, int]:
    """Nodes of the state file that still live and still are servers of ours."""
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
