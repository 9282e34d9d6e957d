"""Laws of the simulator over drawn machines: leaps agree with full runs, and no run beats the bound."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synth.bounds import ingress_bound
from synth.paths import find_paths
from synth.simulate import Constants, Simulator
from synth.topology import Topology
from tests import graphs
from tests.algos import collective_of, ring_allgather, ring_allreduce

RINGS = {"allreduce": ring_allreduce, "allgather": ring_allgather}


@st.composite
def uneven_rings(draw: st.DrawFn) -> Topology:
    """Rings of 2 to 4 GPUs whose links differ in rate and latency."""
    ring = graphs.ring(draw(st.integers(2, 4)))
    links = tuple(
        replace(
            link, GBps=draw(st.sampled_from([1.0, 3.0, 8.0, 13.0])), alpha_us=draw(st.sampled_from([0.5, 3.0, 70.0]))
        )
        for link in ring.links
    )
    return replace(ring, links=links)


@settings(max_examples=40)
@given(
    topology=uneven_rings(),
    kind=st.sampled_from(sorted(RINGS)),
    proto=st.sampled_from(["Simple", "LL", "LL128"]),
    tiles=st.sampled_from([1, 3, 20, 90]),
    rest=st.sampled_from([0, 4, 9000]),
)
def test_leaps_agree_with_full_runs_and_no_run_beats_the_bound(
    topology: Topology, kind: str, proto: str, tiles: int, rest: int
) -> None:
    algo = RINGS[kind](topology.num_ranks, proto)
    size = algo.nchunksperloop * (tiles * Constants().of(proto).tile_bytes + rest)
    time_us = Simulator(algo, topology).time_us(size)
    assert time_us == pytest.approx(Simulator(algo, topology, full=True).time_us(size), rel=1e-9)
    assert time_us > ingress_bound(topology, collective_of(algo), find_paths(topology)).time_us(size)
    assert time_us >= Simulator(algo, topology).least_us(size)
