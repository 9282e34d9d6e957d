from __future__ import annotations

from dataclasses import replace

import pytest

from msccl_xml.model import Algo
from synth.collective import Collective, CollectiveName
from synth.errors import InputError
from synth.verify import VerifyError, infer_collective
from tests.algos import (
    all_pairs_allreduce,
    alltoall,
    direct_gather,
    direct_reduce_scatter,
    relay_broadcast,
    ring_allgather,
    ring_allreduce,
)


@pytest.mark.parametrize(
    ("algo", "expected"),
    [
        (ring_allgather(3), Collective(CollectiveName.ALLGATHER, 3, 3)),
        (ring_allreduce(3), Collective(CollectiveName.ALLREDUCE, 3, 3)),
        (all_pairs_allreduce(3), Collective(CollectiveName.ALLREDUCE, 3, 3)),
        (alltoall(3), Collective(CollectiveName.ALLTOALL, 3, 3)),
        (direct_reduce_scatter(3), Collective(CollectiveName.REDUCE_SCATTER, 3, 3)),
        (replace(direct_reduce_scatter(3), coll="reducescatter"), Collective(CollectiveName.REDUCE_SCATTER, 3, 3)),
        (direct_gather(3, 2), Collective(CollectiveName.GATHER, 3, 3, 2)),
        (replace(direct_gather(3, 2), coll="custom"), Collective(CollectiveName.GATHER, 3, 3, 2)),
        (relay_broadcast(), Collective(CollectiveName.BROADCAST, 3, 2, 0)),
    ],
)
def test_the_collective_is_told_from_the_file(algo: Algo, expected: Collective) -> None:
    assert infer_collective(algo) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("synth-reduce-scatter-dgx1", CollectiveName.REDUCE_SCATTER),
        ("synth-allgather-dgx1", CollectiveName.ALLGATHER),
        ("Allgather(n=4)-Ring(n=4)-steps=3", CollectiveName.ALLGATHER),
        ("ReduceScatter(n=4)-Ring", CollectiveName.REDUCE_SCATTER),
    ],
)
def test_a_custom_one_from_its_name(name: str, expected: CollectiveName) -> None:
    assert infer_collective(replace(ring_allgather(3), coll="custom", name=name)).name is expected


def test_a_given_root_is_taken() -> None:
    assert infer_collective(relay_broadcast(), 2).root == 2


def test_a_root_that_several_ranks_could_be_is_the_one_that_verifies() -> None:
    """On a ring everyone is connected with everyone."""
    ring = ring_allreduce(3)
    with pytest.raises(InputError, match=r"--root.*the root of this broadcast"):
        infer_collective(replace(ring, coll="broadcast"))
    # An allreduce is a reduce to any rank, in place or not; the first one will do.
    assert infer_collective(replace(ring, coll="reduce", outofplace=False)).root == 0


@pytest.mark.parametrize(("coll", "name"), [("custom", "pipeline-forward"), ("send", "x"), ("", "")])
def test_what_is_no_collective_is_said(coll: str, name: str) -> None:
    with pytest.raises(InputError, match="expected a collective: allreduce"):
        infer_collective(replace(ring_allgather(3), coll=coll, name=name))


def test_shares_that_do_not_divide_are_refused() -> None:
    with pytest.raises(VerifyError, match="nchunksperloop is 4, allgather over 3 gpus needs a multiple of 3"):
        infer_collective(replace(ring_allgather(3), nchunksperloop=4))
