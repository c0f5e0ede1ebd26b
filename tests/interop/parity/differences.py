"""Every difference from nats-server that is meant, with its reason.

Owns: the list. docs/differences.md is written from it: `python -m tests.interop.parity.differences`."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

DOCUMENT = Path(__file__).parents[3] / "docs" / "differences.md"


@dataclass(frozen=True, slots=True)
class ByDesign:
    """`fields` are (pattern of "scene: step", pattern of the field) that this one explains. A
    difference without fields is one that no exchange shows."""

    area: str
    ours: str
    theirs: str
    why: str
    fields: tuple[tuple[str, str], ...] = ()


ANY = "*"
REFUSED_KEYS = (
    "gateway", "mqtt", "ocsp", "feature_flags", "prof_port", "no_sys_acc",
    "jetstream: { request_queue_limit",
)  # fmt: skip
PROXIES = (
    'leafnodes: { remotes: [[] { url: "nats://h:7422", proxy: { url: "http://p:1" } }',
    'leafnodes: { remotes: [[] { url: "ws://h:80", proxy: { url: "https://p:1" } }',
)
STRICTER = (
    "leafnodes: { port: 7422, compression: nothing }",
    'leafnodes: { remotes: [[] { url: "nats://h:7422", js_cluster_migrate: { nothing',
    "leafnodes: { port: 7422, compression: { mode: s2_auto, rtt_thresholds: [[]20ms, 10ms] } }",
    'leafnodes: { remotes: [[] { urls: [[]"ws://h:80", "nats://h:7422"] } ] }',
    "max_payload: 65MB",
    "max_pending: 10*",
    "max_pending: -1",
    'lame_duck_grace_period: "5m"',
    "authorization: { password: b }",
    "accounts: x",
    "accounts: { A { exports: [[]{}]",
    "accounts: { A { exports: [[]{service: x, latency: { nothing",
    "accounts: { A { imports: [[]{}]",
    "accounts: { A {} } ?no_auth_user: x",
    "port: 4222 }",
    "websocket: { port: 8080 }",
    "websocket: { port: 8080, no_tls: true, no_auth_user: x }",
    "websocket: { port: 8080, no_tls: true, jwt_cookie: c }",
    "default_js_domain: { A: b }",
    "trusted_keys: *O",
    "tls: {}",
    "mappings: { a: [[]{ weight: 10% }] }",
    "tls: { timeout: 2 }",
    "leafnodes: { port: 7422, authorization: { user: a, password: b, account: X } }",
    'leafnodes: { remotes: [[] { url: "nats://h:7422", account: X }',
)
LAXER = (
    "host: 1",
    "server_name: 1",
    "server_tags: *1*",
    "client_advertise: 1",
    "max_sub_tokens: *",
    "write_deadline: *",
    "ping_interval: 2",
    "leafnodes: { port: 7422, reconnect: 3 }",
    "cluster: { port: 6222, ping_interval: 10 }",
    'lame_duck_grace_period: "-1s"',
    "log_file: 1",
    "pid_file: 1",
    "http_base_path: 1",
    "jetstream: { store_dir: x, store: y }",
    "cluster: { port: 6222, routes: 1 }",
    "tls: { cert_file*",
)


def _files(texts: tuple[str, ...], end: str = "*") -> tuple[tuple[str, str], ...]:
    return tuple((f"configuration: {text}{end}", "verdict") for text in texts)


DESIGN = (
    ByDesign(
        "Errors",
        "the reason after `invalid JSON: ` and similar beginnings is that of our JSON parser",
        "that of Go's",
        "codes are alike; the words belong to the parser",
    ),
    ByDesign(
        "Streams and consumers",
        "`CONSUMER.RESET` of a consumer that does not exist: 10014",
        "no answer",
        "a client should not wait for a timeout",
    ),
    ByDesign(
        "Streams and consumers",
        "no limit on the consumers of a stream when `max_consumers` is not set",
        "1,000 on each stream (`default_max_consumers`)",
        "a consumer is a few hundred bytes of its stream's group here, and limits of accounts hold",
        (("*GET /*", "*limits.default*"), ("*$SYS*", "*limits.default*")),
    ),
    ByDesign(
        "Streams and consumers",
        "an `external` prefix that no remote, import or leaf node serves: the info says so (10029)",
        "nothing is said",
        "another cluster is a remote with addresses and credentials",
        (("stream field sources*", "body.sources*"),),
    ),
    ByDesign(
        "Streams and consumers",
        "`placement: {tags: []}` is not shown; an update to a `republish` without `dest` leaves it "
        "empty: nothing is republished; a negative `priority_timeout` needs no API level; an "
        "empty stream updated to `first_seq: 1` shows 1",
        "`placement: {}`; the update makes it `>`: messages return to their own subjects; level 1; 0",
        "what says nothing is not stored",
        (
            ("*placement*", "body.config.placement"),
            ("stream field republish*", "body.config.republish.dest"),
            ("* consumer field priority_timeout*", "*_nats.req.level"),
            ("stream field first_seq: $JS.API.STREAM.UPDATE*", "body.state.first_seq"),
            ("stream field first_seq: $JS.API.STREAM.INFO*", "body.state.first_seq"),
        ),
    ),
    ByDesign(
        "Streams and consumers",
        "without `max_buffered_msgs` and `max_buffered_size`, a connection that publishes faster than a "
        "stream stores is not read for a while; with them, further publishes get 429 (10167), counted "
        "on the node of the publisher",
        "10,000 messages or 128 MB wait at the leader, further ones get 429 or are dropped",
        "no message is lost because it came too early",
    ),
    ByDesign(
        "Monitoring",
        "`sync_always: true` in the configuration of JetStream",
        "absent",
        "every acked message is flushed, unless `sync_interval` is given",
        (("*", "*config.sync_always"),),
    ),
    ByDesign(
        "Monitoring",
        "additional fields: `applied` and `leads` of a stream in /jsz, bulk reads (`scans`) in /varz, "
        "empty lists and zeros",
        "absent",
        "replicas can be compared; a field that is always there is easier to read",
        (
            ("*", "*.stream_detail*.leads"),
            ("*", "*.stream_detail*.applied"),
            ("*", "*.jetstream.scans"),
            ("*", "*.stream_detail"),
            ("*", "*.tags"),
            ("*", "*.max_subscriptions"),
            ("*", "*.stalls"),
            ("*", "*.subscriptions_list"),
            ("*", "*account_details"),
            ("*", "*.config.store_dir"),
        ),
    ),
    ByDesign(
        "Monitoring",
        "`accounts` in /jsz counts those that have streams; `total` likewise",
        "all that may have streams",
        "an account costs nothing until it has one",
    ),
    ByDesign(
        "Monitoring",
        "/stacksz, /debug/vars, EXPVARZ and PROFILEZ show the inside of a Python process: stacks of "
        "threads and tasks (as text), six fields of `memstats`, passwords of the command line left out, "
        "the profiles `cpu` and `goroutine` (for `go tool pprof`)",
        "Go's stacks (declared as JSON), all variables of its memory, all its profiles",
        "`heap`, `allocs`, `block` and `mutex` have no counterpart that costs nothing while it is off",
        (
            ("*/stacksz*", "body"),
            ("*/stacksz*", "type"),
            ("*/debug/vars*", "body*"),
            ("*EXPVARZ*", "body.data.memstats*"),
            ("*EXPVARZ*", "body.data.cmdline*"),
        ),
    ),
    ByDesign(
        "Monitoring",
        "/healthz and HEALTHZ know accounts of the configuration file, and check the arguments",
        "`account not found` for them on a single server",
        "the question has an answer",
        (("*/healthz[?]account=WATCHED*", ANY), ("*HEALTHZ*account*", ANY)),
    ),
    ByDesign(
        "Monitoring",
        "/raftz and RAFTZ show the groups of a single server, too",
        "404 `No Raft nodes registered`",
        "a stream with one replica is a Raft group as well",
        (("*/raftz*", ANY), ("*RAFTZ*", ANY)),
    ),
    ByDesign(
        "Monitoring",
        "SERVER.PING.ACCSTATZ is answered; queues of /ipqueuesz are ours",
        "ACCSTATZ only over HTTP; queues of the Go server",
        "the same document for both ways to ask",
        (("*ACCSTATZ*", ANY), ("*[Ii][Pp][Qq][Uu][Ee][Uu][Ee][Ss][Zz]*", ANY)),
    ),
    ByDesign(
        "Monitoring",
        "`404: Not Found` as text for unknown paths; `flags` of a server has the bit of JetStream only",
        "Go's `404 page not found`; bits of formats that its own servers exchange",
        "not part of a document",
        (("*: GET *", "body"), ("*", "*server.flags")),
    ),
    ByDesign(
        "Monitoring",
        "in a cluster, /jsz shows the replicas of a stream on its leader only, members of the meta "
        "group always with `offline` and without the state of its snapshot; a peer is one route in "
        "/routez, and /varz has no `pool_size`",
        "followers show what they know; a route per account of the pool",
        "the leader knows; replication has links of its own, beside those of messages",
    ),
    ByDesign(
        "Client protocol",
        "a second CONNECT is checked again; in verbose mode the +OK of a publish comes before its MSG",
        "a second CONNECT is accepted unseen; the +OK that belongs to it comes after",
        "credentials are never ignored; the order of an ack and of a delivery has no meaning",
        (("core: *b'CONNECT*", "bytes"), ("core: {'verbose': True*UNSUB 1 1*", "bytes")),
    ),
    ByDesign(
        "Client protocol",
        "`nkey` beside `user` and `pass`: refused when the nkey is not valid",
        "the nkey is ignored",
        "credentials are never ignored",
        (("core: {'nkey'*", "bytes"),),
    ),
    ByDesign(
        "Configuration",
        "refused: " + ", ".join(f"`{one}`" for one in REFUSED_KEYS),
        "accepted",
        "not supported; a setting is never ignored",
        _files(REFUSED_KEYS),
    ),
    ByDesign(
        "Configuration",
        "leaf nodes: `write_timeout` is refused; a proxy is for `http` and `ws://` URLs, others are "
        "refused; `s2_better` and `s2_best` compress as `s2_fast`; of a cluster with JetStream that "
        "is a leaf node, one node tells the hub of all streams (`speaks` in /leafz), and "
        "`jetstream_cluster_migrate` is checked only",
        "accepted, and ignored where it cannot work; the leader of each stream tells of it, and is "
        "moved away when it has lost the hub",
        "a stream can be reached wherever it is led",
        _files(PROXIES),
    ),
    ByDesign(
        "Configuration",
        "stricter: values that cannot work (a payload above 64 MB or the pending limit, empty imports, "
        "TLS without files, users that do not exist) are refused",
        "accepted, or refused only when the server starts",
        "a mistake is better found before the start",
        _files(STRICTER),
    ),
    ByDesign(
        "Configuration",
        "laxer: numbers where a text is meant, a deadline as seconds, a file without settings (a warning)",
        "refused",
        "the meaning is clear",
        (
            *_files(LAXER),
            ("configuration: ", "verdict"),
            ("configuration: #", "verdict"),
            ("configuration: # x*", "verdict"),
        ),
    ),
    ByDesign(
        "Configuration",
        "without `max_file_store`, what is stored already counts as free",
        "three quarters of what is free on the disk at the start; a node that has used 45 % of its "
        "disk refuses all messages after a restart",
        "a restart must not lower the limit below what is stored",
    ),
)

OPEN = (
    ByDesign(
        "Configuration",
        "`cluster { pool_size, accounts }` are checked and have no effect; a denied import of "
        "`cluster { permissions }` is dropped on arrival if a broader subscription asks for it, and what "
        "is not a message (Raft, streams, requests between nodes) is not subject to permissions",
        "routes of their own for accounts; a broader subscription gets what is denied; permissions that "
        "leave out `$SYS.>` and `_INBOX.>` stop JetStream",
        "two nodes have one connection for messages, on which accounts take turns; replication is no "
        "message here",
    ),
    ByDesign(
        "Streams and consumers",
        "`CONSUMER.RESET` to a later sequence on an interest stream: what was passed over stays until "
        "a limit, a purge or the end of the consumer removes it",
        "it is removed if no other consumer wants it",
        "not built; acknowledge instead of resetting",
    ),
    ByDesign(
        "Monitoring",
        "/varz and the `server` of system answers have no `feature_flags`, `git_commit` and "
        "`disk_io_wait_stats`",
        "there",
        "they are about the inside of nats-server",
        (("*", "*feature_flags"), ("*", "*git_commit"), ("*", "*disk_io_wait_stats")),
    ),
    ByDesign(
        "Monitoring",
        "events and /connz do not show the JWT of a bearer token, nor that of a refused client; "
        "/accountz does not repeat the JWT of the account; "
        "`$SYS.ACCOUNT.CLIENT.AUTH.ERR` of a service that is silent says so",
        "all are shown; an empty reason",
        "such a JWT is a credential, or may be one; `$SYS.REQ.ACCOUNT.<key>.CLAIMS.LOOKUP` returns "
        "those of accounts",
    ),
    ByDesign(
        "Monitoring",
        "the advisory `SERVER.REMOVED` is sent when a server was removed from the cluster",
        "not sent after `$JS.API.SERVER.REMOVE`",
        "an operator wants to know",
    ),
    ByDesign(
        "Accounts",
        "an import whose activation token is for something else is left out; in a latency report, "
        "a service that is connected to another node is named by its account only",
        "the account with such an import is unusable; nodes exchange the details",
        "one import does not stop an account",
    ),
    ByDesign(
        "Monitoring",
        "reserved bytes of an account in /jsz are 0 where it has no limit",
        "2^64 - 1",
        "an overflow of -1",
        (("*", "*.reserved_*"),),
    ),
    ByDesign(
        "Monitoring",
        "`limit` of /jsz is not read",
        "400 for a limit that is no number",
        "all accounts that have streams are listed",
        (("*/jsz[?]limit=x*", ANY),),
    ),
    ByDesign(
        "Monitoring",
        "/connz: `cid` keeps the limit, `filter_subject` is obeyed without `subs`, an unknown account "
        "has an empty list and the id of the server",
        "a limit of 1; ignored; null and an empty id",
        "the answer says what was asked",
        (
            ("*/connz[?]cid*", ANY),
            ("*/connz[?]filter_subject*", ANY),
            ("*CONNZ*", "*connections"),
            ("*CONNZ*", "*server_id"),
            ("*/connz*", "*connections"),
            ("*/connz*", "*server_id"),
        ),
    ),
)
DIFFERENCES: tuple[ByDesign, ...] = (*DESIGN, *OPEN)


class Explained:
    """Which differences are by design, and which of the patterns were needed."""

    def __init__(self, listed: tuple[ByDesign, ...]) -> None:
        self._listed = listed
        self._needed: set[tuple[str, str]] = set()

    def __call__(self, where: str, path: str) -> bool:
        for one in self._listed:
            for step, field in one.fields:
                if fnmatchcase(where, step) and fnmatchcase(path, field):
                    self._needed.add((step, field))
                    return True
        return False

    def idle(self) -> list[str]:
        """Patterns that explained nothing: the difference is gone."""
        each = {pattern for one in self._listed for pattern in one.fields}
        return [f"{where}: {field}" for where, field in sorted(each - self._needed)]


def document(listed: tuple[ByDesign, ...]) -> str:
    """The text of docs/differences.md."""
    lines = [
        "# Differences from nats-server",
        "",
        "The reference is nats-server 2.15. `tests/interop/parity` sends the same requests to both",
        "servers and compares the answers field by field; what is not listed here is alike, or a",
        "defect. This page is written from `tests/interop/parity/differences.py`.",
    ]
    for area in dict.fromkeys(one.area for one in listed):
        lines += ["", f"## {area}", "| nats-server | JetRaft | why |", "| --- | --- | --- |"]
        lines += [f"| {o.theirs} | {o.ours} | {o.why} |" for o in listed if o.area == area]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    DOCUMENT.write_text(document(DIFFERENCES))
