"""S2, the compression that nats-server uses: archives of streams, leaf node connections, answers of
the system account."""
