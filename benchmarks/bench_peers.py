"""What synth reaches beside its peers and beside the machines' own limits: the tables of docs/peers.md.

    python -m benchmarks.bench_peers targets ../shared/peers          rows of a targets.csv, by exact schedule
    python -m benchmarks.bench_peers allreduce ../shared/peers        allreduces on the same instances, by exact schedule
    python -m benchmarks.bench_peers meshes [SIDE ...]                allreduces on larger meshes, by exact schedule
    python -m benchmarks.bench_peers tori [SIDExSIDE... ...]          copies and sums on tori and hypercubes, by exact schedule
    python -m benchmarks.bench_peers machines [NAME[*NODES] ...]      catalogue machines at 1 GB, by simulated time
    python -m benchmarks.bench_peers rooted [NAME[*NODES] ...]        the same from one rank and to one, beside rings and trees
    python -m benchmarks.bench_peers sizes [NAME[*NODES] ...]         1 KB to 64 MB, each asked for alone, by simulated time
    python -m benchmarks.bench_peers alone [NAME[*NODES] ...]         beside rings and trees, each size asked for alone
    python -m benchmarks.bench_peers dumps ../shared/real [NAME ...]  the same for machines from the wild, and their 1 GB
    python -m benchmarks.bench_peers ratios out/nightly/history.sqlite   the same over ranges, from the nightly job's last run

Each prints a table in Markdown. Seconds are wall clock of one request, search to verified files, imports left out.
"""

from __future__ import annotations

import csv
import itertools
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.intake_table import files, hints_for, read
from synth.baselines import RIVALS
from synth.bench.measure import times_if_any
from synth.bench.store import Store
from synth.collective import CollectiveName
from synth.errors import InputError
from synth.inputs.load import load_topology
from synth.paths import find_paths, meeting
from synth.pipeline import available_cores, synthesize
from synth.request import Request, Result
from synth.rivals import Rivals
from synth.topology import Device, DeviceKind, Link, Topology, replicate
from synth.units import format_size

GB = 1 << 30
MACHINES = (
    "dgx1",
    "ndv2",
    "ndv2*2",
    "ndv2*4",
    "dgx2",
    "dgx2*2",
    "dgx-a100",
    "dgx-a100*2",
    "dgx-a100*4",
    "dgx-h100",
    "dgx-h100*2",
    "dgx-h100*4",
    "mi250",
    "mi250*2",
    "mi300x",
    "pcie-2x2-nvlink",
    "pcie8-1nic",
    "mesh-4x4",
    "mesh-3x3",
    "torus-3x3",
)
COLLECTIVES = ("allgather", "reduce-scatter", "allreduce", "alltoall")
ROOTED = ("broadcast", "reduce")
_RATIO_HEAD = (
    "| machine | cases with a ring or tree | geometric mean | least | where |",
    "|---|---|---|---|---|",
)
_GRAPH_HEAD = (
    "| graph | collective | bytes | bound, us | schedule, of the bound | simulated, of the bound | seconds |",
    "|---|---|---|---|---|---|---|",
)
#: Sizes that are asked for alone.
_ALONE = (64 << 10, 1 << 20, 8 << 20, 64 << 20)
#: The same of many machines.
_DUMPED = (64 << 10, 1 << 20, 16 << 20, GB)
#: Sizes and collectives whose answers are shown one by one.
_SHOWN = (1 << 10, 16 << 10, 256 << 10, 4 << 20, 64 << 20)
_MESHED = (1 << 20, 16 << 20, GB)
_SHOWN_COLLECTIVES = ("allgather", "allreduce", "alltoall")


def answer(
    topology: Topology, collective: str, size: int, objective: str, limit_s: float = 60.0
) -> tuple[Result, float]:
    """One request by default options but these, and the seconds that it took."""
    request = Request(
        topology=topology,
        collective=CollectiveName(collective),
        min_bytes=size,
        max_bytes=size,
        time_limit_s=limit_s,
        objective=objective,
        jobs=available_cores(),
    )
    began = time.perf_counter()
    result = synthesize(request)
    return result, time.perf_counter() - began


def targets(folder: Path) -> Iterator[str]:
    """A line for every row of the folder's targets.csv."""
    yield "| instance | collective | bytes | best of peers, us | by, seconds | bound, us | synth, us | of the best | seconds |"
    yield "|---|---|---|---|---|---|---|---|---|"
    with open(folder / "targets.csv", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            topology = load_topology(str(folder / "instances" / f"{row['instance']}.json"))
            size, best_us = int(row["buffer_bytes"]), float(row["best_us"])
            result, seconds = answer(topology, row["collective"], size, "schedule")
            (line,) = result.sizes
            by = f"{row['best_by']}, {float(row['best_solve_seconds']):.3g}"
            yield (
                f"| {row['instance']} | {row['collective']} | {size} | {best_us:g} | {by} | {line.bound_us:.4g} "
                f"| {line.schedule_us:.5g} | {line.schedule_us / best_us:.3f} | {seconds:.1f} |"
            )


def allreduces(folder: Path) -> Iterator[str]:
    """A line for every instance of a folder of peers' and size below 1 GB: an allreduce, of which peers publish hardly any. Without
    latency all sizes are alike, and the largest stands for them.
    """
    yield "| instance | bytes | bound, us | synth, us | of the bound | strategy | seconds |"
    yield "|---|---|---|---|---|---|---|"
    for path in sorted((folder / "instances").glob("*.json")):
        topology = load_topology(str(path))
        for size in _SHOWN if any(link.alpha_us for link in topology.links) else _SHOWN[-1:]:
            result, seconds = answer(topology, "allreduce", size, "schedule")
            (line,), (file,) = result.sizes, result.files
            share = f"{line.bound_us:.4g} | {line.schedule_us:.4g} | {line.bound_us / line.schedule_us:.3f}"
            yield f"| {path.stem} | {size} | {share} | {file.strategy} | {seconds:.1f} |"


def meshes(sides: Sequence[int]) -> Iterator[str]:
    """A line for every square mesh, of as many ranks a side, and size: an allreduce in the default time."""
    yield from _GRAPH_HEAD
    for side in sides:
        for size in _MESHED:
            yield _graph_line(_grid((side, side), 50.0, 0.2, wraps=False), "allreduce", size)


def tori(shapes: Sequence[str]) -> Iterator[str]:
    """A line for every torus (8x8; sides of 2 are a hypercube's), collective and size, of 50 GB/s and 0.5 us a link."""
    yield from _GRAPH_HEAD
    for shape in shapes:
        grid = _grid([int(side) for side in shape.split("x")], 50.0, 0.5, wraps=True)
        for collective in ("allgather", "allreduce"):
            for size in _MESHED:
                yield _graph_line(grid, collective, size)


def _graph_line(topology: Topology, collective: str, size: int) -> str:
    bound_us, shares, _, seconds = _beside_bound(topology, collective, size, "auto", limit_s=30.0)
    return f"| {topology.name} | {collective} | {size} | {bound_us:.4g} | {shares} | {seconds:.1f} |"


def _grid(sides: Sequence[int], GBps: float, alpha_us: float, *, wraps: bool) -> Topology:
    """Ranks in rows of so many along each dimension, neighbours joined; with `wraps`, rows of more than two are rings."""
    places = list(itertools.product(*map(range, sides)))
    numbers = {place: number for number, place in enumerate(places)}
    pairs = set()
    for dimension, side in enumerate(sides):
        for place in places:
            along = place[dimension] + 1
            if along < side or (wraps and side > 2):
                beside = (*place[:dimension], along % side, *place[dimension + 1 :])
                pairs |= {(numbers[place], numbers[beside]), (numbers[beside], numbers[place])}
    gpus = tuple(Device(f"gpu{rank}", DeviceKind.GPU, rank=rank) for rank in numbers.values())
    links = tuple(Link(f"gpu{a}", f"gpu{b}", "direct", GBps, alpha_us) for a, b in sorted(pairs))
    return Topology(f"{'torus' if wraps else 'mesh'}-{'x'.join(map(str, sides))}", gpus, links)


def machines(names: Sequence[str]) -> Iterator[str]:
    """A line for every machine and collective at 1 GB."""
    yield "| machine | collective | bound GB/s | schedule, of the bound | simulated, of the bound | seconds |"
    yield "|---|---|---|---|---|---|"
    for name, topology, collective in _cases(names, COLLECTIVES):
        bound_us, shares, _, seconds = _beside_bound(topology, collective, GB)
        yield f"| {name} | {collective} | {GB / bound_us / 1e3:.2f} | {shares} | {seconds:.1f} |"


def rooted(names: Sequence[str]) -> Iterator[str]:
    """A line for every machine and collective with a root at 1 GB, with how much faster than the better of ring and tree it is."""
    yield "| machine | collective | bound GB/s | schedule, of the bound | simulated, of the bound | of ring and tree | seconds |"
    yield "|---|---|---|---|---|---|---|"
    for name, topology, collective in _cases(names, ROOTED):
        best_us = _of_rivals(Rivals(topology, CollectiveName(collective)), GB)
        bound_us, shares, taken_us, seconds = _beside_bound(topology, collective, GB)
        ratio = _ratio_cell(best_us, taken_us)
        yield f"| {name} | {collective} | {GB / bound_us / 1e3:.2f} | {shares} | {ratio} | {seconds:.1f} |"


def sizes(names: Sequence[str]) -> Iterator[str]:
    """A line for every machine, collective and size below 1 GB, each asked for alone."""
    yield "| machine | collective | size | us | schedule, of the bound | simulated, of the bound | of ring and tree | seconds |"
    yield "|---|---|---|---|---|---|---|---|"
    for name, topology, collective in _cases(names, _SHOWN_COLLECTIVES):
        rivals = Rivals(topology, CollectiveName(collective))
        for size in _SHOWN:
            best_us = _of_rivals(rivals, size)
            _, shares, taken_us, seconds = _beside_bound(topology, collective, size)
            what = f"{name} | {collective} | {format_size(size)} | {taken_us:.4g}"
            yield f"| {what} | {shares} | {_ratio_cell(best_us, taken_us)} | {seconds:.1f} |"


def _cases(names: Sequence[str], collectives: Sequence[str]) -> Iterator[tuple[str, Topology, str]]:
    """Every machine, by the name that it was asked for by, with each of the collectives."""
    for name in names:
        topology = _machine(name)
        for collective in collectives:
            yield name, topology, collective


def _beside_bound(
    topology: Topology, collective: str, size: int, objective: str = "time", limit_s: float = 60.0
) -> tuple[float, str, float, float]:
    """Of the answer for one size the bound in us and the shares of it, by schedule and simulated, as cells; its time in us, and the
    seconds that it took to find.
    """
    result, seconds = answer(topology, collective, size, objective, limit_s)
    (line,) = result.sizes
    shares = f"{line.bound_us / line.schedule_us:.3f} | {line.bound_us / line.time_us:.3f}"
    return line.bound_us, shares, line.time_us, seconds


def _ratio_cell(rival_us: float, taken_us: float) -> str:
    """How much faster than a rival, if there is one, as a cell."""
    return f"{rival_us / taken_us:.3f}" if rival_us < math.inf else "none"


def _of_rivals(rivals: Rivals, size: int) -> float:
    """The better of ring and tree, in us; infinite where there is neither."""
    return min(times_if_any(rivals, name, [size]).get(size, math.inf) for name in RIVALS)


def _machine(name: str) -> Topology:
    base, _, nodes = name.partition("*")
    return replicate(load_topology(base), int(nodes or 1))


def alone(names: Sequence[str]) -> Iterator[str]:
    """A line for every machine: how much faster than the better of ring and tree, each size asked for alone, by simulated time."""
    yield from _RATIO_HEAD
    for name in names:
        yield _ratio_line(name, _ratios_alone(_machine(name), _ALONE))


def dumps(folder: Path, names: Sequence[str]) -> Iterator[str]:
    """A line for every machine of a folder of dumps (intake_table.py), of those whose GPUs are joined alike for the first: the
    shares of the limit at 1 GB, simulated, and how much faster it is than the better of ring and tree, each size asked for alone.
    With `names`, those alone.
    """
    yield "| machine | GPUs | allgather | reduce-scatter | allreduce | alltoall | cases | geometric mean | least | where |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    seen = set()
    for topology in _dumped(folder):
        paths = find_paths(topology)
        joined = tuple((path.src, path.dst, path.GBps, path.alpha_us) for path in paths), tuple(meeting(paths))
        if topology.num_ranks < 2 or joined in seen:
            continue
        seen.add(joined)
        if names and topology.name not in names:
            continue
        largest = {each: answer(topology, each, GB, "time")[0].sizes[0] for each in COLLECTIVES}
        shares = " | ".join(f"{row.efficiency:.3f}" for row in largest.values())
        taken_us = {(collective, GB): row.time_us for collective, row in largest.items()}
        ratios = _ratio_line("", _ratios_alone(topology, _DUMPED, taken_us)).removeprefix("|  | ")
        yield f"| {topology.name} | {topology.num_ranks} | {shares} | {ratios}"


def _dumped(folder: Path) -> Iterator[Topology]:
    """What the dumps of a folder are read as, those that need hints with these."""
    for path in files(folder):
        try:
            yield read(path).topology
        except InputError:
            if (hints := hints_for(path)) is not None:
                yield read(path, hints).topology


def _ratios_alone(
    topology: Topology, asked: Sequence[int], known_us: Mapping[tuple[str, int], float] | None = None
) -> list[tuple[float, str]]:
    """How much faster than the better of ring and tree, where there is one, and at what, each of the sizes asked for alone; what is
    known of these, by collective and size, is not asked for again.
    """
    found = []
    known_us = known_us or {}
    for collective in COLLECTIVES:
        rivals = Rivals(topology, CollectiveName(collective))
        for size in asked:
            best_us = _of_rivals(rivals, size)
            if best_us < math.inf:
                taken_us = (
                    known_us.get((collective, size)) or answer(topology, collective, size, "time")[0].sizes[0].time_us
                )
                found.append((best_us / taken_us, f"{collective}, {format_size(size)}"))
    return found


def ratios(path: Path) -> Iterator[str]:
    """A line for every machine of a store's last run: how much faster than the better of ring and tree."""
    yield from _RATIO_HEAD
    with Store(str(path)) as store:
        records = store.records(store.runs()[-1]).values()
    by_machine: dict[str, list[tuple[float, str]]] = {}
    for record in records:
        if record.baselines_us and record.time_us:
            ratio = min(record.baselines_us.values()) / record.time_us
            where = f"{record.collective}, {format_size(record.bytes)}"
            by_machine.setdefault(record.machine, []).append((ratio, where))
    for machine, found in by_machine.items():
        yield _ratio_line(machine, found)


def _ratio_line(machine: str, found: Sequence[tuple[float, str]]) -> str:
    mean = math.exp(sum(math.log(ratio) for ratio, _ in found) / len(found))
    least, where = min(found)
    return f"| {machine} | {len(found)} | {mean:.2f} | {least:.2f} | {where} |"


def main() -> None:
    """Print the table that the command line names, line by line as it comes."""
    match sys.argv[1:]:
        case ["targets", folder]:
            lines = targets(Path(folder))
        case ["allreduce", folder]:
            lines = allreduces(Path(folder))
        case ["meshes", *sides]:
            lines = meshes([int(side) for side in sides] or (5, 6, 8))
        case ["tori", *shapes]:
            lines = tori(shapes or ("8x8", "4x4x4", "2x2x2x2x2x2"))
        case ["machines", *names]:
            lines = machines(names or MACHINES)
        case ["rooted", *names]:
            lines = rooted(names or MACHINES)
        case ["sizes", *names]:
            lines = sizes(names or MACHINES)
        case ["alone", *names]:
            lines = alone(names or MACHINES)
        case ["dumps", folder, *names]:
            lines = dumps(Path(folder), names)
        case ["ratios", store]:
            lines = ratios(Path(store))
        case _:
            raise SystemExit(__doc__)
    for line in lines:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
