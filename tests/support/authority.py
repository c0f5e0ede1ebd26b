"""A certificate authority for tests: certificates by name, as files of a mounted Secret.

Owns: its key; the layout of the directories, with the link that Kubernetes swaps."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

PEM = serialization.Encoding.PEM


class Authority:
    """Signs certificates that are good for servers and clients."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("authority of a test")
        extension = x509.BasicConstraints(ca=True, path_length=None)
        built = _builder(self._name, self._name, self._key).add_extension(extension, critical=True)
        self.pem = built.sign(self._key, hashes.SHA256()).public_bytes(PEM)

    def sign(self, name: str, hosts: list[str]) -> dict[str, bytes]:
        """The files of a Secret of type kubernetes.io/tls that also holds ca.crt."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = [
            x509.IPAddress(ip_address(host)) if host[0].isdigit() else x509.DNSName(host)
            for host in hosts
        ]
        built = _builder(_name(name), self._name, key).add_extension(
            x509.SubjectAlternativeName(names), critical=False
        )
        plain = serialization.NoEncryption()
        return {
            "ca.crt": self.pem,
            "tls.crt": built.sign(self._key, hashes.SHA256()).public_bytes(PEM),
            "tls.key": key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, plain),
        }


def mount(folder: Path, files: dict[str, bytes]) -> None:
    """Write a volume as a kubelet does, and replace the one that was there at once: the names are
    links into `..data`, which is a link to a directory."""
    folder.mkdir(parents=True, exist_ok=True)
    version = folder / f"..{len(list(folder.iterdir()))}"
    version.mkdir()
    for name, content in files.items():
        (version / name).write_bytes(content)
    (folder / "..new").symlink_to(version.name)
    os.replace(folder / "..new", folder / "..data")
    for name in files:
        link = folder / name
        if not link.is_symlink():
            link.symlink_to(f"..data/{name}")


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=2))
    )
