"""The peer handshake: what two nodes tell each other before a link carries frames.

Owns: the greeting, the hello both sides send, the reasons to refuse one, the proof of the password.
May not touch: sockets, tasks, the loop.
Spec: the accepting side speaks first (greeting: magic, version, nonce), in a frame that every
version can read. The dialing side, if it speaks that version, answers with its hello. The accepting
side answers with its own hello (welcome) or with a refusal. The password is never sent: each side
proves that it knows it with an HMAC over the other's nonce, and proofs are compared in constant
time. Version 2: frames carry checksums."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from hashlib import sha256
from typing import Any, Final

import msgspec

from raft.types import NodeId, RaftError

MAGIC: Final = b"JRP1"
VERSION: Final = 2
NONCE_BYTES: Final = 16
PEERS_MAX: Final = 256  # addresses used of one hello

# First byte of a frame on channel 0, which belongs to the link itself.
GREETING, HELLO, WELCOME, REFUSAL, PING, PONG, NEWS = b"GHWRPQN"


class LinkClass(Enum):
    CONTROL = "control"
    BULK = "bulk"


class RefusalCode(Enum):
    OURSELVES = "ourselves"  # the address is our own
    VERSION = "version"
    CLUSTER = "cluster"
    CREDENTIALS = "credentials"
    NAME = "name"  # another running server has this name
    MALFORMED = "malformed"


class Address(msgspec.Struct, frozen=True):
    node: int
    host: str
    port: int


class Hello(msgspec.Struct, frozen=True):
    version: int
    cluster: str
    name: str
    node: int
    instance: int  # drawn at every start: tells us from another server with our name
    link: LinkClass
    host: str  # where we can be dialed; empty: the address the connection comes from
    port: int
    nonce: bytes
    proof: bytes
    peers: list[Address]
    hello: dict[str, Any]


class News(msgspec.Struct, frozen=True):
    """Sent on an open control link when the hello or the known addresses change."""

    peers: list[Address]
    hello: dict[str, Any]


class Refusal(msgspec.Struct, frozen=True):
    code: RefusalCode
    reason: str


@dataclass(eq=False)
class HandshakeRefused(RaftError):
    """A handshake that was refused. `by_us`: on our side, otherwise by the peer."""

    code: RefusalCode
    reason: str
    by_us: bool

    def __str__(self) -> str:
        return self.reason


@dataclass(frozen=True, slots=True)
class PeerCredentials:
    user: str
    password: str

    def proof(self, nonce: bytes, *, name: str, link: LinkClass, accepting: bool) -> bytes:
        """Binds the password to the other side's nonce, and to name and role of the sender."""
        text = f"{'accept' if accepting else 'dial'}\0{link.value}\0{name}\0".encode()
        key = f"{self.user}\0{self.password}".encode()
        return hmac.digest(key, text + nonce, sha256)


@dataclass(slots=True)
class LocalPeer:
    """How we introduce ourselves. Host and port become known when the listener is bound."""

    node: NodeId
    name: str
    cluster: str
    credentials: PeerCredentials | None
    details: Callable[[], dict[str, Any]]  # what the application adds to the hello
    host: str = ""
    port: int = 0
    instance: int = field(default_factory=lambda: secrets.randbits(63))

    def hello(
        self,
        link: LinkClass,
        *,
        peers: list[Address],
        their_nonce: bytes,
        our_nonce: bytes = b"",
        accepting: bool,
    ) -> Hello:
        proof = b""
        if self.credentials is not None:
            proof = self.credentials.proof(
                their_nonce, name=self.name, link=link, accepting=accepting
            )
        return Hello(
            version=VERSION,
            cluster=self.cluster,
            name=self.name,
            node=self.node,
            instance=self.instance,
            link=link,
            host=self.host,
            port=self.port,
            nonce=our_nonce,
            proof=proof,
            peers=peers,
            hello=self.details(),
        )


def greeting(nonce: bytes) -> bytes:
    return bytes((GREETING,)) + MAGIC + bytes((VERSION,)) + nonce


def read_greeting(payload: bytes) -> bytes:
    """The nonce. Raises HandshakeRefused."""
    if payload[:1] != bytes((GREETING,)) or payload[1:5] != MAGIC:
        raise HandshakeRefused(
            RefusalCode.MALFORMED, "it does not speak the peer protocol", by_us=True
        )
    if payload[5:6] != bytes((VERSION,)):
        version = payload[5] if len(payload) > 5 else 0
        reason = f"it speaks peer protocol version {version}, we speak {VERSION}"
        raise HandshakeRefused(RefusalCode.VERSION, reason, by_us=True)
    nonce = payload[6:]
    if len(nonce) != NONCE_BYTES:
        raise HandshakeRefused(RefusalCode.MALFORMED, "its greeting is malformed", by_us=True)
    return nonce


def new_nonce() -> bytes:
    return secrets.token_bytes(NONCE_BYTES)


def read_hello(payload: bytes, kind: int) -> Hello:
    """Raises HandshakeRefused: by them when it is a refusal, by us when it is not a hello."""
    if payload[:1] == bytes((REFUSAL,)):
        try:
            refusal = msgspec.json.decode(payload[1:], type=Refusal)
        except msgspec.MsgspecError:
            raise HandshakeRefused(
                RefusalCode.MALFORMED, "it gave no reason", by_us=False
            ) from None
        raise HandshakeRefused(refusal.code, refusal.reason, by_us=False)
    if payload[:1] != bytes((kind,)):
        raise HandshakeRefused(
            RefusalCode.MALFORMED, "it does not speak the peer protocol", by_us=True
        )
    try:
        return msgspec.json.decode(payload[1:], type=Hello)
    except msgspec.MsgspecError as error:
        raise HandshakeRefused(
            RefusalCode.MALFORMED, f"its hello is malformed: {error}", by_us=True
        ) from None


def check_hello(
    theirs: Hello,
    *,
    ours: LocalPeer,
    our_nonce: bytes,
    accepting: bool,
) -> None:
    """Check the peer's hello. Raises HandshakeRefused.

    `accepting`: whether we are the accepting side of the connection."""
    if theirs.version != VERSION:
        reason = f"peer protocol version {theirs.version}, expected {VERSION}"
        raise HandshakeRefused(RefusalCode.VERSION, reason, by_us=True)
    if theirs.cluster != ours.cluster:
        reason = (
            f'server "{theirs.name}" belongs to cluster "{theirs.cluster}", '
            f'server "{ours.name}" to cluster "{ours.cluster}"'
        )
        raise HandshakeRefused(RefusalCode.CLUSTER, reason, by_us=True)
    if theirs.instance == ours.instance:
        raise HandshakeRefused(RefusalCode.OURSELVES, "the address is our own", by_us=True)
    if ours.credentials is not None:
        expected = ours.credentials.proof(
            our_nonce, name=theirs.name, link=theirs.link, accepting=not accepting
        )
        if not hmac.compare_digest(expected, theirs.proof):
            reason = f'server "{theirs.name}" does not have the credentials of the cluster'
            raise HandshakeRefused(RefusalCode.CREDENTIALS, reason, by_us=True)
    if not 0 < theirs.node < 1 << 63 or not 0 < theirs.port < 65536:
        raise HandshakeRefused(RefusalCode.MALFORMED, "its name, id or port is wrong", by_us=True)
    if theirs.node == ours.node or theirs.name == ours.name:
        reason = f'another server has the name "{theirs.name}"'
        raise HandshakeRefused(RefusalCode.NAME, reason, by_us=True)


def frame(kind: int, body: object) -> bytes:
    """Payload of a frame on channel 0."""
    return bytes((kind,)) + msgspec.json.encode(body)


def addresses(known: list[Address]) -> list[tuple[NodeId, str, int]]:
    """The plausible ones among the addresses that a peer sent, a bounded number of them."""
    return [
        (NodeId(a.node), a.host, a.port)
        for a in known[:PEERS_MAX]
        if a.host and a.node > 0 and 0 < a.port < 65536
    ]
