"""Keys of nats-server that this server does not support yet.

Owns: the names, so that an error can say "not supported yet" instead of "unknown field".
May not touch: values.
Spec: NATS server configuration file."""

from __future__ import annotations

TOP = frozenset(
    [
        "server_metadata",
        "feature_flags",
        "write_timeout",
        "proxy_protocol",
        "proxies",
        "disable_sublist_cache",
        "no_fast_producer_stall",
        "connect_error_reports",
        "reconnect_error_reports",
        "default_js_domain",
        "default_sentinel",
        "trusted",
        "trusted_keys",
        "resolver_pinned_accounts",
        "resolver_tls",
        "ocsp",
        "ocsp_cache",
        "trace_verbose",
        "trace_headers",
        "logfile_max_num",
        "log_max_num",
        "syslog",
        "remote_syslog",
        "prof_port",
        "prof_block_rate",
        "gateway",
        "mqtt",
        "no_system_account",
        "no_sys_acc",
        "js_api_timeout",
    ]
)
AUTHORIZATION = frozenset(["auth_hook", "proxy_required"])
EXPORT = frozenset(["latency", "account_token_position", "advertise", "name", "description"])
USER = frozenset(["proxy_required"])
TLS = frozenset(
    [
        "verify_and_map",
        "verify_cert_and_check_known_urls",
        "cipher_suites",
        "curve_preferences",
        "allow_insecure_cipher_suites",
        "pinned_certs",
        "connection_rate_limit",
        "certs",
        "certificates",
        "cert_store",
        "cert_match",
        "cert_match_by",
        "ca_certs_match",
        "cert_match_skip_invalid",
        "ocsp_peer",
    ]
)
LEAFNODES = frozenset(
    ["dial_timeout", "isolate_leafnode_interest", "isolate", "write_deadline", "write_timeout"]
)
LEAF_REMOTE = frozenset(
    [
        "ws_compress",
        "ws_compression",
        "websocket_compress",
        "websocket_compression",
        "ws_no_masking",
        "websocket_no_masking",
        "jetstream_cluster_migrate",
        "js_cluster_migrate",
        "isolate_leafnode_interest",
        "isolate",
        "request_isolation",
        "dial_timeout",
        "proxy",
    ]
)
JETSTREAM_LIMITS = frozenset(["max_ha_assets", "batch"])
JETSTREAM = frozenset(
    [
        "extension_hint",
        "key",
        "ek",
        "encryption_key",
        "prev_key",
        "prev_ek",
        "prev_encryption_key",
        "cipher",
        "tpm",
        "max_outstanding_catchup",
        "max_buffered_size",
        "max_buffered_msgs",
        "request_queue_limit",
        "info_queue_limit",
        "max_concurrent_io",
        "meta_compact",
        "meta_compact_size",
        "meta_compact_sync",
    ]
)
CLUSTER = frozenset(
    [
        "permissions",
        "connect_backoff",
        "pool_size",
        "accounts",
        "compression",
        "ping_interval",
        "ping_max",
        "write_deadline",
        "write_timeout",
    ]
)
