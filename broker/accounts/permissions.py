"""What one user may publish and subscribe to.

Owns: the allow and deny lists of a user, with cached decisions, and allow_responses grants.
May not touch: connections, clocks (now is an argument).
Spec: NATS authorization, permissions. Deny wins; a denied part of a wildcard subscription is
filtered at delivery."""

from __future__ import annotations

from broker.config.options import Permissions, SubjectRules
from broker.subjects import collides, has_wildcard, intersection, is_subset, matches

VERDICTS_MAX = 1024  # cached decisions; the cache is cleared when it is full
VERDICT_BYTES_MAX = 256  # longer subjects are not cached: every connection has a cache
GRANTS_MAX = 8192  # open allow_responses grants; the oldest is dropped beyond that
GRANTS_BYTES_MAX = 1 << 20  # of their subjects


class _Rules:
    """One list, split into plain entries and entries that name a queue."""

    __slots__ = ("plain", "queued")

    def __init__(self, entries: tuple[bytes, ...]) -> None:
        self.plain: list[bytes] = []
        self.queued: list[tuple[bytes, bytes]] = []
        for entry in entries:
            subject, _, queue = entry.partition(b" ")
            if queue.strip():
                self.queued.append((subject, queue.strip()))
            else:
                self.plain.append(subject)

    def covers(self, subject: bytes, queue: bytes) -> bool:
        named = [pattern for entry, pattern in self.queued if is_subset(subject, entry)]
        if queue and named:
            return any(matches(queue, pattern) for pattern in named)
        return any(is_subset(subject, entry) for entry in self.plain)


class PermissionSet:
    """The permissions of one connection."""

    __slots__ = (
        "_grants", "_grants_bytes", "_published", "_rules", "_sub_allow", "_sub_deny", "responses",
    )  # fmt: skip

    def __init__(self, rules: Permissions) -> None:
        self._rules = rules
        self.responses = rules.responses
        subscribe = rules.subscribe or SubjectRules()
        # An empty allow list restricts publishing, but not subscribing.
        self._sub_allow = _Rules(subscribe.allow) if subscribe.allow else None
        self._sub_deny = _Rules(subscribe.deny) if subscribe.deny else None
        self._published: dict[bytes, bool] = {}
        self._grants: dict[bytes, tuple[int, int]] = {}  # reply -> (remaining, expires_ns)
        self._grants_bytes = 0

    def may_publish(self, subject: bytes, *, now_ns: int) -> bool:
        return self.publishable(subject, 1, now_ns=now_ns) == 1

    def publishable(self, subject: bytes, count: int, *, now_ns: int) -> int:
        """How many of `count` messages may be published to the subject. A grant is used up message
        by message, so the first of them may be allowed and the rest not."""
        verdict = self._published.get(subject)
        if verdict is None:
            verdict = self._publish_verdict(subject)
            if len(self._published) >= VERDICTS_MAX:
                self._published.clear()
            if len(subject) <= VERDICT_BYTES_MAX:
                self._published[subject] = verdict
        if verdict:
            return count
        return self._use_grant(subject, count, now_ns=now_ns) if self._grants else 0

    # -- questions about what a user makes the server do (PublishRules of broker/subjects) -----

    def allows(self, subject: bytes) -> bool:
        allow, deny = self._publish_lists()
        if any(collides(subject, entry) for entry in deny):
            return False
        return any(is_subset(subject, entry) for entry in allow)

    def allows_some(self, pattern: bytes) -> bool:
        allow, deny = self._publish_lists()
        for entry in allow:
            shared = intersection(pattern, entry)
            if shared is not None and not any(is_subset(shared, denied) for denied in deny):
                return True
        return False

    def denies(self, subject: bytes) -> bool:
        return any(is_subset(subject, entry) for entry in self._publish_lists()[1])

    def _publish_lists(self) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
        rules = self._rules.publish or SubjectRules()
        if rules.allow is None:
            return (b">",) if self.responses is None else (), rules.deny
        return rules.allow, rules.deny

    def may_subscribe(self, subject: bytes, queue: bytes) -> bool:
        if self._sub_allow is not None and not self._sub_allow.covers(subject, queue):
            return False
        return self._sub_deny is None or not self._sub_deny.covers(subject, queue)

    def filters(self, subject: bytes) -> bool:
        """Whether deliveries to this subscription must be checked subject by subject."""
        if self._sub_deny is None or not has_wildcard(subject):
            return False
        return any(collides(subject, entry) for entry in self._sub_deny.plain)

    def may_receive(self, subject: bytes) -> bool:
        deny = self._sub_deny
        return deny is None or not any(matches(subject, entry) for entry in deny.plain)

    def grant(self, reply: bytes, *, now_ns: int) -> None:
        """A message with this reply subject is delivered to the client: it may publish to it."""
        responses = self.responses
        if responses is None:
            return
        grants = self._grants
        while grants and (len(grants) >= GRANTS_MAX or self._grants_bytes > GRANTS_BYTES_MAX):
            self._take_grant(next(iter(grants)))
        self._take_grant(reply)
        self._put_grant(reply, (responses.max_msgs, now_ns + responses.expires_ns))

    def _use_grant(self, subject: bytes, count: int, *, now_ns: int) -> int:
        grant = self._take_grant(subject)
        if grant is None:
            return 0
        remaining, expires_ns = grant
        if now_ns > expires_ns:
            return 0
        if remaining < 0:
            self._put_grant(subject, grant)
            return count
        if remaining > count:
            self._put_grant(subject, (remaining - count, expires_ns))
        return min(remaining, count)

    def _take_grant(self, subject: bytes) -> tuple[int, int] | None:
        grant = self._grants.pop(subject, None)
        if grant is not None:
            self._grants_bytes -= len(subject)
        return grant

    def _put_grant(self, subject: bytes, grant: tuple[int, int]) -> None:
        self._grants[subject] = grant
        self._grants_bytes += len(subject)

    def _publish_verdict(self, subject: bytes) -> bool:
        rules = self._rules.publish
        if rules is None:
            return self.responses is None
        if any(matches(subject, entry) for entry in rules.deny):
            return False
        if rules.allow is None:
            return self.responses is None
        return any(matches(subject, entry) for entry in rules.allow)
