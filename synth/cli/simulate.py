"""`synth simulate FILE --topo T`: how long a file takes on a machine, run as the interpreter runs it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import click

from synth.cli import output, params
from synth.cli.machine import MachineOptions, load_machine
from synth.cli.options import takes_machine
from synth.errors import InputError, NoAnswerError, SynthError, UsageError
from synth.group import group_text

if TYPE_CHECKING:
    from msccl_xml.model import Algo
    from synth.bounds import Bound
    from synth.cli.simulate_text import SizeRow
    from synth.collective import Collective
    from synth.paths import Path
    from synth.rivals import Rivals
    from synth.simulate import Simulator
    from synth.topology import Topology

STDIN = "-"
DEFAULT_SIZES = (1 << 10, 1 << 30)


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the verb, as click hands them over."""

    file: str
    topo: str
    machine: MachineOptions
    nodes: int | None
    ranks: tuple[int, ...] | None
    size: int | None
    sizes: tuple[int, int] | None
    root: int | None
    calibration: str | None
    against: str | None
    full: bool
    as_json: bool
    trace: str | None
    plot: str | None
    debug: bool


@click.command(short_help="Say how long a file takes on a machine.")
@click.argument("file", metavar="FILE")
@click.option("--topo", required=True, metavar="FILE|NAME", help="The machine: a file, or a name of `synth topo list`.")
@click.option("--nodes", callback=params.whole_from(1), metavar="N", help="Copies of a one-node machine. [1]")
@click.option("--ranks", callback=params.ranks, metavar="R,R,...", help="Only these GPUs, in this order. [all]")
@click.option("--size", callback=params.size, metavar="SIZE", help="One buffer size, such as 64MB.")
@click.option("--sizes", callback=params.size_range, metavar="LOW:HIGH", help="Doublings of a range. [1KB:1GB]")
@click.option("--root", type=int, metavar="RANK", help="The root, where the collective has one. [found from the file]")
@click.option("--calibration", metavar="FILE", help="JSON of figures to use instead of the built-in ones.")
@click.option("--against", metavar="NAME,...", help="Also time these baselines, and print the speed-up over each.")
@click.option("--full", is_flag=True, help="Run every tile, however alike they are.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
@click.option("--trace", metavar="OUT.json", help="Write a Chrome or Perfetto trace of the largest size.")
@click.option("--plot", metavar="OUT.svg", help="Draw bandwidth against size, and who is busy when.")
@click.option("--debug", is_flag=True, help="Show the traceback of a failure.")
def simulate(**given: Any) -> int:
    """Say how long a file takes on a machine, run as the interpreter runs it.

    FILE is MSCCL XML from anywhere; - reads standard input. Times, with launch, are printed as nccl-tests does.
    """
    run(Options(machine=MachineOptions.taken(given), **given))
    return 0


takes_machine(simulate)


def run(options: Options) -> None:
    """Read, simulate, print, write. The command line and the inputs are checked before the work, and where pictures are to go."""
    from synth.chunks import range_sizes
    from synth.cli.against import names_of, remarks
    from synth.cli.atomic import write_all
    from synth.cli.simulate_text import rows_json, rows_text
    from synth.inputs.load import at_fault

    if options.size is not None and options.sizes is not None:
        raise UsageError("--size and --sizes exclude each other")
    low, high = (options.size, options.size) if options.size is not None else options.sizes or DEFAULT_SIZES
    against = names_of(options.against)
    _check_targets(options)
    algo = _read_algo(options.file)
    _check_extent(algo, options.file)
    topology = load_machine(options.topo, options.nodes, options.ranks, options.machine)
    try:
        run = Run.of(options, algo, topology, against)
        rows = run.rows(range_sizes(low, high))
        pictures = run.pictures(rows)
        told = remarks(rows, run.bound if against else None)
    except SynthError as error:
        raise at_fault(_in_file(error, algo, options.file), topology, options.topo) from error
    write_all(pictures)
    document = rows_json(rows, options.file, topology.name, told)
    output.print_result(document if options.as_json else rows_text(rows, run.collective, told))


@dataclass(frozen=True)
class Run:
    """A file on a machine, with what it is to be compared with; `collective` is None where the file does not tell it."""

    options: Options
    algo: Algo
    topology: Topology
    paths: tuple[Path, ...]
    collective: Collective | None
    simulator: Simulator
    against: tuple[str, ...]
    rivals: Rivals | None

    @classmethod
    def of(cls, options: Options, algo: Algo, topology: Topology, against: tuple[str, ...]) -> Run:
        """Raises InputError where file, machine and options do not go together."""
        from synth.paths import find_paths
        from synth.rivals import Rivals
        from synth.simulate import Constants, Simulator, paths_by_pair, read_calibration

        constants = Constants.for_topology(topology)
        if options.calibration is not None:
            constants = read_calibration(_read_text(options.calibration), options.calibration, constants)
        Simulator(algo, topology)  # the number of GPUs, before any work
        collective = _collective(algo, options.root)
        paths, by_pair = find_paths(topology, collective), paths_by_pair(topology)
        simulator = Simulator(algo, topology, constants, options.full, by_pair)
        if not against:
            return cls(options, algo, topology, paths, collective, simulator, (), None)
        if collective is None:
            raise InputError(options.file, "coll", algo.coll, "a collective that baselines exist for, with --against")
        if collective.group is not None:
            raise InputError(
                options.file, "group", group_text(collective.group), "all ranks, with --against: baselines are of all"
            )
        rivals = Rivals(topology, collective.name, collective.root or 0, constants, paths, by_pair)
        return cls(options, algo, topology, paths, collective, simulator, against, rivals)

    def rows(self, sizes: Sequence[int]) -> list[SizeRow]:
        """The lines of ascending sizes."""
        from synth.cli.simulate_text import SizeRow, count_of

        factor = 1.0 if self.collective is None else self.collective.busbw_factor()
        against = {} if self.rivals is None else {name: self.rivals.times_us(name, sizes) for name in self.against}
        rows = []
        for size in sizes:
            time_us, note = self._timed(size)
            others = {name: times[size] for name, times in against.items()}
            rows.append(SizeRow(size, count_of(self.collective, self.algo.ngpus, size), time_us, factor, note, others))
        return rows

    def _timed(self, size: int) -> tuple[float | None, str | None]:
        """The time at a size and why a runtime would leave the file out there, which the file may rely on for not to hang."""
        from synth.cli.simulate_text import why_not_chosen

        hang = None
        try:
            time_us = self.simulator.time_us(size)
        except NoAnswerError as error:
            hang = error
        note = why_not_chosen(self.algo, self.collective, size)
        if hang is None:
            return time_us, note
        if note is None:
            raise hang
        return None, f"{note}; it would hang"

    @cached_property
    def bound(self) -> Bound | None:
        """What no algorithm can beat; None where the file does not tell its collective."""
        from synth.bounds import bound_of

        return None if self.collective is None else bound_of(self.topology, self.collective, self.paths)

    def pictures(self, rows: list[SizeRow]) -> dict[str, str]:
        """The texts of --trace and --plot by path, both of the largest size that the file does not hang at."""
        from synth.simulate.plot import Busy, Curve, plot_svg
        from synth.simulate.trace import trace_json

        options = self.options
        if options.trace is None and options.plot is None:
            return {}
        size = max((row.bytes for row in rows if row.time_us is not None), default=rows[-1].bytes)
        trace = self.simulator.trace(size)
        texts = {}
        if options.trace is not None:
            texts[options.trace] = trace_json(self.algo, trace, size)
        if options.plot is not None:
            points = [(row.bytes, row.busbw_GBps, self._bound_GBps(row)) for row in rows if row.busbw_GBps is not None]
            title = f"{self.algo.name or self.algo.coll} ({self.algo.proto}) on {self.topology.name}"
            texts[options.plot] = plot_svg(Curve(title, points), Busy.of(self.algo, size, trace))
        return texts

    def _bound_GBps(self, row: SizeRow) -> float | None:
        """The bus bandwidth of the bound at a row's size."""
        from synth.units import bandwidth_GBps

        if self.bound is None or self.bound.time_us(row.bytes) <= 0:
            return None
        return bandwidth_GBps(row.bytes, self.bound.time_us(row.bytes)) * row.factor


def _collective(algo: Algo, root: int | None) -> Collective | None:
    """What the file claims to be; None where it does not say, which leaves times as they are and busbw equal to algbw."""
    from synth.verify import VerifyError, infer_collective

    try:
        return infer_collective(algo, root=root)
    except (InputError, VerifyError):
        if root is not None:
            raise
        return None


def _check_targets(options: Options) -> None:
    from synth.cli.atomic import check_writable

    targets = [path for path in (options.trace, options.plot) if path is not None]
    for path in targets:
        if path in ("", STDIN):
            raise UsageError("--trace and --plot take a path; standard output carries the figures")
        check_writable(path)
    if len(targets) == 2 and targets[0] == targets[1]:
        raise UsageError(f"--trace and --plot both name {targets[0]}")


def _read_algo(path: str) -> Algo:
    """The algorithm of a file, or of standard input; SynthError in one line where there is none."""
    from msccl_xml.errors import XmlError
    from msccl_xml.read import read_algo

    try:
        return read_algo(_read(path))
    except XmlError as error:
        raise SynthError(" ".join(f"{path}: {error}".split())) from error


def _check_extent(algo: Algo, path: str) -> None:
    """No runtime reads more of a rank than this: a file with a million steps is told at once, not run for hours."""
    from msccl_xml.limits import LIMITS

    most = max(limits.nodes for limits in LIMITS.values())
    for gpu in algo.gpus:
        elements = 1 + len(algo.gpus) + sum(1 + len(tb.steps) for tb in gpu.threadblocks)
        if elements > most:
            raise InputError(path, f"gpu {gpu.id}", elements, f"at most {most} elements, as its rank reads the file")


def _read(path: str) -> bytes:
    try:
        if path == STDIN:
            return sys.stdin.buffer.read()
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise SynthError(f"{path}: cannot be read: {error.strerror or error}") from error


def _read_text(path: str) -> str:
    try:
        return _read(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise SynthError(f"{path}: cannot be read: not UTF-8 text (byte {error.start})") from error


def _in_file(error: SynthError, algo: Algo, path: str) -> SynthError:
    """The error, told of the file where it names the algorithm in it."""
    if isinstance(error, InputError) and error.source == (algo.name or "algo"):
        return InputError(path, error.field, error.value, error.expected)
    return error
