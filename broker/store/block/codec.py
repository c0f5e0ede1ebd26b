"""The block codec in use: compiled, or the Python twins.

Owns: the choice, by the same switch as broker.wire. Each codec has a Cython version (`_block`,
`_builder`, `_deliveries`, `_origins`) and a Python twin that is its specification.
May not touch: the format (block_format.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.store.block.block_format import BlockDamaged
from broker.wire import IMPLEMENTATION

if TYPE_CHECKING or IMPLEMENTATION == "python":
    from broker.store.block.block_format import Block, Rows
    from broker.store.block.builder_py import BlockBuilder, stamped
    from broker.store.block.deliveries_py import encode_deliveries
    from broker.store.block.origins_py import append_delivered, append_sourced
else:
    try:
        from broker.store.block._block import Block, Rows
        from broker.store.block._builder import BlockBuilder, stamped
        from broker.store.block._deliveries import encode_deliveries
        from broker.store.block._origins import append_delivered, append_sourced
    except ImportError as error:
        raise ImportError(
            "the compiled blocks are missing: run `python setup.py build_ext --inplace`, "
            "or set JETRAFT_PURE=1 to do without them"
        ) from error

__all__ = [
    "Block",
    "BlockBuilder",
    "BlockDamaged",
    "Rows",
    "append_delivered",
    "append_sourced",
    "encode_deliveries",
    "stamped",
]
