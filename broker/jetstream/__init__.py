"""JetStream as pure state machines: streams and consumers, their API, their rules.

Begin with `stream` (what every replica does with an entry) and `delivery` (what only the leader
does). Around them:

- what an entry says: commands consumer_commands notes
- a publish: publish single publish_checks storing message sessions dedup counters ttl
- batches of publishes: batches batch_commit fast_batches fast_publish
- schedules: schedules schedule_pattern firing time_zones
- messages leave or go on: retention expiry removing republishing sourcing transforms
- the stream on disk and elsewhere: stream_record loading archive
- a consumer as every replica has it: consumer consumer_set consumer_start ack_state hooks
- its delivery: dispatch receivers pull pinning cursor backlog replay redelivery flow_control
  inactivity headers_only message_source effects
- what delivery tells the replicas: flush progress_record ack ack_collector
- configuration: config stream_config consumer_config limits names versioning
- rules: stream_rules stream_sources stream_update consumer_rules consumer_update
- the API: api requests responses info strict_json times errors error_codes advisories"""
