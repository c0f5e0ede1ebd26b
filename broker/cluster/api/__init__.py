"""The JetStream API: which node answers a request, and how.

Begin with `jetstream_api.py` (every request of a client arrives there). `stream_api.py` answers
what concerns the table of streams, `leader_api.py` what concerns one stream at its leader,
`message_gets.py` and `direct_get.py` gets of stored messages, `backup.py` and `restore.py`
snapshots of streams, `scan_plan.py` bulk reads."""
