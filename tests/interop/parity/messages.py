"""Messages: publishing with headers, gets, direct gets, pulls, acks, key-value and object stores.

Owns: the tables of requests about messages."""

from __future__ import annotations

from collections.abc import Iterator

from tests.interop.parity.exchange import (
    Ack,
    Heard,
    Listen,
    Request,
    Step,
    Unlisten,
    api,
    publish,
    scene,
    stored,
)

SECOND = 10**9
STREAM = {"name": "S", "subjects": ["s.>"], "storage": "memory", "allow_direct": True}
MADE = (
    api("STREAM.CREATE.S", STREAM, must=True),
    *(stored(f"s.{one}", one.encode() * 3, Nats_Msg_Id=f"id-{number}", X="y")
      for number, one in enumerate(("a", "b", "a", "c", "b", "d.e"))),
)  # fmt: skip


def made(**more: object) -> Request:
    return api("STREAM.CREATE.S", {**STREAM, **more}, must=True)


EXPECTATIONS = {
    "Nats-Expected-Stream": ("S", "T"),
    "Nats-Expected-Last-Sequence": ("0", "1", "6", "7", "x", "-1"),
    "Nats-Expected-Last-Subject-Sequence": ("0", "3", "5", "x"),
    "Nats-Expected-Last-Subject-Sequence-Subject": ("s.a", "s.*", "q"),
    "Nats-Expected-Last-Msg-Id": ("id-5", "id-0"),
    "Nats-Msg-Id": ("id-0", "new", "x" * 300),
    "Nats-Rollup": ("sub", "all", "other"),
    "Nats-TTL": ("3600s", "3600", "0", "-1", "x", "never", "1h30m", "500ms"),
    "Nats-Incr": ("1", "-1", "+5", "x", "0"),
    "Nats-Batch-Id": ("b1", "x" * 65),
    "Nats-Schedule": ("@at 2060-01-01T00:00:00Z", "@every 1h", "@every 1ms", "x", "@at x", "* * *",
                      "0 0 0 1 1 *", "@hourly"),
    "Nats-Schedule-Target": ("s.t", "q"),
    "Nats-Marker-Reason": ("MaxAge", "Purge"),
    "Nats-Stream-Source": ("X 1 > > s.a",),
    "Nats-Subject": ("x",),
    "Nats-Required-Api-Level": ("0", "99", "x"),
    "Nats-Sequence": ("5",),
    "Status": ("100",),
}  # fmt: skip


def _headers(**config: object) -> Iterator[Step]:
    yield made(**config)
    if "allow_msg_counter" not in config:
        yield from MADE[1:]
    for name, values in EXPECTATIONS.items():
        for value in values:
            yield Request("s.a", b"1", {name: value})
    yield Request("s.a", b"1", {"Nats-Expected-Last-Subject-Sequence": "1",
                                "Nats-Expected-Last-Subject-Sequence-Subject": "s.b"})  # fmt: skip
    yield Request("s.a", b"", {"Nats-Incr": "5"})
    yield Request("s.a", b"", {"Nats-Incr": "-7"})
    for pattern in ("@at 2060-01-01T00:00:00Z", "@every 1h", "@every 10ms", "0 0 3 * * *", "x"):
        for target in ("s.t", "s.a", "q", "s.*"):
            for more in (
                {},
                {"Nats-Schedule-TTL": "5m"},
                {"Nats-Schedule-Time-Zone": "UTC"},
                {"Nats-Schedule-Source": "s.b"},
                {"Nats-Schedule-TTL": "x"},
                {"Nats-Schedule-TTL": ""},
                {"Nats-Schedule-Time-Zone": ""},
                {"Nats-Schedule-Source": ""},
            ):
                yield Request("s.sched", b"1", {"Nats-Schedule": pattern,
                                                "Nats-Schedule-Target": target, **more})  # fmt: skip
    for name in EXPECTATIONS:
        yield Request("s.a", b"1", {name: ""})
    yield api("STREAM.PURGE.S")
    yield publish("s.a")
    yield api("STREAM.INFO.S")


def _batches() -> Iterator[Step]:
    def part(number: object, batch: str = "b", **more: str) -> Request:
        headers = {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(number)}
        for name, value in more.items():
            headers[name.replace("_", "-")] = value
        return Request("s.a", b"1", headers)

    yield made(allow_atomic=True)
    for script in (
        (part(1), part(2), part(3, Nats_Batch_Commit="1")),
        (part(1, Nats_Batch_Commit="1"),),
        (part(1), part(3, Nats_Batch_Commit="1")),
        (part(2),),
        (part(0),),
        (part("x"),),
        (part(1), part(1)),
        (part(1), part(2, Nats_Batch_Commit="0")),
        (part(1), part(2, Nats_Batch_Commit="eob")),
        (part(1), part(2, Nats_Batch_Commit="x")),
        (part(1, Nats_Msg_Id="a"), part(2, Nats_Msg_Id="a", Nats_Batch_Commit="1")),
        (part(1, Nats_Expected_Last_Sequence="99"), part(2, Nats_Batch_Commit="1")),
        (part(1), part(2, Nats_Expected_Last_Sequence="1", Nats_Batch_Commit="1")),
        (part(1, Nats_Expected_Last_Msg_Id="x"),),
        (part(1, Nats_Rollup="all"), part(2, Nats_Batch_Commit="1")),
        (part(1, "x" * 65),),
        (part(1, ""),),
        *((part(1, Nats_Required_Api_Level=level), part(2, Nats_Batch_Commit="1"))
          for level in ("0", "2", "3", "5", "6", "x", "")),
        (part(1, Nats_TTL=""), part(2, Nats_Rollup="", Nats_Batch_Commit="1")),
        (part(1, Nats_TTL="x"), part(2, Nats_Batch_Commit="1")),
        (part(1, Nats_TTL="5m"), part(2, Nats_Batch_Commit="1")),
        (part(1), part(2, Nats_Batch_Commit="")),
    ):  # fmt: skip
        yield from script
        yield api("STREAM.INFO.S")


SEQUENCES = (0, 1, 3, 6, 7, -1, 2**40)
GETS: tuple[dict[str, object], ...] = (
    *({"seq": one} for one in SEQUENCES),
    *({"last_by_subj": one} for one in ("s.a", "s.*", "s.>", "q", "", "a..b", ">")),
    *({"next_by_subj": one} for one in ("s.a", "s.*", "q", "s.d.>", "")),
    *({"seq": one, "next_by_subj": "s.b"} for one in SEQUENCES),
    *({"start_time": one} for one in ("2020-01-01T00:00:00Z", "2060-01-01T00:00:00Z", "x")),
    {"start_time": "2020-01-01T00:00:00Z", "next_by_subj": "s.b"},
    {"seq": 1, "start_time": "2020-01-01T00:00:00Z"},
    {"seq": 1, "last_by_subj": "s.a"},
    {"multi_last": ["s.a"]},
    {"no_hdr": True, "seq": 1},
    {},
)
BATCHES: tuple[tuple[dict[str, object], int], ...] = (
    ({"seq": 1, "batch": 2}, 3),
    ({"seq": 1, "batch": 100}, 7),
    ({"seq": 4, "batch": 2, "next_by_subj": "s.b"}, 2),
    ({"batch": 3, "next_by_subj": "s.>"}, 4),
    ({"seq": 1, "batch": 3, "max_bytes": 20}, 2),
    ({"batch": 3}, 1),
    ({"seq": 9, "batch": 3}, 1),
    ({"multi_last": ["s.a", "s.b"]}, 3),
    ({"multi_last": ["s.>"]}, 5),
    ({"multi_last": ["s.>"], "batch": 2}, 3),
    ({"multi_last": ["s.>"], "up_to_seq": 3}, 3),
    ({"multi_last": ["s.a"], "up_to_seq": 1}, 2),
    ({"multi_last": ["q"]}, 1),
    ({"multi_last": [""]}, 1),
    ({"multi_last": ["s.a"], "up_to_time": "2020-01-01T00:00:00Z"}, 1),
    ({"multi_last": ["s.a"], "up_to_time": "2060-01-01T00:00:00Z"}, 2),
    ({"multi_last": ["s.a"], "up_to_time": "2060-01-01T00:00:00Z", "up_to_seq": 2}, 1),
    ({"multi_last": ["s.a"], "seq": 2}, 1),
    ({"multi_last": ["s.a"], "last_by_subj": "s.a"}, 1),
    ({"last_by_subj": "s.a", "batch": 2}, 1),
    ({"seq": 1, "batch": 2, "start_time": "2020-01-01T00:00:00Z"}, 1),
    ({"start_time": "2020-01-01T00:00:00Z", "batch": 2}, 3),
)


def _gets() -> Iterator[Step]:
    for body in GETS:
        yield api("STREAM.MSG.GET.S", body)
        yield api("DIRECT.GET.S", body)
    for body, replies in BATCHES:
        one = api("DIRECT.GET.S", body)
        yield Request(one.subject, one.body, replies=replies)
    for subject in ("s.a", "s.d.e", "q", "s.*", "s.>", "s"):
        yield api(f"DIRECT.GET.S.{subject}")
        yield api(f"DIRECT.GET.S.{subject}", b"x")
    for body in (b"x", b"{", b""):
        yield api("DIRECT.GET.S", body)
        yield api("STREAM.MSG.GET.S", body)
    yield api("DIRECT.GET.none", {"seq": 1})
    yield api("STREAM.UPDATE.S", {**STREAM, "allow_direct": False})
    yield api("DIRECT.GET.S", {"seq": 1})
    yield api("DIRECT.GET.S.s.a")


def next_of(consumer: str, replies: int = 1, **body: object) -> Request:
    one = api(f"CONSUMER.MSG.NEXT.S.{consumer}", body)
    return Request(one.subject, one.body, replies=replies)


def consumer(name: str, **config: object) -> Request:
    settings = {"name": name, "ack_policy": "explicit", **config}
    body = {"stream_name": "S", "config": settings}
    return api(f"CONSUMER.CREATE.S.{name}", body, must=True)


def _pulls(**config: object) -> Iterator[Step]:
    yield from MADE
    info = api("CONSUMER.INFO.S.C")
    for script in (
        (next_of("C", 2, batch=2, no_wait=True), Ack(), info, Ack(which=2), info),
        (next_of("C", 6, batch=100, no_wait=True),),
        (next_of("C", 2, batch=2, expires=SECOND), Ack(b"-NAK"), next_of("C", no_wait=True), info),
        (next_of("C", batch=1), Ack(b"+TERM"), info, Ack(b"+ACK"), info),
        (next_of("C", batch=1), Ack(b"+WPI"), info, Ack(b"+NXT"), info),
        (next_of("C", batch=1), Ack(b"+TERM why"), info, Ack(b"nonsense"), info),
        (next_of("C", batch=1), Ack(b'-NAK {"delay": 3600000000000}'), info),
        (next_of("C", batch=0, no_wait=True), next_of("C", batch=-1, no_wait=True)),
        (next_of("C", 3, batch=6, max_bytes=150, no_wait=True), info),
        (next_of("C", 1, batch=1, max_bytes=1, no_wait=True), info),
        (next_of("C", 1, batch=1, expires=1000), info),
        (next_of("C", 1, batch=1, idle_heartbeat=SECOND), info),
        (next_of("C", 1, batch=1, min_pending=1, no_wait=True), info),
        (next_of("C", 1, batch=1, group="a", no_wait=True), info),
        (next_of("C", 1, batch=1, priority=1, no_wait=True), info),
        (api("CONSUMER.MSG.NEXT.S.C", b"2"), info),
        (api("CONSUMER.MSG.NEXT.S.C"), info),
        (api("CONSUMER.MSG.NEXT.S.C", b"x"), api("CONSUMER.MSG.NEXT.S.C", b"{"), info),
    ):
        yield consumer("C", **config)
        yield from script
        yield api("CONSUMER.DELETE.S.C")


def _pushes(**config: object) -> Iterator[Step]:
    yield from MADE
    yield Listen("to.c")
    settings = {"deliver_subject": "to.c", **config}
    for ack in (b"+ACK", b"-NAK", b"+TERM", b"+WPI"):
        yield consumer("C", **settings)
        yield Heard(1)
        yield Ack(ack)
        yield api("CONSUMER.INFO.S.C")
        yield api("CONSUMER.DELETE.S.C")
        yield Unlisten()
        yield Listen("to.c")
    yield Unlisten()
    yield consumer("C", **settings)
    yield api("CONSUMER.INFO.S.C")


def _key_value() -> Iterator[Step]:
    bucket = {
        "name": "KV_b", "subjects": ["$KV.b.>"], "max_msgs_per_subject": 3, "allow_direct": True,
        "deny_delete": True, "allow_rollup_hdrs": True, "discard": "new", "storage": "memory",
    }  # fmt: skip
    yield api("STREAM.CREATE.KV_b", bucket, must=True)
    for key in ("a", "b.c", "a", "=x", "-y", "a", "a"):
        yield publish(f"$KV.b.{key}", b"v")
    yield publish("$KV.b.a", b"", KV_Operation="DEL")
    yield publish("$KV.b.b.c", b"", KV_Operation="PURGE", Nats_Rollup="sub")
    yield publish("$KV.b.new", b"1", Nats_Expected_Last_Subject_Sequence="0")
    yield publish("$KV.b.new", b"1", Nats_Expected_Last_Subject_Sequence="0")
    yield publish("$KV.b.new", b"1", Nats_Expected_Last_Subject_Sequence="11")
    for key in ("a", "b.c", "none", "new", "a.>"):
        yield api(f"DIRECT.GET.KV_b.$KV.b.{key}")
        yield api("STREAM.MSG.GET.KV_b", {"last_by_subj": f"$KV.b.{key}"})
    yield api("STREAM.INFO.KV_b", {"subjects_filter": "$KV.b.>"})
    yield api("STREAM.MSG.DELETE.KV_b", {"seq": 3})
    yield api("STREAM.PURGE.KV_b", {"filter": "$KV.b.a"})
    yield api("STREAM.NAMES", {"subject": "$KV.*.>"})
    yield Listen("watch")
    config = {"name": "w", "deliver_subject": "watch", "ack_policy": "none", "max_deliver": 1,
              "deliver_policy": "last_per_subject", "filter_subject": "$KV.b.>",
              "mem_storage": True, "num_replicas": 1, "flow_control": True,
              "idle_heartbeat": 5 * SECOND, "inactive_threshold": 60 * SECOND}  # fmt: skip
    body = {"stream_name": "KV_b", "config": config}
    yield api("CONSUMER.CREATE.KV_b.w.$KV.b.>", body, must=True)
    yield Heard(4)
    yield publish("$KV.b.live", b"now")
    yield Heard(1)


def _object_store() -> Iterator[Step]:
    config = {
        "name": "OBJ_o", "subjects": ["$O.o.C.>", "$O.o.M.>"], "discard": "new",
        "allow_rollup_hdrs": True, "allow_direct": True, "storage": "memory",
    }  # fmt: skip
    yield api("STREAM.CREATE.OBJ_o", config, must=True)
    for number in range(3):
        yield publish("$O.o.C.nuid", b"chunk" * number)
    yield publish("$O.o.M.bmFtZQ==", b'{"name":"name"}', Nats_Rollup="sub")
    yield publish("$O.o.M.bmFtZQ==", b'{"name":"name","deleted":true}', Nats_Rollup="sub")
    yield api("STREAM.MSG.GET.OBJ_o", {"last_by_subj": "$O.o.M.bmFtZQ=="})
    yield api("DIRECT.GET.OBJ_o.$O.o.M.bmFtZQ==")
    yield api("STREAM.PURGE.OBJ_o", {"filter": "$O.o.C.nuid"})
    yield api("STREAM.INFO.OBJ_o", {"subjects_filter": ">"})
    yield api("STREAM.UPDATE.OBJ_o", {**config, "sealed": True})
    yield publish("$O.o.C.nuid", b"late")
    yield api("STREAM.PURGE.OBJ_o")
    yield api("STREAM.MSG.DELETE.OBJ_o", {"seq": 5})
    yield api("STREAM.UPDATE.OBJ_o", {**config, "sealed": True, "max_msgs": 5})


def _limited() -> Iterator[Step]:
    for more in ({"max_msgs": 2}, {"max_bytes": 120}, {"max_msgs_per_subject": 1},
                 {"max_msg_size": 5}):  # fmt: skip
        for discard in ("old", "new"):
            extra: dict[str, object] = {"discard": discard, **more}
            yield made(**extra)
            for subject, body in (("s.a", b"1"), ("s.b", b"22"), ("s.a", b"333"), ("s.c", b"x" * 9),
                                  ("s.a", b"x" * 200)):  # fmt: skip
                yield publish(subject, body)
            yield api("STREAM.INFO.S")
            yield api("STREAM.DELETE.S", must=True)
    yield made(discard="new", discard_new_per_subject=True, max_msgs_per_subject=1)
    for subject in ("s.a", "s.a", "s.b"):
        yield publish(subject)
    yield publish("s.a", b"1", Nats_Rollup="sub")
    yield api("STREAM.INFO.S")


def _sources() -> Iterator[Step]:
    """Republished and transformed messages."""
    yield made(republish={"src": "s.>", "dest": "r.>"},
               subject_transform={"src": "s.*", "dest": "s.t.{{wildcard(1)}}"})  # fmt: skip
    yield Listen("r.>")
    for number in range(4):
        yield publish(f"s.{number % 2}", b"xyz", X="y")
        yield Heard(1)
    yield api("STREAM.INFO.S", {"subjects_filter": ">"})
    yield api("STREAM.UPDATE.S", {**STREAM, "republish": {
        "src": "s.>", "dest": "r.>", "headers_only": True}})  # fmt: skip
    yield publish("s.last", b"xyz")
    yield Heard(1)


SCENES = [
    scene("publish headers", _headers()),
    scene("publish headers allowed", _headers(
        allow_msg_ttl=True, allow_rollup_hdrs=True, allow_msg_schedules=True)),
    scene("publish headers of a counter", _headers(allow_msg_counter=True)),
    scene("publish without acks", _headers(allow_rollup_hdrs=True, deny_purge=False,
                                           max_msgs_per_subject=2)),
    scene("atomic batches", _batches()),
    scene("gets", MADE, _gets()),
    scene("pulls", _pulls()),
    scene("pulls without acks", _pulls(ack_policy="none")),
    scene("pulls with limits", _pulls(max_batch=3, max_bytes=1000, max_expires=2 * SECOND)),
    scene("pushes", _pushes(max_ack_pending=1)),
    scene("pushes of headers", _pushes(max_ack_pending=1, headers_only=True)),
    scene("pushes of the last", _pushes(max_ack_pending=1, deliver_policy="last")),
    scene("pushes filtered", _pushes(max_ack_pending=1, filter_subject="s.b")),
    scene("key-value conventions", _key_value()),
    scene("object store conventions", _object_store()),
    scene("limits of a stream", _limited()),
    scene("republished", _sources()),
]  # fmt: skip
