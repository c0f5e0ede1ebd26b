"""HTTP: monitoring documents and metrics."""
