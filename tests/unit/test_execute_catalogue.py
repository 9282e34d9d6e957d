"""Synthesized files and baselines of every machine of the catalogue with up to 8 GPUs, and of one with 16, executed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

from synth.baselines import BASELINES, BaselineOptions, build
from synth.collective import ROOTED, CollectiveName
from synth.inputs.load import load_topology
from synth.pipeline import synthesize
from synth.topology import Topology
from synth.verify import infer_collective
from tests import graphs
from tests.jobs import request
from tests.pools import assert_right, job, run

TOPOLOGIES = Path(__file__).resolve().parent.parent.parent / "topologies"
PROTOCOLS = ("Simple", "LL", "LL128")
#: Bytes and type of each collective: together all kinds of numbers, and sizes that are multiples of nothing.
CALLS = {
    CollectiveName.ALLREDUCE: (2052, "float"),
    CollectiveName.ALLGATHER: (4000, "int8"),
    CollectiveName.REDUCE_SCATTER: (4000, "bfloat16"),
    CollectiveName.ALLTOALL: (4000, "int16"),
    CollectiveName.BROADCAST: (1002, "half"),
    CollectiveName.REDUCE: (1028, "int32"),
    CollectiveName.GATHER: (3000, "uint8"),
    CollectiveName.SCATTER: (3000, "double"),
}


def _machines(largest: int) -> list[str]:
    names = sorted(path.stem for path in TOPOLOGIES.glob("*.json") if path.stem != "schema")
    return [name for name in names if load_topology(name).num_ranks <= largest]


def _execute(topology: Topology, name: CollectiveName, protocol: str) -> None:
    size, dtype = CALLS[name]
    root = topology.num_ranks - 1 if name in ROOTED else None
    asked = request(topology, name, 4096, strategy="greedy", chunks=1, instances=1, protocol=protocol)
    algo = synthesize(replace(asked, root=root)).files[0].algo
    assert_right(run(job(algo, infer_collective(algo, root=root), size, dtype=dtype)))


@pytest.mark.parametrize("machine", _machines(8))
def test_every_collective_of_a_machine(machine: str) -> None:
    topology = load_topology(machine)
    for number, name in enumerate(CollectiveName):
        _execute(topology, name, PROTOCOLS[(number + len(machine)) % 3])


def test_sixteen_ranks() -> None:
    _execute(load_topology("mesh-4x4"), CollectiveName.ALLREDUCE, "LL")


@pytest.mark.parametrize(
    ("name", "machine"),
    [
        ("ring", "dgx1"),
        ("tree", "dgx1"),
        ("halving-doubling", "dgx1"),
        ("all-pairs", "dgx1"),
        ("one-shot", "a100x4"),
        ("hierarchical", None),
    ],
)
def test_baselines(name: str, machine: str | None) -> None:
    """Files of other origin: what libraries run, in all collectives that it has; without a machine, on two boxes of four."""
    topology = load_topology(machine) if machine else graphs.two_boxes(graphs.full(4), range(4), GBps=10.0)
    for collective in sorted(BASELINES[name].collectives):
        built = build(name, topology, collective, 4096, BaselineOptions(protocol="LL", max_threadblocks=32))
        size, dtype = CALLS[collective]
        assert_right(run(job(built.algo, built.collective, size, dtype=dtype)))


def test_every_baseline_is_run() -> None:
    [mark] = [mark for mark in test_baselines.pytestmark if mark.name == "parametrize"]
    assert {name for name, _ in mark.args[1]} == set(BASELINES)
