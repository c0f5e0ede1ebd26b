"""Deliveries: stored rows encoded as the MSG and HMSG that a consumer's subscriber receives.

Owns: the ack reply subject of a delivery, and the MSG/HMSG around it.
May not touch: consumer state, sockets.
Spec: JetStream ack reply subjects, $JS.ACK.<stream>.<consumer>.<delivered>.<stream seq>.
<consumer seq>.<time>.<pending>. This twin is the specification of _deliveries.pyx."""

from __future__ import annotations

from broker.store.block.block_format import Rows
from broker.wire.text_py import encode_msg


def encode_deliveries(  # noqa: PLR0917
    rows: Rows,
    indices: list[int],
    sid: bytes,
    ack_prefix: bytes,
    delivered: list[int] | None,
    consumer_seq: int,
    pending: int,
    headers_ok: bool,  # noqa: FBT001
) -> bytes:
    """Encode the rows at `indices`. The k-th has consumer sequence `consumer_seq + k` and
    `pending - k` messages pending after it. `delivered` is the number of deliveries of each, None
    if it is 1 for all.

    `ack_prefix` is b"$JS.ACK.<stream>.<consumer>". Without `headers_ok` headers are left out."""
    if delivered is not None and len(delivered) != len(indices):
        raise ValueError("delivered and indices differ in length")
    parts = []
    for k, i in enumerate(indices):
        facts = (
            delivered[k] if delivered is not None else 1,
            rows.seq(i),
            consumer_seq + k,
            rows.time(i),
            pending - k,
        )
        reply = ack_prefix + b".%d.%d.%d.%d.%d" % facts
        headers = rows.headers(i) if headers_ok else b""
        parts.append(encode_msg(rows.subject(i), sid, reply, headers, rows.data(i)))
    return b"".join(parts)
