"""How time and memory grow with a cluster of equal boxes, and how near the answer stays to the machine's limit: the tables of
docs/scale.md.

    python -m benchmarks.bench_scale [MACHINE] [BOXES ...]

Every row is a fresh process, asked for one file for 1 GB. Seconds are wall clock, imports left out, and of all cores together;
memory is the largest of any process. "schedule" is the share of the bound that the exact schedule reaches, "simulated" that of
the simulated (or, for programs too large to simulate, estimated) time.
"""

from __future__ import annotations

import multiprocessing
import resource
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

from synth.bounds import bound_of
from synth.collective import SHARED, Collective, CollectiveName, root_of
from synth.inputs.load import load_topology
from synth.paths import find_paths
from synth.pipeline import available_cores, synthesize
from synth.request import Request
from synth.topology import Topology, replicate

GB = 1 << 30
BOXES = (1, 2, 4, 8, 16, 32, 64)
#: Boxes beyond this are asked for their bound alone.
MOST_BOXES = 32
COLLECTIVES = (
    CollectiveName.ALLGATHER,
    CollectiveName.REDUCE_SCATTER,
    CollectiveName.ALLREDUCE,
    CollectiveName.ALLTOALL,
    CollectiveName.BROADCAST,
    CollectiveName.REDUCE,
)


class Cost(NamedTuple):
    """What a process took: wall-clock seconds, seconds of all cores, and its largest resident set in MB."""

    wall_s: float
    cpu_s: float
    peak_mb: float


class Answer(NamedTuple):
    """The answer for one cluster: its strategy, chunks a rank, and shares of the bound by schedule and by time."""

    strategy: str
    chunks: int
    schedule: float
    time: float


def answered(topology: Topology, collective: CollectiveName) -> Answer:
    """One file for 1 GB, by default options."""
    request = Request(topology=topology, collective=collective, min_bytes=GB, max_bytes=GB, jobs=available_cores())
    result = synthesize(request)
    size, file = result.sizes[-1], result.files[-1]
    return Answer(file.strategy, file.chunks_per_rank, size.bound_us / size.schedule_us, size.efficiency)


def bounded(topology: Topology, collective: CollectiveName) -> float:
    """The bound at 1 GB, in us."""
    ranks = topology.num_ranks
    chunks = ranks if collective in SHARED else 1
    asked = Collective(collective, ranks, chunks, root_of(collective, None, None))
    return bound_of(topology, asked, find_paths(topology)).time_us(GB)


def measured(machine: str, boxes: int, collective: CollectiveName) -> tuple[Answer | float, Cost]:
    """In a process of its own: the answer, or beyond MOST_BOXES the bound, and what it took."""
    topology = replicate(load_topology(machine), boxes)
    began = time.perf_counter()
    answer = answered(topology, collective) if boxes <= MOST_BOXES else bounded(topology, collective)
    wall_s = time.perf_counter() - began
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime
    return answer, Cost(wall_s, cpu_s, max(own.ru_maxrss, children.ru_maxrss) / 1024)


def table(machine: str, boxes: Sequence[int]) -> None:
    """Print the table of one machine."""
    context = multiprocessing.get_context("spawn")
    print("| GPUs | collective | answer | chunks | schedule | simulated | seconds | seconds of all cores | MB |")
    print("|---|---|---|---|---|---|---|---|---|")
    for count in boxes:
        for collective in COLLECTIVES:
            with ProcessPoolExecutor(1, mp_context=context) as pool:
                answer, cost = pool.submit(measured, machine, count, collective).result()
            spent = f"{cost.wall_s:.1f} | {cost.cpu_s:.1f} | {cost.peak_mb:.0f}"
            ranks = count * load_topology(machine).num_ranks
            if isinstance(answer, Answer):
                shares = f"{answer.schedule:.1%} | {answer.time:.1%}"
                print(
                    f"| {ranks} | {collective} | {answer.strategy} | {answer.chunks} | {shares} | {spent} |", flush=True
                )
            else:
                print(f"| {ranks} | {collective} | bound alone, {answer:.1f} us | | | | {spent} |", flush=True)


def main(arguments: Sequence[str]) -> int:
    """Print the table of the machine asked for."""
    machine, *boxes = arguments or ["dgx-a100"]
    table(machine, [int(count) for count in boxes] or BOXES)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
