"""Certificates of clients: the user names in them, and the keys that are pinned.

Owns: the names that a certificate may be mapped to, in nats-server's order, and the fingerprint of
its public key.
May not touch: users (broker.accounts), sockets.
Spec: NATS server configuration, `tls { verify_and_map, pinned_certs }`; RFC 2253 for subjects."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

_SHORT = {
    "commonName": "CN",
    "organizationalUnitName": "OU",
    "organizationName": "O",
    "countryName": "C",
    "stateOrProvinceName": "ST",
    "localityName": "L",
    "serialNumber": "SERIALNUMBER",
    "streetAddress": "STREET",
    "postalCode": "POSTALCODE",
    "domainComponent": "DC",
}
_ALTERNATIVES = ("email", "DNS", "URI")
_ESCAPED = frozenset(',+"\\<>;')


def user_names(certificate: Mapping[str, Any]) -> tuple[str, ...]:
    """Of a certificate as ssl.SSLObject.getpeercert returns it: addresses, hosts, URIs, then the
    whole subject."""
    found = [
        value
        for kind in _ALTERNATIVES
        for name, value in certificate.get("subjectAltName", ())
        if name == kind
    ]
    return (*found, subject_text(certificate.get("subject", ())))


def subject_text(subject: tuple[tuple[tuple[str, str], ...], ...]) -> str:
    """`CN=x,OU=y`: the last part of the certificate's subject comes first."""
    parts = [
        "+".join(f"{_SHORT.get(name, name)}={_escaped(value)}" for name, value in group)
        for group in reversed(subject)
    ]
    return ",".join(parts)


def _escaped(value: str) -> str:
    shown = "".join(f"\\{one}" if one in _ESCAPED else one for one in value)
    if shown[:1] in ("#", " "):
        shown = f"\\{shown}"
    return f"{shown[:-1]}\\ " if shown.endswith(" ") and len(shown) > 1 else shown


def key_fingerprint(der: bytes) -> str:
    """SHA-256 of the public key (SubjectPublicKeyInfo) of a certificate, in hexadecimal digits."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
    from cryptography.x509 import load_der_x509_certificate

    key = load_der_x509_certificate(der).public_key()
    spki = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(spki).hexdigest()
