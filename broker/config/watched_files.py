"""The files that a configuration consists of, and whether one of them has changed.

Owns: which files these are: the configuration, what it includes, certificates, keys, credentials.
May not touch: the server; who watches decides what follows.
Spec: Kubernetes replaces the files of a mounted Secret or ConfigMap at once, by a symbolic link:
times and inodes say nothing, so the contents are compared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import sha256
from pathlib import Path

from msgspec import Struct

from broker.config.options import Options

_FIELDS = frozenset(["cert_file", "key_file", "ca_file", "creds", "nkey"])


def files_of(options: Options, included: Iterable[str]) -> tuple[str, ...]:
    """Paths, without repeats: the configuration file, what it includes and what it names."""
    found = dict.fromkeys([options.config_file, *included, *_named(options)])
    return tuple(path for path in found if path)


def digest(paths: Iterable[str]) -> str:
    """Of the contents. A file that cannot be read counts as empty: it is about to be replaced."""
    total = sha256()
    for path in paths:
        try:
            content = Path(path).read_bytes()
        except OSError:
            content = b""
        total.update(f"{path}\0{len(content)}\0".encode())
        total.update(content)
    return total.hexdigest()


def _named(value: object) -> Iterator[str]:
    """Values of the fields that name files, in all blocks."""
    if isinstance(value, Struct):
        for name in value.__struct_fields__:
            field = getattr(value, name)
            if name in _FIELDS and isinstance(field, str):
                yield field
            else:
                yield from _named(field)
    elif isinstance(value, dict):
        for one in value.values():
            yield from _named(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _named(one)
