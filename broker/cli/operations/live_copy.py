"""One stream copied while it is written: a mirror follows it, and is promoted in a short cut-over.

Owns: the mirror's configuration, when it is close enough, what is compared, how consumers continue.
May not touch: the fence (migrate.py); the server's internals, every step is a JetStream API
request.

The new servers read the old ones through a remote (`jetstream { remotes }`) or a domain. What is
stored before the cut-over is compared while publishers go on; in the cut-over only the rest is. A
consumer continues after its ack floor: what was acked above it is delivered again.
Spec: docs/migration.md; JetStream API, STREAM.UPDATE without `mirror`, CONSUMER.RESET."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final

from broker.cli.connect import api
from broker.cli.connect.client_shape import CommandClient
from broker.cli.connect.failures import ApiRefused, CommandFailed
from broker.cli.output.progress import progress_bar
from broker.cli.streams.digest import StreamDigest
from broker.cli.streams.reading import NO_MESSAGE, StreamMessage, next_message, stored_messages

POLL_EVERY_S: Final = 0.05
STALLED_S: Final = 15.0  # without a new message, while the origin has more
NEAR: Final = 500  # messages behind: the cut-over may begin
DIFFERENCES_MAX: Final = 10_000  # single messages that were deleted at the origin meanwhile
# Of a publish: what a mirror does not keep.
PUBLISH_HEADERS: Final = (b"nats-expected-", b"nats-batch-")
# Settings that a mirror cannot have, or that would act on the copied messages.
SET_AT_CUT_OVER: Final = (
    "subjects", "duplicate_window", "republish", "subject_transform", "allow_atomic",
    "allow_batched", "allow_msg_schedules", "subject_delete_marker_ttl", "first_seq",
    "deny_delete", "deny_purge",
)  # fmt: skip
RESETTABLE: Final = ("all", "by_start_sequence", "by_start_time")

Config = dict[str, Any]


class NotLive(Exception):
    """This stream cannot be copied by a mirror; the text says why."""


def check_live(config: Config, consumers: list[Config]) -> None:
    """Raises NotLive."""
    retention = config.get("retention", "limits")
    if retention != "limits":
        raise NotLive(f"its retention is {retention}")
    for key in ("mirror", "sources", "sealed", "allow_msg_counter"):
        if config.get(key):
            raise NotLive(f"it has {key}")
    for one in consumers:
        policy = one["config"].get("deliver_policy", "all")
        if policy not in RESETTABLE:
            raise NotLive(f"consumer {one['name']} delivers {policy}")


class LiveCopy:
    """A stream and the mirror that becomes its copy. `wanted` is the copy's configuration in the
    end."""

    def __init__(
        self, origin: CommandClient, target: CommandClient, wanted: Config, *, remote: str
    ) -> None:
        self._origin = origin
        self._target = target
        self._wanted = wanted
        self._name = str(wanted["name"])
        self._remote = remote
        self._digest = StreamDigest()
        self._compared = 0  # the last sequence that was
        self._missing: list[int] = []  # of the copy, when it was compared

    def follow(self) -> Config:
        """Create the mirror, unless an earlier run did; wait until it is near; compare what it
        has."""
        if api.stream_or_none(self._target, self._name) is None:
            self._check_subjects()
            self._create()
        reached = self._wait(behind=NEAR)
        self._compare(reached)
        return self._facts()

    def finish(self) -> Config:
        """The stream is fenced: take over the rest and the consumers, and promote the copy. Raises
        NotLive if the copy cannot reach the end of the stream."""
        last = self._wait(behind=0)
        self._compare(last)
        self._settle(last)
        consumers = self._take_over_consumers(last)
        api.call(self._target, f"STREAM.UPDATE.{self._name}", self._wanted)
        return self._facts() | {"consumers": consumers, "last_seq": last}

    def _facts(self) -> Config:
        state = api.stream_info(self._target, self._name)["state"]
        return {
            "messages": int(state.get("messages", 0)), "bytes": int(state.get("bytes", 0)),
            "sha256": self._digest.sha256, "last_seq": self._compared,
        }  # fmt: skip

    def _check_subjects(self) -> None:
        for subject in self._wanted.get("subjects") or []:
            others = api.stream_names(self._target, subject)
            if others:
                raise CommandFailed(f"there, {subject} is a subject of {', '.join(others)}")

    def _create(self) -> None:
        config = {key: value for key, value in self._wanted.items() if key not in SET_AT_CUT_OVER}
        external = {"api": f"$JS.{self._remote}.API", "deliver": ""}
        config["mirror"] = {"name": self._name, "external": external}
        api.call(self._target, f"STREAM.CREATE.{self._name}", config)

    # -- following

    def _wait(self, *, behind: int) -> int:
        """Until the copy has what the stream has now, and is at most so far behind what is stored
        meanwhile. Returns the last sequence of the copy."""
        start = self._ends()
        heard, before = time.monotonic(), start[1]
        with progress_bar(self._name, max(start[0] - start[1], 0)) as advance:
            while True:
                last, reached, problem = self._ends()
                if reached >= start[0] and last - reached <= behind:
                    return reached
                if reached > before:
                    advance(reached - before)
                    heard, before = time.monotonic(), reached
                elif not problem and self._nothing_above(reached):
                    if behind:
                        return reached
                    raise NotLive("its last messages were deleted before they could be copied")
                elif problem.startswith("no remote ") or time.monotonic() - heard > STALLED_S:
                    reason = problem or f"nothing arrived for {STALLED_S:g} s"
                    raise CommandFailed(f"the copy is at sequence {reached} of {last}: {reason}")
                time.sleep(POLL_EVERY_S)

    def _ends(self) -> tuple[int, int, str]:
        """The last sequence of the stream and of the copy, and what is wrong with that."""
        here = api.stream_info(self._origin, self._name)
        there = api.stream_info(self._target, self._name)
        error = (there.get("mirror") or {}).get("error") or {}
        ends = (int(one["state"].get("last_seq", 0)) for one in (here, there))
        return *ends, str(error.get("description", ""))  # type: ignore[return-value]

    def _nothing_above(self, seq: int) -> bool:
        return next_message(self._origin, self._name, seq + 1, "") is None

    # -- comparing

    def _compare(self, last: int) -> list[int]:
        """What was stored since the last comparison, up to `last`. Returns the sequences that only
        the copy has: they were deleted at the origin. Raises CommandFailed if a message differs."""
        first, self._compared = self._compared + 1, max(last, self._compared)
        here = self._stored(self._origin, first, last)
        there = self._stored(self._target, first, last)
        extra: list[int] = []
        one, copy = next(here, None), next(there, None)
        while one is not None or copy is not None:
            if copy is None or (one is not None and one.seq < copy.seq):
                assert one is not None
                self._missing.append(one.seq)
                one = next(here, None)
            elif one is None or copy.seq < one.seq:
                extra.append(copy.seq)
                copy = next(there, None)
            else:
                one.head = _without_publish_headers(one.head)
                if one != copy:
                    raise CommandFailed(f"message {one.seq} differs from its copy")
                self._digest.add(copy)
                one, copy = next(here, None), next(there, None)
            if len(self._missing) > DIFFERENCES_MAX:
                raise CommandFailed(f"the copy lacks more than {DIFFERENCES_MAX:,} messages")
        return extra

    def _stored(self, client: CommandClient, first: int, last: int) -> Iterator[StreamMessage]:
        info = api.stream_info(client, self._name)
        info["state"]["last_seq"] = min(last, int(info["state"].get("last_seq", 0)))
        return stored_messages(client, info, first=first)

    def _settle(self, last: int) -> None:
        """Nothing is written any more. Delete from the copy what was deleted at the origin, and
        make sure that nothing is missing."""
        here, there = (
            api.stream_info(client, self._name)["state"] for client in (self._origin, self._target)
        )
        if any(here.get(key) != there.get(key) for key in ("messages", "first_seq")):
            self._digest, self._compared, self._missing = StreamDigest(), 0, []
            extra = self._compare(last)
            gone = int(here.get("first_seq", 0))
            if extra and extra[0] < gone:
                api.call(self._target, f"STREAM.PURGE.{self._name}", {"seq": gone})
            for seq in extra:
                if seq >= gone:
                    body = {"seq": seq, "no_erase": True}
                    api.call(self._target, f"STREAM.MSG.DELETE.{self._name}", body)
        lost = [seq for seq in self._missing if self._still_stored(seq)]
        if lost:
            raise CommandFailed(f"the copy lacks message {lost[0]} and {len(lost) - 1} more")

    def _still_stored(self, seq: int) -> bool:
        """Whether the origin has the message, and would not remove it by age about now."""
        try:
            found = api.call(self._origin, f"STREAM.MSG.GET.{self._name}", {"seq": seq})
        except ApiRefused as refused:
            if refused.err_code == NO_MESSAGE:
                return False
            raise
        from broker.cli.output.times import time_ns

        age_max = int(self._wanted.get("max_age") or 0)
        stored_at = time_ns(str(found["message"].get("time", ""))) or 0
        return not age_max or time.time_ns() - stored_at < age_max - 5_000_000_000

    # -- consumers

    def _take_over_consumers(self, last: int) -> int:
        """Those that have a durable name; the others end with their clients."""
        found = [
            one for one in api.consumers(self._origin, self._name)
            if one["config"].get("durable_name")
        ]  # fmt: skip
        for one in found:
            config = dict(one["config"])
            if int(config.get("num_replicas", 0)) > int(self._wanted.get("num_replicas", 1)):
                config["num_replicas"] = 0
            path = f"{self._name}.{api.name(str(one['name']), 'consumer')}"
            body = {"stream_name": self._name, "config": config}
            api.call(self._target, f"CONSUMER.CREATE.{path}", body)
            floor = min(int(one["ack_floor"].get("stream_seq", 0)), last)
            if floor:
                api.call(self._target, f"CONSUMER.RESET.{path}", {"seq": floor + 1})
        return len(found)


def _without_publish_headers(head: bytes) -> bytes:
    """As a mirror stores it."""
    if not any(name in head.lower() for name in PUBLISH_HEADERS):
        return head
    status, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    kept = [line for line in lines if not line.lower().startswith(PUBLISH_HEADERS)]
    return b"\r\n".join([status, *kept, b"", b""]) if kept else b""
