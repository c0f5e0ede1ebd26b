"""What JetStream shows of itself: stream and consumer info, advisories, /jsz, /healthz, RAFTZ,
the gauges of /metrics."""
