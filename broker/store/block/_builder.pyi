from collections.abc import Set as AbstractSet
from typing import final

from broker.store.block._block import Block, Rows
from broker.wire._run import PubRun

@final
class BlockBuilder(Rows):
    def __init__(self, first_seq: int = 0) -> None: ...
    @property
    def nbytes(self) -> int: ...
    def append(
        self, subject: bytes, headers: bytes, data: bytes, *, time_ns: int = 0, seq: int = 0
    ) -> None: ...
    def append_run(self, run: PubRun, start: int, stop: int) -> None: ...
    def append_block(
        self,
        block: Block,
        *,
        time_ns: int | None = None,
        first_seq: int | None = None,
        skip: AbstractSet[int] | None = None,
    ) -> None: ...
    def build(self, *, seal: bool = True) -> bytes: ...
    def clear(self) -> None: ...

def stamped(block: Block, *, time_ns: int, first_seq: int) -> bytes: ...
