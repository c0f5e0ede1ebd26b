"""Consumers: every field of the configuration with several values, created, shown and updated.

Owns: the tables of consumer requests."""

from __future__ import annotations

from collections.abc import Iterator

from tests.interop.parity.exchange import Request, Scene, Step, api, scene, stored

SECOND = 10**9
PULL = {"name": "C", "durable_name": "C", "ack_policy": "explicit"}
PUSH = {**PULL, "deliver_subject": "to.c"}

FIELDS: dict[str, tuple[object, ...]] = {
    "name": ("C", "", "D", "a.b", "a b", "a/b", "x" * 255, "x" * 256, 1),
    "durable_name": ("", "D", "a.b", "a*b", "a>b"),
    "description": ("", "text", "d" * 4096, "d" * 4097),
    "deliver_policy": (
        "all", "last", "new", "last_per_subject", "by_start_sequence", "by_start_time", "other", "",
    ),
    "opt_start_seq": (0, 1, 3, 99, -1),
    "opt_start_time": ("2020-01-01T00:00:00Z", "2060-01-01T00:00:00Z", "now", "", None),
    "ack_policy": ("none", "all", "explicit", "flow_control", "other", ""),
    "ack_wait": (-1, 0, 1, SECOND, 30 * SECOND, 2**62),
    "max_deliver": (-2, -1, 0, 1, 5, "1"),
    "backoff": ([], [SECOND], [SECOND, 2 * SECOND], [2 * SECOND, SECOND], [-1], [0], None),
    "filter_subject": ("", "s.a", "s.>", "s.*", "q", "a..b", "s.>.x", ">"),
    "filter_subjects": (
        [], ["s.a"], ["s.a", "s.b"], ["s.a", "s.a"], ["s.a", "s.*"], [""], ["q"], ["a..b"], None,
    ),
    "replay_policy": ("instant", "original", "other", ""),
    "sample_freq": ("", "100", "50%", "0", "101", "-1", "x", "1.5", "100%%"),
    "max_waiting": (-1, 0, 1, 512, 10**6),
    "max_ack_pending": (-2, -1, 0, 1, 1000, 10**9),
    "headers_only": (True, False),
    "max_batch": (-1, 0, 1, 100, 10**6),
    "max_expires": (-1, 0, 1, 10**6, SECOND),
    "max_bytes": (-1, 0, 1, 1024, 2**31),
    "inactive_threshold": (-1, 0, 1, 60 * SECOND, 3600 * SECOND),
    "num_replicas": (-1, 0, 1, 2, 3, 6),
    "mem_storage": (True, False),
    "metadata": ({}, {"a": "b"}, {"_nats.ver": "9"}, {"a": "v" * 130_000}, {"a": 1}, None),
    "deliver_subject": ("", "to.d", "s.d", "to.*", "to.>", "a b", "a..b", "$JS.API.x", "to"),
    "deliver_group": ("", "g", "a b", "g.h"),
    "flow_control": (True, False),
    "idle_heartbeat": (-1, 0, 1, 10**8, SECOND),
    "rate_limit_bps": (0, 1, 1024, 10**9),
    "pause_until": ("2020-01-01T00:00:00Z", "2060-01-01T00:00:00Z", "x", None),
    "priority_groups": ([], ["a"], ["a", "b"], [""], ["a" * 17], ["a b"], None),
    "priority_policy": ("none", "overflow", "pinned_client", "prioritized", "other", ""),
    "priority_timeout": (-1, 0, 1, SECOND),
    "direct": (True, False),
    "sourcing": (True, False),
    "no_such_field": (1,),
}  # fmt: skip

# Fields that mean the same for a push consumer.
ALIKE = {
    "description", "deliver_policy", "opt_start_seq", "opt_start_time", "max_deliver", "backoff",
    "filter_subject", "filter_subjects", "replay_policy", "sample_freq", "metadata", "num_replicas",
    "mem_storage", "pause_until", "no_such_field", "ack_wait",
}  # fmt: skip

TOGETHER: tuple[dict[str, object], ...] = (
    {"deliver_policy": "by_start_sequence", "opt_start_seq": 2},
    {"deliver_policy": "by_start_sequence", "opt_start_seq": 0},
    {"deliver_policy": "by_start_sequence", "opt_start_time": "2020-01-01T00:00:00Z"},
    {"deliver_policy": "by_start_time", "opt_start_time": "2020-01-01T00:00:00Z"},
    {"deliver_policy": "by_start_time", "opt_start_time": "2060-01-01T00:00:00Z"},
    {"deliver_policy": "by_start_time", "opt_start_seq": 3},
    {"deliver_policy": "last_per_subject", "filter_subject": "s.>"},
    {"deliver_policy": "last_per_subject", "filter_subjects": ["s.a", "s.b"]},
    {"deliver_policy": "last", "filter_subject": "s.b"},
    {"deliver_policy": "new", "filter_subject": "s.a"},
    {"flow_control": True, "idle_heartbeat": SECOND},
    {"flow_control": True, "idle_heartbeat": SECOND, "ack_policy": "flow_control"},
    {"flow_control": True, "idle_heartbeat": SECOND, "ack_policy": "flow_control",
     "max_ack_pending": 100},
    {"ack_policy": "flow_control", "max_ack_pending": 100},
    {"flow_control": True, "idle_heartbeat": SECOND, "ack_policy": "flow_control",
     "max_ack_pending": 100, "ack_wait": SECOND},
    {"flow_control": True, "idle_heartbeat": SECOND, "ack_policy": "flow_control",
     "max_ack_pending": 100, "max_deliver": 3},
    {"ack_policy": "none", "max_ack_pending": 10},
    {"ack_policy": "none", "ack_wait": SECOND},
    {"ack_policy": "none", "max_deliver": 5},
    {"backoff": [SECOND, 2 * SECOND], "max_deliver": 2},
    {"backoff": [SECOND, 2 * SECOND], "max_deliver": 3},
    {"backoff": [SECOND, 2 * SECOND], "max_deliver": 3, "ack_wait": 5 * SECOND},
    {"priority_groups": ["a"], "priority_policy": "overflow"},
    {"priority_groups": ["a"], "priority_policy": "pinned_client"},
    {"priority_groups": ["a"], "priority_policy": "pinned_client", "priority_timeout": SECOND},
    {"priority_groups": ["a"], "priority_policy": "prioritized"},
    {"priority_groups": ["a"], "priority_policy": "none"},
    {"priority_groups": ["a"], "priority_policy": "overflow", "priority_timeout": SECOND},
    {"priority_timeout": SECOND, "priority_policy": "none"},
    {"filter_subject": "s.a", "filter_subjects": ["s.b"]},
    {"max_batch": 10, "max_expires": SECOND, "max_bytes": 100, "max_waiting": 5},
    {"headers_only": True, "filter_subject": "s.a", "max_deliver": 2, "description": "x"},
    {"inactive_threshold": SECOND * 100, "mem_storage": True, "num_replicas": 1},
    {"direct": True, "durable_name": "", "ack_policy": "none"},
    {"sourcing": True, "ack_policy": "none"},
    {"sourcing": True, "direct": True, "durable_name": "", "ack_policy": "none"},
)  # fmt: skip

STREAM = {"name": "S", "subjects": ["s.>"], "storage": "memory"}
MADE = (
    api("STREAM.CREATE.S", STREAM, must=True),
    *(stored(f"s.{one}") for one in ("a", "b", "a", "c", "b")),
)


def create(config: dict[str, object], **request: object) -> Request:
    """A create under the name in the subject; `action` and `pedantic` are fields of the request."""
    body = {"stream_name": "S", "config": config, **request}
    return api("CONSUMER.CREATE.S.C", body)


def _round(base: dict[str, object], change: dict[str, object]) -> Iterator[Step]:
    yield create({**base, **change})
    yield api("CONSUMER.DELETE.S.C")
    yield create(base)
    yield create({**base, **change}, action="update")
    yield api("CONSUMER.INFO.S.C")
    yield api("CONSUMER.DELETE.S.C")


def _fields() -> Iterator[Scene]:
    for kind, base in (("pull", PULL), ("push", PUSH)):
        for field, values in FIELDS.items():
            if kind == "push" and field in ALIKE:
                continue
            rounds = [step for value in values for step in _round(base, {field: value})]
            yield scene(f"{kind} consumer field {field}", MADE, rounds)
        for number in range(0, len(TOGETHER), 12):
            some = TOGETHER[number : number + 12]
            rounds = [step for change in some for step in _round(base, change)]
            yield scene(f"{kind} consumer fields together {number}", MADE, rounds)


def _actions() -> Iterator[Step]:
    for action in ("", "create", "update", "other", 1):
        for subject in ("CONSUMER.CREATE.S.C", "CONSUMER.DURABLE.CREATE.S.C", "CONSUMER.CREATE.S",
                        "CONSUMER.CREATE.S.C.s.a", "CONSUMER.CREATE.S.D"):  # fmt: skip
            for config in (PULL, {**PULL, "max_deliver": 7}, {"name": "C"}, {"ack_policy": "all"}):
                # An ephemeral would get a name of the server's.
                if subject != "CONSUMER.CREATE.S" or "name" in config:
                    body = {"stream_name": "S", "config": config, "action": action}
                    yield api(subject, body)
    for pedantic in (True, False):
        for more in (
            {"max_deliver": 3, "backoff": [SECOND], "ack_wait": 9 * SECOND},
            {"filter_subjects": []},
            {"max_batch": -1},
            {"inactive_threshold": 0},
        ):
            yield create({**PULL, **more}, pedantic=pedantic)
            yield api("CONSUMER.DELETE.S.C")


def _kept(retention: str) -> Iterator[Step]:
    """Work queues and interest streams restrict their consumers."""
    yield api("STREAM.CREATE.S", {**STREAM, "retention": retention}, must=True)
    for first in ({}, {"filter_subject": "s.a"}, {"filter_subjects": ["s.a", "s.b"]}):
        yield create({**PULL, **first})
        for second in (
            {},
            {"filter_subject": "s.a"},
            {"filter_subject": "s.b"},
            {"filter_subject": "s.*"},
            {"filter_subjects": ["s.b", "s.c"]},
            {"ack_policy": "none"},
            {"ack_policy": "all"},
            {"deliver_policy": "new"},
            {"deliver_subject": "to.d"},
            {"deliver_subject": "to.d", "ack_policy": "none"},
        ):
            config = {**PULL, "name": "D", "durable_name": "D", **second}
            yield api("CONSUMER.CREATE.S.D", {"stream_name": "S", "config": config})
            yield api("CONSUMER.DELETE.S.D")
        yield api("CONSUMER.DELETE.S.C")


def _listed() -> Iterator[Step]:
    for name in ("C", "D", "E"):
        config = {"name": name, "durable_name": name, "ack_policy": "explicit"}
        yield api(f"CONSUMER.CREATE.S.{name}", {"stream_name": "S", "config": config}, must=True)
    for subject in ("CONSUMER.NAMES.S", "CONSUMER.LIST.S", "CONSUMER.NAMES.none"):
        for body in (b"", {}, {"offset": 1}, {"offset": 9}, {"offset": -1}, b"x"):
            yield api(subject, body)
    yield api("CONSUMER.INFO.S.C", b"x")
    for body in ({"pause_until": "2060-01-01T00:00:00Z"}, {"pause_until": "2020-01-01T00:00:00Z"},
                 {}, b"", {"pause_until": "x"}, {"pause_until": None}):  # fmt: skip
        yield api("CONSUMER.PAUSE.S.C", body)
        yield api("CONSUMER.INFO.S.C")
    for body in (b"", {}, {"seq": 2}, {"seq": 99}, {"seq": 0}, {"seq": -1}, b"x"):
        yield api("CONSUMER.RESET.S.C", body)
        yield api("CONSUMER.INFO.S.C")
    yield api("CONSUMER.UNPIN.S.C", {"group": "a"})
    yield api("CONSUMER.UNPIN.S.C", b"")
    for name in ("C", "C", "none"):
        for body in (b"x", b"{}", b""):
            yield api(f"CONSUMER.DELETE.S.{name}", body)
    yield api("STREAM.INFO.S")


def _identities() -> Iterator[Step]:
    """Which consumers are bound to the identity of their stream."""
    for identity in ({}, {"Nats-Stream-Identity": ""}, {"Nats-Stream-Identity": "another"}):
        for more in ({}, {"direct": True}, {"sourcing": True}, {"direct": True, "sourcing": True}):
            config = {"name": "C", "ack_policy": "none", "deliver_subject": "to.c", **more}
            one = api("CONSUMER.CREATE.S.C", {"stream_name": "S", "config": config})
            yield Request(one.subject, one.body, identity)
            yield api("CONSUMER.DELETE.S.C")
        yield create(PULL)
        yield Request("$JS.API.CONSUMER.RESET.S.C", b"", identity)
        yield Request("$JS.API.CONSUMER.INFO.S.C", b"", identity)
        yield api("CONSUMER.DELETE.S.C")


SCENES = [
    *_fields(),
    scene("stream identities", MADE, _identities()),
    scene("consumer actions", MADE, _actions()),
    scene("consumers of a work queue", _kept("workqueue")),
    scene("consumers by interest", _kept("interest")),
    scene("consumers listed", MADE, _listed()),
    scene(
        "consumers limited by the stream",
        api("STREAM.CREATE.S", {**STREAM, "max_consumers": 2, "consumer_limits": {
            "max_ack_pending": 10, "inactive_threshold": 60 * SECOND}}, must=True),
        (step for more in ({}, {"max_ack_pending": 5}, {"max_ack_pending": 11},
                           {"inactive_threshold": SECOND}, {"inactive_threshold": 61 * SECOND},
                           {"max_ack_pending": -1})
         for step in (create({**PULL, **more}), api("CONSUMER.DELETE.S.C"))),
        (api(f"CONSUMER.CREATE.S.{name}", {"stream_name": "S", "config": {"name": name}})
         for name in ("a", "b", "c")),
    ),
]  # fmt: skip
