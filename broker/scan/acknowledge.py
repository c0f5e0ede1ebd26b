"""A durable consumer that acknowledges what a reader has processed, so that the stream removes it.

Owns: the consumer's configuration, pulling and acknowledging up to a sequence.
May not touch: which sequence that is (the checkpoint of the query), sockets (link.py).
The consumer gets headers only. Messages pulled beyond the sequence are returned (-NAK). If a
connection is lost, messages that were pulled and not acknowledged are redelivered after ACK_WAIT_S
and acknowledged next time.
Spec: docs/spark.md, "Streams with interest or workqueue retention"."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from broker.scan.client import Planner
from broker.scan.link import ScanLink
from broker.scan.protocol import PlanRefused, ScanProtocolError

PULL_MAX: Final = 5000  # messages per pull
ACK_WAIT_S: Final = 10
WORK_QUEUE: Final = "workqueue"
_OWN_TOKENS: Final = 9  # of an ack subject without domain and account


@dataclass(frozen=True, slots=True)
class CommitConsumer:
    """One durable consumer of one stream."""

    cluster: Planner
    stream: str
    name: str

    def ensure(self, retention: str) -> None:
        """Create the consumer, unless it exists. Raises PlanRefused, also if the existing one is
        unsuitable."""
        place = f"{self.stream}.{self.name}"
        found = json.loads(self.cluster.request(f"$JS.API.CONSUMER.INFO.{place}"))
        if "error" in found:
            if found["error"]["code"] != 404:
                raise self._refused(found)
            config = {
                "durable_name": self.name,
                "ack_policy": "explicit" if retention == WORK_QUEUE else "all",
                "ack_wait": ACK_WAIT_S * 10**9,
                "max_ack_pending": 2 * PULL_MAX,
                "headers_only": True,
            }
            body = json.dumps({"stream_name": self.stream, "config": config}).encode()
            found = json.loads(self.cluster.request(f"$JS.API.CONSUMER.CREATE.{place}", body))
            if "error" in found:
                raise self._refused(found)
        config = found["config"]
        if (
            config.get("deliver_subject")
            or config.get("filter_subject")
            or config.get("filter_subjects")
            or config.get("ack_policy") not in ("explicit", "all")
            or config.get("deliver_policy", "all") != "all"
        ):
            raise PlanRefused(
                400,
                f"consumer {self.name} cannot acknowledge for a query: it must be a pull consumer "
                "of all messages, with acks and without a filter. Choose another name",
                self.stream,
            )

    def acknowledge(self, behind: int) -> int:
        """Acknowledge all messages before the sequence `behind`; returns how many. Idempotent."""
        return self.cluster.on_link(lambda link: self._acknowledge(link, behind))

    def _acknowledge(self, link: ScanLink, behind: int) -> int:
        done = 0
        while True:
            pulled = _pulled(link, f"$JS.API.CONSUMER.MSG.NEXT.{self.stream}.{self.name}")
            ours = [reply for seq, reply in pulled if seq < behind]
            others = [reply for seq, reply in pulled if seq >= behind]
            lines = [b"PUB %b 4\r\n+ACK\r\n" % reply for reply in ours[:-1]]
            lines += [b"PUB %b 4\r\n-NAK\r\n" % reply for reply in others]
            link.send_lines(b"".join(lines))
            if ours:  # the answer to this one means that all of them are replicated
                link.ask(ours[-1].decode(), b"+ACK")
            done += len(ours)
            if others or len(pulled) < PULL_MAX:
                return done

    def _refused(self, answer: dict[str, Any]) -> PlanRefused:
        error = answer["error"]
        return PlanRefused(error["code"], f"consumer {self.name}: {error['description']}")


def _pulled(link: ScanLink, subject: str) -> list[tuple[int, bytes]]:
    """Sequence and ack subject of the available messages, at most PULL_MAX."""
    found: list[tuple[int, bytes]] = []
    link.send_request(subject, json.dumps({"batch": PULL_MAX, "no_wait": True}).encode())
    while len(found) < PULL_MAX:
        message = link.next_message()
        if not message.reply:
            status = message.status
            if status.startswith((b"404", b"408", b"409")):
                return found
            raise ScanProtocolError(f"a pull is answered with {status[:80]!r}")
        tokens = message.reply.split(b".")
        found.append((int(tokens[5 if len(tokens) == _OWN_TOKENS else 7]), message.reply))
    return found
