"""The frozen options of one server: everything a file or a flag can set.

Owns: the names, types and defaults. Durations are nanoseconds, sizes are bytes.
May not touch: files, flags, sockets.
Spec: NATS server configuration. These are msgspec Structs rather than frozen dataclasses because
creating fifteen dataclass types costs a tenth of the start-up time."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from broker.credentials.jwt import Token

SECOND = 1_000_000_000
KIB = 1024
MIB = 1024 * 1024
ALWAYS = 100  # percent

JETRAFT_VERSION = "0.1.0"
VERSION = "2.15.1"  # the nats-server release whose behavior clients can expect
DEFAULT_PORT = 4222
DEFAULT_HOST = "0.0.0.0"  # noqa: S104 - the reference binds all interfaces too
DEFAULT_CLUSTER_PORT = 6222
GLOBAL_ACCOUNT = "$G"
SYSTEM_ACCOUNT = "$SYS"
STANDARD = "STANDARD"  # the connection type of a client on a plain or TLS socket


class SubjectRules(Struct, frozen=True):
    """allow=None: everything that is not denied. An empty allow list permits no publish."""

    allow: tuple[bytes, ...] | None = None
    deny: tuple[bytes, ...] = ()


class ResponseRules(Struct, frozen=True):
    max_msgs: int = 1
    expires_ns: int = 120 * SECOND


class Permissions(Struct, frozen=True):
    publish: SubjectRules | None = None
    subscribe: SubjectRules | None = None
    responses: ResponseRules | None = None


class User(Struct, frozen=True):
    name: str
    password: str = ""
    permissions: Permissions | None = None
    account: str = GLOBAL_ACCOUNT
    nkey: bool = False  # the name is a public key; the client signs the nonce of INFO
    connection_types: frozenset[str] | None = None  # None = all


class CalloutOptions(Struct, frozen=True):
    """A service of the user's own that decides about clients."""

    issuer: str  # the account key that signs its answers
    users: tuple[str, ...]  # who log in as usual: the service itself
    account: str = GLOBAL_ACCOUNT  # where it listens
    xkey: str = ""  # requests are encrypted for this key
    allowed_accounts: tuple[str, ...] = ()  # operator mode: where it may place users, besides


class AccountClaims(Struct, frozen=True):
    """An account signed by its operator: who may sign its users, and which users are revoked."""

    name: str
    signing_keys: dict[str, dict[str, Any] | None]  # value: claims of a scoped key
    revocations: dict[str, int]  # public key: tokens issued up to this time are revoked
    bearer_allowed: bool = True
    default_permissions: Permissions | None = None
    expires: int = 0  # seconds since 1970; 0 = never
    tags: tuple[str, ...] = ()
    callout: CalloutOptions | None = None  # decides about the users of this account


class Authorization(Struct, frozen=True):
    token: str = ""
    user: str = ""
    password: str = ""
    users: tuple[User, ...] = ()
    default_permissions: Permissions | None = None
    no_auth_user: str = ""
    # Only the system account has users: other clients need no credentials.
    open_to_all: bool = False
    tokens: dict[str, AccountClaims] | None = None  # operator mode: users present JWTs
    timeout_ns: int | None = None  # None = 2 s, or the TLS timeout + 1 s
    callout: CalloutOptions | None = None

    @property
    def required(self) -> bool:
        return bool(self.token or self.user or self.users) or self.tokens is not None

    @property
    def has_callout(self) -> bool:
        """An authorization service is configured, or may come with the JWT of an account."""
        return self.callout is not None or self.tokens is not None


class ResolverOptions(Struct, frozen=True):
    """Operator mode with account JWTs that clients of the system account push."""

    directory: str
    allow_delete: bool = False
    limit: int = 0  # accounts; 0 = any number
    interval_ns: int = 60 * SECOND  # between two comparisons with the other servers
    url: str = ""  # accounts are fetched from there when a user of theirs logs in
    cache: bool = False  # the same, from servers with a FULL resolver
    ttl_ns: int = 0  # after this time an account is fetched again; 0 = never
    timeout_ns: int = 2 * SECOND  # of one fetch
    operators: tuple[Token, ...] = ()
    preload: dict[str, str] = field(default_factory=dict)  # JWTs of the configuration file
    tls: TlsOptions | None = None  # of the connection to `url`

    @property
    def fetches(self) -> bool:
        return bool(self.url) or self.cache


class ServiceLatency(Struct, frozen=True):
    """Where the times of a service are told, in the account that exports it."""

    subject: bytes
    sampling: int = 100  # percent of the requests; 0 = those whose headers ask for it


class Activation(Struct, frozen=True):
    """A token by which an account lets another one use an export; signed by `issuer`."""

    issuer: str
    exporter: str
    importer: str
    subject: bytes
    service: bool
    issued_at: int = 0
    expires: int = 0  # seconds since 1970; 0 = never


class Export(Struct, frozen=True):
    """A subject of an account that others may import."""

    subject: bytes
    service: bool = False  # a service (requests and replies); otherwise a stream of messages
    accounts: tuple[str, ...] | None = None  # None = everybody
    many_answers: bool = False  # response_type stream or chunked
    threshold_ns: int = 120 * SECOND  # a later reply is dropped
    allow_trace: bool = False  # service: message traces continue in this account
    token_required: bool = False  # an import needs an activation token
    account_token_position: int = 0  # this token of the subject names the importing account
    revocations: tuple[tuple[str, int], ...] = ()  # importer: tokens issued up to then are revoked
    latency: ServiceLatency | None = None


class Import(Struct, frozen=True):
    """An export of another account, mapped to a local subject."""

    account: str
    subject: bytes  # in the exporting account
    local: bytes  # in the importing account
    service: bool = False
    share: bool = False  # the service sees the details of the requesting client
    allow_trace: bool = False  # stream: traces of the exporter include subscribers here
    activation: Activation | None = None


class MappingDestination(Struct, frozen=True):
    subject: str  # with functions such as {{wildcard(1)}}
    weight: int = ALWAYS  # percent
    cluster: str = ""  # only for clients of this cluster; empty = of all others


class SubjectMapping(Struct, frozen=True):
    """What clients of an account publish to `source` goes to one of the destinations."""

    source: str
    destinations: tuple[MappingDestination, ...]


class AccountOptions(Struct, frozen=True):
    """One entry of the accounts block; its users are in Authorization."""

    name: str
    max_connections: int = -1
    max_subscriptions: int = -1  # per connection, like max_payload
    max_payload: int = -1
    exports: tuple[Export, ...] = ()
    imports: tuple[Import, ...] = ()
    mappings: tuple[SubjectMapping, ...] = ()
    trace_dest: bytes = b""  # where traces of messages with a sampled `traceparent` go
    trace_sampling: int = 100  # percent of them
    signing_keys: tuple[str, ...] = ()  # operator mode: who may sign activation tokens
    label: str = ""  # operator mode: the name in its JWT; `name` is its key


class TlsOptions(Struct, frozen=True):
    cert_file: str = ""
    key_file: str = ""
    ca_file: str = ""
    verify: bool = False
    insecure: bool = False  # outgoing links only: accept any certificate
    timeout_ns: int = 2 * SECOND
    handshake_first: bool = False
    handshake_fallback_ns: int = 0  # handshake_first: send INFO in clear after this time
    min_version: str = "1.2"
    verify_and_map: bool = False  # the user is the one that the certificate names
    pinned_certs: frozenset[str] = frozenset()  # SHA-256 of public keys; empty = any
    ciphers: str = ""  # of TLS 1.2, as OpenSSL names them; "" = its choice
    curve: str = ""


class Limits(Struct, frozen=True):
    max_payload: int = MIB
    max_control_line: int = 4 * KIB
    max_pending: int = 64 * MIB
    max_connections: int = 64 * KIB
    max_subscriptions: int = 0  # 0 = unlimited
    max_sub_tokens: int = 0
    write_deadline_ns: int = 10 * SECOND
    max_closed_clients: int = 10_000
    stall_producers: bool = True  # those whose subscribers are slow wait for them, for a moment


class Ping(Struct, frozen=True):
    interval_ns: int = 120 * SECOND
    outstanding_max: int = 2


class Logging(Struct, frozen=True):
    debug: bool = False
    trace: bool = False
    logtime: bool = True
    logtime_utc: bool = False
    log_file: str = ""
    size_limit: int = 0
    max_num: int = 0  # files in all, older ones are removed; 0 = any number
    max_traced_msg_len: int = 0
    trace_verbose: bool = False  # clients of the system account, too
    trace_headers: bool = False  # headers instead of payloads
    json: bool = False  # one JSON object per line instead of nats-server's format
    syslog: bool = False
    remote_syslog: str = ""  # an address such as udp://host:514
    # Failed attempts to reach a hub between two log lines, before and after the first connection.
    connect_error_reports: int = 60
    reconnect_error_reports: int = 60


class LameDuck(Struct, frozen=True):
    duration_ns: int = 120 * SECOND
    grace_ns: int = 10 * SECOND


class Remote(Struct, frozen=True):
    """Another cluster, reached as an ordinary client."""

    urls: tuple[str, ...]
    user: str = ""
    password: str = ""
    token: str = ""
    domain: str = ""
    creds: str = ""  # a file with a user JWT and its seed
    nkey: str = ""  # a file with a seed
    tls: TlsOptions | None = None


class JetStreamLimits(Struct, frozen=True):
    """Limits for every stream and consumer; 0 = no limit."""

    max_request_batch: int = 0
    max_ack_pending: int = 0
    duplicate_window_ns: int = 0


class AccountStore(Struct, frozen=True):
    """What one account may use of JetStream; -1 = no limit."""

    max_memory: int = -1
    max_storage: int = -1
    max_streams: int = -1
    max_consumers: int = -1
    max_ack_pending: int = -1
    memory_max_stream_bytes: int = -1
    storage_max_stream_bytes: int = -1
    max_bytes_required: bool = False
    # Limits by number of replicas ("R1", "R3"); then the others do not count, and a stream with
    # another number of replicas is refused.
    tiers: dict[str, AccountStore] = field(default_factory=dict)


SYNC_INTERVAL_NS = 120_000_000_000


class JetStreamOptions(Struct, frozen=True):
    store_dir: str = ""  # data is in <store_dir>/jetstream; "" = `nats` in the temp directory
    max_memory_store: int | None = None  # None = derived from the machine
    max_file_store: int | None = None
    domain: str = ""
    sync: str | int = "always"  # "always", or an interval in nanoseconds
    strict: bool = True
    # Encryption at rest (broker/store/encryption). An empty key: none.
    cipher: str = "chachapoly"
    key: str = ""
    previous_key: str = ""
    unique_tag: str = ""  # replicas of a stream are on servers with different tags of this prefix
    replace_after_ns: int = 600 * SECOND  # replicas of a node that is away move; 0: never
    scrub_interval_ns: int = 7 * 86_400 * SECOND  # all stored data is read and checked; 0: never
    # Publishes of one stream that wait on this node; beyond them, publishers get 429. 0: they are
    # not read from instead, at bounds of our own.
    max_buffered_msgs: int = 0
    max_buffered_bytes: int = 0
    feature_level: int | None = None  # the highest to take part in; None: the newest known
    # Bulk reads (broker/scan/admission.py says what happens beyond these).
    max_scans: int = 1024
    max_account_scans: int = 256
    max_scan_bytes: int = 512 << 20
    max_account_scan_bytes: int = 64 << 20
    remotes: dict[str, Remote] = field(default_factory=dict)
    limits: JetStreamLimits = JetStreamLimits()
    # Accounts that have JetStream, by name. Empty = no accounts block: the global one, unlimited.
    accounts: dict[str, AccountStore] = field(default_factory=dict)

    @property
    def flush_interval_s(self) -> float | None:
        """None: fsync before every ack. Otherwise an ack may precede its fsync by this time."""
        return None if isinstance(self.sync, str) else self.sync / 1e9

    @property
    def sync_interval_ns(self) -> int:
        """As nats-server reports it: two minutes when `sync_always` is set."""
        return SYNC_INTERVAL_NS if isinstance(self.sync, str) else self.sync

    @property
    def sync_sentence(self) -> str:
        if self.flush_interval_s is None:
            return "Every ack waits for fsync on a majority of replicas"
        return (
            f"sync_interval {self.flush_interval_s:g}s: acks do not wait for fsync, a power cut "
            "may take acknowledged messages of that time"
        )


class LinkCompression(Struct, frozen=True):
    """How a connection to another server is compressed."""

    mode: str = "s2_auto"
    # Round trip times up to which s2_auto does not compress, and compresses fast, better.
    thresholds_ns: tuple[int, ...] = (10_000_000, 50_000_000, 100_000_000)


class ClusterOptions(Struct, frozen=True):
    name: str = ""
    host: str = DEFAULT_HOST
    port: int = DEFAULT_CLUSTER_PORT  # -1 = any free port
    routes: tuple[str, ...] = ()
    user: str = ""
    password: str = ""
    tls: TlsOptions | None = None
    advertise: str = ""  # where peers dial us, host or host:port; "" = where we listen
    no_advertise: bool = False
    compression: LinkCompression = LinkCompression("accept")
    permissions: Permissions | None = None  # publish: imports; subscribe: exports
    ping_interval_ns: int = 0  # 0: that of the transport
    ping_max: int = 0


class WebSocketOptions(Struct, frozen=True):
    host: str = DEFAULT_HOST
    port: int = 0  # -1 = any free port
    advertise: str = ""
    no_tls: bool = False
    tls: TlsOptions | None = None
    same_origin: bool = False
    allowed_origins: tuple[str, ...] = ()  # empty = all
    compression: bool = False
    handshake_timeout_ns: int = 0  # 0 = default
    user_cookie: str = ""
    pass_cookie: str = ""
    token_cookie: str = ""
    jwt_cookie: str = ""
    no_auth_user: str = ""
    user: str = ""
    password: str = ""
    token: str = ""
    auth_timeout_ns: int | None = None  # None = as on the client port
    headers: dict[str, str] = field(default_factory=dict)
    ping_interval_ns: int = 0  # 0 = as on the client port


class LeafProxy(Struct, frozen=True):
    """An HTTP proxy, for WebSocket URLs."""

    url: str
    user: str = ""
    password: str = ""
    timeout_ns: int = 0  # 0: that of dialing


class LeafRemote(Struct, frozen=True):
    """A hub whose leaf node we are, in one account."""

    urls: tuple[str, ...]
    account: str = GLOBAL_ACCOUNT
    credentials: str = ""  # a file with a user JWT and its seed
    nkey: str = ""  # a seed
    tls: TlsOptions | None = None
    deny_imports: tuple[bytes, ...] = ()
    deny_exports: tuple[bytes, ...] = ()
    first_info_timeout_ns: int = SECOND
    dial_timeout_ns: int = 0  # 0: that of all remotes
    no_randomize: bool = False
    ignore_discovered_servers: bool = False
    disabled: bool = False
    hub: bool = False  # we are the hub, though we dial
    isolated: bool = False  # it does not hear of the subscriptions of other leaf nodes
    request_isolation: bool = False  # and we do not hear of those over there
    compression: LinkCompression = LinkCompression()
    ws_compression: bool = False
    ws_no_masking: bool = False
    proxy: LeafProxy | None = None


class LeafNodeOptions(Struct, frozen=True):
    """`port` 0: no leaf node can connect to us."""

    host: str = DEFAULT_HOST
    port: int = 0  # -1 = any free port
    advertise: str = ""
    no_advertise: bool = False
    min_version: str = ""
    authorization: Authorization | None = None  # None = the users of the server
    tls: TlsOptions | None = None
    reconnect_ns: int = SECOND
    dial_timeout_ns: int = SECOND
    write_deadline_ns: int = 0  # 0: that of clients
    compression: LinkCompression = LinkCompression()
    isolated: bool = False  # no leaf node hears of the subscriptions of another
    remotes: tuple[LeafRemote, ...] = ()


class Http(Struct, frozen=True):
    host: str
    port: int  # -1 = any free port
    base_path: str = ""
    tls: bool = False


class ConsoleOptions(Struct, frozen=True):
    """The page at the root of the monitoring port."""

    admin: bool = False  # signed-in users may change things, as far as their permissions go


class Options(Struct, frozen=True):
    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT  # -1 = any free port
    server_name: str = ""
    server_tags: tuple[str, ...] = ()
    server_metadata: dict[str, str] = field(default_factory=dict)
    client_advertise: str = ""
    http: Http | None = None
    console: ConsoleOptions = ConsoleOptions()
    jetstream: JetStreamOptions | None = None
    cluster: ClusterOptions | None = None
    websocket: WebSocketOptions | None = None
    leafnodes: LeafNodeOptions | None = None
    authorization: Authorization = field(default_factory=Authorization)
    accounts: tuple[AccountOptions, ...] = ()
    mappings: tuple[SubjectMapping, ...] = ()  # of the global account
    resolver: ResolverOptions | None = None
    system_account: str = SYSTEM_ACCOUNT
    tls: TlsOptions | None = None
    allow_non_tls: bool = False
    proxy_protocol: bool = False  # a load balancer may name the client that it forwards
    headers: bool = True
    limits: Limits = field(default_factory=Limits)
    ping: Ping = field(default_factory=Ping)
    logging: Logging = field(default_factory=Logging)
    lame_duck: LameDuck = field(default_factory=LameDuck)
    pid_file: str = ""
    ports_file_dir: str = ""
    config_file: str = ""
    config_digest: str = ""
