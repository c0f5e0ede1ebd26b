"""Messages of a stream on disk and in memory: columnar blocks, a subject index, checkpoints.

Start reading with `messages.py` (MessageStore, the messages of one stream). Around it:

- `block/`: the block format, its codecs and its columns; `block_format.py` specifies the format
- `index/`: the subject index and subject filters; `index_py.py` specifies it
- `segments.py`: the list of blocks of a stream, sealing, the block cache
- `search.py`: reading by filter; `removal.py`: removing messages; `deadlines.py`: per-message TTLs
- `persistence.py`: checkpoints, loading, snapshots, the digest
- `state_keys.py`: key layout and database interface; `state_db.py` (RocksDB) and `memory_db.py`
  implement it"""
