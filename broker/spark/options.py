"""The options of format("jetraft").

Owns: names, aliases, defaults and checks; an unknown name is an error, never ignored.
May not touch: sockets, Spark's classes. How single values are read: option_values.py.
Spec: docs/spark.md; names follow Spark's Kafka source where the meaning is the same."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from broker.scan.arrow import DEFAULT_COLUMNS, arrow_names
from broker.scan.client import BUSY_TIMEOUT_S, Login, ReplicaAddress, endpoints_of
from broker.scan.link import login_of
from broker.scan.protocol import SUBJECTS_MAX
from broker.spark.option_values import OptionError, Values
from broker.subjects.grammar import valid_subject

DEFAULT_RECORDS_PER_PARTITION: Final = 500_000  # a task costs Spark some 30 ms whatever it reads
DEFAULT_BYTES_PER_PARTITION: Final = 128 << 20
SUBJECT_CHARS_MAX: Final = 3000  # of all subjects: a request is one line of 4 KB


class ReadFrom(StrEnum):
    FOLLOWER = "follower"  # the leader is tried last
    ANY = "any"
    LEADER = "leader"


class IncludeHeaders(StrEnum):
    NONE = "none"
    RAW = "raw"
    MAP = "map"


class Edge(StrEnum):
    EARLIEST = "earliest"
    LATEST = "latest"


Bound = Edge | int  # a sequence: the first to read, or the one after the last to read

KNOWN: Final = (
    "servers", "stream", "streamPattern", "subjects",
    "user", "password", "token", "credentials", "nkey", "jwt",
    "tls", "tlsCa", "tlsCert", "tlsKey", "tlsFirst",
    "startingOffsets", "endingOffsets", "startingTimestamp", "endingTimestamp",
    "maxRecordsPerTrigger", "maxBytesPerTrigger", "minRecordsPerTrigger", "maxTriggerDelay",
    "minPartitions", "maxRecordsPerPartition", "maxBytesPerPartition",
    "columns", "pushdown", "includeHeaders", "readFrom", "failOnDataLoss", "readerName",
    "ackConsumer",
    "verifyChecksums", "busyTimeout", "connectTimeoutMs", "readTimeoutMs",
    "subject", "writerId", "blockRows", "window",
)  # fmt: skip
_SINK_ONLY: Final = ("subject", "writerId", "blockRows", "window")
SINK_OPTIONS: Final = frozenset(
    {
        "servers", "stream", "path", "user", "password", "token", "credentials", "nkey", "jwt",
        "tls", "tlsCa", "tlsCert", "tlsKey", "tlsFirst", "connectTimeoutMs", "readTimeoutMs",
        "checkpointlocation", *_SINK_ONLY,
    }
)  # fmt: skip
ALIASES: Final = {
    "kafka.bootstrap.servers": "servers",
    "subscribe": "stream",
    "maxoffsetspertrigger": "maxRecordsPerTrigger",
    "minoffsetspertrigger": "minRecordsPerTrigger",
}
# Spark adds these for tables of a catalog: CREATE TABLE ... USING jetraft OPTIONS (...).
_OF_SPARK: Final = frozenset(
    {"path", "provider", "owner", "location", "is_managed_location", "comment", "external",
     "serialization.format", "checkpointlocation"}
)  # fmt: skip
_TABLE_OPTION: Final = "option."


@dataclass(frozen=True, slots=True)
class OffsetBounds:
    """Where to begin or end: one bound for all streams, or one for each, or a time."""

    every: Bound | None = None
    by_stream: Mapping[str, Bound] = field(default_factory=dict)
    time_ns: int | None = None  # the first message at or after it

    def of(self, stream: str, default: Edge) -> Bound:
        return self.by_stream.get(stream, self.every if self.every is not None else default)


@dataclass(frozen=True, slots=True)
class ClusterLogin:
    """What source and sink share."""

    servers: tuple[ReplicaAddress, ...]
    login: Login


@dataclass(frozen=True, slots=True)
class SourceOptions:
    servers: tuple[ReplicaAddress, ...]
    streams: tuple[str, ...]
    pattern: str  # "": the streams are named
    login: Login
    subjects: tuple[str, ...]
    starting: OffsetBounds
    ending: OffsetBounds
    max_records_per_trigger: int | None
    max_bytes_per_trigger: int | None
    min_records_per_trigger: int | None
    max_trigger_delay_s: float
    min_partitions: int
    max_records_per_partition: int
    max_bytes_per_partition: int
    columns: tuple[str, ...]
    pushdown: bool
    read_from: ReadFrom
    fail_on_data_loss: bool
    include_headers: IncludeHeaders
    reader: str
    ack_consumer: str  # "": nothing is acknowledged
    verify_checksums: bool
    busy_timeout_s: float

    @property
    def is_single(self) -> bool:
        return len(self.streams) == 1 and not self.pattern


def option_values(given: Mapping[str, str]) -> Values:
    """Keys are compared without case: Spark passes them in lower case. Raises OptionError."""
    known = {name.lower(): name for name in KNOWN}
    found: dict[str, str] = {}
    for raw, value in given.items():
        key = raw.lower().removeprefix(_TABLE_OPTION)
        name = ALIASES.get(key, known.get(key))
        if name is None:
            if key not in _OF_SPARK:
                raise OptionError(f"unknown option {raw!r}; choose from {', '.join(KNOWN)}")
            name = key
        text = str(value).strip()
        if found.setdefault(name, text) != text:
            raise OptionError(f"the option {name} is given twice, with different values")
    return Values(found)


def parse_options(given: Mapping[str, str]) -> SourceOptions:
    """Raises OptionError."""
    values = option_values(given)
    for name in _SINK_ONLY:
        if values.get(name):
            raise OptionError(f"the option {name} is of the sink: remove it from the source")
    streams, pattern = _streams(values)
    starting, ending = _bounds(values, "starting"), _bounds(values, "ending")
    if Edge.EARLIEST in (ending.every, *ending.by_stream.values()):
        raise OptionError("endingOffsets is latest or a sequence")
    connect = connect_options(values)
    return SourceOptions(
        servers=connect.servers,
        streams=streams,
        pattern=pattern,
        login=connect.login,
        subjects=_subjects(values),
        starting=starting,
        ending=ending,
        max_records_per_trigger=values.positive("maxRecordsPerTrigger"),
        max_bytes_per_trigger=values.size("maxBytesPerTrigger"),
        min_records_per_trigger=values.positive("minRecordsPerTrigger"),
        max_trigger_delay_s=values.duration_s("maxTriggerDelay", 900.0),
        min_partitions=values.positive("minPartitions") or 1,
        max_records_per_partition=values.positive("maxRecordsPerPartition")
        or DEFAULT_RECORDS_PER_PARTITION,
        max_bytes_per_partition=values.size("maxBytesPerPartition") or DEFAULT_BYTES_PER_PARTITION,
        columns=_columns(values, several=len(streams) > 1 or bool(pattern)),
        pushdown=values.flag("pushdown", default=False),
        read_from=values.choice("readFrom", ReadFrom.FOLLOWER),
        fail_on_data_loss=values.flag("failOnDataLoss", default=True),
        include_headers=values.choice("includeHeaders", IncludeHeaders.RAW),
        reader=values.get("readerName"),
        ack_consumer=_ack_consumer(values, starting),
        verify_checksums=values.flag("verifyChecksums", default=True),
        busy_timeout_s=values.duration_s("busyTimeout", BUSY_TIMEOUT_S),
    )


def connect_options(values: Values) -> ClusterLogin:
    servers = values.get("servers") or "127.0.0.1:4222"
    try:
        endpoints = endpoints_of(servers)
    except ValueError as error:
        raise OptionError(f"servers: {error}") from error
    user, password, tls = login_of(servers)
    defaults = Login()
    connect_ms, read_ms = values.positive("connectTimeoutMs"), values.positive("readTimeoutMs")
    if values.get("jwt") and not values.get("nkey"):
        raise OptionError("the option jwt needs the seed of its user in the option nkey")
    if values.get("tlsKey") and not values.get("tlsCert"):
        raise OptionError("the option tlsKey needs the certificate in the option tlsCert")
    login = Login(
        user=values.get("user") or user,
        password=values.get("password") or password,
        token=values.get("token"),
        credentials=values.get("credentials"),
        nkey=values.get("nkey"),
        jwt=values.get("jwt"),
        tls=values.flag("tls", default=tls),
        tls_ca=values.get("tlsCa"),
        tls_cert=values.get("tlsCert"),
        tls_key=values.get("tlsKey"),
        tls_first=values.flag("tlsFirst", default=False),
        connect_timeout_s=connect_ms / 1000 if connect_ms else defaults.connect_timeout_s,
        read_timeout_s=read_ms / 1000 if read_ms else defaults.read_timeout_s,
    )
    return ClusterLogin(endpoints, login)


def stream_name(values: Values) -> str:
    """The one stream that is meant by `stream` or load("NAME"). Raises OptionError."""
    if values.get("path") and values.get("stream"):
        raise OptionError(
            "name the stream once: in load(...) or save(...), or in the option stream"
        )
    return values.get("stream") or values.get("path")


def checked_name(stream: str) -> str:
    if not stream or set(stream) & set(" \t\r\n.*>/\\"):
        raise OptionError(f"{stream!r} is not a stream name")
    return stream


def subjects_fit(subjects: tuple[str, ...]) -> bool:
    """Whether a request can carry so many."""
    return len(subjects) <= SUBJECTS_MAX and len(json.dumps(subjects)) <= SUBJECT_CHARS_MAX


def _ack_consumer(values: Values, starting: OffsetBounds) -> str:
    name = values.get("ackConsumer")
    if not name:
        return ""
    if set(name) & set(" \t\r\n.*>/\\"):
        raise OptionError(f"ackConsumer: {name!r} is not a name of a consumer")
    bounds = {starting.every, *starting.by_stream.values()} - {None}
    if starting.time_ns is not None or bounds - {Edge.EARLIEST}:
        raise OptionError(
            "with ackConsumer a query begins with the first message, because it acknowledges all "
            "that it has passed: remove startingOffsets and startingTimestamp"
        )
    return name


def _streams(values: Values) -> tuple[tuple[str, ...], str]:
    named, pattern = stream_name(values), values.get("streamPattern")
    if named and pattern:
        raise OptionError("set stream or streamPattern, not both")
    if not values.texts:
        raise OptionError(
            "which stream? No option arrived: Spark does not pass on those of CREATE TABLE; "
            "use CREATE TEMPORARY VIEW ... USING jetraft OPTIONS (...)"
        )
    if not named and not pattern:
        raise OptionError("which stream? Set the option stream")
    names = [checked_name(name.strip()) for name in named.split(",")] if named else []
    return tuple(sorted(set(names))), pattern


def _subjects(values: Values) -> tuple[str, ...]:
    subjects = tuple(s.strip() for s in values.get("subjects").split(",") if s.strip())
    for subject in subjects:
        if not valid_subject(subject.encode(), wildcards=True):
            raise OptionError(f"subjects: {subject!r} is not a valid subject")
    if not subjects_fit(subjects):
        raise OptionError(
            f"subjects: at most {SUBJECTS_MAX} subjects and {SUBJECT_CHARS_MAX} characters"
        )
    return subjects


def _columns(values: Values, *, several: bool) -> tuple[str, ...]:
    """In the order that is given; the default leaves headers out if they are switched off."""
    names = tuple(name.strip() for name in values.get("columns").split(",") if name.strip())
    unknown = [name for name in names if name not in arrow_names()]
    if unknown:
        raise OptionError(
            f"columns: no column {unknown[0]!r}; choose from {', '.join(arrow_names())}"
        )
    if names:
        return names
    hidden = values.choice("includeHeaders", IncludeHeaders.RAW) is IncludeHeaders.NONE
    found = tuple(name for name in DEFAULT_COLUMNS if name != "headers" or not hidden)
    return ("stream", *found) if several else found


def _bounds(values: Values, which: str) -> OffsetBounds:
    name, time_name = f"{which}Offsets", f"{which}Timestamp"
    text = values.get(name)
    time_ns = values.time_ns(time_name)
    if text and time_ns is not None:
        raise OptionError(f"set {name} or {time_name}, not both")
    if not text:
        return OffsetBounds(time_ns=time_ns)
    if not text.startswith("{"):
        return OffsetBounds(every=_bound(name, text))
    try:
        document = json.loads(text)
    except ValueError as error:
        raise OptionError(f"{name} is not JSON: {error}") from error
    return OffsetBounds(
        by_stream={stream: _bound(name, str(at)) for stream, at in document.items()}
    )


def _bound(name: str, text: str) -> Bound:
    numbers = {"-2": Edge.EARLIEST, "-1": Edge.LATEST}  # as Kafka writes them
    if text in numbers:
        return numbers[text]
    if text.lower() in {edge.value for edge in Edge}:
        return Edge(text.lower())
    if not text.isdecimal() or int(text) < 1:
        raise OptionError(
            f"{name} is earliest, latest, a sequence from 1 on, or a JSON object of these by "
            f"stream, not {text!r}"
        )
    return int(text)
