"""Stream configuration: refusals with their error code and text, and defaults.

The refusals are data (cases/stream_create.txt): each is a body that a client could send."""

from __future__ import annotations

import json

import pytest

from broker.jetstream.config import Retention, StreamConfig, StreamConfigRequest, StreamSource
from broker.jetstream.config.api_levels import same_stream
from broker.jetstream.config.limits import (
    AccountLimits,
    AccountView,
    ServerLimits,
    check_account_limits,
)
from broker.jetstream.config.stream_rules import (
    check_stream_config,
    check_stream_create,
    stream_create_steps,
)
from broker.jetstream.errors import JetStreamError
from broker.jetstream.strict_json import decode
from tests.support.config_cases import refusals

S = 1_000_000_000
ORIGIN = StreamConfig(name="ORIGIN", subjects=("origin.*",), max_msg_size=100, allow_direct=True)
WIDE = StreamConfig(name="WIDE", subjects=("wide.>",))
STANDALONE = AccountView(streams={"ORIGIN": ORIGIN, "WIDE": WIDE}, clustered=False)

REFUSED = refusals("stream_create.txt")

ACCEPTED: list[str] = [
    '"subjects":["a.>","b"]',
    '"subjects":[">"],"no_ack":true',
    '"subjects":["$JS.EVENT.>"]',
    '"subjects":["$SYS.ACCOUNT.>"]',
    '"subjects":["$JS.API.>"],"no_ack":true',
    '"max_msgs":-7,"max_bytes":0',
    '"duplicate_window":100000000',
    '"discard":"NEW","max_msgs_per_subject":5,"discard_new_per_subject":true',
    '"subject_transform":{"src":"A","dest":"{{partition(5)}}"}',
    '"subject_transform":{"src":"*.*","dest":"x.{{ Wildcard( 2 ) }}.$1"}',
    '"republish":{"dest":"b.>"}',
    '"mirror":{"name":"ORIGIN","opt_start_seq":5}',
    '"mirror":{"name":"ORIGIN","subject_transforms":[{"src":"origin.*","dest":"o.{{wildcard(1)}}"}]}',
    '"mirror":{"name":"B","external":{"api":"$JS.hub.API","deliver":"x.y"}}',
    '"sources":[{"name":"B"},{"name":"B","filter_subject":"x"}]',
    '"sources":[{"name":"A","filter_subject":"zz"}],"subjects":["q"]',
    '"metadata":{"_nats.ver":"9","_nats.level":"9","_nats.req.level":"9","mine":"1"}',
    '"subject_delete_marker_ttl":1000000000',
    '"persist_mode":"","compression":"s2","placement":{}',
]


def request_of(rest: str, *, name: str = "A") -> StreamConfigRequest:
    body = f'{{"name":"{name}"{"," if rest else ""}{rest}}}'
    return decode(body.encode(), StreamConfigRequest, strict=True)


def create(rest: str, view: AccountView = STANDALONE) -> StreamConfig:
    return check_stream_create(request_of(rest), named="A", view=view)


TOO_LONG = [
    (
        f'"description":"{"d" * 4097}"',
        10052,
        "stream description is too long, maximum allowed is 4096",
    ),
    (
        f'"metadata":{{"k":"{"v" * 131_072}"}}',
        10052,
        "stream metadata exceeds maximum size of 131072 bytes",
    ),
]


@pytest.mark.parametrize(("rest", "err_code", "description"), REFUSED + TOO_LONG)
def test_create_refuses(rest: str, err_code: int, description: str) -> None:
    with pytest.raises(JetStreamError) as refused:
        create(rest)
    assert (refused.value.err_code, refused.value.description) == (err_code, description)


@pytest.mark.parametrize("rest", ACCEPTED)
def test_create_accepts_and_checking_again_changes_nothing(rest: str) -> None:
    config = create(rest)
    assert check_stream_config(config, view=STANDALONE) == config


@pytest.mark.parametrize(
    ("name", "named", "err_code"),
    [
        ("A", "B", 10056),
        ("a/b", "a/b", 10128),
        ("a\\b", "a\\b", 10128),
        ("n" * 256, "n" * 256, 10052),
    ],
)
def test_create_refuses_names(name: str, named: str, err_code: int) -> None:
    request = StreamConfigRequest(name=name)
    with pytest.raises(JetStreamError) as refused:
        check_stream_create(request, named=named, view=STANDALONE)
    assert refused.value.err_code == err_code


@pytest.mark.parametrize("name", ["", "a.b", "a b", "a*", "a>", "a\tb"])
def test_a_name_with_a_forbidden_character_is_refused(name: str) -> None:
    with pytest.raises(JetStreamError) as refused:
        check_stream_config(StreamConfig(name=name), view=STANDALONE)
    assert refused.value.description == (
        "stream name is required and can not contain '.', '*', '>', '\\', '/'"
    )


def test_defaults_after_normalization() -> None:
    config = create("")
    assert config == StreamConfig(
        name="A",
        subjects=("A",),
        duplicate_window=120 * S,
        metadata={"_nats.req.level": "0"},
    )


def test_zero_limits_mean_no_limit() -> None:
    config = create(
        '"max_msgs":0,"max_bytes":0,"max_msg_size":0,"max_consumers":0,"num_replicas":0'
    )
    assert (config.max_msgs, config.max_bytes, config.max_msg_size) == (-1, -1, -1)
    assert (config.max_consumers, config.num_replicas) == (-1, 1)


@pytest.mark.parametrize(
    ("rest", "window"),
    [
        ("", 120 * S),
        ('"max_age":60000000000', 60 * S),
        ('"max_age":300000000000', 120 * S),
        ('"duplicate_window":5000000000', 5 * S),
        ('"mirror":{"name":"ORIGIN"}', 0),
        ('"sources":[{"name":"ORIGIN"}]', 0),
    ],
)
def test_duplicate_window_default(rest: str, window: int) -> None:
    assert create(rest).duplicate_window == window


def test_server_limit_on_the_duplicate_window() -> None:
    view = AccountView(server=ServerLimits(duplicate_window_ns=60 * S))
    assert create("", view).duplicate_window == 60 * S
    with pytest.raises(JetStreamError, match="server limit of 1m0s"):
        create('"duplicate_window":120000000000', view)
    with pytest.raises(JetStreamError, match="higher than current limits"):
        create('"pedantic":true', view)


def test_a_mirror_takes_direct_access_from_a_visible_origin() -> None:
    assert create('"mirror":{"name":"ORIGIN"}').mirror_direct
    elsewhere = '"mirror":{"name":"ORIGIN","external":{"api":"$JS.hub.API","deliver":""}}'
    assert not create(elsewhere).mirror_direct


def test_delete_markers_enable_ttl_and_rollups() -> None:
    config = create('"subject_delete_marker_ttl":1000000000,"deny_purge":true')
    assert (config.allow_msg_ttl, config.allow_rollup_hdrs, config.deny_purge) == (
        True,
        True,
        False,
    )
    assert config.metadata["_nats.req.level"] == "1"


def test_republish_source_defaults_to_everything() -> None:
    republish = create('"republish":{"dest":"b.>"}').republish
    assert republish is not None
    assert republish.src == ">"


def test_republish_follows_a_transform_of_the_only_subject() -> None:
    transform = '"subject_transform":{"src":"A","dest":"b"}'
    republish = create(f'{transform},"republish":{{"src":">","dest":">"}}').republish
    assert republish is not None
    assert (republish.src, republish.dest) == ("b", "b")


def test_an_empty_placement_is_removed() -> None:
    assert create('"placement":{}').placement is None
    assert create('"placement":{"cluster":"c"}').placement is not None


@pytest.mark.parametrize(
    ("rest", "level"),
    [
        ("", "0"),
        ('"allow_msg_ttl":true', "1"),
        ('"allow_atomic":true', "2"),
        ('"allow_msg_schedules":true', "2"),
        ('"persist_mode":"async"', "2"),
        ('"allow_batched":true', "4"),
    ],
)
def test_required_level_is_stored_and_the_dynamic_keys_are_dropped(rest: str, level: str) -> None:
    rest = (
        rest + "," if rest else ""
    ) + '"metadata":{"_nats.ver":"9","_nats.level":"9","mine":"1"}'
    assert create(rest).metadata == {"mine": "1", "_nats.req.level": level}


def test_equality_ignores_version_metadata() -> None:
    one = create('"metadata":{"mine":"1"}')
    other = StreamConfig(
        name="A",
        subjects=("A",),
        duplicate_window=120 * S,
        metadata={"mine": "1", "_nats.ver": "7"},
    )
    assert same_stream(one, other)
    assert not same_stream(one, create('"metadata":{"mine":"2"}'))


def test_a_cycle_through_other_streams_is_found() -> None:
    b = StreamConfig(name="B", sources=(StreamSource(name="C"),))
    c = StreamConfig(name="C", mirror=StreamSource(name="A"))
    view = AccountView(streams={"B": b, "C": c})
    with pytest.raises(JetStreamError, match="detected cycle"):
        create('"sources":[{"name":"B"}]', view)


@pytest.mark.parametrize(
    ("limits", "rest", "err_code"),
    [
        (AccountLimits(max_streams=1), "", 10027),
        (AccountLimits(max_consumers=5), '"max_consumers":6', 10026),
        (AccountLimits(max_storage=1000), '"max_bytes":1001', 10047),
        (AccountLimits(max_memory=1000), '"max_bytes":1001,"storage":"memory"', 10028),
    ],
)
def test_account_limits(limits: AccountLimits, rest: str, err_code: int) -> None:
    view = AccountView(streams={"ORIGIN": ORIGIN}, limits=limits)
    with pytest.raises(JetStreamError) as refused:
        check_account_limits(create(rest, view), view)
    assert refused.value.err_code == err_code


def test_reservations_count_every_replica_but_not_the_stream_itself_twice() -> None:
    config = StreamConfig(name="A", max_bytes=500, num_replicas=3)
    limits = AccountLimits(max_storage=1500, max_streams=1)
    check_account_limits(config, AccountView(streams={"A": config}, limits=limits))
    small = AccountView(limits=AccountLimits(max_storage=1499))
    with pytest.raises(JetStreamError):
        check_account_limits(config, small)


@pytest.mark.parametrize(
    ("limits", "rest", "err_code"),
    [
        (AccountLimits(max_bytes_required=True), "", 10113),
        (AccountLimits(storage_max_stream_bytes=10), '"max_bytes":11', 10122),
        (AccountLimits(memory_max_stream_bytes=10), '"max_bytes":11,"storage":"memory"', 10122),
    ],
)
def test_limits_of_single_streams(limits: AccountLimits, rest: str, err_code: int) -> None:
    with pytest.raises(JetStreamError) as refused:
        create(rest, AccountView(limits=limits))
    assert refused.value.err_code == err_code


def test_retention_values() -> None:
    assert create('"retention":"workqueue"').retention is Retention.WORKQUEUE


@pytest.mark.parametrize("dest", ["z." + "x" * 5000, ".".join(["{{wildcard(1)}}"] * 17),
                                  "z.{{partition(3,1" + ",1" * 16 + ")}}"])  # fmt: skip
def test_a_transform_repeats_a_subject_a_few_times_only(dest: str) -> None:
    """Every replica carries it out for every message: 20,000 parts made 60 MB of each subject."""
    rest = json.dumps({"subjects": ["a.*"], "subject_transform": {"src": "a.*", "dest": dest}})
    with pytest.raises(JetStreamError, match="transform destination") as refused:
        create(rest[1:-1])
    assert refused.value.err_code == 10156


def test_an_origin_has_a_bounded_number_of_transforms() -> None:
    transforms = [{"src": f"a.{at}", "dest": f"b.{at}"} for at in range(129)]
    for rest in (
        {"sources": [{"name": "B", "subject_transforms": transforms}]},
        {"mirror": {"name": "B", "subject_transforms": transforms}},
    ):
        with pytest.raises(JetStreamError, match="more than 128 subject transforms"):
            create(json.dumps(rest)[1:-1])


def test_streams_that_read_each_other_in_layers_are_looked_at_once() -> None:
    """Eighteen layers of two streams: there are 262,144 ways from the first to the last one."""
    looked_up: list[str] = []

    class Counted(dict[str, StreamConfig]):
        def __getitem__(self, name: str) -> StreamConfig:
            looked_up.append(name)
            return super().__getitem__(name)

    layers = [(f"L{at}", f"R{at}") for at in range(18)]
    streams = Counted()
    for names, below in zip(layers, [*layers[1:], ()], strict=True):
        sources = tuple(StreamSource(name=one) for one in below)
        streams.update({name: StreamConfig(name=name, sources=sources) for name in names})
    create('"sources":[{"name":"L0"},{"name":"R0"}]', AccountView(streams=streams))
    assert len(looked_up) < 200


def test_prefixes_of_other_accounts_are_compared_with_subjects_in_steps() -> None:
    origin = StreamConfig(name="B", subjects=tuple(f"b.{at}" for at in range(1000)))
    sources: list[dict[str, object]] = [{"name": "B"}]
    for at in range(20):
        sources.append({"name": f"X{at}", "external": {"api": "other", "deliver": f"d.{at}"}})
    steps = stream_create_steps(
        request_of(json.dumps({"sources": sources})[1:-1]),
        named="A",
        view=AccountView(streams={"B": origin}),
    )
    assert sum(1 for _ in steps) > 20 * 1000 // 64
