"""API subjects: which endpoint a subject under `$JS.API.` addresses.

Owns: the table of endpoints, their tokens, and the name of their response type.
May not touch: bodies (requests.py), answers (responses.py), state.
Spec: JetStream API subjects; with a domain, `$JS.<domain>.API.` is an alias of `$JS.API.`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Final

API_PREFIX: Final = b"$JS.API."
TYPE_PREFIX: Final = "io.nats.jetstream.api.v1."


class ApiKind(Enum):
    """One endpoint. The value is the response type without its prefix, or a name of our own if the
    endpoint shares its response type or answers with plain messages."""

    INFO = "account_info_response"
    STREAM_CREATE = "stream_create_response"
    STREAM_UPDATE = "stream_update_response"
    STREAM_NAMES = "stream_names_response"
    STREAM_LIST = "stream_list_response"
    STREAM_INFO = "stream_info_response"
    STREAM_DELETE = "stream_delete_response"
    STREAM_PURGE = "stream_purge_response"
    STREAM_MSG_GET = "stream_msg_get_response"
    STREAM_MSG_DELETE = "stream_msg_delete_response"
    STREAM_SNAPSHOT = "stream_snapshot_response"
    STREAM_RESTORE = "stream_restore_response"
    STREAM_PEER_REMOVE = "stream_remove_peer_response"
    STREAM_PEER_EVACUATE = "stream_evacuate_peer_response"
    STREAM_CANCEL_MOVE = "stream_cancel_move_response"
    STREAM_LEADER_STEPDOWN = "stream_leader_stepdown_response"
    CONSUMER_CREATE = "consumer_create_response"
    CONSUMER_NAMES = "consumer_names_response"
    CONSUMER_LIST = "consumer_list_response"
    CONSUMER_INFO = "consumer_info_response"
    CONSUMER_DELETE = "consumer_delete_response"
    CONSUMER_PAUSE = "consumer_pause_response"
    CONSUMER_UNPIN = "consumer_unpin_response"
    CONSUMER_RESET = "consumer_reset_response"
    CONSUMER_LEADER_STEPDOWN = "consumer_leader_stepdown_response"
    CONSUMER_MSG_NEXT = "msg_next"
    DIRECT_GET = "direct_get"
    META_LEADER_STEPDOWN = "meta_leader_stepdown_response"
    SERVER_REMOVE = "meta_server_remove_response"
    SERVER_EVACUATE = "meta_server_evacuate_response"
    SERVER_RETURN = "meta_server_return_response"  # undoes an evacuation; not of NATS
    SERVER_STATUS = "meta_server_status_response"  # not of NATS
    SERVER_REBALANCE = "meta_server_rebalance_response"  # not of NATS
    META_RESCUE = "meta_rescue_response"
    ACCOUNT_PURGE = "account_purge_response"
    ACCOUNT_STREAM_MOVE = "account_stream_move"
    ACCOUNT_STREAM_CANCEL_MOVE = "account_stream_cancel_move"

    @property
    def response_type(self) -> str:
        """The `type` of the answer. MSG.NEXT and DIRECT.GET do not use it."""
        return TYPE_PREFIX + _SHARED_TYPES.get(self, self.value)


_SHARED_TYPES: Final = {
    ApiKind.ACCOUNT_STREAM_MOVE: ApiKind.STREAM_UPDATE.value,
    ApiKind.ACCOUNT_STREAM_CANCEL_MOVE: ApiKind.STREAM_CANCEL_MOVE.value,
}

PARSED_MAX: Final = 512  # subjects that are remembered: a client repeats those of its consumers

SYSTEM_KINDS: Final = frozenset(
    {
        ApiKind.META_LEADER_STEPDOWN,
        ApiKind.SERVER_REMOVE,
        ApiKind.SERVER_EVACUATE,
        ApiKind.SERVER_RETURN,
        ApiKind.SERVER_STATUS,
        ApiKind.SERVER_REBALANCE,
        ApiKind.META_RESCUE,
        ApiKind.ACCOUNT_PURGE,
        ApiKind.ACCOUNT_STREAM_MOVE,
        ApiKind.ACCOUNT_STREAM_CANCEL_MOVE,
    }
)
"""Endpoints of the system account; requests from other accounts get no answer."""


class CreateForm(Enum):
    """How a CONSUMER.CREATE subject names the consumer; each form has its own naming rules."""

    EPHEMERAL = "ephemeral"  # CONSUMER.CREATE.<S>
    NAMED = "named"  # CONSUMER.CREATE.<S>.<C>[.<filter>]
    DURABLE = "durable"  # CONSUMER.DURABLE.CREATE.<S>.<C>


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """A parsed API subject. Tokens that the endpoint does not have are empty."""

    kind: ApiKind
    stream: str = ""
    consumer: str = ""
    rest: str = ""  # filter tokens of a named create, subject of DIRECT.GET.<S>.<subject>
    form: CreateForm | None = None  # CONSUMER_CREATE only
    account: str = ""  # ACCOUNT.* only


@lru_cache(maxsize=PARSED_MAX)
def parse_api_subject(subject: bytes, *, domain: bytes = b"") -> ApiRequest | None:
    """The parsed subject, or None: a request on an unknown subject gets no answer."""
    tail = _after_prefix(subject, domain)
    if tail is None:
        return None
    try:
        tokens = tail.decode().split(".")
    except UnicodeDecodeError:
        return None
    if "" in tokens:
        return None
    for words in (4, 3, 2, 1):
        endpoint = _ENDPOINTS.get(tuple(tokens[:words]))
        if endpoint is not None:
            return _request(endpoint, tokens[words:])
    return None


def canonical_subject(subject: bytes, *, domain: bytes) -> bytes | None:
    """The `$JS.API.` subject for a subject under `$JS.<domain>.API.`; None if it is not one."""
    ours = b"$JS." + domain + b".API."
    if not domain or not subject.startswith(ours):
        return None
    return bucket_subject(subject, domain=domain) or API_PREFIX + subject[len(ours) :]


def bucket_subject(subject: bytes, *, domain: bytes) -> bytes | None:
    """The key-value or object store subject behind `$JS.<domain>.API.`, or None. Clients of another
    domain publish there."""
    ours = b"$JS." + domain + b".API."
    if not domain or not subject.startswith(ours):
        return None
    tail = subject[len(ours) :]
    return tail if tail.startswith((b"$KV.", b"$OBJ.")) else None


@dataclass(frozen=True, slots=True)
class _Endpoint:
    kind: ApiKind
    names: tuple[str, ...] = ()
    open_ended: bool = False  # further tokens are allowed and become `rest`
    form: CreateForm | None = None


_S: Final = ("stream",)
_SC: Final = ("stream", "consumer")
_ENDPOINTS: Final[dict[tuple[str, ...], _Endpoint]] = {
    ("INFO",): _Endpoint(ApiKind.INFO),
    ("STREAM", "CREATE"): _Endpoint(ApiKind.STREAM_CREATE, _S),
    ("STREAM", "UPDATE"): _Endpoint(ApiKind.STREAM_UPDATE, _S),
    ("STREAM", "NAMES"): _Endpoint(ApiKind.STREAM_NAMES),
    ("STREAM", "LIST"): _Endpoint(ApiKind.STREAM_LIST),
    ("STREAM", "INFO"): _Endpoint(ApiKind.STREAM_INFO, _S),
    ("STREAM", "DELETE"): _Endpoint(ApiKind.STREAM_DELETE, _S),
    ("STREAM", "PURGE"): _Endpoint(ApiKind.STREAM_PURGE, _S),
    ("STREAM", "MSG", "GET"): _Endpoint(ApiKind.STREAM_MSG_GET, _S),
    ("STREAM", "MSG", "DELETE"): _Endpoint(ApiKind.STREAM_MSG_DELETE, _S),
    ("STREAM", "SNAPSHOT"): _Endpoint(ApiKind.STREAM_SNAPSHOT, _S),
    ("STREAM", "RESTORE"): _Endpoint(ApiKind.STREAM_RESTORE, _S),
    ("STREAM", "PEER", "REMOVE"): _Endpoint(ApiKind.STREAM_PEER_REMOVE, _S),
    ("STREAM", "PEER", "EVACUATE"): _Endpoint(ApiKind.STREAM_PEER_EVACUATE, _S),
    ("STREAM", "CANCEL_MOVE"): _Endpoint(ApiKind.STREAM_CANCEL_MOVE, _S),
    ("STREAM", "LEADER", "STEPDOWN"): _Endpoint(ApiKind.STREAM_LEADER_STEPDOWN, _S),
    ("CONSUMER", "CREATE"): _Endpoint(
        ApiKind.CONSUMER_CREATE, _SC, open_ended=True, form=CreateForm.NAMED
    ),
    ("CONSUMER", "DURABLE", "CREATE"): _Endpoint(
        ApiKind.CONSUMER_CREATE, _SC, form=CreateForm.DURABLE
    ),
    ("CONSUMER", "NAMES"): _Endpoint(ApiKind.CONSUMER_NAMES, _S),
    ("CONSUMER", "LIST"): _Endpoint(ApiKind.CONSUMER_LIST, _S),
    ("CONSUMER", "INFO"): _Endpoint(ApiKind.CONSUMER_INFO, _SC),
    ("CONSUMER", "DELETE"): _Endpoint(ApiKind.CONSUMER_DELETE, _SC),
    ("CONSUMER", "PAUSE"): _Endpoint(ApiKind.CONSUMER_PAUSE, _SC),
    ("CONSUMER", "UNPIN"): _Endpoint(ApiKind.CONSUMER_UNPIN, _SC),
    ("CONSUMER", "RESET"): _Endpoint(ApiKind.CONSUMER_RESET, _SC),
    ("CONSUMER", "LEADER", "STEPDOWN"): _Endpoint(ApiKind.CONSUMER_LEADER_STEPDOWN, _SC),
    ("CONSUMER", "MSG", "NEXT"): _Endpoint(ApiKind.CONSUMER_MSG_NEXT, _SC),
    ("DIRECT", "GET"): _Endpoint(ApiKind.DIRECT_GET, _S, open_ended=True),
    ("META", "LEADER", "STEPDOWN"): _Endpoint(ApiKind.META_LEADER_STEPDOWN),
    ("META", "RESCUE"): _Endpoint(ApiKind.META_RESCUE),
    ("SERVER", "REMOVE"): _Endpoint(ApiKind.SERVER_REMOVE),
    ("SERVER", "EVACUATE"): _Endpoint(ApiKind.SERVER_EVACUATE),
    ("SERVER", "RETURN"): _Endpoint(ApiKind.SERVER_RETURN),
    ("SERVER", "STATUS"): _Endpoint(ApiKind.SERVER_STATUS),
    ("SERVER", "REBALANCE"): _Endpoint(ApiKind.SERVER_REBALANCE),
    ("ACCOUNT", "PURGE"): _Endpoint(ApiKind.ACCOUNT_PURGE, ("account",)),
    ("ACCOUNT", "STREAM", "MOVE"): _Endpoint(ApiKind.ACCOUNT_STREAM_MOVE, ("account", "stream")),
    ("ACCOUNT", "STREAM", "CANCEL_MOVE"): _Endpoint(
        ApiKind.ACCOUNT_STREAM_CANCEL_MOVE, ("account", "stream")
    ),
}


def _after_prefix(subject: bytes, domain: bytes) -> bytes | None:
    if subject.startswith(API_PREFIX):
        return subject[len(API_PREFIX) :]
    ours = b"$JS." + domain + b".API."
    if domain and subject.startswith(ours):
        return subject[len(ours) :]
    return None


def _request(endpoint: _Endpoint, names: list[str]) -> ApiRequest | None:
    form, wanted = endpoint.form, len(endpoint.names)
    if form is CreateForm.NAMED and len(names) == 1:
        return ApiRequest(endpoint.kind, stream=names[0], form=CreateForm.EPHEMERAL)
    if form is CreateForm.DURABLE and names and len(names) != wanted:
        # Without a consumer token the answer is error 10016 instead of none.
        return ApiRequest(endpoint.kind, stream=names[0], form=form)
    if len(names) < wanted or (len(names) > wanted and not endpoint.open_ended):
        return None
    found = dict(zip(endpoint.names, names, strict=False))
    return ApiRequest(endpoint.kind, rest=".".join(names[wanted:]), form=form, **found)
