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
VERDICT_BYTES_MAX = 256  # longer subjects (up to a megabyte here) are not cached


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
        """Whether a subject is allowed. Of a pattern, single subjects may still be denied."""
        if any(is_subset(subject, entry) for entry in self.deny):
            return False
        if self.allow is None:
            return True
        return any(is_subset(subject, entry) for entry in _without_queues(self.allow))

    def admits_part(self, pattern: bytes) -> bool:
        """Like `admits`, but a pattern passes if at least one of its subjects is allowed."""
        if not has_wildcard(pattern):
            return self.admits(pattern)
        if any(is_subset(pattern, entry) for entry in self.deny):
            return False
        if self.allow is None:
            return True
        return any(collides(pattern, entry) for entry in _without_queues(self.allow))

    def concerns(self, pattern: bytes) -> bool:
        """Whether messages that match this pattern must be checked one by one."""
        if self.allow is not None:
            return True
        return any(collides(pattern, entry) for entry in self.deny)


class LeafRules:
    """The rules of one connection, from our side. `outbound` limits the messages that we send;
    `inbound` limits the subscriptions that we announce."""

    __slots__ = ("_accepted", "_asked", "_inbound", "_outbound", "_verdicts", "strict")

    def __init__(
        self,
        outbound: SubjectList,
        inbound: SubjectList,
        accepted: SubjectList,
        asked: SubjectList | None = None,
    ) -> None:
        """`accepted`: the messages that we accept. `asked`: what the other side may subscribe to; a
        message outside of `accepted` then ends the connection (`strict`). `asked` is None if the
        other side made the rules: its subscriptions are not checked, and a message outside of
        `accepted` is dropped."""
        self._asked = asked
        self._outbound = outbound
        self._inbound = inbound
        self._accepted = accepted
        self._verdicts: dict[bytes, bool] = {}
        self.strict = asked is not None

    def may_send(self, subject: bytes) -> bool:
        """Whether a message may be sent to the other side."""
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
        """Whether this subscription of ours may be announced to the other side."""
        return self._inbound.admits_part(pattern)

    def may_ask_for(self, subject: bytes) -> bool:
        """Whether the other side may subscribe to it. A pattern may always be subscribed to: each
        message is checked by `may_send`."""
        if self._asked is None or subject.startswith(UNCHECKED) or has_wildcard(subject):
            return True
        return self._asked.admits(subject)

    @property
    def guarded(self) -> bool:
        return self._accepted != SubjectList()

    def may_receive(self, subject: bytes) -> bool:
        """Whether we accept a message on this subject."""
        return self._accepted.admits(subject) or subject.startswith((b"_R_.", b"$JS.ACK."))


def hub_rules(
    permissions: Permissions | None, deny_pub: tuple[bytes, ...], *, domain: str, system: bool
) -> LeafRules:
    """For a leaf node that connected to us; `deny_pub` lists what it does not want to get."""
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
    """For the connection to our hub; the permissions are those in its INFO."""
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
