"""Which subjects cross the routes of this node: `cluster { permissions { import, export } }`.

Owns: the checks of announced interest and of routed messages.
May not touch: links, subscriptions.
Spec: nats-server. `import`: what our subscribers may get from other nodes; a subscription that is
not covered is not announced. `export`: what others may get from here; their subscriptions that are
not covered do not count. Deny wins. nats-server announces a pattern that overlaps with a denied
import, and then accepts everything; here, denied subjects are dropped on arrival. Raft, streams and
calls between nodes are not messages: they always cross."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from broker.accounts.permissions import PermissionSet
from broker.config.options import Permissions, SubjectRules
from broker.wire import PubRun

Allowed = Callable[[bytes], bool]


class RouteRules:
    """The rules of one node. In its PermissionSet, imports are publishes and exports are
    subscriptions."""

    def __init__(self, permissions: Permissions) -> None:
        imports = permissions.publish
        if imports is not None and not imports.allow:  # an empty list of routes allows everything
            imports = SubjectRules(deny=imports.deny)
        self._rules = PermissionSet(Permissions(publish=imports, subscribe=permissions.subscribe))

    def imports(self, subject: bytes) -> bool:
        """Whether a subscription is announced, and whether a message is accepted."""
        return self._rules.may_publish(subject, now_ns=0)

    def exports(self, subject: bytes, queue: bytes) -> bool:
        """Whether a subscription of another node counts here."""
        return self._rules.may_subscribe(subject, queue)

    def sends(self, subject: bytes) -> bool:
        """Whether a message may be sent to a subscription that counts."""
        return self._rules.may_receive(subject)


def shown(permissions: Permissions) -> dict[str, dict[str, list[str]]]:
    """As /routez of the other nodes shows them."""
    found: dict[str, dict[str, list[str]]] = {}
    for name, rules in (("import", permissions.publish), ("export", permissions.subscribe)):
        if rules is not None:
            lists = {"allow": rules.allow or (), "deny": rules.deny}
            found[name] = {
                key: [one.decode() for one in entries] for key, entries in lists.items() if entries
            }
    return found


def allowed_rows(run: PubRun, start: int, stop: int, allowed: Allowed) -> Iterator[tuple[int, int]]:
    """The maximal ranges of rows whose subjects are allowed."""
    begin = start
    for subject, first, last in run.segments(start, stop):
        if not allowed(subject):
            if first > begin:
                yield begin, first
            begin = last
    if stop > begin:
        yield begin, stop
