"""max_ack_pending: delivery of new messages stalls while too many await an ack.

Owns: how many more messages may be delivered; when an ack by flow control is requested.
May not touch: ack state; the number of pending messages is an argument.
Spec: JetStream consumer configuration, max_ack_pending; ack policy flow_control."""

from __future__ import annotations

from typing import Final

from broker.jetstream.config import AckPolicy, ConsumerConfig

UNLIMITED: Final = 1 << 62


class MaxAckPending:
    """The limit of one consumer. Redeliveries do not count: their messages are pending already."""

    __slots__ = ("_limit",)

    def __init__(self, config: ConsumerConfig) -> None:
        self._limit = UNLIMITED
        self.reconfigure(config)

    def reconfigure(self, config: ConsumerConfig) -> None:
        limited = config.max_ack_pending > 0 and config.ack_policy is not AckPolicy.NONE
        self._limit = config.max_ack_pending if limited else UNLIMITED

    def room(self, num_ack_pending: int) -> int:
        """How many more may be delivered; 0 or less means that delivery stalls until acks come."""
        return self._limit - num_ack_pending


def request_acks_from(config: ConsumerConfig) -> int:
    """With ack policy flow_control: the number of pending messages (half of the limit) from which
    on a flow control request is sent to collect acks. 0 for other ack policies."""
    if config.ack_policy is not AckPolicy.FLOW_CONTROL:
        return 0
    return max(config.max_ack_pending // 2, 1)
