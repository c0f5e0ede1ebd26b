"""Rewriting blocks that are mostly dead, so that a stream takes the room of what it stores.

Owns: the choice of blocks and how many at a time.
May not touch: what is stored; a compacted stream has the same digest as before.
Spec: DESIGN section 5: a block that is mostly dead is rewritten."""

from __future__ import annotations

from typing import Final

from broker.store.messages import MessageStore
from broker.store.scan import live_block

LIVE_SHARE: Final = 4  # rewritten when not more than one row in so many is stored
BLOCKS_PER_CHECKPOINT: Final = 2


def compact(store: MessageStore) -> bool:
    """Rewrite one block; the next checkpoint writes it. False when there is none to rewrite."""
    segments = store.segments
    for segment in segments.all:
        if segment.live * LIVE_SHARE <= segment.rows and segment is not segments.tail:
            segments.shrink(segment, live_block(segments, segment))
            return True
    return False
