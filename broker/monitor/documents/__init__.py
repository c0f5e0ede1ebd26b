"""The monitoring documents: /varz, /connz, /accountz, /metrics and the rest."""
