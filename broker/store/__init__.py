"""Stored messages: columnar blocks, the segments they are in, the index of their subjects.

Begin with `messages` (one stream's messages) and `block_py` (the format). Around them:

- codecs, chosen by broker.wire: block builder_py deliveries_py, and their compiled twins
- finding: index index_py hashes_py scan
- segments and what lies in them: segments columns deadlines
- messages leave: removal compaction
- on disk: persistence files state_db"""
