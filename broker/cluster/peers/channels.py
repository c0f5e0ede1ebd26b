"""Channel numbers of the frames that the nodes of a cluster exchange.

Owns: the numbers. The comments name the module that encodes and decodes the frames.
May not touch: the frames themselves.
Channels 0 to 15 belong to raft.transport and raft.host. A number is never used again for something
else: during a rolling upgrade old and new nodes share the links."""

from __future__ import annotations

from typing import Final

CHANNEL_INTEREST: Final = 16  # subscriptions of a node's clients: peers/interest.py
CHANNEL_ROUTED: Final = 17  # publishes for the clients of another node: peers/interest.py
CHANNEL_DELIVER: Final = 18  # consumer deliveries: replica/message_sender.py, peers/interest.py
CHANNEL_RPC: Final = 19  # calls and their answers: peers/rpc.py
CHANNEL_PUBLISH: Final = 20  # a batch for the stream's leader: publish/forwarding.py
CHANNEL_PUBLISHED: Final = 21  # the leader's answer to a batch: publish/forwarding.py
CHANNEL_LEADS: Final = 22  # groups that the sender leads: sent on election and on connect
CHANNEL_CONSUMER_REQUESTS: Final = 23  # pull requests, acks with options: consumer_requests/
CHANNEL_ACKS: Final = 24  # plain acks in bulk: consumer_requests/forwarding.py
CHANNEL_PUBLISH_FAST: Final = 25  # a batch with rows of fast batches: publish/forwarding.py
CHANNEL_USAGE: Final = 26  # bytes held by the streams that the sender leads: limits/usage.py
