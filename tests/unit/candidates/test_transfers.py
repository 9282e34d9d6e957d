"""How many transfers a cut has."""

from __future__ import annotations

import pytest

from synth.candidates.transfers import transfers_of, with_count
from synth.collective import ROOTED, Collective, CollectiveName
from synth.routing.trees import TreesRouting
from tests.graphs import full, instance_of


@pytest.mark.parametrize("name", list(CollectiveName))
def test_a_routing_has_at_least_so_many_transfers(name: CollectiveName) -> None:
    # On a fully joined machine every strategy that makes no detour has exactly as many, an allreduce's twice.
    instance = instance_of(full(4), name, 2, 1e6, root=0 if name in ROOTED else None)
    halves = 2 if name is CollectiveName.ALLREDUCE else 1
    at_home = sum(len(d.dests) == 0 for d in instance.demands) + instance.collective.num_chunk_ids
    at_home -= len(instance.demands)
    least = halves * sum(len(demand.dests) for demand in instance.demands)
    assert least <= transfers_of(instance.collective) <= least + at_home
    routing, _ = TreesRouting()(instance)
    assert halves * len(routing.transfers) >= least


def test_a_count_is_of_a_ranks_share_where_ranks_have_shares() -> None:
    assert with_count(Collective(CollectiveName.ALLGATHER, 8, 8), 4).chunks == 32
    assert with_count(Collective(CollectiveName.ALLREDUCE, 8, 8), 4).chunks == 4
