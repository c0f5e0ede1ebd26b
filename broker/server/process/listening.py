"""Listening ports: bind, listen, close, and the addresses under which they can be reached.

Owns: the socket of a port, dual-stack binding as nats-server does it, and the texts of failures.
May not touch: what is accepted.
Spec: nats-server, fatal log lines of a listener; `client_advertise`."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import socket
import ssl
import struct
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address
from pathlib import Path

from broker.server.services import StartFailed

BACKLOG = 4096
SIOCGIFADDR = 0x8915  # Linux: the IPv4 address of an interface
WILDCARDS = ("0.0.0.0", "::", "")  # noqa: S104 - recognised, not bound here


class ListeningPort:
    """One port: `bind` first, `listen` when the server is ready. `what` is its name in errors."""

    def __init__(self, what: str = "port") -> None:
        self._what = what
        self._socket: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self.address = ""  # host:port, once it is bound

    @property
    def bound(self) -> bool:
        return self._socket is not None

    def bind(self, host: str, port: int) -> int:
        """Returns the port number. Raises StartFailed."""
        self._socket = bind(host, port, what=self._what)
        number: int = self._socket.getsockname()[1]
        self.address = join_host_port(host, number)
        return number

    async def listen(
        self,
        accept: Callable[[], asyncio.Protocol],
        *,
        tls: ssl.SSLContext | None = None,
        handshake_s: float | None = None,
    ) -> None:
        """Accept connections; `accept` creates the protocol of one. Raises StartFailed."""
        sock = self._socket
        assert sock is not None, "bound before"
        try:
            sock.listen(BACKLOG)
        except OSError as error:
            raise StartFailed(refusal(self.address, error, what=self._what)) from error
        self._server = await asyncio.get_running_loop().create_server(
            accept, sock=sock, backlog=BACKLOG, ssl=tls, ssl_handshake_timeout=handshake_s
        )

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        elif self._socket is not None:
            self._socket.close()
        self._socket = None


def join_host_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def bind(host: str, port: int, *, what: str = "port") -> socket.socket:
    """A bound socket that does not listen yet; port -1 takes any free one. Raises StartFailed."""
    wanted = max(port, 0)
    shown = join_host_port(host, wanted)
    try:
        if host in WILDCARDS:
            return _bind_every_interface(wanted)
        found = socket.getaddrinfo(host, wanted, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        return _bind_one(family, address)
    except socket.gaierror as error:
        reason = f"lookup {host}: no such host"
        raise StartFailed(f'Error listening on {what}: {shown}, "listen tcp: {reason}"') from error
    except OSError as error:
        raise StartFailed(refusal(shown, error, what=what)) from error


def refusal(shown: str, error: OSError, *, what: str = "port") -> str:
    reason = os.strerror(error.errno).lower() if error.errno else str(error)
    if error.errno == errno.EADDRINUSE:
        reason = "address already in use"
    return f'Error listening on {what}: {shown}, "listen tcp {shown}: bind: {reason}"'


def _bind_every_interface(port: int) -> socket.socket:
    """One IPv6 socket that takes IPv4 too; plain IPv4 where the machine has no IPv6."""
    if socket.has_ipv6:
        try:
            return _bind_one(socket.AF_INET6, ("::", port), dual_stack=True)
        except OSError as error:
            if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.ENOPROTOOPT):
                raise
    return _bind_one(socket.AF_INET, ("0.0.0.0", port))  # noqa: S104


def _bind_one(
    family: int, address: tuple[object, ...], *, dual_stack: bool = False
) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if dual_stack:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.setblocking(False)  # noqa: FBT003
        sock.bind(address)
    except OSError:
        sock.close()
        raise
    return sock


def interface_addresses(*, loopback: bool) -> list[str]:
    """Global unicast addresses of this machine, IPv4 first; 127.0.0.1 before them if wanted."""
    found = ["127.0.0.1"] if loopback else []
    for address in [*_ipv4_addresses(), *_ipv6_addresses()]:
        parsed = ip_address(address)
        if not (parsed.is_loopback or parsed.is_link_local or address in found):
            found.append(address)
    return found


def _ipv4_addresses() -> list[str]:
    found: list[str] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, request)
            except OSError:
                continue  # an interface without an IPv4 address
            found.append(socket.inet_ntoa(answer[20:24]))
    return found


def _ipv6_addresses() -> list[str]:
    try:
        lines = Path("/proc/net/if_inet6").read_text().splitlines()
    except OSError:
        return []
    return [str(IPv6Address(bytes.fromhex(line.split()[0]))) for line in lines]


def advertised(host: str, port: int, advertise: str) -> list[str]:
    """host:port forms for connect_urls; a wildcard bind lists its addresses, never loopback."""
    if advertise:
        return [advertise if has_port(advertise) else join_host_port(advertise, port)]
    if host in WILDCARDS:
        return [join_host_port(address, port) for address in interface_addresses(loopback=False)]
    return [join_host_port(host, port)]


def has_port(address: str) -> bool:
    return address.rpartition("]")[2].count(":") == 1
