"""Subjects and the subscription tree, checked against a naive matcher."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.accounts import Account
from broker.subjects import (
    SinkKind,
    SubjectTree,
    Subscription,
    collides,
    is_subset,
    matches,
    valid_subject,
)

LITERALS = [b"a", b"b", b"c"]
PATTERN_TOKENS = [*LITERALS, b"*", b">"]


class NoSink:
    kind = SinkKind.CLIENT

    def deliver(self, *_: object) -> bool:
        return False

    def deliver_run(self, *_: object) -> bool:
        return False


class Peer(NoSink):
    kind = SinkKind.ROUTE


def subscription(subject: bytes, queue: bytes = b"", sink: object = None) -> Subscription:
    return Subscription(sink or NoSink(), Account("$G"), subject, queue)  # type: ignore[arg-type]


subjects = st.lists(st.sampled_from(LITERALS), min_size=1, max_size=4).map(b".".join)
patterns = (
    st.lists(st.sampled_from(PATTERN_TOKENS), min_size=1, max_size=4)
    .filter(lambda parts: b">" not in parts[:-1])
    .map(b".".join)
)
EVERY_SUBJECT = [
    b".".join(parts)
    for length in (1, 2, 3, 4)
    for parts in product([*LITERALS, b"z"], repeat=length)
]


@pytest.mark.parametrize(
    ("subject", "plain", "wild"),
    [
        (b"foo", True, True),
        (b"foo.bar", True, True),
        (b"foo.*", False, True),
        (b"foo.>", False, True),
        (b"foo*", True, True),
        (b"**", True, True),
        (b"", False, False),
        (b".", False, False),
        (b"foo.", False, False),
        (b"foo..bar", False, False),
        (b"foo.>.bar", False, False),
        (b"foo bar", False, False),
        (b"foo\tbar", False, False),
        ("smörgås".encode(), True, True),
    ],
)
def test_validity(subject: bytes, plain: bool, wild: bool) -> None:
    assert valid_subject(subject, wildcards=False) is plain
    assert valid_subject(subject, wildcards=True) is wild


@given(patterns, patterns)
def test_relations_agree_with_enumeration(one: bytes, other: bytes) -> None:
    left = {subject for subject in EVERY_SUBJECT if matches(subject, one)}
    right = {subject for subject in EVERY_SUBJECT if matches(subject, other)}
    assert collides(one, other) == bool(left & right)
    if is_subset(one, other):
        assert left <= right
    elif not (one.endswith(b">") or other.endswith(b">")):
        assert not left <= right or not left


@settings(max_examples=300)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["insert", "remove", "match", "prefix"]),
            patterns,
            subjects,
            st.sampled_from([b"", b"", b"q", b"r"]),
        ),
        max_size=30,
    )
)
def test_tree_agrees_with_a_list(steps: list[tuple[str, bytes, bytes, bytes]]) -> None:
    tree = SubjectTree(cache_max=4)
    held: list[Subscription] = []
    for verb, pattern, subject, queue in steps:
        if verb == "insert":
            sub = subscription(pattern, queue)
            tree.insert(sub)
            held.append(sub)
        elif verb == "remove" and held:
            sub = held.pop(len(pattern) % len(held))
            assert tree.remove(sub)
            assert not tree.remove(sub)
        _check(tree, held, subject)
        _check_prefix(tree, held, subject + b".")
        assert len(tree) == len(held)
        assert {id(one) for one in tree} == {id(one) for one in held}


def _expected(held: list[Subscription], subject: bytes) -> tuple[set[int], dict[bytes, set[int]]]:
    found = [sub for sub in held if matches(subject, sub.subject)]
    pools: dict[bytes, set[int]] = {}
    for sub in found:
        if sub.queue:
            pools.setdefault(sub.queue, set()).add(id(sub))
    return {id(sub) for sub in found if not sub.queue}, pools


def _check(tree: SubjectTree, held: list[Subscription], subject: bytes) -> None:
    plain, pools = _expected(held, subject)
    for _ in range(2):  # the second answer comes from the cache
        found = tree.match(subject)
        assert {id(sub) for sub in found.plain} == plain
        assert {pool[0].queue: {id(sub) for sub in pool} for pool in found.queues} == pools
        assert (found.single is not None) == (len(plain) == 1 and not pools)


def _check_prefix(tree: SubjectTree, held: list[Subscription], prefix: bytes) -> None:
    answers = [_expected(held, prefix + token) for token in (*LITERALS, b"zz")]
    found = tree.match_prefix(prefix)
    if found is None:
        assert any(answer != answers[-1] for answer in answers)
    else:
        pools = {pool[0].queue: {id(sub) for sub in pool} for pool in found.queues}
        assert all(answer == ({id(sub) for sub in found.plain}, pools) for answer in answers)


def test_empty_tokens_match_nothing() -> None:
    tree = SubjectTree()
    tree.insert(subscription(b">"))
    for subject in (b"", b".a", b"a..b", b"a."):
        assert not tree.match(subject)


def test_a_peer_gets_one_copy_and_its_weight_counts_in_queue_groups() -> None:
    tree, peer = SubjectTree(), Peer()
    tree.insert(subscription(b"a.*", sink=peer))
    tree.insert(subscription(b"a.>", sink=peer))
    heavy = subscription(b"a.b", b"q", sink=peer)
    heavy.weight = 3
    tree.insert(heavy)
    found = tree.match(b"a.b")
    assert len(found.plain) == 1
    assert found.queues == [[heavy, heavy, heavy]]
    tree.reweigh(heavy, 1)
    assert tree.match(b"a.b").queues == [[heavy]]


def test_the_match_cache_is_bounded() -> None:
    tree = SubjectTree(cache_max=10)
    tree.insert(subscription(b"a.*"))
    for number in range(1000):
        assert len(tree.match(b"a.%d" % number).plain) == 1
    assert tree.cache_size <= 20


def test_a_prefix_has_one_result_only_while_no_deeper_subscription_exists() -> None:
    tree = SubjectTree()
    service = subscription(b"$JS.ACK.>")
    tree.insert(service)
    found = tree.match_family(b"$JS.ACK.")
    assert found is not None
    assert found.single is service
    spy = subscription(b"$JS.ACK.ORDERS.>")
    tree.insert(spy)
    assert tree.match_family(b"$JS.ACK.") is None
    tree.remove(spy)
    everything = subscription(b">")
    tree.insert(everything)
    found = tree.match_family(b"$JS.ACK.")
    assert found is not None
    assert set(found.plain) == {service, everything}


def test_a_prefix_is_matched_without_a_look_at_every_child() -> None:
    """A SUB with a wildcard forgets all prefixes: with 100,000 children, every publish after one
    took 5 ms."""

    class Unwalked(dict):  # type: ignore[type-arg]
        def values(self) -> object:  # type: ignore[override]
            raise AssertionError("all children are looked at")

    tree = SubjectTree()
    for at in range(3):
        tree.insert(subscription(b"a.%d.*" % at))
    parent = tree._root.children[b"a"]
    parent.children = Unwalked(parent.children)
    assert tree.match_prefix(b"a.") is not None
    assert not tree.match(b"a.1")
    taken = subscription(b"a.1")
    tree.insert(taken)
    assert tree.match_prefix(b"a.") is None
    assert tree.match(b"a.1").plain == [taken]
    tree.remove(taken)
    assert tree.match_prefix(b"a.") is not None


def test_a_table_that_nodes_share_is_never_filled() -> None:
    """A million subscriptions with three tables per node took 1.2 GB."""
    tree = SubjectTree()
    tree.insert(subscription(b"a.b.*"))
    tree.insert(subscription(b"a.c", b"q"))
    copied = tree.all()
    for sub in list(tree):
        tree.remove(sub)
        assert sub not in list(tree)
    assert [sub.subject for sub in copied] == [b"a.b.*", b"a.c"]  # a copy, as of then
    assert not len(tree)
    fresh = SubjectTree()._root
    assert [fresh.children, fresh.plain, fresh.queues] == [{}, {}, {}]
