"""Interest of consumers: which subjects a stream keeps, and which messages no consumer needs.

Owns: the rules of interest and work queue retention, and a cache of wanted subjects.
May not touch: limits (broker/jetstream/publish/stream_limits.py), max_age (expiry.py), the table of
consumers, which it only reads.
Spec: NATS JetStream retention policies: limits, interest, workqueue."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, Protocol

from broker.jetstream.config import Retention, StreamConfig
from broker.jetstream.consumer.stream_protocol import AckingConsumer
from broker.store.messages import MessageStore
from broker.subjects import Steps, finish

MESSAGES_PER_STEP: Final = 128  # messages read in one step
COMPARED_PER_STEP: Final = 1024  # messages or subjects compared with consumers in one step
_CACHED_SUBJECTS_MAX: Final = 65536
_CACHED_BYTES_MAX: Final = 128  # of a subject; longer ones are not kept

Unneeded = tuple[list[bytes], list[int]]  # subjects, and messages of other subjects


class InterestedConsumer(AckingConsumer, Protocol):
    def settled(self, seq: int, /) -> bool:
        """Whether the consumer has acked or passed this sequence, or never wanted it."""
        ...


class ConsumerInterest:
    def __init__(
        self,
        config: StreamConfig,
        store: MessageStore,
        consumers: Mapping[str, InterestedConsumer],
    ) -> None:
        self._config = config
        self._store = store
        self._consumers = consumers
        self._wanted: dict[bytes, bool] = {}

    def configure(self, config: StreamConfig) -> None:
        self._config = config
        self._wanted.clear()

    def consumers_changed(self) -> None:
        """Consumers were created or deleted, or their filters changed."""
        self._wanted.clear()

    # -- what is kept -----------------------------------------------------------------------------

    def wants(self, subject: bytes) -> bool:
        """Whether messages on the subject are kept. Interest streams keep a message only if a
        consumer wants it."""
        if self._config.retention is not Retention.INTEREST:
            return True
        wanted = self._wanted.get(subject)
        if wanted is None:
            wanted = any(consumer.wants(subject) for consumer in self._consumers.values())
            if len(subject) <= _CACHED_BYTES_MAX:
                if len(self._wanted) >= _CACHED_SUBJECTS_MAX:
                    self._wanted.clear()
                self._wanted[subject] = wanted
        return wanted

    @property
    def wants_all(self) -> bool:
        """Whether some consumer has no filter."""
        return any(not consumer.filters for consumer in self._consumers.values())

    # -- what is removed --------------------------------------------------------------------------

    def acked(self, consumer: AckingConsumer, seqs: Sequence[int]) -> None:
        """A consumer no longer needs these messages: remove those that no other one needs."""
        config, store = self._config, self._store
        if config.retention is Retention.LIMITS:
            return
        if isinstance(seqs, range):  # all that it passed: may begin far below the first sequence
            seqs = range(max(seqs.start, store.first_seq), min(seqs.stop, store.last_seq + 1))
        ordered = seqs if isinstance(seqs, range) else sorted(set(seqs))
        alone = config.retention is Retention.WORKQUEUE or len(self._consumers) == 1
        if alone and not consumer.filters:
            store.remove_many(ordered)
            return
        done = []
        for seq in ordered:
            found = store.rows(seq)
            if found is not None:
                subject = found[0].subject(found[1])
                if consumer.wants(subject) if alone else self._unneeded(subject, seq):
                    done.append(seq)
        store.remove_many(done)

    def drop_unneeded(self, found: Unneeded | None = None) -> None:
        """Remove every message that no consumer needs. Called when a consumer was deleted or its
        filters changed, or when the retention became interest. `found`: the result of an earlier
        search."""
        if self._config.retention is not Retention.INTEREST:
            return
        store = self._store
        if not self._consumers:
            store.purge()
            return
        subjects, seqs = finish(self.unneeded()) if found is None else found
        entries = ((subject, store.index.get(subject)) for subject in subjects)
        store.drop_oldest_of_many({name: e.count for name, e in entries if e is not None})
        store.remove_many(seqs)

    def unneeded(
        self, leaving: str = "", joining: InterestedConsumer | None = None
    ) -> Steps[Unneeded]:
        """Subjects and messages that no consumer needs once a consumer is removed or replaced by
        another one. The store and the consumers must not change between two steps."""
        store = self._store
        staying = [one for name, one in self._consumers.items() if name != leaving]
        if joining is not None:
            staying.append(joining)
        at_a_time = max(1, COMPARED_PER_STEP // max(1, len(staying)))
        subjects: set[bytes] = set()
        for part in store.subject_parts(b">"):
            for at in range(0, len(part), at_a_time):
                some = part[at : at + at_a_time]
                subjects.update(name for name in some if not any(c.wants(name) for c in staying))
                yield
        at_a_time = min(at_a_time, MESSAGES_PER_STEP)
        seqs: list[int] = []
        seq = store.next_matching((), store.first_seq)
        count = 0
        while seq:
            found = store.rows(seq)
            subject = b"" if found is None else found[0].subject(found[1])
            if subject and subject not in subjects and self._unneeded(subject, seq, staying):
                seqs.append(seq)
            seq = store.next_matching((), seq + 1)
            count += 1
            if count % at_a_time == 0:
                yield
        return sorted(subjects), seqs

    def _unneeded(
        self, subject: bytes, seq: int, consumers: Collection[InterestedConsumer] | None = None
    ) -> bool:
        consumers = self._consumers.values() if consumers is None else consumers
        return all(consumer.settled(seq) or not consumer.wants(subject) for consumer in consumers)
