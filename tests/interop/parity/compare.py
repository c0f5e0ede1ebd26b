"""Two answers, compared field by field after masking what must differ.

Owns: the masks and the comparison. May not touch: servers, the list of accepted differences."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

ABSENT = "(absent)"
ZERO_TIME = "0001-01-01T00:00:00Z"

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
PATTERNS = (
    (re.compile(r"\b[A-Z][A-Z2-7]{55}\b"), "<key>"),
    (re.compile(r"(?<![\w$])[A-Za-z0-9]{22}(?!\w)"), "<id>"),
    (re.compile(r"_INBOX\.[\w.]+"), "<inbox>"),
    (re.compile(r"127\.0\.0\.1:\d+"), "<address>"),
    (re.compile(r"(\$JS\.ACK\.[^ ]+?\.\d+\.\d+\.\d+\.)\d{17,20}"), r"\1<time>"),
    (re.compile(r"\bC-[A-Za-z0-9]{8}\b"), "C-<id>"),
    # The words of a JSON or number parser.
    (
        re.compile(r"^(invalid JSON: |Bad Request - |Error decoding int for '\w+': ).*", re.DOTALL),
        r"\1<why>",
    ),
    (re.compile(r"(sampling configuration: ).*"), r"\1<why>"),
    (re.compile(r"(identity does not match: )\w{8}$"), r"\1<id>"),
    (re.compile(r"^(JSON is malformed|invalid character '|unexpected end of JSON).*"), "<why>"),
    (re.compile(r"\n$"), ""),
)
# Values of the process, the machine and the moment, in documents of the monitoring port and of the
# system account; of these, only the presence is compared.
DOCUMENTS = frozenset({
    "cid", "port", "http_port", "pid", "uptime", "idle", "rtt", "cpu", "mem", "cores", "gomaxprocs",
    "gomemlimit", "in_msgs", "out_msgs", "in_bytes", "out_bytes", "now", "last_activity", "stop",
    "max_memory", "max_storage", "config_digest", "go", "git_commit", "store_dir", "num_cache",
    "num_inserts", "num_matches", "num_removes", "num_subscriptions", "cache_hit_rate",
    "avg_fanout", "max_fanout", "subscriptions", "in_client_msgs", "in_client_bytes",
    "out_client_msgs", "out_client_bytes", "num_connections", "total_connections", "connections",
    "bytes", "msgs", "seq", "total", "active_accounts", "client_connections", "conns", "ver", "cert",
    "total_conns", "consumers", "consumers_leader", "accounts", "tls_timeout", "memory", "storage", "api_errors", "http_req_stats", "client_id",
    "closed_clients", "sublist_stats", "accounts_loaded", "errors", "tls_ocsp_peer_verify",
})  # fmt: skip
# Where the order of a list means nothing: the field that orders its entries.
ORDER = ("acc", "name", "subject", "to", "cid")


@dataclass(frozen=True, slots=True)
class Difference:
    """One field in which two answers are not alike."""

    path: str
    ours: object
    theirs: object

    def __str__(self) -> str:
        return f"{self.path}: ours {_short(self.ours)}, theirs {_short(self.theirs)}"


def _short(value: object) -> str:
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 200 else text[:200] + "..."


def parsed(data: bytes) -> Any:
    """JSON as its value, anything else as text."""
    text = data.decode(errors="replace")
    if text[:1] in "{[":
        try:
            return json.loads(text)
        except ValueError:
            return text
    return text


def masked(value: Any, volatile: frozenset[str], key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: masked(one, volatile, name) for name, one in value.items()}
    if isinstance(value, list):
        return [masked(one, volatile, key) for one in value]
    if key in volatile and value is not None and not isinstance(value, bool):
        return "<varies>"
    if isinstance(value, str):
        return masked_text(value)
    return value


def masked_document(value: Any, key: str = "") -> Any:
    """The same for a document, whose lists have no order."""
    if isinstance(value, dict):
        if key in ("http_req_stats", "sublist_stats"):
            return "<varies>"
        return {name: masked_document(one, name) for name, one in value.items()}
    if isinstance(value, list):
        each = [masked_document(one, key) for one in value]
        return sorted(each, key=_rank)
    return masked(value, DOCUMENTS, key)


def _rank(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(str(value.get(name, "")) for name in ORDER)
    return str(value)


def masked_text(text: str) -> str:
    text = TIME.sub(lambda found: found[0] if found[0] == ZERO_TIME else "<time>", text)
    for pattern, shown in PATTERNS:
        text = pattern.sub(shown, text)
    return text


def differences(ours: Any, theirs: Any, path: str = "") -> Iterator[Difference]:
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for name in sorted({*ours, *theirs}):
            inner = f"{path}.{name}" if path else name
            yield from differences(ours.get(name, ABSENT), theirs.get(name, ABSENT), inner)
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for number, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
            yield from differences(mine, other, f"{path}[{number}]")
    elif ours != theirs or isinstance(ours, bool) != isinstance(theirs, bool):
        yield Difference(path, ours, theirs)
