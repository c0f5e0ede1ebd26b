"""A connection through an HTTP proxy, for leaf nodes in a network without direct access.

Owns: the CONNECT request, and reading its answer.
May not touch: what is sent through the tunnel.
Spec: RFC 9110, CONNECT; nats-server: `proxy` of a leaf node remote, for WebSocket URLs only, with
basic authentication. The connection to the proxy itself has no TLS. Bounds: ANSWER_MAX bytes of the
answer; the caller sets the timeout."""

from __future__ import annotations

import asyncio
import base64
import socket
from urllib.parse import urlsplit

from broker.config.options import LeafProxy
from broker.server.process.listening import join_host_port

ANSWER_MAX = 16 << 10
HTTP_PORT = 80
OK = b"200"


async def tunnel(proxy: LeafProxy, host: str, port: int) -> socket.socket:
    """A connected socket. Raises OSError, with the status line if the proxy refuses."""
    loop, place = asyncio.get_running_loop(), urlsplit(proxy.url)
    found = await loop.getaddrinfo(
        place.hostname or "", place.port or HTTP_PORT, type=socket.SOCK_STREAM
    )
    failed: OSError = ConnectionError("the proxy has no address")
    for family, kind, protocol, _, address in found:
        connection = socket.socket(family, kind, protocol)
        try:
            connection.setblocking(False)  # noqa: FBT003 - its only argument
            await loop.sock_connect(connection, address)
            await _ask(loop, connection, proxy, join_host_port(host, port))
        except OSError as error:
            connection.close()
            failed = error
        except BaseException:
            connection.close()
            raise
        else:
            return connection
    raise ConnectionError(f"proxy {place.hostname}: {failed}") from failed


async def _ask(
    loop: asyncio.AbstractEventLoop, connection: socket.socket, proxy: LeafProxy, target: str
) -> None:
    lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
    if proxy.user:
        login = base64.b64encode(f"{proxy.user}:{proxy.password}".encode()).decode()
        lines.append(f"Proxy-Authorization: Basic {login}")
    await loop.sock_sendall(connection, "\r\n".join([*lines, "", ""]).encode())
    answer = b""
    while b"\r\n\r\n" not in answer:
        part = await loop.sock_recv(connection, ANSWER_MAX - len(answer))
        if not part:
            raise ConnectionError("it closed the connection, or its answer is too long")
        answer += part
    head, _, rest = answer.partition(b"\r\n\r\n")
    status = head.split(b"\r\n", 1)[0]
    words = status.split(b" ", 2)
    if not status.startswith(b"HTTP/1.") or len(words) < 2 or words[1] != OK:
        raise ConnectionError(f"CONNECT failed: {status[:200].decode(errors='replace')}")
    if rest:  # the hub speaks only after our request
        raise ConnectionError("it sent more than the answer to CONNECT")
