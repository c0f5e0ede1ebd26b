"""The account JWTs of a FULL resolver: one file per account.

Owns: the files of that directory.
May not touch: which of them count (trusted_accounts.py), who may change them.
Spec: nats-server, `resolver { type: full, dir }`: `<public key>.jwt`, and `.jwt.deleted` for an
account that was deleted."""

from __future__ import annotations

import os
import time
from functools import lru_cache
from pathlib import Path

from broker.credentials import jwt, nkeys
from broker.credentials.jwt import Token

SUFFIX = ".jwt"
DELETED = ".deleted"
NAMES_KEPT = 1 << 16
_Stamp = tuple[int, int, int]  # inode, size, time of the change
# By directory and account: what was read there, so that a reload reads and verifies only what has
# changed. A file is replaced, never changed. The text, and its token or why there is none.
_read: dict[tuple[str, str], tuple[_Stamp, str, Token | str]] = {}


class AccountDirectory:
    """Files are replaced as a whole: a crash leaves the old or the new one."""

    def __init__(self, directory: str) -> None:
        self._path = Path(directory)

    def names(self) -> list[str]:
        """The public keys of all accounts. Raises OSError."""
        if not self._path.is_dir():
            return []
        files = (name for name in os.listdir(self._path) if name.endswith(SUFFIX))
        stems = sorted(name.removesuffix(SUFFIX) for name in files)
        return [stem for stem in stems if _is_account(stem)]

    def text(self, public: str) -> str:
        """The JWT of one account; empty if there is none. Raises OSError."""
        return self._read(f"{public}{SUFFIX}") if _is_account(public) else ""

    def deleted(self, public: str) -> str:
        """The JWT of a deleted account; empty if there is none. Raises OSError."""
        return self._read(f"{public}{SUFFIX}{DELETED}") if _is_account(public) else ""

    def _read(self, name: str) -> str:
        try:
            return (self._path / name).read_text(errors="replace").strip()
        except FileNotFoundError:
            return ""

    def age_s(self, public: str) -> float:
        """Seconds since the JWT was stored. Raises OSError."""
        return time.time() - (self._path / f"{public}{SUFFIX}").stat().st_mtime

    def texts(self) -> dict[str, str]:
        """The JWTs by public key. Raises OSError."""
        return {public: text for public, (text, _) in self.known().items()}

    def known(self) -> dict[str, tuple[str, Token | str]]:
        """The JWTs by public key, and their tokens, or why they are none. Raises OSError."""
        found: dict[str, tuple[str, Token | str]] = {}
        here = str(self._path)
        for public in self.names():
            try:
                found[public] = _known(here, public)
            except FileNotFoundError:
                continue  # deleted since
        for gone in [key for key in _read if key[0] == here and key[1] not in found]:
            del _read[gone]
        return found

    def save(self, public: str, text: str) -> None:
        """Raises OSError."""
        self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = self._path / f"{public}.new"
        with new.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._path / f"{public}{SUFFIX}")
        self._sync()

    def delete(self, public: str) -> bool:
        """The file is renamed, so that it can be restored. False if there is none."""
        if not _is_account(public):
            return False
        file = self._path / f"{public}{SUFFIX}"
        if not file.exists():
            return False
        file.replace(file.with_name(file.name + DELETED))
        self._sync()
        return True

    def _sync(self) -> None:
        """The names are on disk when this returns: a change that was answered stays, also after a
        power failure."""
        directory = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


@lru_cache(maxsize=NAMES_KEPT)
def _is_account(name: str) -> bool:
    return nkeys.is_public(name, nkeys.KeyKind.ACCOUNT)


def _known(directory: str, public: str) -> tuple[str, Token | str]:
    """The text of a file, and its token or why there is none. Raises OSError."""
    path = f"{directory}/{public}{SUFFIX}"
    about = os.stat(path)
    stamp = (about.st_ino, about.st_size, about.st_mtime_ns)
    kept = _read.get((directory, public))
    if kept is None or kept[0] != stamp:
        text = Path(path).read_text(errors="replace").strip()
        try:
            kept = (stamp, text, jwt.decode(text))
        except jwt.BadToken as bad:
            kept = (stamp, text, str(bad))
        _read[directory, public] = kept
    return kept[1:]


def stored_accounts(directory: str) -> tuple[dict[str, Token], list[str]]:
    """The accounts of the directory, and why others are left out. Raises OSError."""
    found: dict[str, Token] = {}
    problems: list[str] = []
    for public, (_, token) in AccountDirectory(directory).known().items():
        if isinstance(token, str):
            problems.append(f"Account [{public}]: {token}")
        elif token.kind == "account" and token.subject == public:
            found[public] = token
        else:
            problems.append(f"Account [{public}]: the JWT is not of this account")
    return found, problems
