"""The client protocol as bytes and events; exports of whichever implementation was selected."""

from broker.wire.encode_py import ReplyColumn, encode_msg, encode_pub_acks
from broker.wire.ops import Op, ProtocolViolation
from broker.wire.parser_py import ClientParser, Event
from broker.wire.run_py import PubRun

IMPLEMENTATION = "python"

__all__ = [
    "IMPLEMENTATION",
    "ClientParser",
    "Event",
    "Op",
    "ProtocolViolation",
    "PubRun",
    "ReplyColumn",
    "encode_msg",
    "encode_pub_acks",
]
