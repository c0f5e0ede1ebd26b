"""The HTTP upgrade request: negotiation, refusals and their texts."""

from __future__ import annotations

import pytest

from broker.wire.upgrade import Terms, Upgrade, UpgradeRefused, parse_origin, upgrade

HEADERS = {
    "Host": "here:80",
    "Upgrade": "websocket",
    "Connection": "keep-alive, Upgrade",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version": "13",
}


def ask(terms: Terms | None = None, *, line: str = "GET / HTTP/1.1", **changed: str) -> Upgrade:
    """The request with some headers changed; an empty value omits the header."""
    fields = HEADERS | {name.replace("_", "-"): value for name, value in changed.items()}
    lines = [line, *(f"{name}: {value}" for name, value in fields.items() if value)]
    return upgrade("\r\n".join(lines).encode(), terms or Terms())


def test_the_answer_of_the_rfc() -> None:
    assert ask().response == (
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"
    )


@pytest.mark.parametrize(
    ("line", "changed", "status", "reason"),
    [
        ("POST / HTTP/1.1", {}, 405, "request method must be GET"),
        ("GET / HTTP/1.1", {"Host": ""}, 400, "'Host' missing in request"),
        ("GET / HTTP/1.1", {"Upgrade": "h2c"}, 400, "invalid value for header 'Upgrade'"),
        ("GET / HTTP/1.1", {"Connection": "close"}, 400, "invalid value for header 'Connection'"),
        ("GET / HTTP/1.1", {"Sec_WebSocket_Key": ""}, 400, "key missing"),
        ("GET / HTTP/1.1", {"Sec_WebSocket_Key": "abc"}, 400, "invalid websocket key"),
        ("GET / HTTP/1.1", {"Sec_WebSocket_Key": "YWJj"}, 400, "invalid websocket key"),
        ("GET / HTTP/1.1", {"Sec_WebSocket_Version": "12"}, 400, "invalid version"),
        ("GET /", {}, 400, "malformed request line"),
        ("GET / HTTP/2.0", {}, 400, "malformed request line"),
        ("GET / HTTP/1.1", {" folded": "x"}, 400, "malformed header line"),
    ],
)
def test_refusals(line: str, changed: dict[str, str], status: int, reason: str) -> None:
    with pytest.raises(UpgradeRefused) as refused:
        ask(line=line, **changed)
    assert str(refused.value) == reason
    told = refused.value.response()
    assert told.startswith(f"HTTP/1.1 {status} ".encode())
    assert b"Sec-Websocket-Version: 13\r\n" in told


@pytest.mark.parametrize(
    ("terms", "origin", "refusal"),
    [
        (Terms(), "http://elsewhere", ""),
        (Terms(same_origin=True), "", ""),
        (Terms(same_origin=True), "http://here", ""),
        (Terms(same_origin=True), "http://HERE:80", ""),
        (Terms(same_origin=True), "https://here", "not same origin"),
        (Terms(same_origin=True), "http://there", "not same origin"),
        (Terms(same_origin=True), "null", "invalid URI"),
        (Terms(same_origin=True), "http://here:port", "Port could not be cast"),
        (Terms(origins=frozenset([parse_origin("https://a.b")])), "https://a.b:443", ""),
        (Terms(origins=frozenset([parse_origin("https://a.b")])), "http://a.b", "allowed list"),
        (Terms(origins=frozenset([parse_origin("https://a.b")])), "https://a.b:4", "allowed list"),
    ],
)
def test_origins(terms: Terms, origin: str, refusal: str) -> None:
    if not refusal:
        assert ask(terms, Origin=origin).response
        return
    with pytest.raises(UpgradeRefused, match=f"origin not allowed: .*{refusal}") as refused:
        ask(terms, Origin=origin)
    assert refused.value.status == 403


def test_compression_needs_both_sides() -> None:
    offer = "x-foo, permessage-deflate; client_max_window_bits"
    assert not ask(Sec_WebSocket_Extensions=offer).compression
    assert not ask(Terms(compression=True)).compression
    assert not ask(Terms(compression=True), Sec_WebSocket_Extensions="x-deflate").compression
    agreed = ask(Terms(compression=True), Sec_WebSocket_Extensions=offer)
    assert agreed.compression
    assert (
        b"\r\nSec-WebSocket-Extensions: permessage-deflate; server_no_context_takeover; "
        b"client_no_context_takeover\r\n"
    ) in agreed.response


def test_client_facts_from_the_request() -> None:
    agreed = ask(
        Terms(headers=(("X-Served-By", "me"),)),
        line="GET /a/b?c=d HTTP/1.1",
        Nats_No_Masking="true",
        User_Agent="Mozilla/5.0",
        X_Forwarded_For="10.0.0.7, 1.2.3.4",
        Cookie='user="ann"; pass=se=cret; user=second',
    )
    assert agreed.path == "/a/b"
    assert not agreed.masked
    assert agreed.browser
    assert agreed.forwarded_for == "10.0.0.7"
    assert agreed.cookies == {"user": "ann", "pass": "se=cret"}
    assert agreed.response.endswith(b"\r\nNats-No-Masking: true\r\nX-Served-By: me\r\n\r\n")
    plain = ask(X_Forwarded_For="somebody")
    assert (plain.masked, plain.browser, plain.forwarded_for) == (True, False, "")
