"""Blocks of messages: exports of whichever implementation was selected.

Owns: nothing but the choice, which broker.wire makes for both codecs.
May not touch: files, clocks.
Spec: block_py.py states the format."""

from broker.store.block_py import Block, BlockDamaged, Rows
from broker.store.builder_py import BlockBuilder
from broker.store.deliveries_py import encode_deliveries

__all__ = ["Block", "BlockBuilder", "BlockDamaged", "Rows", "encode_deliveries"]
