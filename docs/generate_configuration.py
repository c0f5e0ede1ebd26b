"""docs/configuration.md, made from the code that reads the configuration file.

Owns: that file. The keys and their other spellings are found in the syntax tree of
`broker/config/file`; what they mean is in `docs/configuration_keys.yaml`. A key without a meaning
is an error, and so is a meaning without a key.
Run `python docs/generate_configuration.py` after a change.
May not touch: the server."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from broker.config.file import unsupported_keys  # noqa: E402 - found by the line above
from broker.config.flags import USAGE  # noqa: E402

FOLDER = ROOT / "broker" / "config" / "file"
STATUS = {
    "": "yes", "differs": "**differs**", "ours": "JetRaft only", "checked": "checked, not used",
}  # fmt: skip
HEAD = """\
# Configuration

`jetraft serve` takes nats-server's flags and its configuration file. `jetraft config check FILE` names every fault with its line, `jetraft serve -t -c FILE` does the same with nats-server's words.
A key that JetRaft does not support is refused by name, never ignored; an unknown key is an error too. The tables are made from the code by `docs/generate_configuration.py`, and a test keeps them current.

- *yes*: as in nats-server. *differs*: the text says how. *JetRaft only*: nats-server does not know the key. *checked, not used*: accepted, because it asks for what is the case anyway.
- Sizes are bytes or `64KB`, `1MB`, `10GB`; durations `500ms`, `2s`, `1h30m`. `$NAME` is a variable of the file or of the environment. `include "other.conf"` reads another file.
- A reload (SIGHUP, `jetraft serve --signal reload=PID`, or `--watch 10s`) applies accounts, users, permissions, limits, logging, pings, lame duck, tags, mappings, routes and their permissions and compression, JetStream's limits and remotes, leaf node remotes, the terms of WebSockets,
  and certificates, whose contents are read again. If one other key has changed, the reload is refused as a whole, and the log names it.

A cluster of three, as a file of the first node; only `server_name` differs on the others:
```
server_name: n1
listen: "0.0.0.0:4222"
http: "127.0.0.1:8222"
jetstream { store_dir: "/var/lib/jetraft", max_file_store: 100GB }
cluster {
  name: bus
  listen: "0.0.0.0:6222"
  authorization { user: route, password: $ROUTE_PASSWORD }
  routes: ["nats-route://n1:6222", "nats-route://n2:6222", "nats-route://n3:6222"]
}
accounts {
  SYS { users: [{user: admin, password: $ADMIN_PASSWORD}] }
  ORDERS { jetstream: enabled, users: [{user: orders, password: $ORDERS_PASSWORD}] }
}
system_account: SYS
```
"""  # noqa: E501 - lines of a document


def groups(module: str, function: str, tables: list[str]) -> Iterator[list[str]]:
    """Keys that are read by one function and its tables; those in one list may be synonyms."""
    tree = ast.parse((FOLDER / f"{module}.py").read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == function:
            for inner in ast.walk(node):
                if isinstance(inner, ast.Compare) and ast.unparse(inner.left) in ("key", "name"):
                    yield from _compared(inner)
    for node in tree.body:
        if isinstance(node, ast.AnnAssign | ast.Assign):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            if isinstance(target, ast.Name) and target.id in tables and node.value is not None:
                yield from _table(node.value)


def _compared(compare: ast.Compare) -> Iterator[list[str]]:
    for other in compare.comparators:
        if isinstance(other, ast.Constant) and isinstance(other.value, str):
            yield [other.value]
        elif isinstance(other, ast.Tuple):
            yield [str(one.value) for one in other.elts if isinstance(one, ast.Constant)]


def _table(value: ast.expr) -> Iterator[list[str]]:
    if isinstance(value, ast.Tuple):
        yield [str(one.value) for one in value.elts if isinstance(one, ast.Constant)]
    if not isinstance(value, ast.Dict):
        return
    alike: dict[str, list[str]] = {}
    for key, read in zip(value.keys, value.values, strict=True):
        if isinstance(key, ast.Constant):
            text = ast.unparse(read.elts[0] if isinstance(read, ast.Tuple) else read)
            alike.setdefault(text, []).append(str(key.value))
        elif isinstance(read, ast.Call):  # **dict.fromkeys((...), setter)
            (names, _) = read.args
            if isinstance(names, ast.Tuple):
                found = [str(one.value) for one in names.elts if isinstance(one, ast.Constant)]
                alike.setdefault(ast.unparse(read.args[1]), []).extend(found)
    yield from alike.values()


def rows(block: dict[str, object]) -> list[tuple[str, str, str]]:
    """(key with its other spellings, status, meaning). Raises LookupError."""
    meanings = block["keys"]
    assert isinstance(meanings, dict)
    found: dict[str, list[str]] = {}
    for reader in block["read_by"]:  # type: ignore[attr-defined]
        module, function, *tables = reader
        for group in groups(module, function, tables):
            told = [key for key in group if key in meanings]
            if not told:
                raise LookupError(f"{block['title']}: what does {group} mean?")
            for key in group:
                owner = key if key in meanings else told[0]
                spellings = found.setdefault(owner, [])
                if key != owner and key not in spellings:
                    spellings.append(key)
    if set(meanings) != set(found):
        raise LookupError(f"{block['title']}: no such key: {sorted(set(meanings) - set(found))}")
    made = []
    for key, text in meanings.items():
        status, _, meaning = text.partition(": ")
        if status not in STATUS:
            status, meaning = "", text
        name = f"`{key}`" + "".join(f", `{other}`" for other in found[key])
        made.append((name, STATUS[status], meaning))
    return made


def document() -> str:
    source = yaml.safe_load((ROOT / "docs" / "configuration_keys.yaml").read_text())
    parts = [HEAD]
    for block in source:
        parts.append(f"\n## {block['title']}\n{block.get('text', '')}".rstrip() + "\n")
        parts.append("\n| key | supported | meaning |\n| --- | --- | --- |\n")
        parts += [f"| {name} | {status} | {text} |\n" for name, status, text in rows(block)]
        refused = sorted(getattr(unsupported_keys, block.get("refused", ""), ()))
        if refused:
            listed = ", ".join(f"`{key}`" for key in refused)
            parts.append(f'\nRefused as "not supported yet": {listed}.\n')
    parts.append(f"\n## Flags\n```\n{USAGE.rstrip()}\n```\n")
    return "".join(parts)


if __name__ == "__main__":
    (ROOT / "docs" / "configuration.md").write_text(document())
