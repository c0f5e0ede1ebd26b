"""Keys of nats-server that this server does not support yet.

Owns: the names, so that an error can say "not supported yet" instead of "unknown field".
May not touch: values.
Spec: NATS server configuration file."""

from __future__ import annotations

TOP = frozenset(
    [
        "feature_flags",
        "proxies",
        "default_sentinel",
        "resolver_pinned_accounts",
        "ocsp",
        "ocsp_cache",
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
EXPORT = frozenset(["advertise", "name", "description"])
USER = frozenset(["proxy_required"])
TLS = frozenset(
    [
        "verify_cert_and_check_known_urls",
        "allow_insecure_cipher_suites",
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
LEAFNODES = frozenset(["write_timeout"])
JETSTREAM_LIMITS = frozenset(["max_ha_assets", "batch"])
JETSTREAM = frozenset(
    [
        "extension_hint",
        "tpm",
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
        "write_deadline",
        "write_timeout",
    ]
)
