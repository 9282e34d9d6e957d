"""What is worth its transfers: as many cuts as asked for, of as many transfers as allowed, and never none."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from synth.candidates.cuts import worth_cutting, worthwhile_counts
from synth.candidates.transfers import MAX_TRANSFERS, transfers_of, with_count
from synth.collective import ROOTED, CollectiveName
from synth.inputs.load import load_topology
from tests.graphs import instance_of, ring, unequal_ring

POWERS = tuple(1 << k for k in range(9))
KB, MB, GB = 1 << 10, 1 << 20, 1 << 30


@settings(max_examples=60)
@given(
    name=st.sampled_from(list(CollectiveName)),
    size=st.sampled_from([KB, 64 * KB, MB, 64 * MB, GB]),
    most=st.integers(1, 6),
    counts=st.sampled_from([POWERS, (1,), (1, 2, 4), (7,), (1, 5, 25, 125), (3000,)]),
)
def test_worthwhile_counts(name: CollectiveName, size: int, most: int, counts: tuple[int, ...]) -> None:
    instance = instance_of(ring(6), name, root=0 if name in ROOTED else None)
    chosen = worthwhile_counts(instance, counts, size, most)
    assert 1 <= len(chosen) <= most
    assert chosen == sorted(set(chosen))
    assert set(chosen) <= set(counts)
    if chosen != [counts[0]]:
        assert all(transfers_of(with_count(instance.collective, count)) <= MAX_TRANSFERS for count in chosen)


def test_large_buffers_are_cut_finer_than_small_ones() -> None:
    instance = instance_of(ring(4), "allgather")
    assert worthwhile_counts(instance, POWERS, KB, 3) == [1]
    assert max(worthwhile_counts(instance, POWERS, MB, 3)) < max(worthwhile_counts(instance, POWERS, GB, 3))


@given(size=st.integers(1 << 10, 1 << 30), count=st.sampled_from((1, 4, 64, 1024)))
def test_whether_to_cut_is_up_to_the_slowest_of_all_paths(size: int, count: int) -> None:
    for topology in (ring(4), unequal_ring(), load_topology("pcie-2x2-nvlink")):
        instance = instance_of(topology, "allgather")
        chunk_bytes = size / with_count(instance.collective, count).chunks
        slowest = max((path.latency_us(chunk_bytes) - path.alpha_us, path.alpha_us) for path in instance.paths)
        few = instance.unlike_paths
        assert max((path.latency_us(chunk_bytes) - path.alpha_us, path.alpha_us) for path in few) == slowest
        assert len(few) < len(instance.paths)
        assert worth_cutting(instance, count, size) == worth_cutting(replace(instance, paths=(*few,)), count, size)
