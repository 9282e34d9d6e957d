"""The greedy where floating point matters."""

from __future__ import annotations

from dataclasses import replace

import pytest

from synth.routing.greedy import GreedyRouting
from synth.timing import check_schedule
from tests.graphs import instance_of, star


@pytest.mark.parametrize("chunk_bytes", [1e3, 1e6, 1e9, 1e11])
@pytest.mark.parametrize("spokes", [4, 6])
def test_chunks_of_any_size_get_through(spokes: int, chunk_bytes: float) -> None:
    """Late times are known less exactly than early ones: what is as soon as any other way must not look slower."""
    even = star(spokes)
    slow = {gpu.id for gpu in even.gpus if gpu.rank % 2}
    links = (replace(link, GBps=0.3 if {link.src, link.dst} & slow else 12.5, alpha_us=0.35) for link in even.links)
    instance = instance_of(replace(even, links=tuple(links)), "allgather", 3, chunk_bytes)
    routing, schedule = GreedyRouting(patience=(1.0,), work=10**6)(instance)
    check_schedule(instance, schedule, routing)
