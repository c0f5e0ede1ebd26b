"""The header block of a message delivered without its payload.

Owns: that one rewriting.
May not touch: delivery.
Spec: JetStream headers_only: `Nats-Msg-Size` tells the size of the payload left out."""

from __future__ import annotations

from broker.store.block.block import Rows

_EMPTY = b"NATS/1.0\r\n\r\n"


def headers_only_block(rows: Rows, index: int) -> bytes:
    block = rows.headers(index) or _EMPTY
    return b"%bNats-Msg-Size: %d\r\n\r\n" % (block[:-2], len(rows.data(index)))
