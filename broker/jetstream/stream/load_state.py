"""A restored stream: what is not a message, put in place by one command.

Owns: the effect of LoadState.
May not touch: messages; they came before, with their own sequences, as a mirror's do.
Spec: JetStream restore; consumers continue where the snapshot had them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.jetstream.commands.stream_commands import LoadState
from broker.jetstream.consumer.consumer import Consumer

if TYPE_CHECKING:
    from broker.jetstream.stream.stream import Stream


def load_state(stream: Stream, command: LoadState, *, index: int) -> None:
    """Applied twice it changes nothing more."""
    stream.store.skip_to(command.last_seq + 1)
    stream.store.last_time = max(stream.store.last_time, command.last_time)
    stream.last_msg_id = command.last_msg_id or stream.last_msg_id
    stream.sources.update(command.sources)
    for message_id, seq, time_ns in command.message_ids:
        if not stream.dedup.find(message_id):
            stream.dedup.add(message_id, seq=seq, time_ns=time_ns)
    for image in command.consumers:
        consumer = Consumer.decode(stream, image)
        if consumer.name not in stream.consumers:
            # Another log, another life: what was in flight there means nothing here.
            consumer.incarnation = consumer.epoch = index
            stream.consumers[consumer.name] = consumer
    stream.consumers_changed()
