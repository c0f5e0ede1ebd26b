"""The HTTP request that upgrades a socket to WebSocket, and the response.

Owns: parsing of one request head, the checks in their order, origins, cookies, the response; the
request of a server that dials, and its checks of the answer.
May not touch: sockets, frames.
Spec: RFC 6455 section 4.2, RFC 7692 section 7.1; NATS server configuration, `websocket`. The
reason of a refusal goes to the log; the peer only sees the HTTP status."""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from dataclasses import dataclass, field
from hashlib import sha1
from http import HTTPStatus
from ipaddress import ip_address
from urllib.parse import urlsplit

HEAD_MAX = 1024 * 1024  # bytes of a request head
KEY_SIZE = 16
GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
NO_MASKING = "nats-no-masking"
DEFLATE = "permessage-deflate"
DEFLATE_ANSWER = f"{DEFLATE}; server_no_context_takeover; client_no_context_takeover"


class UpgradeRefused(Exception):
    """No upgrade. str() is the reason, `response()` the HTTP response."""

    def __init__(self, reason: str, status: HTTPStatus = HTTPStatus.BAD_REQUEST) -> None:
        super().__init__(reason)
        self.status = status

    def response(self) -> bytes:
        phrase = self.status.phrase
        return (
            f"HTTP/1.1 {self.status.value} {phrase}\r\n"
            "Content-Type: text/plain; charset=utf-8\r\n"
            "Sec-Websocket-Version: 13\r\n"
            "X-Content-Type-Options: nosniff\r\n"
            "Connection: close\r\n"
            f"Content-Length: {len(phrase) + 1}\r\n\r\n{phrase}\n"
        ).encode()


Origin = tuple[str, str, int]  # scheme, host, port


@dataclass(frozen=True, slots=True)
class Terms:
    """What the listener accepts and offers."""

    secure: bool = False
    same_origin: bool = False
    origins: frozenset[Origin] = frozenset()  # empty = all
    compression: bool = False
    headers: tuple[tuple[str, str], ...] = ()  # added to the response


@dataclass(frozen=True, slots=True)
class Upgrade:
    """The negotiated options, and what the request says about the client."""

    response: bytes
    path: str
    compression: bool
    masked: bool
    browser: bool
    forwarded_for: str = ""
    cookies: dict[str, str] = field(default_factory=dict)


class _Head:
    """A first line and headers; names are kept in lower case, repeated ones as lists."""

    __slots__ = ("headers", "line")

    def __init__(self, head: bytes) -> None:
        self.line, *rest = head.decode("latin-1").split("\r\n")
        self.headers: dict[str, list[str]] = {}
        for one in rest:
            name, colon, value = one.partition(":")
            if not colon or not name or name != name.strip():
                raise UpgradeRefused("malformed header line")
            self.headers.setdefault(name.lower(), []).append(value.strip())

    def first(self, name: str) -> str:
        return self.headers.get(name, [""])[0]

    def words(self, name: str, separator: str = ",") -> list[str]:
        lines = self.headers.get(name, ())
        return [word.strip().lower() for line in lines for word in line.split(separator)]


class _Request(_Head):
    __slots__ = ("method", "path")

    def __init__(self, head: bytes) -> None:
        super().__init__(head)
        words = self.line.split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            raise UpgradeRefused("malformed request line")
        self.method, self.path, _ = words


def upgrade(head: bytes, terms: Terms) -> Upgrade:
    """`head` is the request without its empty line. Raises UpgradeRefused."""
    request = _Request(head)
    if request.method != "GET":
        raise UpgradeRefused("request method must be GET", HTTPStatus.METHOD_NOT_ALLOWED)
    if not request.first("host"):
        raise UpgradeRefused("'Host' missing in request")
    if "websocket" not in request.words("upgrade"):
        raise UpgradeRefused("invalid value for header 'Upgrade'")
    if "upgrade" not in request.words("connection"):
        raise UpgradeRefused("invalid value for header 'Connection'")
    key = request.first("sec-websocket-key")
    _check_key(key)
    if "13" not in request.words("sec-websocket-version"):
        raise UpgradeRefused("invalid version")
    _check_origin(request, terms)
    compression = terms.compression and _offers_deflate(request)
    unmasked = request.first(NO_MASKING) == "true"
    return Upgrade(
        response=_response(key, terms, compression=compression, unmasked=unmasked),
        path=request.path.partition("?")[0],
        compression=compression,
        masked=not unmasked,
        browser=request.first("user-agent").startswith("Mozilla/"),
        forwarded_for=_forwarded_for(request),
        cookies=_cookies(request),
    )


def accept_key(key: str) -> str:
    return b64encode(sha1(key.encode() + GUID, usedforsecurity=False).digest()).decode()


def _check_key(key: str) -> None:
    if not key:
        raise UpgradeRefused("key missing")
    try:
        size = len(b64decode(key.encode("latin-1"), validate=True))
    except NotBase64:
        size = 0
    if size != KEY_SIZE:
        raise UpgradeRefused("invalid websocket key")


def _offers_deflate(request: _Request) -> bool:
    offers = request.words("sec-websocket-extensions")
    return any(offer.partition(";")[0].strip() == DEFLATE for offer in offers)


def _response(key: str, terms: Terms, *, compression: bool, unmasked: bool) -> bytes:
    lines = [
        "HTTP/1.1 101 Switching Protocols",
        "Upgrade: websocket",
        "Connection: Upgrade",
        f"Sec-WebSocket-Accept: {accept_key(key)}",
    ]
    if compression:
        lines.append(f"Sec-WebSocket-Extensions: {DEFLATE_ANSWER}")
    if unmasked:
        lines.append("Nats-No-Masking: true")
    lines += [f"{name}: {value}" for name, value in terms.headers]
    return "\r\n".join([*lines, "", ""]).encode()


# -- the side that dials -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Offer:
    """What the side that dials would like."""

    host: str  # and port
    path: str
    key: str  # KEY_SIZE random bytes, as base64
    compression: bool = False
    no_masking: bool = False

    def request(self) -> bytes:
        lines = [
            f"GET {self.path} HTTP/1.1",
            f"Host: {self.host}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            f"Sec-WebSocket-Key: {self.key}",
            "Sec-WebSocket-Version: 13",
        ]
        if self.compression:
            lines.append(f"Sec-WebSocket-Extensions: {DEFLATE_ANSWER}")
        if self.no_masking:
            lines.append("Nats-No-Masking: true")
        return "\r\n".join([*lines, "", ""]).encode()

    def answered(self, head: bytes) -> tuple[bool, bool]:
        """Whether messages may be compressed, and whether we mask ours. `head` is the response
        without its empty line. Raises UpgradeRefused."""
        answer = _Head(head)
        upgraded = (
            answer.line.split(" ")[1:2] == ["101"]
            and "websocket" in answer.words("upgrade")
            and "upgrade" in answer.words("connection")
            and answer.first("sec-websocket-accept") == accept_key(self.key)
        )
        if not upgraded:
            raise UpgradeRefused(f"invalid websocket connection: {answer.line[:80]}")
        extensions = answer.words("sec-websocket-extensions", ";")
        compression = self.compression and DEFLATE in extensions
        if compression and not {"server_no_context_takeover", "client_no_context_takeover"} <= set(
            extensions
        ):
            raise UpgradeRefused("compression negotiation error")
        masked = not (self.no_masking and answer.first(NO_MASKING) == "true")
        return compression, masked


# -- origins -------------------------------------------------------------------------------------


def parse_origin(text: str) -> Origin:
    """Raises ValueError."""
    parts = urlsplit(text)
    if not parts.scheme or not parts.hostname:
        raise ValueError(f"invalid URI for request: {text!r}")
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return parts.scheme, parts.hostname, port


def _check_origin(request: _Request, terms: Terms) -> None:
    """A browser always sends Origin. A client that sends none is not a browser and is accepted."""
    if not terms.same_origin and not terms.origins:
        return
    text = request.first("origin") or request.first("sec-websocket-origin")
    if not text:
        return
    try:
        origin = parse_origin(text)
        here = parse_origin(f"{'https' if terms.secure else 'http'}://{request.first('host')}")
    except ValueError as error:
        raise UpgradeRefused(f"origin not allowed: {error}", HTTPStatus.FORBIDDEN) from error
    if terms.same_origin and origin[1:] != here[1:]:
        raise UpgradeRefused("origin not allowed: not same origin", HTTPStatus.FORBIDDEN)
    if terms.origins and origin not in terms.origins:
        raise UpgradeRefused("origin not allowed: not in the allowed list", HTTPStatus.FORBIDDEN)


# -- facts about the client ----------------------------------------------------------------------


def _forwarded_for(request: _Request) -> str:
    text = request.first("x-forwarded-for").partition(",")[0].strip()
    try:
        return str(ip_address(text))
    except ValueError:
        return ""


def _cookies(request: _Request) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in request.headers.get("cookie", ()):
        for pair in line.split(";"):
            name, equals, value = pair.strip().partition("=")
            if equals and name:
                found.setdefault(name, value.removeprefix('"').removesuffix('"'))
    return found
