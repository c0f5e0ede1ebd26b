"""/varz: general information about the server.

Owns: the fields and their sources.
May not touch: live state, beyond reading numbers.
Spec: NATS monitoring, /varz; traffic counts payload and header bytes only."""

from __future__ import annotations

import os
import resource
import time

from broker.config.options import VERSION, Options
from broker.monitor.documents.leafz import varz_leaf
from broker.monitor.observed import Observed, ObservedListener
from broker.server.client.connections import Counters
from broker.server.client.info import PYTHON, ClientUrls
from broker.server.client.settings import ServerSettings
from broker.server.process.times import span, timestamp
from broker.server.services import Document
from broker.subjects import Steps

PAGE = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * PAGE
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class CpuMeter:
    """Percent of one core since the last call."""

    def __init__(self) -> None:
        self._wall = time.monotonic()
        self._cpu = time.process_time()
        self._last = 0.0

    def percent(self) -> float:
        wall, cpu = time.monotonic(), time.process_time()
        if wall - self._wall >= 1.0:
            self._last = 100.0 * (cpu - self._cpu) / (wall - self._wall)
            self._wall, self._cpu = wall, cpu
        return round(self._last, 2)


def varz(
    observed: Observed, *, cpu: float, requests: dict[str, int], http_port: int
) -> Steps[Document]:
    server, runtime = observed.server, observed.runtime
    options, now = server.options, time.time()
    jetstream = {} if runtime is None else (yield from runtime.varz_jetstream())
    traffic = server.connections.traffic()
    routes = 0 if runtime is None else runtime.routez().get("num_routes", 0)
    document: Document = {
        "server_id": observed.id,
        "server_name": observed.name,
        "version": VERSION,
        "proto": 1,
        "go": PYTHON,
        "host": observed.host,
        "port": server.port,
        **_security(server.settings),
        "max_connections": options.limits.max_connections,
        "max_subscriptions": options.limits.max_subscriptions,
        "ping_interval": options.ping.interval_ns,
        "ping_max": options.ping.outstanding_max,
        **_http(options, http_port),
        "auth_timeout": server.settings.auth_timeout_s,
        "max_control_line": options.limits.max_control_line,
        "max_payload": options.limits.max_payload,
        "max_pending": options.limits.max_pending,
        "cluster": _cluster(options),
        "gateway": {},
        "leaf": varz_leaf(observed),
        "mqtt": {},
        "websocket": {} if server.websocket is None else _websocket(server.websocket),
        "jetstream": jetstream,
        "tls_timeout": 0 if options.tls is None else options.tls.timeout_ns / 1e9,
        "write_deadline": options.limits.write_deadline_ns,
        "start": timestamp(server.identity.started),
        "now": timestamp(now),
        "uptime": span(now - server.identity.started),
        "mem": resident_bytes(),
        "cores": os.cpu_count() or 1,
        "gomaxprocs": 1,
        "cpu": cpu,
        "connections": len(server.connections),
        "total_connections": server.connections.counters.total_connections,
        "routes": routes,
        "remotes": routes,
        "leafnodes": len(server.leafs),
        **_traffic(traffic),
        "subscriptions": sum(len(account.subs) for account in server.accounts.values()),
        "http_req_stats": requests,
        "config_load_time": timestamp(server.settings.loaded),
        "config_digest": options.config_digest,
        "tags": list(options.server_tags),
        **({"metadata": options.server_metadata} if options.server_metadata else {}),
        "system_account": options.system_account,
        "slow_consumer_stats": _by_kind(traffic.slow_consumers),
        "stale_connection_stats": _by_kind(traffic.stale_connections),
    }
    return document | _urls(server.urls)


def _by_kind(clients: int) -> Document:
    return {"clients": clients, "routes": 0, "gateways": 0, "leafs": 0}


def _urls(urls: ClientUrls) -> Document:
    """Where clients can connect; a server without peers lists nothing."""
    found = {"connect_urls": urls.all(), "ws_connect_urls": urls.all_websocket()}
    return {name: listed for name, listed in found.items() if listed}


def _traffic(traffic: Counters) -> Document:
    """Traffic of clients; messages between nodes are not counted."""
    return {
        "in_msgs": traffic.in_msgs,
        "in_bytes": traffic.in_bytes,
        "out_msgs": traffic.out_msgs,
        "out_bytes": traffic.out_bytes,
        "in_client_msgs": traffic.in_msgs,
        "in_client_bytes": traffic.in_bytes,
        "out_client_msgs": traffic.out_msgs,
        "out_client_bytes": traffic.out_bytes,
        "slow_consumers": traffic.slow_consumers,
        "stale_connections": traffic.stale_connections,
        "stalled_clients": traffic.stalls,
    }


def _security(settings: ServerSettings) -> Document:
    document: Document = {}
    if settings.authenticator.required:
        document["auth_required"] = True
    tls = settings.options.tls
    if tls is not None:
        document["tls_required"] = not settings.options.allow_non_tls
        document["tls_verify"] = tls.verify
    return document


def _http(options: Options, port: int) -> Document:
    http = options.http
    secure = http is not None and http.tls
    return {
        "http_host": "" if http is None else http.host,
        "http_port": 0 if secure else port,
        "http_base_path": "" if http is None else http.base_path,
        "https_port": port if secure else 0,
    }


def _websocket(listener: ObservedListener) -> Document:
    options = listener.options
    document: Document = {"host": options.host, "port": listener.port}
    optional: Document = {
        "advertise": options.advertise,
        "no_auth_user": options.no_auth_user,
        "handshake_timeout": options.handshake_timeout_ns,
        "auth_timeout": (options.auth_timeout_ns or 0) / 1e9,
        "no_tls": options.no_tls,
        "same_origin": options.same_origin,
        "allowed_origins": list(options.allowed_origins),
        "compression": options.compression,
    }
    return document | {name: value for name, value in optional.items() if value}


def _cluster(options: Options) -> Document:
    cluster = options.cluster
    if cluster is None:
        return {}
    return {
        "name": cluster.name,
        "addr": cluster.host,
        "cluster_port": cluster.port,
        "auth_timeout": 2.0,
        "urls": [url.rpartition("@")[2].rpartition("/")[2] for url in cluster.routes],
        "tls_timeout": 2.0,
    }
