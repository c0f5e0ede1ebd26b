"""Monitoring of JetStream: stream and consumer info, advisories, /jsz, /healthz, RAFTZ, metrics."""
