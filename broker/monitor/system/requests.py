"""The body of a request in the system account: which servers it addresses, and its options.

Owns: the filters that choose servers, and the translation of options to a monitor's query.
May not touch: the documents.
Spec: NATS system account, event filter options."""

from __future__ import annotations

from typing import Any

import msgspec

from broker.monitor.observed import Observed
from broker.server.services import Query

STATES = ("open", "closed", "all")
# Options of a body that have another name in the monitor's query.
RENAMED = {
    "account": "acc",
    "subscriptions": "subs",
    "consumer": "consumers",
    "leader_only": "leader-only",
    "stream_leader_only": "stream-leader-only",
}


class BadRequest(Exception):
    """The body cannot be read; str() is the reason (400)."""


class Filters(msgspec.Struct):
    """Which servers are addressed. No filter = all of them."""

    server_name: str = ""
    cluster: str = ""
    host: str = ""
    domain: str = ""
    exact_match: bool = False
    tags: list[str] | None = None

    def match(self, observed: Observed) -> bool:
        """Whether this server is addressed."""
        options = observed.server.options
        wanted = (self.server_name, self.cluster, self.host)
        ours = (observed.name, observed.cluster_name, observed.host)
        for text, name in zip(wanted, ours, strict=True):
            if text and (text != name if self.exact_match else text not in name):
                return False
        domain = "" if options.jetstream is None else options.jetstream.domain
        if self.domain and self.domain != domain:
            return False
        tags = {tag.lower() for tag in options.server_tags}
        return all(tag.lower() in tags for tag in self.tags or ())


def read(payload: bytes) -> tuple[Filters, dict[str, Any]]:
    """The filters and all options of the body. Raises BadRequest."""
    if not payload.strip():
        return Filters(), {}
    try:
        asked = msgspec.json.decode(payload, type=dict[str, Any])
        return msgspec.convert(asked, Filters), asked
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(str(error)) from error


def query(asked: dict[str, Any]) -> Query:
    """The options as the query of a monitor request. Raises BadRequest."""
    found = {
        RENAMED.get(name, name): _text(value)
        for name, value in asked.items()
        if value is not None and not isinstance(value, list | dict)
    }
    if asked.get("subscriptions_detail") is True:
        found["subs"] = "detail"
    state = asked.get("state", 0)
    if not isinstance(state, int) or not 0 <= state < len(STATES):
        raise BadRequest(f"unknown connection state {state!r}")
    found["state"] = STATES[state]
    return found


def _text(value: object) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)
