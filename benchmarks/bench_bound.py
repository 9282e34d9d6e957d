"""How long bounds take, from one box to 512 GPUs.

    python -m benchmarks.bench_bound [allgather,alltoall,...]

Each line: machine, collective, GPUs, limit in GB/s, seconds of wall time, what sets it. Up to 128 GPUs the paths are found first
(not counted), and small buffers get cuts of their own, as in `synth bound`.
"""

from __future__ import annotations

import sys
import time

from synth.bounds import bound_of
from synth.cli.bound import MOST_WITH_PATHS
from synth.collective import ROOTED, Collective, CollectiveName
from synth.inputs.load import load_topology
from synth.paths import find_paths
from synth.topology import replicate

MACHINES = (
    *(("dgx-h100", nodes) for nodes in (1, 2, 4, 8, 16, 32, 64)),
    ("dgx1", 1),
    ("dgx1", 8),
    ("dgx2", 2),
    ("mi250", 4),
    ("mesh-4x4", 1),
)
NAMES = ("allgather", "reduce-scatter", "allreduce", "alltoall", "broadcast", "gather")


def main() -> None:
    names = sys.argv[1].split(",") if len(sys.argv) > 1 else NAMES
    for machine, nodes in MACHINES:
        topology = replicate(load_topology(machine), nodes)
        paths = find_paths(topology) if topology.num_ranks <= MOST_WITH_PATHS else None
        for name in map(CollectiveName, names):
            collective = Collective(name, topology.num_ranks, topology.num_ranks, 0 if name in ROOTED else None)
            start = time.perf_counter()
            bound = bound_of(topology, collective, paths)
            seconds = time.perf_counter() - start
            print(
                f"{topology.name:14s} {name:15s} {topology.num_ranks:4d} {bound.algbw_GBps:9.2f} GB/s {seconds:7.2f} s  {bound.what}"
            )


if __name__ == "__main__":
    main()
