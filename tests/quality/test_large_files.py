"""Files of 64 and 128 ranks: written and read again, verified, explained, timed."""

from __future__ import annotations

import pytest

from msccl_xml.model import Algo
from msccl_xml.read import read_algo
from msccl_xml.strict import load_as
from msccl_xml.write import write_algo
from synth.baselines import BaselineOptions, build
from synth.bounds import ingress_bound
from synth.collective import CollectiveName
from synth.inputs.load import load_topology
from synth.paths import find_paths
from synth.simulate import Simulator
from synth.topology import Topology, replicate
from synth.verify import VerifyError, infer_collective, verify_algo
from tests import graphs
from tests.algos import with_step

SIZE = 1 << 20
#: name -> (machine, baseline, collective, steps of all ranks at least)
LARGE = {
    "64-ring": ("star64", "ring", "allreduce", 64 * 2 * 63),
    "64-all-pairs": ("star64", "all-pairs", "alltoall", 64 * 2 * 63),
    "64-boxes": ("dgx-h100", "halving-doubling", "allreduce", 64 * 2 * 6),
    "128-ring": ("star128", "ring", "allgather", 128 * 127),
    "128-doubling": ("star128", "halving-doubling", "allreduce", 128 * 2 * 7),
}


def machine(name: str) -> Topology:
    """`star64`: GPUs on one switch; else eight boxes of the catalogue."""
    if name.startswith("star"):
        return graphs.star(int(name.removeprefix("star")), 100.0, 0.35)
    return replicate(load_topology(name), 8)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name.startswith("128") else name for name in LARGE]
)
def test_large_files_are_read_verified_and_timed(name: str) -> None:
    """One test for a file, since making it takes longer than any of these."""
    where, baseline, collective, steps = LARGE[name]
    topology = machine(where)
    paths = find_paths(topology)
    made = build(baseline, topology, CollectiveName(collective), SIZE, BaselineOptions(max_bytes=SIZE), paths)
    assert sum(1 for _ in made.algo.steps()) >= steps
    text = write_algo(made.algo)
    assert read_algo(text) == made.algo
    assert write_algo(read_algo(text)) == text
    assert load_as(text, "msccl").ok
    assert infer_collective(made.algo) == made.collective
    verify_algo(made.algo, made.collective)
    with pytest.raises(VerifyError):
        verify_algo(with_one_slip(made.algo), made.collective)
    bound = ingress_bound(topology, made.collective, paths)
    assert Simulator(made.algo, topology).time_us(SIZE) > bound.time_us(SIZE)


def with_one_slip(algo: Algo) -> Algo:
    """The first receive of the last rank puts its chunk beside where it belongs."""
    last = algo.ngpus - 1
    tb, number, one = next(
        (t, number, one)
        for t, block in enumerate(algo.gpus[last].threadblocks)
        for number, one in enumerate(block.steps)
        if one.type.receives and one.type.writes_dst
    )
    beside = one.dst_offset - 1 if one.dst_offset else 1
    return with_step(algo, last, tb, number, dst_offset=beside)
