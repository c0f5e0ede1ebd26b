"""Subjects: grammar, patterns, mappings, and the tree that finds matching subscriptions."""

from broker.subjects.grammar import (
    collides,
    has_wildcard,
    intersection,
    is_subset,
    matcher,
    matches,
    tokens,
    valid_subject,
)
from broker.subjects.overlap import PatternIndex, any_included, any_overlap, first_overlap
from broker.subjects.patterns import Patterns
from broker.subjects.steps import STEP_ITEMS, Steps, TooManySteps, finish
from broker.subjects.subscription import (
    CLUSTER_WIDE,
    LEAF_LINKS,
    LINKS,
    NOTICED,
    OWN,
    PublishingConnection,
    PublishRules,
    Sink,
    SinkKind,
    Subscription,
    Tenant,
)
from broker.subjects.tree import NO_MATCH, Match, SubjectTree, TreeStatistics

__all__ = [
    "CLUSTER_WIDE",
    "LEAF_LINKS",
    "LINKS",
    "NOTICED",
    "NO_MATCH",
    "OWN",
    "STEP_ITEMS",
    "Match",
    "PatternIndex",
    "Patterns",
    "PublishRules",
    "PublishingConnection",
    "Sink",
    "SinkKind",
    "Steps",
    "SubjectTree",
    "Subscription",
    "Tenant",
    "TooManySteps",
    "TreeStatistics",
    "any_included",
    "any_overlap",
    "collides",
    "finish",
    "first_overlap",
    "has_wildcard",
    "intersection",
    "is_subset",
    "matcher",
    "matches",
    "tokens",
    "valid_subject",
]
