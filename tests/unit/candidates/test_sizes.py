"""The sizes to solve at: few, and the largest among them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from synth.candidates.sizes import anchors

KB, MB, GB = 1 << 10, 1 << 20, 1 << 30


@given(low=st.integers(1, GB), high=st.integers(1, GB), count=st.integers(1, 6))
def test_anchors_rise_to_the_largest_size(low: int, high: int, count: int) -> None:
    low, high = sorted((low, high))
    sizes = anchors(low, high, count)
    assert list(sizes) == sorted(set(sizes))
    assert sizes[-1] == high
    assert sizes[0] >= low
    assert len(sizes) <= count


def test_anchors_of_the_default_range() -> None:
    assert anchors(KB, GB) == (32 * KB, MB, 32 * MB, GB)
    assert anchors(MB, MB) == (MB,)
