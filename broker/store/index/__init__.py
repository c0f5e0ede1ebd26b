"""The subject index of a stream. `index_py.py` states what it means.

The index has a Cython version (`_index`, `_hashes`) and a Python twin that is its specification;
`index.py` exports the one in use, and has the subject filters of readers."""
