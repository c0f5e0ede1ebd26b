"""The options of format("jetraft").

Owns: names, defaults and checks; an unknown name is an error, never ignored.
May not touch: sockets, Spark's classes.
Spec: docs/spark.md; names follow Spark's Kafka source where the meaning is the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeVar

from broker.scan.client import Login, ReplicaAddress, endpoints_of
from broker.scan.link import login_of

DEFAULT_RECORDS_PER_PARTITION: Final = 500_000  # a task costs Spark some 30 ms whatever it reads


class ReadFrom(StrEnum):
    FOLLOWER = "follower"  # the leader is tried last
    ANY = "any"
    LEADER = "leader"


class IncludeHeaders(StrEnum):
    NONE = "none"
    RAW = "raw"


class Edge(StrEnum):
    EARLIEST = "earliest"
    LATEST = "latest"


Bound = Edge | int  # a sequence: the first to read, or the one after the last to read

KNOWN: Final = (
    "servers", "stream", "subjects", "user", "password", "token", "tlsCa",
    "startingOffsets", "endingOffsets", "maxRecordsPerTrigger", "minPartitions",
    "maxRecordsPerPartition", "readFrom", "failOnDataLoss", "includeHeaders",
    "verifyChecksums", "connectTimeoutMs", "readTimeoutMs",
)  # fmt: skip


class OptionError(ValueError):
    """An option of the user is wrong; the text says what is allowed."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    servers: tuple[ReplicaAddress, ...]
    stream: str
    login: Login
    subjects: tuple[str, ...]
    starting: Bound | None  # None: the default differs between batch and stream
    ending: Bound
    max_records_per_trigger: int | None
    min_partitions: int
    max_records_per_partition: int
    read_from: ReadFrom
    fail_on_data_loss: bool
    include_headers: IncludeHeaders
    verify_checksums: bool


def parse_options(given: Mapping[str, str]) -> SourceOptions:
    """Keys are compared without case: Spark passes them in lower case."""
    options = {key.lower(): str(value).strip() for key, value in given.items()}
    known = {name.lower(): name for name in KNOWN}
    unknown = sorted(options.keys() - known.keys() - {"path"})
    if unknown:
        raise OptionError(f"unknown option {unknown[0]!r}; choose from {', '.join(KNOWN)}")
    if "path" in options and "stream" in options:
        raise OptionError("name the stream once: in load(...) or in the option stream")
    stream = options.get("stream") or options.get("path", "")
    if not stream:
        raise OptionError("which stream? Set the option stream")
    if set(stream) & set(" \t\r\n.*>"):
        raise OptionError(f"{stream!r} is not a stream name")
    servers = options.get("servers", "127.0.0.1:4222")
    return SourceOptions(
        servers=_endpoints(servers),
        stream=stream,
        login=_login(options, servers),
        subjects=tuple(s.strip() for s in options.get("subjects", "").split(",") if s.strip()),
        starting=_bound(options, "startingOffsets"),
        ending=_ending(options),
        max_records_per_trigger=_positive(options, "maxRecordsPerTrigger", None),
        min_partitions=_positive(options, "minPartitions", 1) or 1,
        max_records_per_partition=_positive(
            options, "maxRecordsPerPartition", DEFAULT_RECORDS_PER_PARTITION
        )
        or DEFAULT_RECORDS_PER_PARTITION,
        read_from=_choice(options, "readFrom", ReadFrom.FOLLOWER),
        fail_on_data_loss=_flag(options, "failOnDataLoss", default=True),
        include_headers=_choice(options, "includeHeaders", IncludeHeaders.RAW),
        verify_checksums=_flag(options, "verifyChecksums", default=True),
    )


def _endpoints(servers: str) -> tuple[ReplicaAddress, ...]:
    try:
        return endpoints_of(servers)
    except ValueError as error:
        raise OptionError(f"servers: {error}") from error


def _login(options: Mapping[str, str], servers: str) -> Login:
    user, password, tls = login_of(servers)
    defaults = Login()
    connect_ms = _positive(options, "connectTimeoutMs", None)
    read_ms = _positive(options, "readTimeoutMs", None)
    return Login(
        user=options.get("user", user),
        password=options.get("password", password),
        token=options.get("token", ""),
        tls=tls,
        tls_ca=options.get("tlsca", ""),
        connect_timeout_s=connect_ms / 1000 if connect_ms else defaults.connect_timeout_s,
        read_timeout_s=read_ms / 1000 if read_ms else defaults.read_timeout_s,
    )


def _ending(options: Mapping[str, str]) -> Bound:
    ending = _bound(options, "endingOffsets")
    if ending is Edge.EARLIEST:
        raise OptionError("endingOffsets is latest or a sequence")
    return Edge.LATEST if ending is None else ending


def _bound(options: Mapping[str, str], name: str) -> Bound | None:
    text = options.get(name.lower())
    if text is None:
        return None
    if text.lower() in {edge.value for edge in Edge}:
        return Edge(text.lower())
    if not text.isdecimal() or int(text) < 1:
        raise OptionError(f"{name} is earliest, latest or a sequence from 1 on, not {text!r}")
    return int(text)


def _positive(options: Mapping[str, str], name: str, default: int | None) -> int | None:
    text = options.get(name.lower())
    if text is None:
        return default
    if not text.isdecimal() or int(text) < 1:
        raise OptionError(f"{name} is a whole number from 1 on, not {text!r}")
    return int(text)


def _flag(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = options.get(name.lower())
    if text is None:
        return default
    if text.lower() not in {"true", "false"}:
        raise OptionError(f"{name} is true or false, not {text!r}")
    return text.lower() == "true"


Choice = TypeVar("Choice", bound=StrEnum)


def _choice(options: Mapping[str, str], name: str, default: Choice) -> Choice:
    text = options.get(name.lower())
    if text is None:
        return default
    try:
        return type(default)(text.lower())
    except ValueError as error:
        allowed = ", ".join(type(default))
        raise OptionError(f"{name} is one of {allowed}, not {text!r}") from error
