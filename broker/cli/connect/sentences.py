"""Why there is no connection, in a sentence for each reason.

Owns: the sentences.
May not touch: sockets."""

from __future__ import annotations

import socket

from broker.cli.connect.failures import CannotConnect


def why_not_connected(problem: Exception) -> str:
    if isinstance(problem, socket.gaierror):
        return "the name of the server is unknown"
    if isinstance(problem, ConnectionRefusedError):
        return "nobody listens there: connection refused"
    if isinstance(problem, TimeoutError):
        return "the server does not answer"
    reason = getattr(problem, "reason", None)  # of an SSLError
    if reason or type(problem).__module__ == "ssl":
        why = getattr(problem, "verify_message", "") or reason or problem
        return f"TLS failed: {why}"
    if isinstance(problem, EOFError):
        return "the server closed the connection"
    return str(problem) or type(problem).__name__


def refused_login(line: bytes, url: str) -> CannotConnect:
    text = line[4:].decode(errors="replace").strip(" '")
    if "authorization" in text.lower() or "authentication" in text.lower():
        return CannotConnect(f"the server refused the credentials: {text} (server {url})")
    return CannotConnect(f"the server refused the connection: {text} (server {url})")
