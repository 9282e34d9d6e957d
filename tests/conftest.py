"""Settings for all tests: hypothesis draws the same examples on every run and machine, and never fails on time; no test
sees the answers that another one kept.
"""

from __future__ import annotations

from pathlib import Path

import pytest
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


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Answers are kept in a folder of the test's own, never in the user's; programs that a test starts inherit it."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("SYNTH_CACHE", str(folder))
    return folder
