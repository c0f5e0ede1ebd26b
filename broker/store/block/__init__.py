"""The block format: many messages in columns. `block_py.py` states the format.

Each codec has a Cython version (`_block`, `_builder`, `_deliveries`) and a Python twin that is its
specification; `block.py` exports the one in use."""
