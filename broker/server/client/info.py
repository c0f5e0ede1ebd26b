"""The part of the INFO document that all clients share, and the client URLs of the cluster.

Owns: the field names and when each is present; the URLs of this server and of its peers.
May not touch: connections (listener_profile.py adds what differs from client to client).
Spec: NATS client protocol, INFO; false values of optional fields are left out."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence

from broker.config.options import VERSION
from broker.server.client.settings import ServerSettings
from broker.server.process.identity import ServerIdentity
from broker.server.process.listening import advertised, has_port
from broker.server.services import Document

PYTHON = "python{}.{}.{}".format(*sys.version_info)


class ClientInfo:
    """One per server. Call `refresh` to rebuild `shared` when one of its sources has changed."""

    def __init__(self, settings: ServerSettings, identity: ServerIdentity) -> None:
        self._settings = settings
        self._identity = identity
        self.port = 0  # of the client listener, once it is bound
        self.extend: Callable[[], Document] | None = (
            None  # more fields, from the cluster runtime (main.py sets it)
        )
        self.shared: Document = {}

    def refresh(self) -> None:
        options = self._settings.options
        host, port = self._identity.host, self.port
        if options.client_advertise:
            host, port = _split(options.client_advertise, port)
        document: Document = {
            "server_id": self._identity.id,
            "server_name": self._identity.name,
            "version": VERSION,
            "proto": 1,
            "go": PYTHON,
            "host": host,
            "port": port,
            "headers": options.headers,
            "max_payload": options.limits.max_payload,
        }
        if self._settings.authenticator.announced:
            document["auth_required"] = True
        if options.tls is not None:
            document["tls_available" if options.allow_non_tls else "tls_required"] = True
            if options.tls.verify:
                document["tls_verify"] = True
        if self.extend is not None:
            document.update(self.extend())
        elif options.cluster is not None and options.cluster.name:
            document["cluster"] = options.cluster.name
        self.shared = document


def _split(text: str, port: int) -> tuple[str, int]:
    if not has_port(text):
        return text.strip("[]"), port
    host, _, tail = text.rpartition(":")
    return host.strip("[]"), int(tail) if tail.isdigit() else port


class ClientUrls:
    """Where clients can connect (host:port): to this server, and to its peers."""

    def __init__(self, settings: ServerSettings, host: str) -> None:
        self._settings = settings
        self._host = host
        self.port = 0  # of the client listener, once it is bound
        self.websocket: Callable[[], list[str]] | None = None  # URLs of that listener, if any
        self.withdrawn = False  # in lame duck mode, or no longer a member of the cluster
        self._peers: list[str] = []
        self._peers_websocket: list[str] = []
        self.peers_known = asyncio.Event()

    @property
    def _no_advertise(self) -> bool:
        cluster = self._settings.options.cluster
        return cluster is not None and cluster.no_advertise

    def own(self) -> list[str]:
        """The URLs of this server that peers send to their clients."""
        if self.withdrawn or self._no_advertise:
            return []
        return advertised(self._host, self.port, self._settings.options.client_advertise)

    def own_websocket(self) -> list[str]:
        hidden = self.withdrawn or self._no_advertise
        return [] if hidden or self.websocket is None else self.websocket()

    def all(self, *, ldm: bool = False) -> list[str]:
        """connect_urls of INFO; in lame duck mode without this server."""
        return _with_own([] if ldm else self.own(), self._peers)

    def all_websocket(self, *, ldm: bool = False) -> list[str]:
        return _with_own([] if ldm else self.own_websocket(), self._peers_websocket)

    def set_peers(self, urls: Sequence[str], websocket: Sequence[str]) -> bool:
        """URLs of the peers, in a stable order. True when something has changed."""
        if self._no_advertise:
            return False
        if list(urls) == self._peers and list(websocket) == self._peers_websocket:
            return False
        self._peers, self._peers_websocket = list(urls), list(websocket)
        if urls:
            self.peers_known.set()
        return True


def _with_own(own: list[str], peers: list[str]) -> list[str]:
    """Our URLs and those of our peers. Without peers none: the client already knows our URL."""
    return own + [url for url in peers if url not in own] if peers else []
