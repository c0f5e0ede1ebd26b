"""What a configuration leaves open to strangers: one sentence each, for the log at start.

Owns: the sentences, and when they apply.
May not touch: the log, sockets.
Spec: docs/security.md. A warning is not an error: nats-server starts with the same settings."""

from __future__ import annotations

from broker.config.options import ClusterOptions, Options

_EVERYWHERE = ("0.0.0.0", "::", "")  # noqa: S104 - recognised, not bound


def exposures(options: Options) -> list[str]:
    """In order of severity."""
    found = [] if options.cluster is None else _of_cluster(options.cluster)
    auth = options.authorization
    if options.host in _EVERYWHERE:
        if not auth.required:
            found.append(
                "Clients need no credentials and can connect on all addresses: "
                "configure authorization or accounts, or listen on 127.0.0.1"
            )
        elif auth.open_to_all:
            found.append(
                "Only the system account has users: clients of all other accounts need no "
                "credentials and can connect on all addresses"
            )
    websocket = options.websocket
    if (
        websocket is not None
        and websocket.host in _EVERYWHERE
        and not (auth.required or websocket.user or websocket.token)
    ):
        found.append("WebSocket clients need no credentials and can connect on all addresses")
    if options.http is not None and options.http.host in _EVERYWHERE:
        found.append("Monitoring is open to everybody on all addresses: it has no authentication")
    return found


def _of_cluster(cluster: ClusterOptions) -> list[str]:
    found = []
    if not (cluster.user or cluster.password):
        found.append(
            "The cluster has no authorization: whoever reaches its route port can join as a node, "
            "read and change everything"
        )
    elif not cluster.password:
        found.append("The authorization of the cluster has a user, but no password")
    if cluster.tls is None:
        found.append("The cluster has no TLS: whatever its nodes send each other can be read")
    return found
