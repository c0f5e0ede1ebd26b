"""The pid file and the ports file.

Owns: their form, atomic writing and removal.
May not touch: listeners.
Spec: nats-server, `pid_file` and `ports_file_dir`; tools expect nats-server_<pid>.ports."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from broker.server.process.listening import WILDCARDS, interface_addresses, join_host_port
from broker.server.process.private_files import write_private


def write_pid(path: str) -> None:
    write_private(Path(path), str(os.getpid()).encode())


def remove(path: str) -> None:
    Path(path).unlink(missing_ok=True)


def urls(scheme: str, host: str, port: int) -> list[str]:
    """Every URL of a listener; 127.0.0.1 first for a wildcard bind."""
    hosts = interface_addresses(loopback=True) if host in WILDCARDS else [host]
    return [f"{scheme}://{join_host_port(address, port)}" for address in hosts]


def write_ports(directory: str, listeners: dict[str, list[str]]) -> str:
    """Atomically, so that a poller never reads half a file; returns the path."""
    path = Path(directory) / f"nats-server_{os.getpid()}.ports"
    text = msgspec.json.encode({name: found for name, found in listeners.items() if found})
    partial = path.with_suffix(".tmp")
    write_private(partial, text)
    partial.replace(path)
    return str(path)
