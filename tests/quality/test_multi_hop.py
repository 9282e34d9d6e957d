"""Relays over GPUs: where a GPU's own PCIe way is narrow and its NVLink neighbour's is not, answers go over the neighbour.

Times are the simulated interpreter's, of the pipeline's file for one size, against rings (as NCCL's) and direct sends. Each case
names the settings that find its answer in seconds; left to itself the search finds better ones (README.md, "Relays").
"""

from __future__ import annotations

from typing import Any

import pytest

from msccl_xml.model import Algo
from synth.baselines import BaselineOptions, build
from synth.bounds import ingress_bound
from synth.collective import Collective, CollectiveName
from synth.inputs.load import load_topology
from synth.paths import find_paths
from synth.pipeline import synthesize
from synth.simulate import Simulator
from synth.topology import Topology, replicate, restrict
from tests.jobs import request

SIZE = 16 << 20
ALLREDUCE, ALLTOALL = CollectiveName.ALLREDUCE, CollectiveName.ALLTOALL
#: Two bridged pairs, one of them across the sockets: GPUs 0 and 3, 4 and 5 of the six.
CROSSED = (0, 3, 4, 5)


def machine(name: str, nodes: int = 1, ranks: tuple[int, ...] | None = None) -> Topology:
    topology = replicate(load_topology(name), nodes)
    return topology if ranks is None else restrict(topology, ranks)


def answer(topology: Topology, collective: CollectiveName, **settings: Any) -> Algo:
    (plan,) = synthesize(request(topology, collective, SIZE, protocol="Simple", **settings), lambda _: None).files
    return plan.algo


def time_us(topology: Topology, algo: Algo) -> float:
    return Simulator(algo, topology).time_us(SIZE)


def baseline_us(topology: Topology, name: str, collective: CollectiveName) -> float:
    """The baseline's best time on one to eight channels."""
    times = []
    for instances in (1, 2, 4, 8):
        options = BaselineOptions(protocol="Simple", instances=instances, max_bytes=SIZE)
        times.append(time_us(topology, build(name, topology, collective, SIZE, options).algo))
    return min(times)


def share_sent(algo: Algo, src: int, dst: int) -> float:
    """How much of the buffer one rank sends to another."""
    sent = [step.count for tb in algo.gpus[src].threadblocks if tb.send == dst for step in tb.steps if step.type.sends]
    return sum(sent) / algo.nchunksperloop


@pytest.mark.parametrize(
    ("topology", "rival", "gain", "settings"),
    [
        # Reducing within a pair first, a byte crosses the sockets once up and once down; a ring crosses them with everything.
        (machine("pcie-2x2-nvlink"), "ring", 1.25, {"strategy": "trees", "chunks": 16}),
        (machine("pcie-2x2-nvlink"), "all-pairs", 1.5, {"strategy": "trees", "chunks": 16}),
        (machine("pcie-2x2-nvlink", 2), "ring", 1.3, {"strategy": "greedy", "chunks": 64}),
        # GPU 1's own way to the NIC crosses two CPUs; GPU 0, beside the NIC, takes its part along.
        (machine("azure-nc96v4", 2), "ring", 1.3, {"strategy": "trees", "chunks": 64}),
        (machine("a100-pcie6", 1, CROSSED), "ring", 1.5, {"strategy": "trees", "chunks": 32}),
    ],
    ids=lambda value: value.name if isinstance(value, Topology) else None,
)
def test_allreduce(topology: Topology, rival: str, gain: float, settings: dict[str, Any]) -> None:
    ours = time_us(topology, answer(topology, ALLREDUCE, **settings))
    assert baseline_us(topology, rival, ALLREDUCE) > gain * ours


@pytest.mark.parametrize(("ranks", "gain"), [(CROSSED, 1.3), (None, 2.5)])
def test_alltoall_goes_round_the_sockets_over_the_bridge(ranks: tuple[int, ...] | None, gain: float) -> None:
    topology = machine("a100-pcie6", 1, ranks)
    algo = answer(topology, ALLTOALL, strategy="milp")
    assert baseline_us(topology, "all-pairs", ALLTOALL) > gain * time_us(topology, algo)
    bridge = (0, 1) if ranks else (0, 3)
    # The bridge carries what its own two GPUs have for each other, and as much again or more for others.
    for src, dst in (bridge, bridge[::-1]):
        assert share_sent(algo, src, dst) >= 2 / topology.num_ranks


@pytest.mark.parametrize("name", ["pcie-2x2-nvlink", "azure-nc96v4"])
def test_where_direct_sends_are_at_the_limit_no_relay_can_help(name: str) -> None:
    topology = machine(name)
    collective = Collective(ALLTOALL, topology.num_ranks, topology.num_ranks)
    bound_us = ingress_bound(topology, collective, find_paths(topology)).time_us(SIZE)
    direct_us = baseline_us(topology, "all-pairs", ALLTOALL)
    assert direct_us < 1.06 * bound_us
    assert time_us(topology, answer(topology, ALLTOALL, strategy="milp")) < 1.05 * direct_us
