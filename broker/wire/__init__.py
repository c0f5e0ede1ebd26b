"""The client protocol as bytes and events: exports, and the choice between the codecs.

JETRAFT_PURE=1 selects the plain Python twins, here and in broker.store. Without it, a missing
extension is an error: there is no silent fallback to code that is many times slower."""

from os import environ
from typing import TYPE_CHECKING, Final

from broker.wire.ops import Op, ProtocolViolation

IMPLEMENTATION: Final = "python" if environ.get("JETRAFT_PURE") == "1" else "cython"

if TYPE_CHECKING or IMPLEMENTATION == "python":
    from broker.wire.encode_py import ReplyColumn, encode_leaf, encode_pub, encode_pub_acks, unmask
    from broker.wire.parser_py import ClientParser, Event
    from broker.wire.run_py import PubRun
    from broker.wire.text_py import encode_msg
else:
    try:
        from broker.wire._encode import (
            ReplyColumn,
            encode_leaf,
            encode_msg,
            encode_pub,
            encode_pub_acks,
            unmask,
        )
        from broker.wire._parser import ClientParser
        from broker.wire._run import PubRun
        from broker.wire.parser_py import Event
    except ImportError as error:
        raise ImportError(
            "the compiled codecs are missing: run `python setup.py build_ext --inplace`, "
            "or set JETRAFT_PURE=1 to do without them"
        ) from error

__all__ = [
    "IMPLEMENTATION",
    "ClientParser",
    "Event",
    "Op",
    "ProtocolViolation",
    "PubRun",
    "ReplyColumn",
    "encode_leaf",
    "encode_msg",
    "encode_pub",
    "encode_pub_acks",
    "unmask",
]
