"""What may cross a leaf node connection, in each direction.

Owns: the allow and deny lists of one connection: those of the user, of the remote's configuration
and those that keep the JetStream of one domain apart from that of another.
May not touch: connections. `Permissions` are from the point of view of the leaf node: it publishes
to the hub (export) and subscribes there (import).
Spec: nats-server, leaf nodes: permissions are told in INFO and hold on both sides; JetStream of
another domain is reached by `$JS.<domain>.API` only."""

from __future__ import annotations

from dataclasses import dataclass

from broker.config.options import Permissions, SubjectRules
from broker.subjects import collides, has_wildcard, is_subset

JETSTREAM = (b"$JS.API.>", b"$KV.>", b"$OBJ.>")
JETSTREAM_SYSTEM = (b"$JSC.>", b"$NRG.>")
LOOP_PREFIX = b"$LDS."
UNCHECKED = (LOOP_PREFIX, b"_GR_.", b"$GR.")
VERDICTS_MAX = 1024  # cached decisions; the cache is cleared when it is full
VERDICT_BYTES_MAX = (
    256  # of a subject, which may have a megabyte here; a longer one is judged again
)


@dataclass(frozen=True, slots=True)
class SubjectList:
    """allow=None: everything that is not denied."""

    allow: tuple[bytes, ...] | None = None
    deny: tuple[bytes, ...] = ()

    @classmethod
    def of(cls, rules: SubjectRules | None, deny: tuple[bytes, ...] = ()) -> SubjectList:
        given = rules or SubjectRules()
        return cls(given.allow or None, _without_queues(given.deny) + deny)

    def admits(self, subject: bytes) -> bool:
        """A subject, or all subjects of a pattern that are not denied one by one."""
        if any(is_subset(subject, entry) for entry in self.deny):
            return False
        if self.allow is None:
            return True
        return any(is_subset(subject, entry) for entry in _without_queues(self.allow))

    def admits_part(self, pattern: bytes) -> bool:
        """As `admits`; of a pattern, one subject is enough."""
        if not has_wildcard(pattern):
            return self.admits(pattern)
        if any(is_subset(pattern, entry) for entry in self.deny):
            return False
        if self.allow is None:
            return True
        return any(collides(pattern, entry) for entry in _without_queues(self.allow))

    def concerns(self, pattern: bytes) -> bool:
        """Whether messages of this pattern have to be checked subject by subject."""
        if self.allow is not None:
            return True
        return any(collides(pattern, entry) for entry in self.deny)


class LeafRules:
    """The four questions of one connection. `outbound`: what we send as messages, and what the
    other side may ask for; `inbound`: what we ask for, and what we take as messages."""

    __slots__ = ("_accepted", "_asked", "_inbound", "_outbound", "_verdicts", "strict")

    def __init__(
        self,
        outbound: SubjectList,
        inbound: SubjectList,
        accepted: SubjectList,
        asked: SubjectList | None = None,
    ) -> None:
        """`accepted`: the messages that we take. `asked`: what the other side may subscribe to;
        None: it has told us the rules, so that what it asks for is within them, and a message
        outside of them is dropped. Otherwise it ends the connection."""
        self._asked = asked
        self._outbound = outbound
        self._inbound = inbound
        self._accepted = accepted
        self._verdicts: dict[bytes, bool] = {}
        self.strict = asked is not None

    def may_send(self, subject: bytes) -> bool:
        """A message may go to the other side."""
        verdict = self._verdicts.get(subject)
        if verdict is None:
            if len(self._verdicts) >= VERDICTS_MAX:
                self._verdicts.clear()
            verdict = self._outbound.admits(subject)
            if len(subject) <= VERDICT_BYTES_MAX:
                self._verdicts[subject] = verdict
        return verdict

    def inspects(self, pattern: bytes) -> bool:
        """Whether messages for this subscription of the other side need `may_send`."""
        return self._outbound.concerns(pattern)

    def may_announce(self, pattern: bytes) -> bool:
        """The other side is told of this subscription."""
        return self._inbound.admits_part(pattern)

    def may_ask_for(self, subject: bytes) -> bool:
        """The other side may subscribe to it. A pattern is narrowed message by message."""
        if self._asked is None or subject.startswith(UNCHECKED) or has_wildcard(subject):
            return True
        return self._asked.admits(subject)

    @property
    def guarded(self) -> bool:
        return self._accepted != SubjectList()

    def may_receive(self, subject: bytes) -> bool:
        """We take this message."""
        return self._accepted.admits(subject) or subject.startswith((b"_R_.", b"$JS.ACK."))


def hub_rules(
    permissions: Permissions | None, deny_pub: tuple[bytes, ...], *, domain: str, system: bool
) -> LeafRules:
    """For a leaf node that has connected to us; `deny_pub` is what it does not want."""
    given = permissions or Permissions()
    apart = _apart(system=system)
    outbound = SubjectList.of(given.subscribe, deny_pub + apart + _own_domain(domain))
    inbound = SubjectList.of(given.publish, apart)
    asked, accepted = SubjectList.of(given.subscribe), SubjectList.of(given.publish)
    return LeafRules(outbound, inbound, accepted, asked)


def spoke_rules(
    permissions: Permissions | None,
    *,
    deny_imports: tuple[bytes, ...],
    deny_exports: tuple[bytes, ...],
    domain: str,
    system: bool,
) -> LeafRules:
    """For the connection to our hub; the permissions are those that it has told us."""
    given = permissions or Permissions()
    apart = _apart(system=system)
    outbound = SubjectList.of(given.publish, deny_exports + apart + _own_domain(domain))
    inbound = SubjectList.of(given.subscribe, deny_imports + apart)
    return LeafRules(outbound, inbound, inbound)


def _apart(*, system: bool) -> tuple[bytes, ...]:
    return JETSTREAM + JETSTREAM_SYSTEM if system else JETSTREAM


def _own_domain(domain: str) -> tuple[bytes, ...]:
    """Requests for our own JetStream stay here, even if another server has the same domain."""
    return (b"$JS.%b.API.>" % domain.encode(),) if domain else ()


def _without_queues(entries: tuple[bytes, ...]) -> tuple[bytes, ...]:
    return tuple(entry for entry in entries if b" " not in entry)
