"""The INFO document, without what differs from client to client.

Owns: the field names and when each is present.
May not touch: connections.
Spec: core contract 1.4; false values of optional fields are left out."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

from broker.config.options import VERSION
from broker.server.client.listener import has_port
from broker.server.services import Document

if TYPE_CHECKING:
    from broker.server.server import Server


def base_info(server: Server) -> Document:
    options = server.options
    host, port = server.host, server.port
    if options.client_advertise:
        host, port = _advertised(options.client_advertise, port)
    document: Document = {
        "server_id": server.id,
        "server_name": server.name,
        "version": VERSION,
        "proto": 1,
        "go": f"python{platform.python_version()}",
        "host": host,
        "port": port,
        "headers": options.headers,
        "max_payload": options.limits.max_payload,
    }
    if server.authenticator.announced:
        document["auth_required"] = True
    if options.tls is not None:
        document["tls_available" if options.allow_non_tls else "tls_required"] = True
        if options.tls.verify:
            document["tls_verify"] = True
    if server.services is not None:
        document.update(server.services.on_connect_info())
    elif options.cluster is not None and options.cluster.name:
        document["cluster"] = options.cluster.name
    return document


def _advertised(text: str, port: int) -> tuple[str, int]:
    if not has_port(text):
        return text.strip("[]"), port
    host, _, tail = text.rpartition(":")
    return host.strip("[]"), int(tail) if tail.isdigit() else port
