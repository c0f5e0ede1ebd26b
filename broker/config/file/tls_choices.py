"""Keys of a `tls` block that choose among keys, ciphers and curves.

Owns: nats-server's names for them, and ours for the same.
May not touch: certificates (broker/server/client/tls.py).
Spec: NATS server configuration, tls. As in Go, the suites of TLS 1.3 cannot be chosen: their names
are accepted and have no effect."""

from __future__ import annotations

import re
from collections.abc import Callable

from broker.config.file import values
from broker.config.file.parser import Item
from broker.config.file.values import BadValue

_SUITES = {
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256": "ECDHE-RSA-AES128-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256": "ECDHE-ECDSA-AES128-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA": "ECDHE-RSA-AES128-SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA": "ECDHE-RSA-AES256-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA": "ECDHE-ECDSA-AES128-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA": "ECDHE-ECDSA-AES256-SHA",
    "TLS_RSA_WITH_AES_128_GCM_SHA256": "AES128-GCM-SHA256",
    "TLS_RSA_WITH_AES_256_GCM_SHA384": "AES256-GCM-SHA384",
}
_FIXED = frozenset(
    ["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"]
)
_CURVES = {
    "CURVEP256": "prime256v1",
    "CURVEP384": "secp384r1",
    "CURVEP521": "secp521r1",
    "X25519": "X25519",
}
_FINGERPRINT = re.compile(r"[0-9a-f]{64}")


def _ciphers(key: str, item: Item) -> dict[str, object]:
    chosen = []
    for name in values.texts(key, item):
        if name in _SUITES:
            chosen.append(_SUITES[name])
        elif name not in _FIXED:
            raise BadValue(f"unrecognized cipher {name}")
    if not values.texts(key, item):
        raise BadValue("error parsing tls config, 'cipher_suites' cannot be empty")
    return {"ciphers": ":".join(chosen)}


def _curve(key: str, item: Item) -> dict[str, object]:
    names = values.texts(key, item)
    if not names:
        raise BadValue("error parsing tls config, 'curve_preferences' cannot be empty")
    for name in names:
        if name.upper() not in _CURVES:
            raise BadValue(f"unrecognized curve preference {name}")
    if len(names) > 1:
        raise BadValue("not supported yet: more than one curve in curve_preferences")
    return {"curve": _CURVES[names[0].upper()]}


def _pinned(key: str, item: Item) -> dict[str, object]:
    found = frozenset(one.lower() for one in values.texts(key, item))
    for one in found:
        if _FINGERPRINT.fullmatch(one) is None:
            raise BadValue(
                f"error parsing 'pinned_certs' key {one} does not look like lower case hex-encoded "
                "sha256 of DER encoded SubjectPublicKeyInfo"
            )
    return {"pinned_certs": found}


def _mapped(key: str, item: Item) -> dict[str, object]:
    mapped = values.boolean(key, item)
    return {"verify_and_map": mapped, **({"verify": True} if mapped else {})}


TLS_CHOICES: dict[str, Callable[[str, Item], dict[str, object]]] = {
    "verify_and_map": _mapped,
    "cipher_suites": _ciphers,
    "curve_preferences": _curve,
    "pinned_certs": _pinned,
}
