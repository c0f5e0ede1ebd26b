"""The JetStream API as text: subjects, requests, responses, info documents, advisories."""
