"""Subjects: grammar, patterns, mappings, and the tree that finds matching subscriptions."""

from broker.subjects.grammar import (
    collides,
    has_wildcard,
    is_subset,
    matcher,
    matches,
    tokens,
    valid_subject,
)
from broker.subjects.patterns import Patterns
from broker.subjects.subscription import (
    PublishingConnection,
    Sink,
    SinkKind,
    Subscription,
    Tenant,
)
from broker.subjects.tree import NO_MATCH, Match, SubjectTree, TreeStatistics

__all__ = [
    "NO_MATCH",
    "Match",
    "Patterns",
    "PublishingConnection",
    "Sink",
    "SinkKind",
    "SubjectTree",
    "Subscription",
    "Tenant",
    "TreeStatistics",
    "collides",
    "has_wildcard",
    "is_subset",
    "matcher",
    "matches",
    "tokens",
    "valid_subject",
]
