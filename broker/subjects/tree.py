"""The subscriptions of one account: a token trie with cached results.

Owns: insertion, removal, and matching of a subject or of all subjects with a common prefix.
May not touch: delivery; it only finds the subscriptions.
Spec: NATS subjects; NATS queue groups (one pool per group name)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from broker.subjects.grammar import has_wildcard
from broker.subjects.subscription import LEAF_LINKS, LINKS, OWN, SinkKind, Subscription

CACHE_SUBJECTS_MAX = 8192  # per generation; two generations are kept, the older is dropped
CACHE_WEIGHT_MAX = 1 << 19  # total entries of cached lists: bounds the memory of wide matches
SERVICE_WEIGHT = 16
WILDCARDS = (b"*", b">")
_SERVICES = frozenset([SinkKind.SERVICE, SinkKind.SHARED])


class Match:
    """The subscriptions that match one subject. Shared and cached: do not modify."""

    __slots__ = ("_local", "plain", "queues", "quick", "single", "spare", "weight")

    def __init__(
        self,
        plain: list[Subscription],
        queues: list[list[Subscription]],
        spare: dict[bytes, list[Subscription]] | None = None,
    ) -> None:
        self.plain = plain
        # Each list is one queue group; a member with weight n occurs n times.
        self.queues = queues
        # Members at leaf nodes of groups that have members in this cluster: those come first.
        self.spare = spare
        self.single = plain[0] if len(plain) == 1 and not queues else None
        # All sinks accept whole runs: adjacent messages with the same match are delivered together.
        self.quick = self.single is not None and self.single.sink.kind not in _SERVICES
        # Cost of one message, in deliveries. Services count more: they do more work per message.
        self.weight = sum(map(len, queues))
        for sub in plain:
            self.weight += SERVICE_WEIGHT if sub.sink.kind in _SERVICES else 1
        self._local: list[list[Subscription]] | None = None

    def local_queues(self) -> list[list[Subscription]]:
        """The queue groups without members on other nodes. Computed once: a group may be large."""
        if self._local is None:
            spare = self.spare or {}
            pools: list[list[Subscription]] = []
            for pool in self.queues:
                own = [sub for sub in pool if sub.sink.kind in OWN]
                if not own:
                    far = spare.get(pool[0].queue, ())
                    own = [sub for sub in far if sub.sink.kind in OWN]
                if own:
                    pools.append(own)
            self._local = pools
        return self._local

    def __bool__(self) -> bool:
        return bool(self.plain or self.queues)


NO_MATCH = Match([], [])


class _Node:
    """One token. Most nodes of a large tree have no children or no subscriptions: they share the
    empty tables below, which nobody fills."""

    __slots__ = ("children", "plain", "queues", "star", "tail", "taken_children")

    def __init__(self) -> None:
        self.children: dict[bytes, _Node] = _NO_CHILDREN
        self.star: _Node | None = None
        self.tail: _Node | None = None
        # dict, not set: delivery order must not change between runs
        self.plain: dict[Subscription, None] = _NO_PLAIN
        self.queues: dict[bytes, dict[Subscription, None]] = _NO_QUEUES
        self.taken_children = 0  # children (not `star`, `tail`) that have subscriptions

    def taken(self) -> bool:
        return bool(self.plain or self.queues)

    def empty(self) -> bool:
        return not (self.plain or self.queues or self.children or self.star or self.tail)

    def next(self, token: bytes, *, last: bool) -> _Node | None:
        if token == b"*":
            return self.star
        if token == b">" and last:
            return self.tail
        return self.children.get(token)

    def grow(self, token: bytes, *, last: bool) -> _Node:
        node = self.next(token, last=last)
        if node is None:
            node = _Node()
            if token == b"*":
                self.star = node
            elif token == b">" and last:
                self.tail = node
            else:
                if self.children is _NO_CHILDREN:
                    self.children = {}
                self.children[token] = node
        return node

    def cut(self, token: bytes, *, last: bool) -> None:
        if token == b"*":
            self.star = None
        elif token == b">" and last:
            self.tail = None
        else:
            del self.children[token]

    def put_in(self, sub: Subscription) -> None:
        if sub.queue:
            if self.queues is _NO_QUEUES:
                self.queues = {}
            self.queues.setdefault(sub.queue, {})[sub] = None
        else:
            if self.plain is _NO_PLAIN:
                self.plain = {}
            self.plain[sub] = None


_NO_CHILDREN: dict[bytes, _Node] = {}
_NO_PLAIN: dict[Subscription, None] = {}
_NO_QUEUES: dict[bytes, dict[Subscription, None]] = {}


@dataclass(slots=True)
class TreeStatistics:
    inserts: int = 0
    removes: int = 0
    matches: int = 0
    cache_hits: int = 0


class SubjectTree:
    """Subscriptions by subject. The cache only saves the walk; it never changes a result."""

    def __init__(self, *, cache_max: int = CACHE_SUBJECTS_MAX) -> None:
        self._root = _Node()
        self._all: dict[Subscription, None] = {}  # in the order of insertion
        self._cache_max = cache_max
        self._young: dict[bytes, Match] = {}
        self._young_weight = 0
        self._old: dict[bytes, Match] = {}
        self._prefixes: dict[bytes, Match | None] = {}
        self._prefix_weight = 0
        self._families: dict[bytes, Match | None] = {}  # only for a few fixed prefixes
        self.statistics = TreeStatistics()
        # Called with every subscription, and how many members it adds (negative: removes).
        self.watcher: Callable[[Subscription, int], None] | None = None

    def __len__(self) -> int:
        return len(self._all)

    def insert(self, sub: Subscription) -> None:
        parts = sub.subject.split(b".")
        node = parent = self._root
        final = len(parts) - 1
        for position, token in enumerate(parts):
            parent, node = node, node.grow(token, last=position == final)
        if not node.taken() and parts[-1] not in WILDCARDS:
            parent.taken_children += 1
        node.put_in(sub)
        self._all[sub] = None
        self.statistics.inserts += 1
        self._forget(sub.subject)
        if self.watcher is not None:
            self.watcher(sub, sub.weight)

    def remove(self, sub: Subscription) -> bool:
        """False when it was not inserted."""
        parts = sub.subject.split(b".")
        final = len(parts) - 1
        path: list[tuple[_Node, bytes, bool]] = []
        node = self._root
        for position, token in enumerate(parts):
            last = position == final
            child = node.next(token, last=last)
            if child is None:
                return False
            path.append((node, token, last))
            node = child
        if not _take_out(node, sub):
            return False
        if not node.taken() and parts[-1] not in WILDCARDS:
            path[-1][0].taken_children -= 1
        while path and node.empty():
            node, token, last = path.pop()
            node.cut(token, last=last)
        del self._all[sub]
        self.statistics.removes += 1
        self._forget(sub.subject)
        if self.watcher is not None:
            self.watcher(sub, -sub.weight)
        return True

    def reweigh(self, sub: Subscription, weight: int) -> None:
        """An inserted subscription represents this many queue members from now on."""
        change, sub.weight = weight - sub.weight, weight
        self._forget(sub.subject)
        if self.watcher is not None:
            self.watcher(sub, change)

    def match(self, subject: bytes) -> Match:
        """All subscriptions that match this literal subject; an empty token matches nothing."""
        self.statistics.matches += 1
        found = self._young.get(subject)
        if found is not None:
            self.statistics.cache_hits += 1
            return found
        found = self._old.get(subject)
        if found is None:
            # Sibling subjects mostly share a result: most need neither a walk nor a cache entry.
            end = subject.rfind(b".") + 1
            family = self.match_prefix(subject[:end]) if 0 < end < len(subject) else None
            if family is not None:
                self.statistics.cache_hits += 1
                return family
            found = self._find(subject)
        else:
            self.statistics.cache_hits += 1
        if len(self._young) >= self._cache_max or self._young_weight > CACHE_WEIGHT_MAX:
            self._old, self._young = self._young, {}
            self._young_weight = 0
        self._young[subject] = found
        self._young_weight += found.weight
        return found

    def match_prefix(self, prefix: bytes) -> Match | None:
        """The match of `prefix` + any single literal token; None if it depends on the token."""
        try:
            return self._prefixes[prefix]
        except KeyError:
            pass
        found = self._find_prefix(prefix)
        if len(self._prefixes) >= self._cache_max or self._prefix_weight > CACHE_WEIGHT_MAX:
            self._prefixes.clear()
            self._prefix_weight = 0
        self._prefixes[prefix] = found
        self._prefix_weight += found.weight if found is not None else 0
        return found

    def match_family(self, prefix: bytes) -> Match | None:
        """The match of `prefix` + any tokens; None if it depends on the tokens."""
        try:
            return self._families[prefix]
        except KeyError:
            found = self._families[prefix] = self._find_family(prefix)
            return found

    def __iter__(self) -> Iterator[Subscription]:
        return iter(self._all)

    def all(self) -> dict[Subscription, None]:
        """A copy, made in one go: a millisecond for 100,000 subscriptions."""
        return self._all.copy()

    @property
    def cache_size(self) -> int:
        return len(self._young) + len(self._old)

    def _forget(self, subject: bytes) -> None:
        self._families.clear()
        if has_wildcard(subject):
            self._young.clear()
            self._young_weight = 0
            self._old.clear()
            self._prefixes.clear()
            self._prefix_weight = 0
            return
        # A literal subject affects its own cached result and those of its prefixes, no others.
        self._young.pop(subject, None)
        self._old.pop(subject, None)
        self._prefixes.pop(subject[: subject.rfind(b".") + 1], None)

    def _find(self, subject: bytes) -> Match:
        parts = subject.split(b".")
        if b"" in parts:
            return NO_MATCH
        hits, level = self._walk(parts)
        hits.extend(level)
        return _pooled(hits)

    def _walk(self, parts: list[bytes]) -> tuple[list[_Node], list[_Node]]:
        """The `>` nodes passed on the way down, and the nodes where the subject ends."""
        hits: list[_Node] = []
        level = [self._root]
        for token in parts:
            following: list[_Node] = []
            for node in level:
                if node.tail is not None:
                    hits.append(node.tail)
                if node.star is not None:
                    following.append(node.star)
                child = node.children.get(token)
                if child is not None:
                    following.append(child)
            level = following
            if not level:
                break
        return hits, level

    def _below(self, prefix: bytes) -> tuple[list[_Node], list[_Node]] | None:
        """Like _walk, for a prefix; None if it does not end in a dot."""
        parts = prefix.split(b".")
        if parts.pop() != b"" or b"" in parts:
            return None
        return self._walk(parts)

    def _find_family(self, prefix: bytes) -> Match | None:
        below = self._below(prefix)
        if below is None:
            return None
        hits, level = below
        for node in level:
            if node.children or node.star is not None:
                return None
            if node.tail is not None:
                hits.append(node.tail)
        return _pooled(hits)

    def _find_prefix(self, prefix: bytes) -> Match | None:
        below = self._below(prefix)
        if below is None:
            return None
        hits, level = below
        for node in level:
            if node.taken_children:
                return None
            hits.extend(child for child in (node.tail, node.star) if child is not None)
        return _pooled(hits)


def _take_out(node: _Node, sub: Subscription) -> bool:
    if not sub.queue:
        if sub not in node.plain:
            return False
        del node.plain[sub]
        return True
    members = node.queues.get(sub.queue)
    if members is None or sub not in members:
        return False
    del members[sub]
    if not members:
        del node.queues[sub.queue]
    return True


def _pooled(hits: list[_Node]) -> Match:
    plain: list[Subscription] = []
    pools: dict[bytes, list[Subscription]] = {}
    leafs: dict[bytes, list[Subscription]] = {}
    links: set[int] = set()
    for node in hits:
        for sub in node.plain:
            # Two patterns behind one link need only one copy over it: the other end fans out.
            if sub.sink.kind in LINKS:
                if id(sub.sink) in links:
                    continue
                links.add(id(sub.sink))
            plain.append(sub)
        for queue, members in node.queues.items():
            for sub in members:
                groups = leafs if sub.sink.kind in LEAF_LINKS else pools
                groups.setdefault(queue, []).extend([sub] * sub.weight)
    for queue in [queue for queue in leafs if queue not in pools]:
        pools[queue] = leafs.pop(queue)
    if not plain and not pools:
        return NO_MATCH
    return Match(plain, list(pools.values()), leafs or None)
