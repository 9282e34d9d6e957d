"""Vectors without equal shares: solved with a few chunks more, which are left out in the end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synth.build import Builder, boxes_of
from synth.collective import Collective, CollectiveName
from synth.hierarchical import hierarchical, without_surplus
from synth.paths import find_paths
from synth.pipeline import synthesize
from synth.reductions.padding import pad
from synth.request import Request
from synth.solve import Stages
from tests.folding import cluster
from tests.graphs import full, instance_of, ring, star

GB = 1 << 30


@given(ranks=st.integers(2, 7), chunks=st.integers(1, 40))
def test_every_chunk_keeps_its_owner(ranks: int, chunks: int) -> None:
    instance = instance_of(star(ranks), "allreduce", chunks)
    padding = pad(instance)
    assert (padding is None) == (chunks % ranks == 0)
    if padding is None:
        return
    assert sorted(padding.chunks.values()) == list(range(chunks))
    assert 0 < padding.padded.collective.chunks - chunks < ranks
    for there, here in padding.chunks.items():
        assert padding.padded.owner(there) == instance.owner(here)
    assert padding.padded.chunk_bytes == instance.chunk_bytes


@pytest.mark.parametrize("name", ["allgather", "reduce-scatter", "alltoall"])
def test_ranks_that_have_shares_need_no_padding(name: str) -> None:
    assert pad(instance_of(ring(3), name, 2)) is None


@pytest.mark.parametrize("chunks", [4, 16, 32])
def test_without_its_surplus_a_schedule_is_one_of_the_vector(chunks: int) -> None:
    topology = cluster(full(2), 3, ((0, 5.0), (1, 5.0)))
    boxed = Builder(topology).boxed(Collective(CollectiveName.ALLREDUCE, 6, chunks), GB, "ring")
    assert boxed is not None
    instance, boxes = boxed
    padding = pad(instance)
    assert padding is not None
    whole = hierarchical(padding.padded, boxes, Stages())
    solution = without_surplus(whole, padding)
    assert (solution.instance.collective.chunks, solution.folded) == (chunks, None)
    assert {chunk for send in solution.schedule.sends for chunk in send.chunks} == set(range(chunks))
    assert solution.schedule.makespan_us <= whole.schedule.makespan_us * (1 + 1e-9)


def test_boxes_that_no_power_of_two_divides_do_the_same() -> None:
    """Three boxes of four, each GPU with a NIC of its own."""
    topology = cluster(full(4, 50.0), 3, tuple((rank, 10.0) for rank in range(4)))
    assert boxes_of(topology, find_paths(topology)) is not None
    request = Request(
        topology=topology, collective=CollectiveName.ALLREDUCE, min_bytes=GB, max_bytes=GB, objective="time"
    )
    result = synthesize(request)
    assert result.files[0].strategy == "hierarchy-ring"
    assert result.sizes[0].efficiency > 0.9
