"""What is tried where schedules decide: as many candidates as asked for, of as many transfers as allowed."""

from __future__ import annotations

import pytest

from synth.candidates.scheduled import candidates
from synth.candidates.transfers import MAX_GREEDY_TRANSFERS, MAX_TRANSFERS, transfers_of, with_count
from tests.graphs import instance_of, ring

POWERS = tuple(1 << k for k in range(9))
KB, MB, GB = 1 << 10, 1 << 20, 1 << 30


@pytest.mark.parametrize("strategy", ["greedy", "trees"])
@pytest.mark.parametrize("single", [True, False])
@pytest.mark.parametrize("thorough", [True, False])
def test_a_strategy_asked_for_is_the_only_one(strategy: str, single: bool, thorough: bool) -> None:
    instance = instance_of(ring(4), "allgather")
    tried = candidates(instance, strategy, POWERS, MB, single=single, thorough=thorough)
    assert {candidate.strategy for candidate in tried} == {strategy}
    assert {candidate.anchor_bytes for candidate in tried} == {MB}
    assert len(tried) <= ((6 if thorough else 3) if single else 1)


@pytest.mark.parametrize("name", ["allgather", "allreduce", "alltoall"])
@pytest.mark.parametrize("size", [KB, 64 * KB, GB])
@pytest.mark.parametrize("single", [True, False])
@pytest.mark.parametrize("thorough", [True, False])
def test_auto_tries_packings_and_a_greedy_that_is_not_too_large(
    name: str, size: int, single: bool, thorough: bool
) -> None:
    instance = instance_of(ring(8), name)
    tried = candidates(instance, "auto", POWERS, size, single=single, thorough=thorough)
    packed = "flow" if name == "alltoall" else "trees"
    both = thorough or name != "alltoall"
    assert {packed, *(["greedy"] if both else [])} == {candidate.strategy for candidate in tried}
    assert len(set(tried)) == len(tried)
    for candidate in tried:
        limit = MAX_GREEDY_TRANSFERS if candidate.strategy == "greedy" else MAX_TRANSFERS
        assert transfers_of(with_count(instance.collective, candidate.count)) <= limit


@pytest.mark.parametrize(("ranks", "cuts"), [(48, 1), (64, 1), (80, 0)])
def test_an_allreduce_of_many_ranks_is_cut_for_the_greedy_so_that_each_has_a_share(ranks: int, cuts: int) -> None:
    """One half of it is routed, the other is its mirror."""
    counts = (1, ranks // 2, ranks, 2 * ranks)
    found = candidates(instance_of(ring(ranks), "allreduce"), "auto", counts, 1 << 20, single=True, exchanged=True)
    assert [each.count for each in found if each.strategy == "greedy"] == [ranks, 2 * ranks][:cuts]


def test_where_bandwidth_alone_counts_the_greedy_is_left_out() -> None:
    instance = instance_of(ring(8), "allgather")
    tried = candidates(instance, "auto", POWERS, GB, single=True, latency_counts=False)
    assert {candidate.strategy for candidate in tried} == {"trees"}
    assert [candidate.count for candidate in tried] == [32, 64, 128]
