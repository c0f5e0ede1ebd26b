from broker.store.block._block import Rows

def encode_deliveries(
    rows: Rows,
    indices: list[int],
    sid: bytes,
    ack_prefix: bytes,
    delivered: list[int] | None,
    consumer_seq: int,
    pending: int,
    headers_ok: bool,
) -> bytes: ...
