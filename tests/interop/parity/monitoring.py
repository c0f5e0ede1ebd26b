"""Monitoring documents, requests of the system account, and its events.

Owns: the tables of questions about the servers."""

from __future__ import annotations

from collections.abc import Iterator

from tests.interop.parity.exchange import (
    Get,
    Heard,
    Listen,
    Request,
    Step,
    api,
    scene,
    stored,
    unanswered,
)

SYSTEM = "admin"
PATHS = (
    "/varz", "/connz", "/connz?subs=1", "/connz?subs=detail", "/connz?auth=1",
    "/connz?limit=1", "/connz?limit=0", "/connz?offset=99", "/connz?state=closed&limit=1",
    "/connz?state=all&limit=1", "/connz?sort=bytes_to", "/connz?sort=nonsense", "/connz?limit=x",
    "/connz?sort=idle", "/connz?sort=stop", "/connz?sort=stop&state=closed&limit=1",
    "/connz?acc=P0&auth=1", "/connz?acc=none", "/connz?user=core", "/connz?cid=999999",
    "/connz?filter_subject=a", "/connz?state=x", "/routez", "/routez?subs=1", "/gatewayz",
    "/leafz", "/leafz?subs=1", "/subsz", "/subsz?test=a", "/subsz?acc=P0",
    "/subscriptionsz", "/accountz", "/accountz?acc=SYS", "/accountz?acc=none", "/accstatz",
    "/jsz", "/jsz?acc=WATCHED",
    "/jsz?acc=WATCHED&streams=1", "/jsz?acc=WATCHED&streams=1&config=1",
    "/jsz?acc=WATCHED&consumers=1", "/jsz?acc=WATCHED&consumers=1&config=1", "/jsz?acc=none",
    "/jsz?leader-only=1", "/jsz?raft=1", "/jsz?limit=x", "/jsz?acc=WATCHED&direct-consumers=1",
    "/jsz?acc=WATCHED&stream-leader-only=1", "/healthz", "/healthz?js-enabled-only=1",
    "/healthz?js-server-only=1", "/healthz?account=WATCHED", "/healthz?account=none",
    "/healthz?stream=S", "/healthz?account=WATCHED&stream=S", "/healthz?account=WATCHED&stream=no",
    "/healthz?account=WATCHED&stream=S&consumer=C", "/healthz?account=WATCHED&consumer=C",
    "/healthz?account=WATCHED&stream=S&consumer=no", "/healthz?details=1", "/healthz?js-enabled=1",
    "/healthz?account=none&details=1", "/raftz", "/ipqueuesz", "/stacksz", "/debug/vars",
    "/expvarz", "/nothing", "/varz?x=1", "/varz/", "/VARZ",
)  # fmt: skip
SERVICES = (
    "STATSZ", "VARZ", "CONNZ", "ROUTEZ", "GATEWAYZ", "LEAFZ", "SUBSZ", "ACCOUNTZ", "JSZ", "HEALTHZ",
    "IDZ", "RAFTZ", "IPQUEUESZ", "ACCSTATZ", "EXPVARZ", "PROFILEZ", "NOTHING",
)  # fmt: skip
BODIES: dict[str, tuple[object, ...]] = {
    "CONNZ": ({"limit": 1}, {"acc": "none"}, {"subscriptions": True, "limit": 1}, {"auth": True}),
    "JSZ": ({"account": "WATCHED"}, {"account": "none"}, {"account": "WATCHED", "streams": True, "consumer": True, "config": True}),
    "HEALTHZ": ({"account": "none"}, {"js-enabled-only": True}, {"details": True},
                {"account": "WATCHED", "stream": "S"}),
    "ACCOUNTZ": ({"account": "WATCHED"}, {"account": "none"}),
    "SUBSZ": ({"test": "a"},),
    "PROFILEZ": ({"name": "nothing"}, {"name": "cpu"}, {"name": "cpu", "duration": 16_000_000_000}),
}  # fmt: skip
ACCOUNT = ("CONNZ", "LEAFZ", "SUBSZ", "INFO", "JSZ", "STATZ", "CONNS", "NOTHING")


def _system() -> Iterator[Step]:
    def ask(subject: str, body: object = b"") -> Request:
        one = api("x", body)
        return Request(f"$SYS.REQ.{subject}", one.body)

    for name in SERVICES:
        yield ask(f"SERVER.PING.{name}")
        for body in (b"x", {"server_name": "one-1"}, *BODIES.get(name, ())):
            yield ask(f"SERVER.PING.{name}", body)
    yield ask("SERVER.PING")
    yield ask("SERVER.NOBODY.VARZ")
    for account in ("WATCHED", "none"):
        for name in ACCOUNT:
            one = ask(f"ACCOUNT.{account}.{name}")
            yield unanswered(one) if name in ("STATZ", "CONNS") else one
    for subject in ("ACCOUNT.PING.CONNZ", "ACCOUNT.PING.STATZ", "USER.INFO", "CLAIMS.LIST",
                    "CLAIMS.UPDATE", "SERVER.NOBODY.RELOAD", "SERVER.NOBODY.KICK",
                    "SERVER.NOBODY.LDM", "NOTHING"):  # fmt: skip
        yield ask(subject)
    yield Request("$SYS.DEBUG.SUBSCRIBERS", b"a")
    yield Request("$SYS.DEBUG.SUBSCRIBERS", b"")


def _watched() -> Iterator[Step]:
    """The stream and consumer that the documents show, and the advisories about them."""
    yield Listen("$JS.EVENT.>")
    config = {"name": "S", "subjects": ["s.>"], "storage": "memory"}
    yield api("STREAM.CREATE.S", config, must=True)
    yield stored("s.a")
    yield stored("s.b")
    consumer = {"name": "C", "durable_name": "C", "ack_policy": "explicit", "sample_freq": "100"}
    body = {"stream_name": "S", "config": consumer}
    yield api("CONSUMER.CREATE.S.C", body, must=True)
    yield api("STREAM.UPDATE.S", {**config, "max_msgs": 100}, must=True)
    yield Heard(6, ordered=False)


def _user_info() -> Iterator[Step]:
    yield Request("$SYS.REQ.USER.INFO")
    yield Request("$SYS.REQ.USER.INFO", b"x")
    yield Request("$SYS.REQ.SERVER.PING", b"")
    for name in ("CONNZ", "SUBSZ", "STATZ", "INFO", "JSZ", "CONNS", "LEAFZ"):
        yield Request(f"$SYS.REQ.ACCOUNT.PING.{name}")


SCENES = [
    scene("watched", _watched(), user="watched"),
    scene("monitoring", (Get(path) for path in PATHS), user="watched"),
    scene("system requests", _system(), user=SYSTEM),
    scene("requests of a user about itself", _user_info(), user="watched"),
]
