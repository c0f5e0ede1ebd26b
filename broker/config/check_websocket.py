"""Checks across the keys of the `websocket` block.

Owns: which settings exclude or require each other.
May not touch: the configuration file.
Spec: NATS server configuration, websocket."""

from __future__ import annotations

from broker.config.options import Authorization, WebSocketOptions

TLS_MISSING = "websocket requires TLS configuration"


class BadWebSocket(Exception):
    """str() is the message for the operator."""


def check_websocket(options: WebSocketOptions, auth: Authorization) -> None:
    """Raises BadWebSocket."""
    if options.tls is None and not options.no_tls:
        raise BadWebSocket(TLS_MISSING)
    if options.jwt_cookie and auth.tokens is None:
        raise BadWebSocket(
            "trusted operators or trusted keys configuration is required for JWT authentication "
            f'via cookie "{options.jwt_cookie}"'
        )
    if options.password and not options.user:
        raise BadWebSocket("websocket authorization has a password, but no user")
    if options.no_auth_user and not auth.users:
        raise BadWebSocket(
            f'no_auth_user: "{options.no_auth_user}" present, but users/nkeys are not defined'
        )
    if options.no_auth_user and options.no_auth_user not in (user.name for user in auth.users):
        raise BadWebSocket(
            f'no_auth_user: "{options.no_auth_user}" not present as user or nkey in '
            "authorization block or account configuration"
        )
    for name, value in (("username", options.user), ("token", options.token)):
        if auth.users and value:
            raise BadWebSocket(
                f"websocket authentication {name} not compatible with presence of users/nkeys"
            )
