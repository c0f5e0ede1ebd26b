from broker.store.block._block import Block
from broker.store.block._builder import BlockBuilder

def append_delivered(
    builder: BlockBuilder, received: bytes, at: int, *, expected: int, rows_max: int, bytes_max: int
) -> tuple[int, int]: ...
def append_sourced(builder: BlockBuilder, block: Block, *, head: bytes, tail: bytes) -> None: ...
