"""How long the simulator takes: operations, events and CPU seconds for large allreduces at 1 GB.

    python -m benchmarks.bench_simulate

Targets: 16 ranks on 8 channels below 2 s, 64 ranks below 20 s, of CPU time.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from msccl_xml.model import Algo, Buffer, Gpu, Step, StepType, Threadblock
from synth.baselines import BaselineOptions, build
from synth.collective import CollectiveName
from synth.inputs.load import load_topology
from synth.paths import find_paths
from synth.simulate import Constants
from synth.simulate.engine import Engine
from synth.simulate.program import compile_algo
from synth.simulate.routes import paths_by_pair, routes_of
from synth.topology import Topology, replicate

SIZE = 1 << 30
INPUT, OUTPUT = Buffer.INPUT, Buffer.OUTPUT


@dataclass(frozen=True)
class Case:
    """An algorithm on copies of a machine of the catalogue; `rings` is the one below, others are baselines."""

    name: str
    machine: str
    nodes: int
    channels: int
    protocol: str
    target_s: float | None = None

    def topology(self) -> Topology:
        return replicate(load_topology(self.machine), self.nodes)

    def algo(self, topology: Topology) -> Algo:
        if self.name == "rings":
            return rings(topology, self.channels, self.protocol)
        options = BaselineOptions(instances=self.channels, protocol=self.protocol, max_bytes=SIZE)  # type: ignore[arg-type]
        return build(self.name, topology, CollectiveName.ALLREDUCE, SIZE, options, find_paths(topology)).algo


CASES = (
    Case("rings", "dgx2", 1, 8, "Simple", 2.0),
    Case("rings", "dgx2", 1, 8, "LL128"),
    Case("rings", "dgx2", 1, 8, "LL"),
    Case("halving-doubling", "dgx2", 1, 8, "Simple", 2.0),
    Case("all-pairs", "dgx2", 1, 1, "Simple", 2.0),
    Case("rings", "dgx-h100", 8, 8, "Simple", 20.0),
    Case("rings", "dgx-h100", 8, 8, "LL128", 20.0),
    Case("rings", "dgx-h100", 8, 8, "LL", 20.0),
)


def rings(topology: Topology, channels: int, protocol: str) -> Algo:
    """A ring allreduce on every channel; channel c enters and leaves each node by its GPU c, which has a NIC of its own."""
    size, per_node = topology.num_ranks, topology.num_ranks // topology.num_nodes
    tbs: list[list[Threadblock]] = [[] for _ in range(size)]
    for channel in range(channels):
        order = [
            node * per_node + (channel + place) % per_node
            for node in range(topology.num_nodes)
            for place in range(per_node)
        ]
        for place, rank in enumerate(order):
            after, before = order[(place + 1) % size], order[place - 1]
            steps = tuple(_steps(place, size, channel * size))
            tbs[rank].append(Threadblock(channel, after, before, channel, steps))
    chunks = channels * size
    gpus = tuple(Gpu(rank, chunks, chunks, 0, tuple(tbs[rank])) for rank in range(size))
    return Algo("rings", "allreduce", protocol, size, channels, chunks, gpus, True, True, 0, SIZE)


def _steps(place: int, size: int, first: int) -> list[Step]:
    """What the rank at a place of a ring does with the ring's chunks, which begin at `first`."""

    def chunk(back: int) -> int:
        return first + (place - back) % size

    steps = [Step(StepType.SEND, INPUT, chunk(0))]
    steps += [Step(StepType.RECV_REDUCE_SEND, INPUT, chunk(back)) for back in range(1, size - 1)]
    steps.append(Step(StepType.RECV_REDUCE_COPY_SEND, INPUT, chunk(-1), OUTPUT, chunk(-1)))
    steps += [Step(StepType.RECV_COPY_SEND, INPUT, -1, OUTPUT, chunk(back)) for back in range(size - 2)]
    return [*steps, Step(StepType.RECV, INPUT, -1, OUTPUT, chunk(-2))]


def engine_of(algo: Algo, topology: Topology) -> Engine:
    """The engine that `Simulator.time_us` would run at 1 GB."""
    protocol = Constants.for_topology(topology).of(algo.proto)
    program = compile_algo(algo, SIZE, protocol.tile_bytes)
    routes = routes_of(topology, paths_by_pair(topology), program, protocol)
    return Engine(program, routes, [link.GBps * 1e3 for link in topology.links], protocol)


def measure(case: Case) -> str:
    """One line of the table."""
    topology = case.topology()
    algo = case.algo(topology)
    engine = engine_of(algo, topology)
    begun = time.process_time()
    time_us = engine.run()
    seconds = time.process_time() - begun
    target = "" if case.target_s is None else f"{case.target_s:g}"
    counts = f"{algo.ngpus:>5} {algo.nchannels:>8} {len(engine.program.blocks):>6} {engine.program.tiles:>6}"
    run = f"{engine.steps_done:>10} {engine.count:>9} {time_us:>12.1f} {seconds:>8.2f} {target:>7}"
    return f"{case.name:<18} {case.protocol:<7} {counts} {run}"


def main() -> None:
    heads = f"{'ranks':>5} {'channels':>8} {'blocks':>6} {'tiles':>6} {'operations':>10} {'events':>9}"
    print(f"{'algorithm':<18} {'proto':<7} {heads} {'simulated us':>12} {'CPU s':>8} {'target':>7}")
    for case in CASES:
        print(measure(case), flush=True)


if __name__ == "__main__":
    main()
