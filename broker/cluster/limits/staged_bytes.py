"""Bytes of open atomic batches on this node, and which accounts may not add to theirs.

Owns: the sums, by account.
May not touch: batches (broker/jetstream/publish/open_batches.py). Entries for a stream whose
account holds too much are proposed with a note that refuses every message; idle batches end after
ten seconds.
Messages of open batches are in memory. A stream may hold 128 MB of them, and an account may have
any number of streams.
Bound: STAGED_BYTES_MAX for all accounts; beyond it, accounts that have their share are refused."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

STAGED_BYTES_MAX: Final = 128 << 20


@dataclass(slots=True)
class StagedBytes:
    _groups: dict[int, int] = field(default_factory=dict)
    _accounts: Counter[str] = field(default_factory=Counter)
    _total: int = 0

    def note(self, account: str, group: int, count: int) -> None:
        """A stream of the account has `count` bytes in open batches."""
        grown = count - self._groups.get(group, 0)
        if not grown:
            return
        if count:
            self._groups[group] = count
        else:
            del self._groups[group]
        self._total += grown
        self._accounts[account] += grown
        if not self._accounts[account]:
            del self._accounts[account]

    def refuses(self, account: str) -> bool:
        if self._total <= STAGED_BYTES_MAX:
            return False
        return self._accounts[account] * len(self._accounts) >= self._total
