"""The subject index of a stream. `index_py.py` is its specification.

Exports, and the choice between the compiled index (`_index`, `_hashes`) and its Python twin, by the
switch of broker.wire. `subject_filter.py` has the filters of readers."""

from typing import TYPE_CHECKING

from broker.wire import IMPLEMENTATION

if TYPE_CHECKING or IMPLEMENTATION == "python":
    from broker.store.index.hashes_py import among_hashes, subject_hashes
    from broker.store.index.index_py import SubjectEntry, SubjectIndex
else:
    from broker.store.index._hashes import among_hashes, subject_hashes
    from broker.store.index._index import SubjectEntry, SubjectIndex

__all__ = ["SubjectEntry", "SubjectIndex", "among_hashes", "subject_hashes"]
