"""Streams: every field of the configuration with several values, created, shown and updated.

Owns: the tables of stream requests."""

from __future__ import annotations

from collections.abc import Iterator

from tests.interop.parity.exchange import Scene, Step, api, publish, scene, stored, unanswered

SECOND = 10**9
BASE = {"name": "S", "subjects": ["s.>"], "storage": "memory"}

FIELDS: dict[str, tuple[object, ...]] = {
    "description": ("", "text", "\u00fcber", "d" * 4096, "d" * 4097, 7),
    "subjects": (
        ["s.>"], ["a", "b"], ["a", "a"], ["s.*", "s.*.x"], ["s.>", "s.a"], [], [""], ["a..b"],
        ["$JS.API.x"], ["$JS.>"], ["$SYS.x"], ["$KV.x.>"], ["a.>.b"], [" a"], "a", ["_INBOX.x"],
        ["a*"], ["*"], ["s.>.>"], ["$JS.EVENT.x"], ["$JS.ACK.>"], None,
    ),
    "retention": ("limits", "interest", "workqueue", "other", "", 0),
    "max_consumers": (-2, -1, 0, 1, 5, 1.5, "1", 2**31),
    "max_msgs": (-2, -1, 0, 1, 1000, 2**40, "1"),
    "max_bytes": (-2, -1, 0, 1, 4096, 2**40, "1"),
    "max_age": (-1, 0, 1, 10**6, 10**8, SECOND, 3600 * SECOND, 2**62),
    "max_msgs_per_subject": (-2, -1, 0, 1, 5, 64, "1"),
    "max_msg_size": (-2, -1, 0, 1, 100, 2**20, 2**31, 8 * 2**20),
    "discard": ("old", "new", "NEW", "other", ""),
    "storage": ("file", "memory", "any", ""),
    "num_replicas": (-1, 0, 1, 2, 3, 5, 6),
    "no_ack": (True, False, "yes"),
    "duplicate_window": (-1, 0, 1, 10**6, 10**8, SECOND, 120 * SECOND, 240 * SECOND, 2**62),
    "placement": ({}, {"cluster": ""}, {"tags": []}, {"preferred": ""}, {"cluster": "no"},
                  {"tags": ["no"]}, {"preferred": "x"}, None),
    "mirror": ({"name": "M"}, {"name": ""}, {"name": "a.b"}, {"name": "S"}, {}, None),
    "sources": ([], [{"name": "M"}], [{"name": ""}], [{"name": "S"}], [{"name": "a b"}],
                [{"name": "M"}, {"name": "M"}], [{"name": "M", "filter_subject": "m.a"}],
                [{"name": "M", "filter_subject": "m.a"}, {"name": "M", "filter_subject": "m.b"}],
                [{"name": "M", "filter_subject": "m.a"}, {"name": "M", "filter_subject": "m.>"}],
                [{"name": "M", "opt_start_seq": 2}],
                [{"name": "M", "opt_start_time": "2030-01-01T00:00:00Z"}],
                [{"name": "M", "external": {"api": "$JS.x.API", "deliver": "y"}}],
                [{"name": "M", "external": {"api": "s.api", "deliver": "d.y"}}],
                [{"name": "M", "external": {"api": "x.>", "deliver": "y.>"}}],
                [{"name": "M", "subject_transforms": [{"src": "m.*", "dest": "s.{{wildcard(1)}}"}]}],
                [{"name": "M", "subject_transforms": [{"src": "m..x", "dest": "s"}]}],
                [{"name": "M", "subject_transforms": [{"src": "m.*", "dest": "s.{{wildcard(2)}}"}]}],
                [{"name": "M", "filter_subject": "m.a",
                  "subject_transforms": [{"src": "m.a", "dest": "s.a"}]}],
                [{"name": "M", "subject_transforms": [{"src": "m.a", "dest": "s.a"},
                                                      {"src": "m.>", "dest": "s.b"}]}]),
    "compression": ("none", "zip", ""),
    "first_seq": (0, 1, 100, -1, "1"),
    "subject_transform": ({"src": "s.*", "dest": "t.{{wildcard(1)}}"}, {"src": ">", "dest": "t.>"},
                          {"src": "", "dest": "t"}, {"src": "s.>", "dest": ""},
                          {"src": "s..x", "dest": "t"}, {"src": "s.*", "dest": "t.$1.{{x()}}"},
                          {"src": "s.*", "dest": "t.{{partition(5,1)}}"},
                          {"src": "s.*", "dest": "t.{{split(1,-)}}.{{left(1,2)}}"},
                          {"src": "s.*", "dest": "t.{{wildcard(3)}}"}, {}, None),
    "republish": ({"src": "s.>", "dest": "r.>"}, {"src": "s.>", "dest": "s.x"}, {"dest": "r"},
                  {"src": "s.>", "dest": "r.>", "headers_only": True}, {"src": "s.*", "dest": "r.*.*"},
                  {"src": "", "dest": ""}, {"src": ">", "dest": "r.>"}, {"src": "q.>", "dest": "r.>"},
                  {"src": "s.>", "dest": "$JS.API.>"}, {}, None),
    "allow_direct": (True, False, "x"),
    "mirror_direct": (True, False),
    "discard_new_per_subject": (True, False),
    "sealed": (True, False),
    "deny_delete": (True, False),
    "deny_purge": (True, False),
    "allow_rollup_hdrs": (True, False),
    "consumer_limits": ({}, {"max_ack_pending": 10}, {"inactive_threshold": SECOND},
                        {"max_ack_pending": -1}, {"inactive_threshold": -1},
                        {"max_ack_pending": 5, "inactive_threshold": 5 * SECOND}, None),
    "allow_msg_ttl": (True, False),
    "subject_delete_marker_ttl": (-1, 0, 1, 10**8, SECOND, 60 * SECOND),
    "allow_msg_counter": (True, False),
    "allow_atomic": (True, False),
    "allow_msg_schedules": (True, False),
    "persist_mode": ("default", "async", "other", ""),
    "allow_batched": (True, False),
    "metadata": ({}, {"a": "b"}, {"": ""}, {"_nats.ver": "9"}, {"_nats.own": "x"},
                 {"a": "v" * 130_000}, {"a": 1}, None),
    "pedantic": (True, False),
    "template_owner": ("x",),
    "no_such_field": (1,),
}  # fmt: skip

# Fields that only mean something together.
TOGETHER: tuple[dict[str, object], ...] = (
    {"discard": "new", "discard_new_per_subject": True},
    {"discard": "new", "discard_new_per_subject": True, "max_msgs_per_subject": 1},
    {"allow_msg_ttl": True, "subject_delete_marker_ttl": SECOND},
    {"allow_msg_ttl": True, "subject_delete_marker_ttl": 60 * SECOND, "allow_rollup_hdrs": True},
    {"subject_delete_marker_ttl": SECOND, "allow_rollup_hdrs": True, "deny_purge": True},
    {"subject_delete_marker_ttl": SECOND, "pedantic": True},
    {"allow_rollup_hdrs": True, "deny_purge": True},
    {"allow_msg_counter": True, "discard": "new"},
    {"allow_msg_counter": True, "allow_msg_ttl": True},
    {"allow_msg_counter": True, "retention": "workqueue"},
    {"allow_msg_counter": True, "retention": "interest"},
    {"allow_msg_schedules": True, "allow_rollup_hdrs": True},
    {"allow_msg_schedules": True, "retention": "workqueue"},
    {"allow_msg_schedules": True, "sources": [{"name": "M"}]},
    {"persist_mode": "async", "storage": "file"},
    {"persist_mode": "async", "storage": "file", "allow_atomic": True},
    {"persist_mode": "async", "storage": "file", "num_replicas": 3},
    {"persist_mode": "async", "storage": "file", "allow_batched": True},
    {"max_age": SECOND, "duplicate_window": 2 * SECOND},
    {"max_age": SECOND, "duplicate_window": 2 * SECOND, "pedantic": True},
    {"max_age": SECOND, "pedantic": True},
    {"max_msgs": 0, "max_bytes": 0, "pedantic": True},
    {"mirror": {"name": "M"}, "subjects": []},
    {"mirror": {"name": "M"}, "subjects": [], "mirror_direct": True},
    {"mirror": {"name": "M"}, "subjects": [], "allow_direct": True},
    {"mirror": {"name": "M", "opt_start_seq": 2}, "subjects": []},
    {"mirror": {"name": "M", "filter_subject": "x y"}, "subjects": []},
    {"mirror": {"name": "M", "opt_start_seq": 2, "opt_start_time": "2030-01-01T00:00:00Z"},
     "subjects": []},
    {"mirror": {"name": "M"}, "subjects": [], "first_seq": 5},
    {"mirror": {"name": "M"}, "subjects": [], "sources": [{"name": "M"}]},
    {"mirror": {"name": "M"}, "subjects": [], "allow_msg_counter": True},
    {"mirror": {"name": "M"}, "subjects": [], "allow_msg_schedules": True},
    {"mirror": {"name": "M"}, "subjects": [], "allow_atomic": True},
    {"mirror": {"name": "M"}, "subjects": [], "allow_batched": True},
    {"mirror": {"name": "M"}, "subjects": [], "max_msg_size": 1},
    {"mirror": {"name": "M"}, "subjects": [], "retention": "workqueue"},
    {"mirror": {"name": "M"}, "subjects": [], "discard": "new"},
    {"mirror": {"name": "M"}, "subjects": [], "subject_transform": {"src": ">", "dest": "t.>"}},
    {"mirror": {"name": "M", "subject_transforms": [{"src": "m.*", "dest": "t.*"}]}, "subjects": []},
    {"mirror": {"name": "M", "subject_transforms": [{"src": "m.a", "dest": "x"},
                                                    {"src": "m.>", "dest": "y"}]}, "subjects": []},
    {"mirror": {"name": "M", "subject_transforms": [{"src": "m..", "dest": "x"}]}, "subjects": []},
    {"mirror": {"name": "M", "filter_subject": "m.a",
                "subject_transforms": [{"src": "m.a", "dest": "x"}]}, "subjects": []},
    {"mirror": {"name": "M", "external": {"api": "$JS.no.API"}}, "subjects": []},
    {"mirror": {"name": "M", "external": {"api": ""}}, "subjects": []},
    {"mirror": {"name": "M", "consumer": {"name": "c"}}, "subjects": []},
    {"mirror": {"name": "M", "consumer": {"name": "a.b", "deliver_subject": "x"}}, "subjects": []},
    {"sources": [{"name": "M", "consumer": {"name": "c"}}]},
    {"sources": [{"name": "M", "consumer": {"name": "c", "deliver_subject": "x.*"}}]},
    {"sources": [{"name": "M"}], "subjects": []},
    {"sources": [{"name": "M"}], "first_seq": 9},
    {"sources": [{"name": "M"}], "max_msg_size": 1},
    {"republish": {"src": "s.>", "dest": "r.>"}, "subject_transform": {"src": "s.>", "dest": "r.>"}},
    {"retention": "workqueue", "max_msgs": 5, "discard": "new"},
    {"retention": "interest", "discard": "new", "max_bytes": 100},
    {"storage": "file", "max_bytes": 2**50},
    {"storage": "memory", "max_bytes": 2**50},
)  # fmt: skip

# It stays empty where it is mirrored: how soon messages are copied is not compared.
ORIGIN = api("STREAM.CREATE.M", {"name": "M", "subjects": ["m.>"], "storage": "memory"}, must=True)
FILLED = (ORIGIN, *(stored(f"m.{one}") for one in ("a", "b", "a")))


def _round(change: dict[str, object]) -> Iterator[Step]:
    """One configuration: created with it, then created without it and updated to it."""
    name = change.get("name", "S")
    yield api(f"STREAM.CREATE.{name}", {**BASE, **change})
    yield api("STREAM.DELETE.S")
    yield api("STREAM.CREATE.S", BASE, must=True)
    yield api("STREAM.UPDATE.S", {**BASE, **change})
    yield api("STREAM.INFO.S")
    yield api("STREAM.DELETE.S")


def _fields() -> Iterator[Scene]:
    for field, values in FIELDS.items():
        rounds = [step for value in values for step in _round({field: value})]
        yield scene(f"stream field {field}", ORIGIN, rounds)
    for number in range(0, len(TOGETHER), 10):
        rounds = [step for change in TOGETHER[number : number + 10] for step in _round(change)]
        yield scene(f"stream fields together {number}", ORIGIN, rounds)


NAMES = ("A", "a-b", "a_b", "\u00fcmlaut", "N" * 255, "N" * 256, "a=b", "A", "KV_x", "OBJ_x", "1")

_LISTED = scene(
    "streams listed",
    api("INFO"), api("STREAM.NAMES"), api("STREAM.LIST"), api("STREAM.INFO.A"),
    (api(f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"x.{number}"], "storage": "memory"})
     for number, name in enumerate(NAMES)),
    (api("STREAM.NAMES", body)
     for body in (b"", {}, {"offset": 1}, {"offset": 99}, {"subject": "x.1"}, {"subject": "x.>"},
                  {"subject": "nobody"}, {"subject": "x.*", "offset": 2}, {"subject": ""},
                  {"offset": -1}, {"limit": 2}, {"subject": "a..b"})),
    (api("STREAM.LIST", body)
     for body in (b"", {"offset": 1}, {"offset": 99}, {"subject": "x.1"}, {"subject": "q"})),
    api("INFO"), api("INFO", {}), api("INFO", b"x"), unanswered(api("ACCOUNT.INFO")),
    (api(f"STREAM.DELETE.{name}", body) for name in ("A", "a-b") for body in (b"x", b"{}", b"", b"")),
    api("STREAM.CREATE.A", {"name": "B"}), api("STREAM.CREATE.A", {"name": ""}),
    api("STREAM.CREATE.A", {}), api("STREAM.CREATE.A"), api("STREAM.UPDATE.A", {"name": "A"}),
    api("STREAM.UPDATE.a_b", {"name": "a_b", "subjects": ["x.10"]}),
    api("STREAM.UPDATE.a_b", {"name": "KV_x", "subjects": ["x.10"]}),
    api("STREAM.CREATE.a_b", {"name": "a_b", "subjects": ["x.2"], "storage": "memory"}),
    api("STREAM.CREATE.a_b", {"name": "a_b", "subjects": ["x.77"], "storage": "memory"}),
    api("STREAM.CREATE.over", {"name": "over", "subjects": ["x.>"], "storage": "memory"}),
    api("STREAM.CREATE.x/y", {"name": "x/y"}), api("STREAM.CREATE.x", {"name": "x y"}),
    unanswered(api("STREAM.TEMPLATE.NAMES")), unanswered(api("STREAM.TEMPLATE.CREATE.T", {})), api("STREAM.PEER.REMOVE.A"),
    api("STREAM.PEER.REMOVE.a_b", {"peer": "x"}), api("STREAM.LEADER.STEPDOWN.a_b"),
    unanswered(api("META.LEADER.STEPDOWN")), api("CONSUMER.LEADER.STEPDOWN.a_b.c"), unanswered(api("SERVER.REMOVE", {})),
    unanswered(api("ACCOUNT.PURGE.x")), unanswered(api("STREAM.CANCEL_MOVE.x.a_b")),
    api("STREAM.RESTORE.a_b", {"config": {"name": "a_b"}, "state": {}}),
    api("STREAM.RESTORE.zz", {"config": {"name": "yy"}, "state": {}}),
    api("STREAM.RESTORE.zz", {}), api("STREAM.SNAPSHOT.a_b", {}), api("STREAM.SNAPSHOT.zz", {}),
    api("STREAM.SNAPSHOT.a_b"), api("STREAM.SNAPSHOT.a_b", {"deliver_subject": "a..b"}),
)  # fmt: skip


def _levels() -> Iterator[Step]:
    for level in ("0", "1", "2", "3", "4", "5", "6", "-1", "x", "", "2.0", "99999999999999999999"):
        for subject in ("INFO", "STREAM.NAMES", "STREAM.INFO.M", "CONSUMER.NAMES.M",
                        "STREAM.MSG.GET.M", "DIRECT.GET.M", "CONSUMER.MSG.NEXT.M.c"):  # fmt: skip
            body: object = {"seq": 1} if "GET" in subject else b""
            if "NEXT" in subject:
                body = {"batch": 1, "no_wait": True}
            yield api(subject, body, Nats_Required_Api_Level=level)


def _states() -> Iterator[Step]:
    """What messages, deletes, purges and gaps make of the state of a stream."""
    config = {"name": "S", "subjects": ["s.*", "t"], "storage": "memory", "allow_direct": True}
    yield api("STREAM.CREATE.S", config, must=True)
    for number in range(12):
        yield publish(f"s.{number % 4}", b"x" * number, **({"X": "y"} if number % 3 else {}))
    details: tuple[dict[str, object], ...] = (
        {}, {"subjects_filter": ">"}, {"subjects_filter": "s.1"}, {"deleted_details": True},
        {"subjects_filter": "q"}, {"subjects_filter": "s.*", "offset": 2},
        {"subjects_filter": "s.*", "offset": 50}, {"subjects_filter": "s.*", "deleted_details": True},
    )  # fmt: skip
    for change in (
        api("STREAM.MSG.DELETE.S", {"seq": 3}), api("STREAM.MSG.DELETE.S", {"seq": 1}),
        api("STREAM.MSG.DELETE.S", {"seq": 12, "no_erase": True}),
        api("STREAM.MSG.DELETE.S", {"seq": 12}), api("STREAM.PURGE.S", {"filter": "s.1"}),
        api("STREAM.PURGE.S", {"seq": 5}), api("STREAM.PURGE.S", {"filter": "s.2", "keep": 1}),
        api("STREAM.PURGE.S", {"filter": "s.0", "seq": 9}), api("STREAM.PURGE.S", {"keep": 2}),
        api("STREAM.PURGE.S", {"filter": "nobody"}), api("STREAM.PURGE.S", {"seq": 99}),
        api("STREAM.PURGE.S", {"filter": "a..b"}), api("STREAM.PURGE.S"), api("STREAM.PURGE.S"),
        publish("s.9"), api("STREAM.PURGE.S", {"filter": "s.9", "seq": 1, "keep": 1}),
    ):  # fmt: skip
        yield change
        for detail in details:
            yield api("STREAM.INFO.S", detail)


SCENES = [
    *_fields(),
    _LISTED,
    scene("required levels", FILLED, api("CONSUMER.CREATE.M.c", {
        "stream_name": "M", "config": {"name": "c", "ack_policy": "explicit"}}, must=True), _levels()),
    scene("stream states", _states()),
]  # fmt: skip
