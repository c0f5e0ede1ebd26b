"""API subjects and the endpoints they address."""

from __future__ import annotations

import pytest

from broker.jetstream.api.subjects import ApiKind, ApiRequest, CreateForm, parse_api_subject

KNOWN = [
    ("INFO", ApiRequest(ApiKind.INFO)),
    ("STREAM.CREATE.S", ApiRequest(ApiKind.STREAM_CREATE, "S")),
    ("STREAM.UPDATE.S", ApiRequest(ApiKind.STREAM_UPDATE, "S")),
    ("STREAM.NAMES", ApiRequest(ApiKind.STREAM_NAMES)),
    ("STREAM.LIST", ApiRequest(ApiKind.STREAM_LIST)),
    ("STREAM.INFO.S", ApiRequest(ApiKind.STREAM_INFO, "S")),
    ("STREAM.DELETE.S", ApiRequest(ApiKind.STREAM_DELETE, "S")),
    ("STREAM.PURGE.S", ApiRequest(ApiKind.STREAM_PURGE, "S")),
    ("STREAM.MSG.GET.S", ApiRequest(ApiKind.STREAM_MSG_GET, "S")),
    ("STREAM.MSG.DELETE.S", ApiRequest(ApiKind.STREAM_MSG_DELETE, "S")),
    ("STREAM.SNAPSHOT.S", ApiRequest(ApiKind.STREAM_SNAPSHOT, "S")),
    ("STREAM.RESTORE.S", ApiRequest(ApiKind.STREAM_RESTORE, "S")),
    ("STREAM.PEER.REMOVE.S", ApiRequest(ApiKind.STREAM_PEER_REMOVE, "S")),
    ("STREAM.PEER.EVACUATE.S", ApiRequest(ApiKind.STREAM_PEER_EVACUATE, "S")),
    ("STREAM.CANCEL_MOVE.S", ApiRequest(ApiKind.STREAM_CANCEL_MOVE, "S")),
    ("STREAM.LEADER.STEPDOWN.S", ApiRequest(ApiKind.STREAM_LEADER_STEPDOWN, "S")),
    (
        "CONSUMER.CREATE.S",
        ApiRequest(ApiKind.CONSUMER_CREATE, "S", form=CreateForm.EPHEMERAL),
    ),
    (
        "CONSUMER.CREATE.S.C",
        ApiRequest(ApiKind.CONSUMER_CREATE, "S", "C", form=CreateForm.NAMED),
    ),
    (
        "CONSUMER.CREATE.S.C.a.*.>",
        ApiRequest(ApiKind.CONSUMER_CREATE, "S", "C", "a.*.>", form=CreateForm.NAMED),
    ),
    (
        "CONSUMER.DURABLE.CREATE.S.C",
        ApiRequest(ApiKind.CONSUMER_CREATE, "S", "C", form=CreateForm.DURABLE),
    ),
    (
        "CONSUMER.DURABLE.CREATE.S",
        ApiRequest(ApiKind.CONSUMER_CREATE, "S", form=CreateForm.DURABLE),
    ),
    ("CONSUMER.NAMES.S", ApiRequest(ApiKind.CONSUMER_NAMES, "S")),
    ("CONSUMER.LIST.S", ApiRequest(ApiKind.CONSUMER_LIST, "S")),
    ("CONSUMER.INFO.S.C", ApiRequest(ApiKind.CONSUMER_INFO, "S", "C")),
    ("CONSUMER.DELETE.S.C", ApiRequest(ApiKind.CONSUMER_DELETE, "S", "C")),
    ("CONSUMER.PAUSE.S.C", ApiRequest(ApiKind.CONSUMER_PAUSE, "S", "C")),
    ("CONSUMER.UNPIN.S.C", ApiRequest(ApiKind.CONSUMER_UNPIN, "S", "C")),
    ("CONSUMER.RESET.S.C", ApiRequest(ApiKind.CONSUMER_RESET, "S", "C")),
    ("CONSUMER.LEADER.STEPDOWN.S.C", ApiRequest(ApiKind.CONSUMER_LEADER_STEPDOWN, "S", "C")),
    ("CONSUMER.MSG.NEXT.S.C", ApiRequest(ApiKind.CONSUMER_MSG_NEXT, "S", "C")),
    ("DIRECT.GET.S", ApiRequest(ApiKind.DIRECT_GET, "S")),
    ("DIRECT.GET.KV_B.$KV.B.key", ApiRequest(ApiKind.DIRECT_GET, "KV_B", rest="$KV.B.key")),
    ("META.LEADER.STEPDOWN", ApiRequest(ApiKind.META_LEADER_STEPDOWN)),
    ("META.RESCUE", ApiRequest(ApiKind.META_RESCUE)),
    ("SERVER.REMOVE", ApiRequest(ApiKind.SERVER_REMOVE)),
    ("SERVER.EVACUATE", ApiRequest(ApiKind.SERVER_EVACUATE)),
    ("SERVER.RETURN", ApiRequest(ApiKind.SERVER_RETURN)),
    ("SERVER.STATUS", ApiRequest(ApiKind.SERVER_STATUS)),
    ("SERVER.REBALANCE", ApiRequest(ApiKind.SERVER_REBALANCE)),
    ("ACCOUNT.PURGE.A", ApiRequest(ApiKind.ACCOUNT_PURGE, account="A")),
    ("ACCOUNT.STREAM.MOVE.A.S", ApiRequest(ApiKind.ACCOUNT_STREAM_MOVE, "S", account="A")),
    (
        "ACCOUNT.STREAM.CANCEL_MOVE.A.S",
        ApiRequest(ApiKind.ACCOUNT_STREAM_CANCEL_MOVE, "S", account="A"),
    ),
]


@pytest.mark.parametrize(("tail", "request_"), KNOWN)
def test_known_subjects(tail: str, request_: ApiRequest) -> None:
    assert parse_api_subject(f"$JS.API.{tail}".encode()) == request_
    in_domain = f"$JS.hub.API.{tail}".encode()
    assert parse_api_subject(in_domain, domain=b"hub") == request_
    assert parse_api_subject(in_domain) is None
    assert parse_api_subject(in_domain, domain=b"other") is None


def test_every_endpoint_has_a_case() -> None:
    assert {request.kind for _, request in KNOWN} == set(ApiKind)


@pytest.mark.parametrize(
    "subject",
    [
        b"$JS.API.",
        b"$JS.API",
        b"$JS.API.STREAM",
        b"$JS.API.STREAM.FOO.S",
        b"$JS.API.STREAM.INFO",
        b"$JS.API.STREAM.INFO.S.x",
        b"$JS.API.STREAM.INFO.",
        b"$JS.API.STREAM.NAMES.x",
        b"$JS.API.CONSUMER.CREATE",
        b"$JS.API.CONSUMER.CREATE.S..x",
        b"$JS.API.CONSUMER.INFO.S",
        b"$JS.API.CONSUMER.INFO.S.C.x",
        b"$JS.API.INFO.x",
        b"$JS.API.STREAM.INFO.\xff",
        b"foo",
        b"",
    ],
)
def test_unknown_subjects_are_not_parsed(subject: bytes) -> None:
    assert parse_api_subject(subject) is None


def test_response_types() -> None:
    prefix = "io.nats.jetstream.api.v1."
    assert ApiKind.INFO.response_type == prefix + "account_info_response"
    assert ApiKind.STREAM_PEER_REMOVE.response_type == prefix + "stream_remove_peer_response"
    assert ApiKind.STREAM_PEER_EVACUATE.response_type == prefix + "stream_evacuate_peer_response"
    assert ApiKind.STREAM_CANCEL_MOVE.response_type == prefix + "stream_cancel_move_response"
    assert ApiKind.SERVER_EVACUATE.response_type == prefix + "meta_server_evacuate_response"
    assert ApiKind.ACCOUNT_STREAM_MOVE.response_type == prefix + "stream_update_response"
