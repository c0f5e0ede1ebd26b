"""Where Raft, JetStream and the server meet.

Begin with `runtime` (what is built), `node` (what a node has) and `replica` (one stream's group).
Around them:

- who is there: mesh alone rpc formation assembly
- the table of streams: meta metagroup meta_calls placement
- replicas come, go and move: membership moving flushing
- who leads: leaders leading waiting
- a publish, from its client to the leader and back: outbox publishing pub_acks
- what else goes to a leader: errands holding pulls
- messages to subscribers on any node: interest sending
- the API: api stream_api leader_api infos direct gets snapshots restoring no_jetstream
- accounts: tenancy usage
- mirrors and sources: mirroring following origin
- what is told: advising monitoring raftz planning"""
