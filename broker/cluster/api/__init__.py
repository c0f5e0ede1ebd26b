"""The JetStream API: which node answers a request, and how.

Start reading with `jetstream_api.py`, where every request of a client arrives. `stream_api.py`
answers requests about the table of streams, `leader_api.py` those about one stream at its leader,
`message_gets.py` and `direct_get.py` gets of stored messages, `backup.py` and `restore.py`
snapshots of streams, `scan_plan.py` plans of bulk reads."""
