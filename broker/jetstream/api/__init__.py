"""The JetStream API on the wire: subjects, requests, responses, info documents, advisories."""
