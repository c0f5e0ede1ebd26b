"""For every test: property tests are judged by what they find, not by how fast a machine is."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")
