"""Settings for all tests: hypothesis draws the same examples on every run and machine, and never fails on time."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "synth",
    derandomize=True,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("synth")
