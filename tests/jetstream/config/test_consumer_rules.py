"""Consumer configuration: refusals (cases/consumer_create.txt), defaults, create and update."""

from __future__ import annotations

import pytest

from broker.jetstream.api.requests import named_consumer
from broker.jetstream.api.subjects import parse_api_subject
from broker.jetstream.config import (
    AckPolicy,
    ConsumerConfig,
    ConsumerCreateRequest,
    ConsumerLimits,
    DeliverPolicy,
    PriorityPolicy,
    ReplayPolicy,
    Retention,
    StreamConfig,
)
from broker.jetstream.config.consumer_rules import check_consumer_config
from broker.jetstream.config.consumer_update import (
    CreateDecision,
    CreateOutcome,
    check_consumer_update,
    decide_create,
    sourcing_consumer,
)
from broker.jetstream.config.limits import AccountLimits, AccountView, ServerLimits
from broker.jetstream.errors import JetStreamError
from broker.jetstream.strict_json import decode
from tests.support.config_cases import refusals

S = 1_000_000_000
STREAMS = {
    "S": StreamConfig(name="S", subjects=("s.*",)),
    "W": StreamConfig(name="W", subjects=("w.*",), retention=Retention.WORKQUEUE),
    "I": StreamConfig(name="I", subjects=("i.*",), retention=Retention.INTEREST),
    "L": StreamConfig(
        name="L",
        subjects=("l.*",),
        consumer_limits=ConsumerLimits(inactive_threshold=S, max_ack_pending=10),
    ),
}
STANDALONE = AccountView(clustered=False)
EXPLICIT = ConsumerConfig(ack_policy=AckPolicy.EXPLICIT)


def create(
    tail: str,
    config: str,
    consumers: dict[str, ConsumerConfig] | None = None,
    *,
    extra: str = "",
    view: AccountView = STANDALONE,
) -> CreateDecision:
    """All checks of a CONSUMER.CREATE request, in the order of the API."""
    api = parse_api_subject(f"$JS.API.CONSUMER.{tail}".encode())
    assert api is not None
    body = f'{{"stream_name":"{api.stream}","config":{config}{extra}}}'
    request = decode(body.encode(), ConsumerCreateRequest, strict=True)
    stream = STREAMS[api.stream]
    checked = check_consumer_config(
        named_consumer(request, api), stream=stream, view=view, pedantic=request.pedantic
    )
    name = checked.durable_name or checked.name or "generated"
    return decide_create(name, checked, request.action, stream=stream, consumers=consumers or {})


@pytest.mark.parametrize(("case", "err_code", "description"), refusals("consumer_create.txt"))
def test_create_refuses(case: str, err_code: int, description: str) -> None:
    tail, config = case.split(" ", 1)
    with pytest.raises(JetStreamError) as refused:
        create(tail, config)
    assert (refused.value.err_code, refused.value.description) == (err_code, description)


@pytest.mark.parametrize(
    ("config", "err_code"),
    [
        (ConsumerConfig(name="n" * 256), 10102),
        (ConsumerConfig(durable_name="a.b"), 10052),
        (ConsumerConfig(description="d" * 4097), 10107),
        (ConsumerConfig(metadata={"k": "v" * 131_072}), 10135),
        (ConsumerConfig(name="a", durable_name="b"), 10132),
        (ConsumerConfig(num_replicas=2), 10126),
    ],
)
def test_create_refuses_in_other_contexts(config: ConsumerConfig, err_code: int) -> None:
    with pytest.raises(JetStreamError) as refused:
        check_consumer_config(config, stream=STREAMS["S"], view=AccountView())
    assert refused.value.err_code == err_code


def test_replicas_must_match_streams_with_interest_or_workqueue_retention() -> None:
    replicated = StreamConfig(name="R", num_replicas=3, retention=Retention.INTEREST)
    for replicas in (0, 3):
        config = ConsumerConfig(num_replicas=replicas)
        check_consumer_config(config, stream=replicated, view=AccountView())
    config = ConsumerConfig(num_replicas=1)
    with pytest.raises(JetStreamError) as refused:
        check_consumer_config(config, stream=replicated, view=AccountView())
    assert refused.value.err_code == 10134


PEDANTIC = [
    ('{"max_deliver":-2}', "max_deliver must be set to -1"),
    ('{"max_waiting":-1}', "max_waiting must not be negative"),
    ('{"max_ack_pending":-2}', "max_ack_pending must be set to -1"),
    ('{"max_batch":-1}', "max_batch must not be negative"),
    ('{"max_expires":-1}', "max_expires must not be negative"),
    ('{"max_bytes":-1}', "max_bytes must not be negative"),
    ('{"idle_heartbeat":-1}', "idle_heartbeat must not be negative"),
    ('{"inactive_threshold":-1}', "inactive_threshold must not be negative"),
    ('{"priority_timeout":-1}', "priority_timeout must not be negative"),
    (
        '{"ack_policy":"explicit","backoff":[5]}',
        "first backoff value has to equal batch AckWait",
    ),
]


@pytest.mark.parametrize(("config", "reason"), PEDANTIC)
def test_pedantic_mode_refuses_values_that_are_corrected_otherwise(
    config: str, reason: str
) -> None:
    create("CREATE.S.c", config)
    with pytest.raises(JetStreamError) as refused:
        create("CREATE.S.c", config, extra=',"pedantic":true')
    assert (refused.value.err_code, refused.value.description) == (
        10157,
        f"pedantic mode: {reason}",
    )


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ('{"ack_policy":"explicit","inactive_threshold":1}', "max_ack_pending"),
        ('{"ack_policy":"explicit","max_ack_pending":1}', "inactive_threshold"),
    ],
)
def test_pedantic_mode_requires_stream_limits_to_be_set_explicitly(
    config: str, reason: str
) -> None:
    with pytest.raises(JetStreamError, match=f"{reason} must be set if it's configured in"):
        create("CREATE.L.c", config, extra=',"pedantic":true')


def test_defaults_of_a_durable_pull_consumer() -> None:
    assert create("CREATE.S.c", '{"durable_name":"c","ack_policy":"explicit"}').config == (
        ConsumerConfig(
            durable_name="c",
            name="c",
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=30 * S,
            max_deliver=-1,
            max_waiting=512,
            max_ack_pending=1000,
            metadata={"_nats.req.level": "0"},
        )
    )


def test_defaults_of_an_ephemeral_push_consumer_without_acks() -> None:
    decision = create("CREATE.S", '{"deliver_subject":"d"}')
    assert decision.outcome is CreateOutcome.CREATE
    assert decision.config == ConsumerConfig(
        deliver_subject="d",
        max_deliver=-1,
        inactive_threshold=5 * S,
        metadata={"_nats.req.level": "0"},
    )


@pytest.mark.parametrize(
    ("tail", "config", "field", "value"),
    [
        ("CREATE.S.c", "{}", "ack_policy", AckPolicy.NONE),
        ("CREATE.S.c", '{"deliver_policy":"undefined"}', "deliver_policy", DeliverPolicy.ALL),
        ("CREATE.S.c", '{"backoff":[7,8],"ack_wait":9}', "ack_wait", 7),
        ("CREATE.S.c", '{"ack_policy":"all","max_ack_pending":-5}', "max_ack_pending", -1),
        ("CREATE.S.c", '{"ack_policy":"explicit","backoff":[1,2],"max_deliver":2}', "ack_wait", 1),
        ("CREATE.L.c", '{"ack_policy":"explicit"}', "max_ack_pending", 10),
        ("CREATE.L.c", "{}", "inactive_threshold", S),
        (
            "CREATE.S.c",
            '{"priority_policy":"pinned_client","priority_groups":["g"]}',
            "priority_timeout",
            120 * S,
        ),
        (
            "CREATE.S.c",
            '{"ack_policy":"flow_control","deliver_subject":"d"}',
            "idle_heartbeat",
            S,
        ),
        ("CREATE.S.c", '{"name":"other"}', "name", "c"),
        ("CREATE.S.c", '{"sample_freq":"30%"}', "sample_freq", "30%"),
        ("CREATE.S.c.s.x", '{"filter_subject":"s.x"}', "filters", (b"s.x",)),
        (
            "CREATE.S.c",
            '{"filter_subjects":["foo.*.bar","foo.x.*"]}',
            "filters",
            (b"foo.*.bar", b"foo.x.*"),
        ),
        ("CREATE.S.c", '{"filter_subject":"elsewhere"}', "filters", (b"elsewhere",)),
        ("DURABLE.CREATE.S.c", '{"durable_name":"c"}', "name", "c"),
    ],
)
def test_normalized_values(tail: str, config: str, field: str, value: object) -> None:
    assert getattr(create(tail, config).config, field) == value


def test_limits_of_server_and_account_lower_the_defaults() -> None:
    view = AccountView(
        server=ServerLimits(max_ack_pending=500, max_request_batch=50),
        limits=AccountLimits(max_ack_pending=400),
    )
    config = create("CREATE.S.c", '{"ack_policy":"explicit"}', view=view).config
    assert (config.max_ack_pending, config.max_batch) == (400, 50)
    for requested, err_code in (('"max_ack_pending":401', 10121), ('"max_batch":51', 10125)):
        with pytest.raises(JetStreamError) as refused:
            create("CREATE.S.c", f'{{"ack_policy":"explicit",{requested}}}', view=view)
        assert refused.value.err_code == err_code


def test_stream_name_in_the_body_must_match() -> None:
    api = parse_api_subject(b"$JS.API.CONSUMER.CREATE.S.c")
    assert api is not None
    with pytest.raises(JetStreamError) as refused:
        named_consumer(ConsumerCreateRequest(stream_name="T"), api)
    assert refused.value.err_code == 10056


def test_durable_create_without_a_consumer_token_is_refused() -> None:
    with pytest.raises(JetStreamError) as refused:
        create("DURABLE.CREATE.S", '{"durable_name":"c"}')
    assert refused.value.err_code == 10016


EXISTING = create("CREATE.S.c", '{"durable_name":"c","ack_policy":"explicit"}').config


@pytest.mark.parametrize(
    ("action", "config", "outcome"),
    [
        ("", '"ack_policy":"explicit"', CreateOutcome.UNCHANGED),
        ("", '"ack_policy":"explicit","metadata":{"_nats.ver":"1"}', CreateOutcome.UNCHANGED),
        (
            "",
            '"ack_policy":"explicit","pause_until":"2100-01-01T00:00:00Z"',
            CreateOutcome.UNCHANGED,
        ),
        ("", '"ack_policy":"explicit","max_deliver":3', CreateOutcome.UPDATE),
        ("", '"ack_policy":"all"', 10012),
        ("create", '"ack_policy":"explicit"', CreateOutcome.UNCHANGED),
        ("create", '"ack_policy":"explicit","max_deliver":3', 10148),
        ("update", '"ack_policy":"explicit"', CreateOutcome.UNCHANGED),
        ("update", '"ack_policy":"explicit","max_deliver":3', CreateOutcome.UPDATE),
    ],
)
def test_actions_on_an_existing_consumer(
    action: str, config: str, outcome: CreateOutcome | int
) -> None:
    body, extra = f'{{"durable_name":"c",{config}}}', f',"action":"{action}"'
    if isinstance(outcome, int):
        with pytest.raises(JetStreamError) as refused:
            create("CREATE.S.c", body, {"c": EXISTING}, extra=extra)
        assert refused.value.err_code == outcome
    else:
        assert create("CREATE.S.c", body, {"c": EXISTING}, extra=extra).outcome is outcome


def test_update_of_a_missing_consumer_is_refused() -> None:
    assert create("CREATE.S.c", "{}", extra=',"action":"create"').outcome is CreateOutcome.CREATE
    with pytest.raises(JetStreamError) as refused:
        create("CREATE.S.c", "{}", extra=',"action":"update"')
    assert refused.value.err_code == 10149


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ({}, {"deliver_policy": DeliverPolicy.NEW}, "deliver policy can not be updated"),
        ({}, {"mem_storage": True}, "storage type can not be updated"),
        ({}, {"direct": True}, "direct can not be updated"),
        ({}, {"sourcing": True}, "sourcing can not be updated"),
        ({"opt_start_seq": 1}, {"opt_start_seq": 2}, "start sequence can not be updated"),
        ({"opt_start_time": 1}, {}, "start time can not be updated"),
        ({}, {"ack_policy": AckPolicy.ALL}, "ack policy can not be updated"),
        ({}, {"replay_policy": ReplayPolicy.ORIGINAL}, "replay policy can not be updated"),
        ({}, {"idle_heartbeat": S}, "heart beats can not be updated"),
        ({}, {"flow_control": True}, "flow control can not be updated"),
        ({}, {"max_waiting": 5}, "max waiting can not be updated"),
        ({}, {"deliver_subject": "d"}, "can not update pull consumer to push based"),
        ({"deliver_subject": "d"}, {}, "can not update push consumer to pull based"),
    ],
)
def test_update_refuses(old: dict[str, object], new: dict[str, object], reason: str) -> None:
    before, after = ConsumerConfig(**old), ConsumerConfig(**new)  # type: ignore[arg-type]
    with pytest.raises(JetStreamError) as refused:
        check_consumer_update(before, after)
    assert (refused.value.err_code, refused.value.code) == (10012, 500)
    assert refused.value.description == reason


def test_a_bound_deliver_subject_cannot_be_updated() -> None:
    old, new = ConsumerConfig(deliver_subject="d"), ConsumerConfig(deliver_subject="e")
    check_consumer_update(old, new, is_bound=False)
    with pytest.raises(JetStreamError) as refused:
        check_consumer_update(old, new, is_bound=True)
    assert refused.value.err_code == 10013


def test_update_keeps_backoff_within_max_deliver() -> None:
    with pytest.raises(JetStreamError) as refused:
        check_consumer_update(ConsumerConfig(), ConsumerConfig(backoff=(1, 2), max_deliver=1))
    assert refused.value.err_code == 10116


def test_updatable_fields() -> None:
    new = ConsumerConfig(
        description="x",
        ack_wait=5,
        max_deliver=4,
        backoff=(1,),
        filter_subject="y",
        rate_limit_bps=1,
        sample_freq="1",
        max_ack_pending=2,
        headers_only=True,
        max_batch=1,
        max_expires=2,
        max_bytes=3,
        inactive_threshold=4,
        num_replicas=1,
        metadata={"a": "b"},
        priority_policy=PriorityPolicy.OVERFLOW,
    )
    check_consumer_update(ConsumerConfig(), new)


WORK = '"ack_policy":"explicit"'


@pytest.mark.parametrize(
    ("others", "config", "err_code"),
    [
        ({"o": EXPLICIT}, WORK, 10099),
        ({"o": EXPLICIT}, f'{WORK},"filter_subject":"w.a"', 10100),
        ({"o": ["w.a"]}, f'{WORK},"filter_subject":"w.a"', 10100),
        ({"o": ["w.a"]}, f'{WORK},"filter_subject":"w.*"', 10100),
        ({"o": ["w.a", "w.b"]}, f'{WORK},"filter_subjects":["w.c","w.b"]', 10100),
        ({"o": ["w.a"]}, f'{WORK},"filter_subject":"w.b"', 0),
        ({"o": ConsumerConfig(direct=True)}, WORK, 0),
        ({"o": ["w.a"], "c": ["w.b"]}, f'{WORK},"filter_subject":"w.*"', 10100),
    ],
)
def test_workqueue_partitions(
    others: dict[str, ConsumerConfig | list[str]], config: str, err_code: int
) -> None:
    consumers = {
        name: ConsumerConfig(
            ack_policy=AckPolicy.EXPLICIT, max_waiting=512, filter_subjects=tuple(other)
        )
        if isinstance(other, list)
        else other
        for name, other in others.items()
    }
    if not err_code:
        assert create("CREATE.W.c", f"{{{config}}}", consumers).outcome is CreateOutcome.CREATE
        return
    with pytest.raises(JetStreamError) as refused:
        create("CREATE.W.c", f"{{{config}}}", consumers)
    assert refused.value.err_code == err_code


@pytest.mark.parametrize(
    ("stream_max", "account_max", "fits"),
    [(-1, -1, True), (1, -1, False), (5, 1, False), (2, 5, True)],
)
def test_consumer_limit_counts_visible_consumers(
    stream_max: int, account_max: int, *, fits: bool
) -> None:
    stream = StreamConfig(name="S", max_consumers=stream_max)
    consumers = {"one": ConsumerConfig(), "hidden": ConsumerConfig(direct=True)}
    arguments = {"stream": stream, "consumers": consumers, "account_max_consumers": account_max}
    decide_create("one", ConsumerConfig(), "", **arguments)  # type: ignore[arg-type]
    if fits:
        decide_create("two", ConsumerConfig(), "", **arguments)  # type: ignore[arg-type]
        return
    with pytest.raises(JetStreamError) as refused:
        decide_create("two", ConsumerConfig(), "", **arguments)  # type: ignore[arg-type]
    assert refused.value.err_code == 10026


def test_consumers_of_mirrors_become_durable_where_acks_count() -> None:
    requested = ConsumerConfig(
        name="JS_MIRROR_x",
        direct=True,
        sourcing=True,
        deliver_subject="d",
        ack_wait=S,
        max_deliver=1,
    )
    on_limits = sourcing_consumer(requested, stream=STREAMS["S"], suffix="abc")
    assert (on_limits.name, on_limits.direct) == ("JS_MIRROR_x-abc", True)
    kept = sourcing_consumer(requested, stream=STREAMS["W"], suffix="abc")
    assert (kept.durable_name, kept.ack_policy, kept.direct) == (
        "JS_MIRROR_x",
        AckPolicy.FLOW_CONTROL,
        False,
    )
    check_consumer_config(kept, stream=STREAMS["W"], view=STANDALONE)
    assert sourcing_consumer(EXPLICIT, stream=STREAMS["W"], suffix="abc") is EXPLICIT
