"""TLS on a socket that is already open: records in, plain bytes out, and back.

Owns: the SSL objects of one connection, and the contexts made from the configuration.
May not touch: the transport; TlsLayer takes bytes and returns bytes.
Spec: NATS client protocol, TLS: the upgrade follows the INFO on the same socket."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from contextlib import suppress

from msgspec import structs

from broker.config.options import TlsOptions
from broker.credentials.certificates import key_fingerprint
from broker.server.services import Document, StartFailed

READ_SIZE = 256 * 1024
HANDSHAKE_RECORD = 0x16  # the first byte of a TLS ClientHello


class TlsFailed(Exception):
    """The handshake failed or a record is invalid."""


class PinningContext(ssl.SSLContext):
    """A context with the public keys that clients may have (`pinned_certs`)."""

    pinned: frozenset[str] = frozenset()  # empty = any

    def admits(self, certificate: bytes | None) -> bool:
        """Whether a client with this certificate (DER) may connect."""
        if not self.pinned:
            return True
        return certificate is not None and key_fingerprint(certificate) in self.pinned


def server_context(options: TlsOptions) -> ssl.SSLContext:
    """Raises OSError or ssl.SSLError when a file is missing or does not match the other."""
    context = PinningContext(ssl.PROTOCOL_TLS_SERVER)
    context.pinned = options.pinned_certs
    if options.ciphers:
        context.set_ciphers(options.ciphers)
    if options.curve:
        context.set_ecdh_curve(options.curve)
    context.minimum_version = (
        ssl.TLSVersion.TLSv1_3 if options.min_version == "1.3" else ssl.TLSVersion.TLSv1_2
    )
    context.load_cert_chain(options.cert_file, options.key_file)
    if options.ca_file:
        context.load_verify_locations(options.ca_file)
    if options.verify or options.verify_and_map:
        context.verify_mode = ssl.CERT_REQUIRED
        if not options.ca_file:
            context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
        # A resumed session skips the verification of the client's certificate, which may have
        # expired since. TLS 1.2 can also resume without a ticket: TlsLayer checks for that.
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = 0
    return context


def load_context(options: TlsOptions) -> ssl.SSLContext:
    """For a listener of clients. Raises StartFailed."""
    try:
        return server_context(options)
    except (OSError, ssl.SSLError) as error:
        text = f"error parsing X509 certificate/key pair: {error}"
        raise StartFailed(text) from error


def client_context(options: TlsOptions) -> ssl.SSLContext:
    """For links this server dials."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if options.cert_file:
        context.load_cert_chain(options.cert_file, options.key_file)
    if options.ca_file:
        context.load_verify_locations(options.ca_file)
    else:
        context.load_default_certs()
    if options.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def renew(context: ssl.SSLContext, options: TlsOptions) -> None:
    """Reload the certificates into an existing context, which others hold. The caller has checked
    that the files can be read. Open sessions continue. A CA that was removed from its file stays
    trusted until a restart."""
    if options.cert_file:
        context.load_cert_chain(options.cert_file, options.key_file)
    if options.ca_file:
        context.load_verify_locations(options.ca_file)


def route_contexts(options: TlsOptions) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """For links between nodes: (accepting, dialing); both sides present a certificate.

    Raises StartFailed."""
    try:
        accepting, dialing = (
            server_context(structs.replace(options, verify=True)),
            client_context(options),
        )
    except (OSError, ssl.SSLError) as error:
        raise StartFailed(f"cluster tls: {error}") from error
    for context in (accepting, dialing):  # both ends are JetRaft; 1.2 could resume sessions
        context.minimum_version = ssl.TLSVersion.TLSv1_3
    return accepting, dialing


def outlives_certificate(session: ssl.SSLObject, *, now: float) -> bool:
    """Whether the client's certificate is no longer valid. OpenSSL checks it when a session begins,
    but not when the session is resumed."""
    if not session.session_reused:
        return False
    certificate = session.getpeercert() or {}
    begins, ends = (str(certificate.get(key, "")) for key in ("notBefore", "notAfter"))
    if not ends:
        return False  # a client without a certificate, where none is required
    return not ssl.cert_time_to_seconds(begins) <= now <= ssl.cert_time_to_seconds(ends)


class TlsLayer:
    """One side of a TLS session over memory buffers: the server's side, unless `dialed` names the
    server to connect to."""

    __slots__ = ("_incoming", "_now", "_object", "_outgoing", "ended", "established")

    def __init__(
        self, context: ssl.SSLContext, now: Callable[[], float] = time.time, *, dialed: str = ""
    ) -> None:
        """`now` returns seconds since 1970; certificate dates are compared with it."""
        self._now = now
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(
            self._incoming, self._outgoing, server_side=not dialed, server_hostname=dialed or None
        )
        self.established = False
        self.ended = False  # the peer has closed its side

    def receive(self, chunk: bytes) -> bytes:
        """Decrypt; until the handshake is complete, advance it.

        Raises TlsFailed on a bad record and on a refused certificate."""
        self._incoming.write(chunk)
        try:
            if not self.established:
                try:
                    self._object.do_handshake()
                except ssl.SSLWantReadError:
                    return b""
                if self._object.server_side and outlives_certificate(self._object, now=self._now()):
                    raise TlsFailed("the client's certificate has expired since the session began")
                self._check_pinned()
                self.established = True
            return self._drain()
        except (ssl.SSLError, OSError) as error:
            raise TlsFailed(str(error)) from error

    def _check_pinned(self) -> None:
        session = self._object
        context = session.context
        if not isinstance(context, PinningContext) or not session.server_side:
            return
        if not context.admits(session.getpeercert(binary_form=True)):
            raise TlsFailed("the public key of the client's certificate is not pinned")

    def begin(self) -> bytes:
        """The first handshake record (ClientHello) of the side that dialed."""
        with suppress(ssl.SSLWantReadError):
            self._object.do_handshake()
        return self._outgoing.read()

    def _drain(self) -> bytes:
        parts: list[bytes] = []
        while True:
            try:
                part = self._object.read(READ_SIZE)
            except ssl.SSLWantReadError:
                break
            except ssl.SSLZeroReturnError:
                part = b""
            if not part:
                self.ended = True
                break
            parts.append(part)
        return b"".join(parts)

    def encrypt(self, data: bytes | memoryview) -> bytes:
        self._object.write(data)
        return self._outgoing.read()

    def farewell(self) -> bytes:
        """The close_notify record; a peer may wait for it."""
        if not self.established:
            return b""
        # unwrap() raises because the peer has not answered, but our record is written.
        with suppress(ssl.SSLError, OSError):
            self._object.unwrap()
        return self._outgoing.read()

    def pending_output(self) -> bytes:
        """Handshake records to send."""
        return self._outgoing.read()

    @property
    def session(self) -> ssl.SSLObject:
        return self._object


def session_document(session: ssl.SSLObject) -> Document:
    """Version, cipher and the client's certificate, as sent to the authorization service."""
    version, cipher = describe(session)
    found: Document = {"version": version, "cipher": cipher}
    certificate = session.getpeercert(binary_form=True)
    if certificate is not None:  # present only if it was verified
        found["verified_chains"] = [[ssl.DER_cert_to_PEM_cert(certificate)]]
    return found


def describe(session: ssl.SSLObject) -> tuple[str, str]:
    """(tls_version, tls_cipher_suite) as the monitor shows them."""
    cipher = session.cipher()
    version = (session.version() or "").removeprefix("TLSv")
    return version, cipher[0] if cipher else ""
