"""Configuration files: accepted or refused by nats-server and by our parser.

Owns: the table of files. nats-server reads a file with `-t`; ours in this process."""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from broker.config.load import BadSettings, load, parse_flags
from tests.support.clusters import nats_server

TRUSTED = "OAS7ZMB2WZBV2EDLLXY6M57TY2QQU6ZCOGO65XVTOYOAAXQTAZBD2FJN"  # an operator
KEYS: dict[str, tuple[str, ...]] = {
    "listen": ('"127.0.0.1:4222"', "4222", ":4222", '"x"', "-1", "70000", "true"),
    "port": ("4222", "-1", '"x"', "true", "4k"),
    "host": ('"127.0.0.1"', "1", "localhost"),
    "server_name": ("a", '"a b"', "1", '""'),
    "server_tags": ('["a:b"]', "a", "1", "[1]"),
    "client_advertise": ('"1.2.3.4:5"', '"x"', "1"),
    "max_payload": ("1024", "1MB", "64MB", "65MB", "-1", "0", "x", "1.5", "3GB"),
    "max_control_line": ("1024", "0", "4k", "x", "-1"),
    "max_pending": ("1024", "64MB", "x", "-1", "10"),
    "max_connections": ("10", "-1", "0", "x", "1k"),
    "max_subscriptions": ("10", "-1", "x"),
    "max_sub_tokens": ("10", "0", "255", "256", "-1", "x"),
    "max_closed_clients": ("10", "-1", "x"),
    "write_deadline": ('"2s"', "2", '"x"', "-1", '"1m30s"', "true"),
    "ping_interval": ('"2m"', "2", '"x"', '"0s"'),
    "ping_max": ("2", "x", "-1"),
    "lame_duck_duration": ('"30s"', '"10s"', '"2m"', "1", "x"),
    "lame_duck_grace_period": ('"10s"', '"-1s"', '"5m"', "x"),
    "no_header_support": ("true", "1", "x"),
    "debug": ("true", "1", "x"),
    "trace": ("true", "x"),
    "logtime": ("true", "x"),
    "logtime_utc": ("true", "x"),
    "log_file": ('"/tmp/no-such-folder/x.log"', "1"),
    "logfile_size_limit": ("1k", "x", "0"),
    "max_traced_msg_len": ("10", "0", "x", "-1"),
    "pid_file": ('"/tmp/parity.pid"', "1"),
    "http": ('"127.0.0.1:8222"', "8222", "x", '":8222"'),
    "http_port": ("8222", "x"),
    "http_base_path": ('"/a"', '"a"', "1"),
    "authorization": (
        "{ user: a, password: b }", "{ token: x }", "{ user: a }", "{ password: b }",
        "{ user: a, password: b, token: c }", "{ users: [] }", "{ users: [{user: a, password: b}] }",
        "{ users: [{user: a, password: b}, {user: a, password: c}] }", "{ users: [{user: a}] }",
        "{ users: [{nkey: x}] }", "{ timeout: 2 }", '{ timeout: "2s" }', "{ timeout: x }",
        "{ user: a, pass: b, users: [{user: c, password: d}] }", "{ nothing: 1 }", "x",
        "{ users: [{user: a, password: b, permissions: {publish: x}}] }",
        '{ users: [{user: a, password: b, permissions: {publish: "a..b"}}] }',
        '{ users: [{user: a, password: b, permissions: {publish: ["a", "b.>"], subscribe: "c q"}}] }',
        "{ users: [{user: a, password: b, permissions: {publish: {allow: x, deny: y}}}] }",
        "{ users: [{user: a, password: b, permissions: {allow_responses: true}}] }",
        "{ users: [{user: a, password: b, permissions: {allow_responses: {max: 1, ttl: x}}}] }",
        "{ default_permissions: {publish: x}, users: [{user: a, password: b}] }",
        "{ users: [{user: a, password: b, allowed_connection_types: [STANDARD]}] }",
        "{ users: [{user: a, password: b, allowed_connection_types: [NONSENSE]}] }",
    ),
    "accounts": (
        "{ A {} }", "{ A { users: [{user: a, password: b}] } }", "[A, B]", "x", "{ A: x }",
        "{ A { jetstream: enabled } }", "{ A { jetstream: maybe } }", "{ A { nothing: 1 } }",
        "{ A { exports: [{stream: x}] }, B { imports: [{stream: {account: A, subject: x}}] } }",
        "{ A { exports: [{service: x}] }, B { imports: [{service: {account: A, subject: x}}] } }",
        "{ A {}, B { imports: [{stream: {account: A, subject: x}}] } }",
        "{ B { imports: [{stream: {account: NO, subject: x}}] } }",
        "{ A { exports: [{stream: x, accounts: [C]}] }, B { imports: [{stream: {account: A, subject: x}}] } }",
        "{ A { exports: [{service: x, response_type: stream}] } }",
        "{ A { exports: [{service: x, latency: y}] } }",
        "{ A { exports: [{service: x, latency: { subject: y }}] } }",
        "{ A { exports: [{service: x, latency: { sampling: 50, subject: y }}] } }",
        "{ A { exports: [{service: x, latency: { sampling: 50%, subject: y }}] } }",
        "{ A { exports: [{service: x, latency: { sampling: headers, subject: y }}] } }",
        "{ A { exports: [{service: x, latency: { sampling: 101, subject: y }}] } }",
        "{ A { exports: [{service: x, latency: { sampling: 0, subject: y }}] } }",
        "{ A { exports: [{service: x, latency: { sampling: x, subject: y }}] } }",
        "{ A { exports: [{service: x, latency: { sampling: 5 }}] } }",
        "{ A { exports: [{service: x, latency: { nothing: 5, subject: y }}] } }",
        "{ A { exports: [{stream: x, latency: y}] } }",
        '{ A { exports: [{service: "a.*", account_token_position: 2}] } }',
        '{ A { exports: [{service: "a.*", account_token_position: 1}] } }',
        '{ A { exports: [{service: "a.*", account_token_position: 3}] } }',
        '{ A { exports: [{service: "a.*", account_token_position: 2, accounts: [A]}] } }',
        "{ A { exports: [{service: x, response_type: nonsense}] } }",
        "{ A { exports: [{stream: x, service: y}] } }", "{ A { exports: [{}] } }",
        "{ A { imports: [{}] } }", "{ A { users: [{user: a, password: b}] }, B { users: [{user: a, password: c}] } }",
        "{ A { jetstream: { max_mem: 1M, max_file: 1M, max_streams: 1, max_consumers: 1 } } }",
        "{ A { jetstream: { max_mem: x } } }", "{ A { limits: { max_conn: 5 } } }",
        "{ A { limits: { nothing: 5 } } }", "{ A { mappings: { a: b } } }",
        "{ A { default_permissions: { publish: x } } }",
        "{ A { exports: [{service: x, threshold: \"1s\"}] } }", "{ SYS {} } \nsystem_account: SYS",
        "{ A {} } \nsystem_account: NO", "{ A {} } \nno_auth_user: x",
        "{ A { users: [{user: a, password: b}] } } \nno_auth_user: a",
    ),
    "jetstream": (
        "enabled", "disabled", "true", "false", "{}", "x", '{ store_dir: "/tmp/x" }', "{ max_mem: 1G }",
        "{ max_file: -1 }", "{ max_mem: x }", "{ domain: a }", '{ domain: "a.b" }', "{ nothing: 1 }",
        "{ enabled: true }", "{ sync_interval: always }", '{ sync_interval: "2m" }',
        "{ sync_interval: x }", "{ unique_tag: a }", "{ strict: true }", "{ strict: x }",
        "{ limits: { max_ack_pending: 10 } }", "{ limits: { duplicate_window: \"1m\" } }",
        "{ limits: { max_request_batch: 10 } }", "{ limits: { nothing: 1 } }",
        "{ max_outstanding_catchup: 1M }", "{ max_buffered_size: 1M }", "{ max_buffered_msgs: 10 }",
        "{ request_queue_limit: 10 }", "{ key: x, cipher: aes }", "{ cipher: nonsense }",
        "{ store_dir: x, store: y }",
    ),
    "cluster": (
        '{ name: a, listen: "127.0.0.1:6222" }', "{ port: 6222 }", "{ name: a, port: x }",
        '{ port: 6222, routes: ["nats://127.0.0.1:6223"] }', '{ port: 6222, routes: ["x"] }',
        "{ port: 6222, routes: 1 }", "{ port: 6222, authorization: { user: a, password: b } }",
        "{ port: 6222, authorization: { user: a, password: b, timeout: 1 } }",
        "{ port: 6222, authorization: { users: [{user: a, password: b}] } }",
        "{ port: 6222, authorization: { token: x } }", "{ port: 6222, no_advertise: true }",
        '{ port: 6222, advertise: "1.2.3.4:5" }', "{ port: 6222, connect_retries: 5 }",
        "{ port: 6222, nothing: 1 }", "{ port: 6222, pool_size: 3 }", "{ port: 6222, pool_size: -1 }",
        "{ port: 6222, compression: off }", "{ port: 6222, accounts: [A] }",
        "{ port: 6222, compression: s2_fast }", "{ port: 6222, permissions: { import: x } }",
        "{ port: 6222, ping_interval: 10 }", '{ name: "a b", port: 6222 }', "x",
        "{ port: 6222, compression: { mode: s2_auto, rtt_thresholds: [10ms, 20ms] } }",
        "{ port: 6222, compression: accept }", "{ port: 6222, compression: 1 }",
        "{ port: 6222, permissions: { import: [a, b], export: { allow: c, deny: [d] } } }",
        "{ port: 6222, permissions: { publish: a, subscribe: b } }", "{ port: 6222, permissions: x }",
        "{ port: 6222, permissions: { import: 'a..b' } }", "{ port: 6222, permissions: { nothing: a } }",
        "{ port: 6222, ping_interval: 10s, ping_max: 3 }", "{ port: 6222, ping_max: x }",
        "{ port: 6222, connect_backoff: true }", "{ port: 6222, accounts: x }", "{ port: 6222, accounts: [A, A] }",
    ),
    "websocket": (
        "{ port: 8080, no_tls: true }", "{ port: 8080 }", "{ port: x }", "{ port: 8080, nothing: 1 }",
        "{ port: 8080, no_tls: true, same_origin: true }", '{ port: 8080, no_tls: true, allowed_origins: ["http://x"] }',
        "{ port: 8080, no_tls: true, compression: true }", "{ port: 8080, no_tls: true, no_auth_user: x }",
        "{ port: 8080, no_tls: true, jwt_cookie: c }", "{ port: 8080, no_tls: true, token: x }",
    ),
    "tls": (
        '{ cert_file: "/no/such" , key_file: "/no/such" }', "{}", "{ nothing: 1 }", "x",
        '{ cert_file: "/no/such" }', '{ key_file: "/no/such" }', "{ timeout: 2 }",
        "{ cipher_suites: [] }", "{ cipher_suites: [x] }", "{ curve_preferences: [x] }",
        "{ curve_preferences: [] }", "{ pinned_certs: [x] }", "{ verify_and_map: x }",
    ),
    "leafnodes": (
        "{ port: 7422 }", '{ listen: "127.0.0.1:7422" }', "{ port: x }", "{ nothing: 1 }", "x",
        "{ port: 7422, authorization: { user: a, password: b } }", "{ port: 7422, no_advertise: true }",
        "{ port: 7422, authorization: { user: a, password: b, account: X } }",
        "{ port: 7422, authorization: { users: [ { user: a, password: b }, { user: a, password: c } ] } }",
        "{ port: 7422, min_version: 2.10.0 }", "{ port: 7422, min_version: 2.7.0 }",
        "{ port: 7422, min_version: x }", "{ port: 7422, compression: off }",
        '{ remotes: [ { url: "nats://h:7422" } ] }', '{ remotes: [ { urls: ["nats://h:1", "nats://i:2"] } ] }',
        '{ remotes: [ { url: "nats://h:7422", account: X } ] }', '{ remotes: { url: "nats://h:7422" } }',
        '{ remotes: [ { url: "nats://h:7422", deny_imports: "a.>", deny_exports: ["b"] } ] }',
        '{ remotes: [ { url: "nats://h:7422", nothing: 1 } ] }', "{ port: 7422, reconnect: 3 }",
        '{ remotes: [ { url: "nats://h:7422", first_info_timeout: "3s", no_randomize: true } ] }',
        '{ remotes: [ { url: "ws://h:80" } ] }', '{ remotes: [ { url: "nats://h:7422", disabled: true } ] }',
        '{ remotes: [ { url: "nats://h:7422", hub: true } ] }', "{ port: 7422, compression: s2_auto }",
        '{ remotes: [ { url: "nats://h:7422", isolate: true } ] }', '{ port: 7422, advertise: "h:1" }',
        '{ remotes: [ { url: "nats://h:7422", compression: s2_fast } ] }', "{ port: 7422, write_deadline: 2s }",
        '{ remotes: [ { url: "nats://h:7422", jetstream_cluster_migrate: true } ] }',
        '{ remotes: [ { url: "nats://h:7422", js_cluster_migrate: { leader_migrate_delay: "5s" } } ] }',
        '{ remotes: [ { url: "nats://h:7422", js_cluster_migrate: { nothing: 1 } } ] }',
        '{ remotes: [ { url: "ws://h:80", proxy: { url: "http://p:1" } } ] }',
        '{ remotes: [ { url: "ws://h:80", proxy: { url: "https://p:1" } } ] }',
        '{ remotes: [ { url: "nats://h:7422", proxy: { url: "http://p:1" } } ] }',
        '{ remotes: [ { url: "ws://h:80", proxy: { url: "http://p:1", username: a } } ] }',
        '{ remotes: [ { url: "ws://h:80", proxy: { url: "http://p:1", username: a, password: b, timeout: "5s" } } ] }',
        '{ remotes: [ { url: "ws://h:80", proxy: { url: "ftp://p:1" } } ] }', '{ remotes: [ { url: "ws://h:80", proxy: {} } ] }',
        '{ remotes: [ { url: "ws://h:80", proxy: { url: "http://" } } ] }', '{ remotes: [ { url: "ws://h:80", proxy: { nothing: 1 } } ] }',
        '{ remotes: [ { url: "wss://h:443", proxy: { url: "http://p:1" } } ] }',
        "{ port: 7422, compression: true }", "{ port: 7422, compression: nothing }", "{ port: 7422, compression: 1 }",
        "{ port: 7422, compression: { mode: s2_auto, rtt_thresholds: [10ms, 20ms] } }",
        "{ port: 7422, compression: { mode: s2_auto, rtt_thresholds: [20ms, 10ms] } }",
        "{ port: 7422, compression: { nothing: 1 } }", "{ port: 7422, dial_timeout: 2s }",
        '{ remotes: [ { urls: ["ws://h:80", "nats://h:7422"] } ] }', '{ remotes: [ { url: "wss://h:443/x" } ] }',
        '{ remotes: [ { url: "ws://h:80", ws_compression: true, ws_no_masking: true } ] }',
        '{ remotes: [ { url: "nats://h:7422", request_isolation: true, dial_timeout: 3s } ] }',
        '{ port: 7422, isolate_leafnode_interest: true }', '{ remotes: [ { url: "nats://h:7422" } ] }\n'
        'cluster: { name: c, port: 6222 }\nserver_name: n\njetstream: { domain: a }',
    ),
    "gateway": ("{ name: a, port: 7222 }",),
    "mqtt": ("{ port: 1883 }",), "mappings": (
        "{ a: b }", "{ a: b, b: a }", "{ a: a }", '{ "a.*": "b.$1" }', '{ "a.*": "b.$2" }', "{ a: 1 }",
        "{ a: [{ destination: b, weight: 60% }, { destination: c, weight: 60% }] }",
        "{ a: [{ destination: b, weight: 50 }, { destination: c, weight: 50 }] }",
        "{ a: [{ destination: b, weight: 101 }] }", "{ a: [{ destination: b, weight: -1 }] }",
        "{ a: [{ destination: b, weight: x }] }", "{ a: [{ destination: b, weight: 10% }, "
        "{ destination: b, weight: 20% }] }", "{ a: [{ weight: 10% }] }", "x",
    ), "default_js_domain": ("{ A: b }",),
    "trusted_keys": ("x", "[x]", "1", TRUSTED, f"[{TRUSTED}]", f"{TRUSTED}\nresolver: MEMORY"),
    "trusted": (f"{TRUSTED}\nresolver: MEMORY",), "resolver_tls": (
        "{ insecure: true }", "{ cert_file: a }", '{ ca_file: "/no/such" }', "x", "{ nothing: 1 }",
    ), "syslog": ("true",), "remote_syslog": ('"udp://x:1"',),
    "trace_verbose": ("true",), "logfile_max_num": ("3",), "proxy_protocol": ("true",),
    "ocsp": ("true", "x"), "server_metadata": ("{ a: b }",), "feature_flags": ("{ a: true }",),
    "write_timeout": ("close", "default", "x"), "disable_sublist_cache": ("true", "x"), "no_sublist_cache": ("true",), "prof_port": ("65432",),
    "no_fast_producer_stall": ("true",), "connect_error_reports": ("10", "x"), "no_sys_acc": ("true",),
    "reconnect_error_reports": ("10",), "js_api_timeout": ('"5s"',), "trace_headers": ("true",),
    "nothing": ("1", "true", "{}"), "allow_non_tls": ("true",), "ports_file_dir": ('"/tmp"',),
    "operator": ("x", '"/no/such"'), "resolver": ("MEMORY", "x", "URL(http://x)"),
    "resolver_preload": ("{}", "{ A: x }"), "include": ('"/no/such"', "nothing.conf"),
}  # fmt: skip
TEXTS = (
    "", "#", "# x\n// y\n", "a", "a:", "a: {", "a: }", "a: [1", "port: 1\nport: 2", "port = 4222",
    "port 4222", "port: 4222;", "debug: yes", "debug: on", "debug: YES", 'host: "a', "x = $x\nport: 4222",
    "P = 4222\nport: $P", "port: $P", "max_payload: 1kb", "max_payload: 1Kib", "max_payload: 1 kb",
    "max_payload: 1e3", "ping_interval: 1h", "{ port: 4222 }", "{ port: 4222", "port: 4222 }",
    "host: 'a'", 'host: """a"""', "server_name: (\n a\n)", "server_name: 2020-01-01T00:00:00Z",
    "max_connections: -5", "debug: TRUE", "DEBUG: true", "Port: 4222", '"port": 4222',
    "authorization { user: $UNSET_VARIABLE_X, password: b }", "server_name: \xfc", "port: 4222,",
    "port: 4222 host: a", "port: 4222, host: a", "server_tags: [a, b,]", "server_tags: [a b]",
)  # fmt: skip


def files() -> list[str]:
    return [f"{key}: {value}\n" for key, values in KEYS.items() for value in values] + list(TEXTS)


def verdicts(folder: Path) -> list[tuple[str, str, str]]:
    """Each file with our verdict and nats-server's."""
    texts = files()
    paths = [folder / f"{number}.conf" for number in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    with ThreadPoolExecutor(2) as workers:
        theirs = list(workers.map(_theirs, paths))
    return [
        (text, _ours(path), other) for path, text, other in zip(paths, texts, theirs, strict=True)
    ]


def _ours(path: Path) -> str:
    try:
        load(parse_flags(["-c", str(path)]))
    except BadSettings:
        return "refused"
    return "accepted"


def _theirs(path: Path) -> str:
    done = subprocess.run(
        [*nats_server(), "-t", "-c", str(path)], capture_output=True, check=False, timeout=60
    )
    return "refused" if done.returncode else "accepted"
