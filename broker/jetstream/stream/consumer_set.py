"""The consumers of one stream: created, changed and deleted by command.

Owns: the table of consumers, which changes to it are refused, and reporting removals to consumers.
May not touch: the state inside a consumer, delivery, clocks.
Spec: NATS JetStream consumer API; docs/ARCHITECTURE.md, "Invariants"."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from msgspec import structs

from broker.jetstream.commands.consumer_commands import Acks, DeliveryProgress
from broker.jetstream.commands.stream_commands import (
    ConsumerCommand,
    CreateConsumer,
    DeleteConsumer,
    UpdateConsumer,
)
from broker.jetstream.config import ConsumerConfig, Retention
from broker.jetstream.config.consumer_update import CreateDecision, CreateOutcome, decide_create
from broker.jetstream.consumer.consumer import Consumer
from broker.jetstream.consumer.start_position import Start, start_of
from broker.jetstream.consumer.stream_protocol import HomeStream
from broker.jetstream.errors import ErrCode, JetStreamError
from broker.jetstream.stream.interest import ConsumerInterest, Unneeded
from broker.store.messages import MessageStore
from broker.subjects import Patterns, Steps, finish


class ConsumerSet:
    """`stream` is the interface of the stream that its consumers use."""

    def __init__(self, stream: HomeStream, store: MessageStore) -> None:
        self._by_name: dict[str, Consumer] = {}
        self.by_name: Mapping[str, Consumer] = self._by_name  # the same table, for reading
        self.configs: Mapping[str, ConsumerConfig] = _ConsumerConfigs(self._by_name)
        self.interest = ConsumerInterest(stream.config, store, self._by_name)
        self._stream = stream
        self._store = store
        self._prepared: tuple[object, Start] | None = None  # for the next entry
        self._unneeded: Unneeded | None = None  # the same

    # -- commands ---------------------------------------------------------------------------------

    def create(self, command: CreateConsumer, *, index: int) -> JetStreamError | None:
        """Create a consumer. If the name is taken, `command.action` decides: update, leave as it
        is, or refuse."""
        prepared, self._prepared = self._prepared, None
        try:
            decision = self._decision(command)
        except JetStreamError as refused:
            self._unneeded = None
            return refused
        if decision.outcome is CreateOutcome.UPDATE:
            update = UpdateConsumer(command.now_ns, command.name, decision.config)
            refusal = self.change(update, index=index)
            return refusal if isinstance(refusal, JetStreamError) else None
        if decision.outcome is CreateOutcome.CREATE:
            made = structs.replace(command, config=decision.config)
            if prepared is not None and prepared[0] == _start_facts(made.config):
                start = prepared[1]
            else:
                start = finish(self._start_steps(made.config))
            self._by_name[command.name] = Consumer.create(
                self._stream, made, index=index, start=start
            )
            self._changed()
        return None

    def _decision(self, command: CreateConsumer) -> CreateDecision:
        """Raises JetStreamError."""
        return decide_create(
            command.name,
            command.config,
            command.action,
            stream=self._stream.config,
            consumers=self.configs,
            is_bound=self._bound_meanwhile(command),
        )

    def prepare(self, command: CreateConsumer) -> Steps[None]:
        """Search in steps for the start position, or, if the filters of a consumer change, for the
        messages that no consumer needs any more. Nothing else may be applied before the command."""
        known = self._by_name.get(command.name)
        if known is None:
            start = yield from self._start_steps(command.config)
            self._prepared = _start_facts(command.config), start
        elif self._stream.config.retention is Retention.INTEREST:
            try:
                decision = self._decision(command)
            except JetStreamError:
                return  # the command will be refused at apply
            changed = _Refiltered(known, decision.config.filters)
            if decision.outcome is CreateOutcome.UPDATE and changed.filters != known.filters:
                self._unneeded = yield from self.interest.unneeded(command.name, changed)

    def _start_steps(self, config: ConsumerConfig) -> Steps[Start]:
        per_subject = self._stream.config.max_msgs_per_subject
        return (yield from start_of(config, self._store, max_msgs_per_subject=per_subject))

    def _bound_meanwhile(self, command: CreateConsumer) -> bool:
        """Whether another request gave the consumer a deliver subject after the leader checked this
        one. The client of that request has subscribed to it, so the subject may not change."""
        seen, known = command.seen_deliver_subject, self._by_name.get(command.name)
        return seen is not None and known is not None and known.config.deliver_subject != seen

    def change(self, command: ConsumerCommand, *, index: int) -> object:
        """Apply the command to its consumer; returns the consumer's answer."""
        consumer = self._by_name.get(command.name)
        if consumer is None:
            return JetStreamError(ErrCode.CONSUMER_NOT_FOUND)
        unneeded, self._unneeded = self._unneeded, None
        filters = consumer.filters
        result = consumer.apply(command, index=index)
        if consumer.filters != filters:
            self._changed()
            self.interest.drop_unneeded(unneeded)
        return result

    def prepare_delete(self, command: DeleteConsumer) -> Steps[None]:
        """Search in steps for messages that will not be needed any more. Nothing else may be
        applied before the command."""
        if command.name in self._by_name and len(self._by_name) > 1:
            self._unneeded = yield from self.interest.unneeded(command.name)

    def delete(self, command: DeleteConsumer) -> bool | JetStreamError:
        unneeded, self._unneeded = self._unneeded, None
        consumer = self._by_name.get(command.name)
        if consumer is None or command.incarnation not in (0, consumer.incarnation):
            return JetStreamError(ErrCode.CONSUMER_NOT_FOUND)
        del self._by_name[command.name]
        self._changed()
        self.interest.drop_unneeded(unneeded)
        return True

    def progress(self, command: DeliveryProgress) -> None:
        for progress in command.of:
            consumer = self._by_name.get(progress.consumer)
            if consumer is not None:
                consumer.apply_progress(progress, now_ns=command.now_ns)

    def acks(self, command: Acks) -> None:
        for acks in command.of:
            consumer = self._by_name.get(acks.consumer)
            if consumer is not None:
                consumer.apply_acks(acks, now_ns=command.now_ns)

    # -- removals ---------------------------------------------------------------------------------

    def report_removals(self) -> None:
        """Tell every consumer which messages were removed since the last call."""
        removed = self._store.take_removals()
        if not removed:
            return
        single = [first for first, last in removed if first == last]
        known = frozenset(single) if len(self._by_name) > 1 else None
        for consumer in self._by_name.values():
            for first, last in removed:
                if first < last:
                    consumer.removed_range(first, last)
            if single:
                consumer.removed(single, known)

    def report_purge(self) -> None:
        """A purge removed messages: consumers move their position past them."""
        for consumer in self._by_name.values():
            consumer.purged(self._store.first_seq)

    # -- persistence ------------------------------------------------------------------------------

    def images(self) -> list[bytes]:
        return [self._by_name[name].encode() for name in sorted(self._by_name)]

    def replace(self, images: Iterable[bytes]) -> None:
        """Replace all consumers by those of a checkpoint or a snapshot."""
        self._by_name.clear()
        for image in images:
            consumer = Consumer.decode(self._stream, image)
            self._by_name[consumer.name] = consumer
        self._changed()

    def restore(self, images: Iterable[bytes], *, index: int) -> None:
        """Add the consumers of a restored stream. A name that is taken is skipped, so applying the
        command again has no effect."""
        for image in images:
            consumer = Consumer.decode(self._stream, image)
            if consumer.name not in self._by_name:
                # This is another log: epochs of the old one must not match entries of this one.
                consumer.incarnation = consumer.epoch = index
                self._by_name[consumer.name] = consumer
        self._changed()

    def _changed(self) -> None:
        self.interest.consumers_changed()
        self._store.track_removals(on=bool(self._by_name))


class _Refiltered:
    """A consumer as it will be with other filters."""

    def __init__(self, consumer: Consumer, filters: tuple[bytes, ...]) -> None:
        self.filters = filters
        self.settled = consumer.settled
        self._patterns = Patterns(filters)

    def wants(self, subject: bytes) -> bool:
        return not self.filters or self._patterns.take(subject)


class _ConsumerConfigs(Mapping[str, ConsumerConfig]):
    """A view, not a copy: the cost of a create must not grow with the number of consumers."""

    def __init__(self, consumers: Mapping[str, Consumer]) -> None:
        self._consumers = consumers

    def __getitem__(self, name: str) -> ConsumerConfig:
        return self._consumers[name].config

    def __iter__(self) -> Iterator[str]:
        return iter(self._consumers)

    def __len__(self) -> int:
        return len(self._consumers)


def _start_facts(config: ConsumerConfig) -> object:
    """The parts of a configuration that determine where a consumer starts."""
    return config.deliver_policy, config.filters, config.opt_start_seq, config.opt_start_time
