"""The peer handshake: what two nodes prove and tell each other before a link carries frames.

Owns: greeting, challenge, answer and hello; the reasons to refuse; the proof of the password and
the keys that follow from it.
May not touch: sockets, tasks, the loop.
Spec, in this order:

    accepting side   greeting: magic, oldest version, nonce; in a frame that every version can read
    dialing side     challenge: link class, its own nonce, its proof, the versions it speaks
    accepting side   answer: its proof and the version of this link, or a refusal
    dialing side     hello: who it is, whom it knows
    accepting side   welcome: the same about itself, or a refusal

No side sends a name, an address or a cluster before the other side has proved that it knows the
password. The password is never sent: a proof is an HMAC over both nonces, the link class and the
role of its sender, compared in constant time. From the same secret and nonces both sides derive a
key per direction, and every frame after the answer carries a tag made with it
(raft/transport/frame_guard.py), so relaying a handshake gains nothing. Without credentials there
are no proofs, and frames carry checksums.

A link uses the newest version that both sides speak (docs/decisions/0022-upgrades.md). The version
is chosen before frames are tagged, so both hellos repeat the newest version of their sender: a link
that an attacker has downgraded is refused. Version 3 named no range
and had no compressed frames (raft/transport/frame_compression.py); 2 had no challenge."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from hashlib import sha256
from typing import Any, Final, TypeVar

import msgspec

from raft.transport.frame_guard import Checksums, FrameGuard
from raft.types import NodeId, RaftError

MAGIC: Final = b"JRP1"
BASE_VERSION: Final = 3  # the version of peers whose messages do not state one
NONCE_BYTES: Final = 16
PEERS_MAX: Final = 256  # addresses used of one hello
Shape = TypeVar("Shape", bound=msgspec.Struct)

# First byte of a frame on channel 0, which belongs to the link itself.
GREETING, CHALLENGE, ANSWER, HELLO, WELCOME, REFUSAL, PING, PONG, NEWS = b"GCAHWRPQN"


@dataclass(frozen=True, slots=True)
class PeerVersions:
    """The versions of the peer protocol that a node speaks."""

    oldest: int
    newest: int

    def __str__(self) -> str:
        one = f"version {self.oldest}"
        return one if self.oldest == self.newest else f"versions {self.oldest} to {self.newest}"

    def agree(self, theirs: PeerVersions) -> int:
        """The version of a link between the two. Raises HandshakeRefused."""
        version = min(self.newest, theirs.newest)
        if version < max(self.oldest, theirs.oldest):
            reason = f"it speaks peer protocol {theirs}, we speak {self}"
            raise HandshakeRefused(RefusalCode.VERSION, reason, by_us=True)
        return version


VERSIONS: Final = PeerVersions(oldest=3, newest=4)


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
    instance: int  # random for every start: distinguishes us from a server of the same name
    link: LinkClass
    host: str  # where we can be dialed; empty: the address the connection comes from
    port: int
    peers: list[Address]
    hello: dict[str, Any]
    newest: int = BASE_VERSION  # the newest version that the sender speaks


class Challenge(msgspec.Struct, frozen=True):
    """The dialing side asks for a proof and gives its own; b"" without credentials."""

    link: LinkClass
    nonce: bytes
    proof: bytes
    oldest: int = BASE_VERSION
    newest: int = BASE_VERSION


class Answer(msgspec.Struct, frozen=True):
    proof: bytes
    version: int = BASE_VERSION  # of this link


class News(msgspec.Struct, frozen=True):
    """Sent on an open control link when the hello or the known addresses change."""

    peers: list[Address]
    hello: dict[str, Any]


class Refusal(msgspec.Struct, frozen=True):
    code: RefusalCode
    reason: str


@dataclass(eq=False)
class HandshakeRefused(RaftError):
    """A handshake that was refused: `by_us`, or otherwise by the peer."""

    code: RefusalCode
    reason: str
    by_us: bool

    def __str__(self) -> str:
        return self.reason


@dataclass(frozen=True, slots=True)
class Nonces:
    """The random values of both sides, which make a connection different from all others."""

    accepting: bytes
    dialing: bytes
    link: LinkClass

    @property
    def text(self) -> bytes:
        return b"\0".join((self.link.value.encode(), self.accepting, self.dialing))


@dataclass(frozen=True, slots=True)
class PeerCredentials:
    user: str
    password: str

    def proof(self, nonces: Nonces, *, accepting: bool) -> bytes:
        """The proof of the accepting or the dialing side; neither is valid for the other side."""
        return self._derive("accept" if accepting else "dial", nonces)

    def guard(self, nonces: Nonces, *, accepting: bool) -> FrameGuard:
        """The guard for the frames of this connection, on its accepting or dialing side."""
        keys = [self._derive(f"frames of {side}", nonces) for side in ("dial", "accept")]
        mine, theirs = reversed(keys) if accepting else keys
        from raft.transport.frame_tags import Tags  # it takes 7 MB

        return Tags(sending=mine, receiving=theirs)

    def _derive(self, purpose: str, nonces: Nonces) -> bytes:
        key = f"{self.user}\0{self.password}".encode()
        return hmac.digest(key, f"JRP{BASE_VERSION} {purpose}\0".encode() + nonces.text, sha256)


@dataclass(slots=True)
class LocalPeer:
    """What we tell peers about ourselves. Host and port are known once the listener is bound."""

    node: NodeId
    name: str
    cluster: str
    credentials: PeerCredentials | None
    details: Callable[[], dict[str, Any]]  # what the application adds to the hello
    host: str = ""
    port: int = 0
    instance: int = field(default_factory=lambda: secrets.randbits(63))
    versions: PeerVersions = VERSIONS
    # Returns why the application refuses a peer, given the name and the details of its hello.
    objection: Callable[[str, dict[str, Any]], str | None] = lambda _name, _details: None

    def hello(self, link: LinkClass, version: int, *, peers: list[Address]) -> Hello:
        return Hello(
            version=version,
            cluster=self.cluster,
            name=self.name,
            node=self.node,
            instance=self.instance,
            link=link,
            host=self.host,
            port=self.port,
            peers=peers,
            hello=self.details(),
            newest=self.versions.newest,
        )

    def proof(self, nonces: Nonces, *, accepting: bool) -> bytes:
        return self.credentials.proof(nonces, accepting=accepting) if self.credentials else b""

    def check_proof(self, proof: bytes, nonces: Nonces, *, accepting: bool) -> None:
        """`accepting`: whether it must be the proof of the accepting side. Raises
        HandshakeRefused, with a reason that reveals nothing to a stranger."""
        if self.credentials is not None:
            expected = self.credentials.proof(nonces, accepting=accepting)
            if not hmac.compare_digest(expected, proof):
                reason = "it does not have the credentials of the cluster"
                raise HandshakeRefused(RefusalCode.CREDENTIALS, reason, by_us=True)

    def guard(self, nonces: Nonces, *, accepting: bool) -> FrameGuard:
        """The guard to use once both proofs are verified."""
        if self.credentials is None:
            return Checksums()
        return self.credentials.guard(nonces, accepting=accepting)


def greeting(nonce: bytes, versions: PeerVersions) -> bytes:
    return bytes((GREETING,)) + MAGIC + bytes((versions.oldest,)) + nonce


def read_greeting(payload: bytes, ours: PeerVersions) -> bytes:
    """The nonce. Raises HandshakeRefused. The newest version of the other side is not known yet."""
    if payload[:1] != bytes((GREETING,)) or payload[1:5] != MAGIC:
        raise HandshakeRefused(
            RefusalCode.MALFORMED, "it does not speak the peer protocol", by_us=True
        )
    oldest = payload[5] if len(payload) > 5 else 0
    if not BASE_VERSION <= oldest <= ours.newest:
        reason = f"it speaks peer protocol version {oldest}, we speak {ours}"
        raise HandshakeRefused(RefusalCode.VERSION, reason, by_us=True)
    nonce = payload[6:]
    if len(nonce) != NONCE_BYTES:
        raise HandshakeRefused(RefusalCode.MALFORMED, "its greeting is malformed", by_us=True)
    return nonce


def new_nonce() -> bytes:
    return secrets.token_bytes(NONCE_BYTES)


def read_challenge(payload: bytes) -> Challenge:
    """Raises HandshakeRefused."""
    challenge = _read(payload, CHALLENGE, Challenge)
    if len(challenge.nonce) != NONCE_BYTES:
        raise HandshakeRefused(RefusalCode.MALFORMED, "its challenge is malformed", by_us=True)
    return challenge


def read_answer(payload: bytes) -> Answer:
    """Raises HandshakeRefused: by them when it is a refusal."""
    return _read(payload, ANSWER, Answer)


def read_hello(payload: bytes, kind: int) -> Hello:
    """Raises HandshakeRefused: by them when it is a refusal, by us when it is not a hello."""
    return _read(payload, kind, Hello)


def _read(payload: bytes, kind: int, shape: type[Shape]) -> Shape:
    if payload[:1] == bytes((REFUSAL,)):
        try:
            refusal = msgspec.json.decode(payload[1:], type=Refusal)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise HandshakeRefused(
                RefusalCode.MALFORMED, "it gave no reason", by_us=False
            ) from None
        raise HandshakeRefused(refusal.code, refusal.reason, by_us=False)
    if payload[:1] != bytes((kind,)):
        raise HandshakeRefused(
            RefusalCode.MALFORMED, "it does not speak the peer protocol", by_us=True
        )
    try:
        return msgspec.json.decode(payload[1:], type=shape)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise HandshakeRefused(
            RefusalCode.MALFORMED, f"its {shape.__name__.lower()} is malformed: {error}", by_us=True
        ) from None


def check_hello(theirs: Hello, version: int, *, ours: LocalPeer) -> None:
    """Check the hello of a peer that has proved its credentials, on a link of this version. Raises
    HandshakeRefused."""
    expected = min(theirs.newest, ours.versions.newest)
    if theirs.version != version or version != expected:
        reason = f"peer protocol version {theirs.version}, expected {expected}"
        raise HandshakeRefused(RefusalCode.VERSION, reason, by_us=True)
    if theirs.cluster != ours.cluster:
        reason = (
            f'server "{theirs.name}" belongs to cluster "{theirs.cluster}", '
            f'server "{ours.name}" to cluster "{ours.cluster}"'
        )
        raise HandshakeRefused(RefusalCode.CLUSTER, reason, by_us=True)
    if theirs.instance == ours.instance:
        raise HandshakeRefused(RefusalCode.OURSELVES, "the address is our own", by_us=True)
    if not 0 < theirs.node < 1 << 63 or not 0 < theirs.port < 65536:
        raise HandshakeRefused(RefusalCode.MALFORMED, "its name, id or port is wrong", by_us=True)
    if theirs.node == ours.node or theirs.name == ours.name:
        reason = f'another server has the name "{theirs.name}"'
        raise HandshakeRefused(RefusalCode.NAME, reason, by_us=True)


def check_wanted(theirs: Hello, *, ours: LocalPeer) -> None:
    """Raises HandshakeRefused if the application refuses the peer. The accepting side checks this
    after it has sent its own hello, so that both sides know why they have no link."""
    objection = ours.objection(theirs.name, theirs.hello)
    if objection is not None:
        raise HandshakeRefused(RefusalCode.CLUSTER, objection, by_us=True)


def frame(kind: int, body: object) -> bytes:
    """Payload of a frame on channel 0."""
    return bytes((kind,)) + msgspec.json.encode(body)


def addresses(known: list[Address]) -> list[tuple[NodeId, str, int]]:
    """The valid addresses among those that a peer sent, up to PEERS_MAX."""
    return [
        (NodeId(a.node), a.host, a.port)
        for a in known[:PEERS_MAX]
        if a.host and a.node > 0 and 0 < a.port < 65536
    ]
