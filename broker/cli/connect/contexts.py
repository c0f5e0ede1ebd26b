"""Contexts: named servers with their login, in the files of the official `nats` tool.

Owns: reading, writing and selecting them.
May not touch: connections.
Spec: $XDG_CONFIG_HOME/nats (or ~/.config/nats): context/NAME.json, and context.txt with the name of
the selected one. Fields that we do not know stay as they are."""

from __future__ import annotations

import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any, Final

from broker.cli.connect.failures import CommandFailed

Context = dict[str, Any]
_NAME: Final = re.compile(r"[^\s/\\\x00-\x1f.*>][^\s/\\\x00-\x1f*>]*")
# As the official tool writes them.
EMPTY: Final[Context] = {
    "description": "", "url": "", "socks_proxy": "", "token": "", "user": "", "password": "",
    "creds": "", "nkey": "", "cert": "", "key": "", "ca": "", "nsc": "", "jetstream_domain": "",
    "jetstream_api_prefix": "", "jetstream_event_prefix": "", "inbox_prefix": "", "user_jwt": "",
    "user_seed": "", "color_scheme": "", "tls_first": False,
}  # fmt: skip
SECRETS: Final = ("token", "password", "user_jwt", "user_seed")


def folder() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return Path(base) / "nats"


def names() -> list[str]:
    return sorted(path.stem for path in (folder() / "context").glob("*.json"))


def selected() -> str:
    """Empty if none is."""
    try:
        return (folder() / "context.txt").read_text().strip()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise CommandFailed(f"cannot read the selected context: {error}") from error


def load(name: str) -> Context:
    path = _path(name)
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        known = ", ".join(names()) or "none is saved"
        raise CommandFailed(f"there is no context {name} (known: {known})") from None
    except (OSError, ValueError) as error:
        raise CommandFailed(f"{path}: {error}") from error
    if not isinstance(found, dict):
        raise CommandFailed(f"{path}: not a JSON object")
    return found


def save(name: str, context: Context) -> Path:
    path = _path(name)
    _write(path, json.dumps(EMPTY | context, indent=2) + "\n")
    return path


def select(name: str) -> None:
    """An empty name: none is selected."""
    if name:
        load(name)
    _write(folder() / "context.txt", name)


def remove(name: str) -> None:
    load(name)
    _path(name).unlink()
    if selected() == name:
        select("")


def _path(name: str) -> Path:
    if not _NAME.fullmatch(name):
        raise CommandFailed(f'"{name}" cannot be the name of a context')
    return folder() / "context" / f"{name}.json"


def _write(path: Path, text: str) -> None:
    """For this user only, since it may hold a password; whole or not at all."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, partial = tempfile.mkstemp(dir=path.parent, prefix=".new-")
        try:
            with os.fdopen(handle, "w") as file:
                file.write(text)
            os.replace(partial, path)
        except BaseException:
            os.unlink(partial)
            raise
    except OSError as error:
        raise CommandFailed(f"cannot write {path}: {error}") from error
