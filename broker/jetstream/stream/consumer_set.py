"""The consumers of a stream come, change and go by command.

Owns: what refuses that, and what it means for the stream: whose messages are kept.
May not touch: the state of a consumer, delivery, clocks.
Spec: JetStream sheet 4.2 (interest), 5 (consumers)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import structs

from broker.jetstream.commands.stream_commands import (
    CreateConsumer,
    DeleteConsumer,
    PauseConsumer,
    ResetConsumer,
    UpdateConsumer,
)
from broker.jetstream.config.consumer_update import CreateOutcome, decide_create
from broker.jetstream.errors import ErrCode, JetStreamError
from broker.jetstream.stream import retention

if TYPE_CHECKING:
    from broker.jetstream.stream.stream import Stream


def create_consumer(
    stream: Stream, command: CreateConsumer, *, index: int
) -> JetStreamError | None:
    """A consumer of that name may be there: then it is updated, or left as it is."""
    configs = {name: consumer.config for name, consumer in stream.consumers.items()}
    try:
        decision = decide_create(
            command.name, command.config, command.action, stream=stream.config, consumers=configs
        )
    except JetStreamError as refused:
        return refused
    if decision.outcome is CreateOutcome.UPDATE:
        update = UpdateConsumer(command.now_ns, command.name, decision.config)
        refusal = change_consumer(stream, update, index=index)
        return refusal if isinstance(refusal, JetStreamError) else None
    if decision.outcome is CreateOutcome.CREATE:
        assert stream.maker is not None, "this stream was built without consumers"
        created = stream.maker.create(
            stream, structs.replace(command, config=decision.config), index=index
        )
        if isinstance(created, JetStreamError):
            return created
        stream.consumers[command.name] = created
        stream.consumers_changed()
    return None


def change_consumer(
    stream: Stream, command: UpdateConsumer | PauseConsumer | ResetConsumer, *, index: int
) -> object:
    """What the consumer answers."""
    consumer = stream.consumers.get(command.name)
    if consumer is None:
        return JetStreamError(ErrCode.CONSUMER_NOT_FOUND)
    filters = consumer.filters
    result = consumer.apply(command, index=index)
    if consumer.filters != filters:
        stream.consumers_changed()
        retention.drop_without_interest(stream)
    return result


def delete_consumer(stream: Stream, command: DeleteConsumer) -> bool | JetStreamError:
    consumer = stream.consumers.get(command.name)
    if consumer is None or command.incarnation not in (0, consumer.incarnation):
        return JetStreamError(ErrCode.CONSUMER_NOT_FOUND)
    del stream.consumers[command.name]
    stream.consumers_changed()
    retention.drop_without_interest(stream)
    return True
