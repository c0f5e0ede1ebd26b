"""How this server names itself in what it tells through the system account.

Owns: the `server` part of answers and events, and the number each of them gets.
May not touch: what it is put in front of.
Spec: core contract 9.1; number and time are stamped when the message is sent."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING

from broker.config.options import VERSION
from broker.server.process.times import timestamp
from broker.server.services import Document

if TYPE_CHECKING:
    from broker.server.server import Server

HAS_JETSTREAM = 1  # a bit of `flags`


class ServerSummary:
    """One per server: its numbers rise with every message."""

    __slots__ = ("_sent", "_server")

    def __init__(self, server: Server) -> None:
        self._server = server
        self._sent = 0

    def stamp(self) -> Document:
        server, options = self._server, self._server.options
        self._sent += 1
        document: Document = {"name": server.name, "host": server.host, "id": server.id}
        if cluster := cluster_name(server):
            document["cluster"] = cluster
        if options.jetstream is not None and options.jetstream.domain:
            document["domain"] = options.jetstream.domain
        document["ver"] = VERSION
        if options.server_tags:
            document["tags"] = list(options.server_tags)
        document |= {
            "jetstream": options.jetstream is not None,
            "flags": 0 if options.jetstream is None else HAS_JETSTREAM,
            "seq": self._sent,
            "time": timestamp(time.time()),
        }
        return document


def event(server: Server, kind: str) -> Document:
    """How every event begins."""
    return {
        "type": f"io.nats.server.advisory.v1.{kind}",
        "id": secrets.token_hex(11),
        "timestamp": timestamp(time.time()),
        "server": server.about.stamp(),
    }


def cluster_name(server: Server) -> str:
    cluster = server.options.cluster
    return "" if cluster is None else cluster.name
