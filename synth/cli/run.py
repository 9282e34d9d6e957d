"""`synth run FILE`: execute a file with real data in real processes, check every element, and print what nccl-tests prints."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from synth.cli import output, params
from synth.cli.run_place import check_options, placement_of, start, under_torchrun
from synth.collective import ROOTED, CollectiveName
from synth.errors import InputError, SynthError, UsageError

if TYPE_CHECKING:
    from msccl_xml.model import Algo
    from synth.collective import Collective
    from synth.execute import Job, Measured

STDIN = "-"
DEFAULT_SIZES = (1 << 10, 1 << 20)
BACKENDS = ("gloo", "nccl", "cuda", "host")
PLACEMENTS = ("virtual", "processes")
_RUNTIMES = ("msccl", "executor", "rccl")


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the verb, as click hands them over."""

    file: str
    backend: str
    placement: str | None
    size: int | None
    sizes: tuple[int, int] | None
    dtype: str
    op: str
    collective: str | None
    root: int | None
    iters: int
    warmup: int
    no_check: bool
    no_verify: bool
    compare: bool
    calibrate: str | None
    patience: float
    tile: int | None
    shake: int | None
    as_json: bool
    debug: bool


@click.command(short_help="Execute a file and check its results.")
@click.argument("file", metavar="FILE")
@click.option(
    "--backend", type=click.Choice(BACKENDS), default="gloo", show_default=True, help="What carries the data."
)
@click.option(
    "--placement",
    type=click.Choice(PLACEMENTS),
    help="Where cuda and host have the ranks: all on one GPU (virtual), or a process for each. [as many GPUs as ranks: processes]",
)
@click.option("--size", callback=params.size, metavar="SIZE", help="One buffer size, such as 64MB.")
@click.option("--sizes", callback=params.size_range, metavar="LOW:HIGH", help="Doublings of a range. [1KB:1MB]")
@click.option("--dtype", default="float", show_default=True, metavar="TYPE", help="Type of the elements.")
@click.option(
    "--op",
    type=click.Choice(("sum", "prod", "min", "max", "avg")),
    default="sum",
    show_default=True,
    help="The reduction, where the collective combines.",
)
@click.option(
    "--collective", type=click.Choice([name.value for name in CollectiveName]), help="What the file computes."
)
@click.option("--root", type=int, metavar="RANK", help="Its root, where it has one. [found from the file]")
@click.option(
    "--iters", callback=params.whole_from(1), default="20", show_default=True, metavar="N", help="Timed calls."
)
@click.option(
    "--warmup", callback=params.whole_from(0), default="5", show_default=True, metavar="N", help="Calls before."
)
@click.option("--no-check", is_flag=True, help="Time only: look at no element.")
@click.option("--no-verify", is_flag=True, help="Run what `synth verify` refuses, too.")
@click.option("--compare", is_flag=True, help="Time torch's own collective beside it; of virtual ranks, a copy.")
@click.option("--calibrate", metavar="FOLDER", help="Measure virtual ranks, for `synth simulate --calibration`.")
@click.option(
    "--patience",
    callback=params.seconds,
    default="30",
    show_default=True,
    metavar="S",
    help="Stillness taken for a hang.",
)
@click.option("--tile", callback=params.size, metavar="SIZE", help="What one transfer moves. [the protocol's]")
@click.option("--shake", callback=params.whole_from(0), metavar="SEED", help="Make threadblocks dawdle, to show races.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
@click.option("--debug", is_flag=True, help="Show the traceback of a failure.")
def run(**given: Any) -> int:
    """Execute a file with real data in real processes, and check every element.

    FILE is MSCCL XML from anywhere; - reads standard input. One process a rank is started here, or taken from torchrun. Ends in 1
    if an element is wrong.
    """
    options = Options(**given)
    from synth.execute import HangError

    try:
        check_options(options)
        if under_torchrun(options):
            return _run_in_rank(options)
        job = job_of(options)
        return _tell(options, job, start(options, job), placement_of(options, job))
    except HangError as error:
        output.print_lines([f"  {line}" for line in error.waits])
        raise


def job_of(options: Options, processes: int | None = None) -> Job:
    """Everything that a run needs, read and checked; `processes` is how many there are, None where they are still to be started.

    Raises InputError or UsageError in one line where something is off.
    """
    from synth.chunks import element_count, range_sizes
    from synth.execute import Job
    from synth.execute.arithmetic import element_bytes, type_name
    from synth.execute.program import check_algo

    if options.size is not None and options.sizes is not None:
        raise UsageError("--size and --sizes exclude each other")
    dtype = type_name(options.dtype)
    algo = _read_algo(options.file)
    check_algo(algo, options.file)
    if processes is not None and algo.ngpus != processes:
        raise InputError(options.file, "ngpus", algo.ngpus, f"{processes}, the number of processes")
    promise = _promise(options, algo)
    if options.op != "sum" and not promise.combining:
        raise UsageError(f"--op: {promise.name} combines nothing")
    if promise.group is not None:
        _check_group(options)
    if not options.no_verify:
        _verify(options.file, algo, promise)
    low, high = (options.size, options.size) if options.size is not None else options.sizes or DEFAULT_SIZES
    sizes = range_sizes(low, high)
    moved = [size for size in sizes if element_count(promise.name, algo.ngpus, size, element_bytes(dtype))]
    if not moved:
        given = "--size" if options.size is not None else "--sizes"
        raise InputError(
            given, "", high, f"at least {_least(promise, element_bytes(dtype))} bytes: an element for each rank"
        )
    return Job(
        algo=algo,
        promise=promise,
        sizes=tuple(moved),
        dtype=dtype,
        op=options.op,
        backend=options.backend,
        iterations=options.iters,
        warmup=options.warmup,
        check=not options.no_check,
        rival=options.compare,
        tile_bytes=options.tile,
        shake=options.shake,
    )


def _check_group(options: Options) -> None:
    """UsageError for what a file of some of the ranks cannot be asked."""
    if options.op == "avg":
        raise UsageError("--op: avg divides by all ranks, and in this file a group of them takes part")
    if options.compare:
        raise UsageError(
            "--compare: torch's own collective is of all ranks, and in this file a group of them takes part"
        )


def _least(promise: Collective, element_bytes: int) -> int:
    """The smallest buffer of which every rank gets something."""
    from synth.chunks import SHARE_ALIGNMENT_BYTES
    from synth.collective import SHARED

    return promise.num_ranks * max(SHARE_ALIGNMENT_BYTES, element_bytes) if promise.name in SHARED else element_bytes


def _run_in_rank(options: Options) -> int:
    """This process is one rank of many: rank 0 prints the figures; of a failure, the rank that met it first."""
    from synth.execute.elastic import Elastic

    if importlib.util.find_spec("torch") is None:
        from synth.execute.communicator import NEEDS_TORCH

        raise SynthError(NEEDS_TORCH)
    with Elastic(options.patience) as elastic:
        job, rows = elastic.run(lambda world: job_of(options, world), options.backend)
        if job is None or rows is None:
            return 1
        if elastic.rank:
            return _code(rows)
        return _tell(options, job, rows, "processes")


def _tell(options: Options, job: Job, rows: list[Measured], placement: str) -> int:
    from synth.cli.run_text import Header, remarks_of, run_json, run_text

    header = Header(options.file, options.backend, job.promise, job.dtype, job.op, placement)
    document = (run_json if options.as_json else run_text)(header, rows, remarks_of(header, rows))
    output.print_result(document)
    return _code(rows)


def _code(rows: list[Measured]) -> int:
    return int(any(half.wrong for row in rows for half in (row.out_of_place, row.in_place) if half is not None))


def _read_algo(path: str) -> Algo:
    from synth.execute.api import parse_file, read_file

    return parse_file(path, sys.stdin.buffer.read()) if path == STDIN else read_file(path)


def _promise(options: Options, algo: Algo) -> Collective:
    """What the file is to compute: as the user says, else as it says itself; a root that nobody names is found."""
    from dataclasses import replace

    from synth.collective import Collective
    from synth.group import group_of
    from synth.verify import VerifyError, infer_collective

    name = None if options.collective is None else CollectiveName(options.collective)
    if name is not None and name not in ROOTED and options.root is not None:
        raise UsageError(f"--root: {name} has no root")
    try:
        if name is None:
            return infer_collective(algo, root=options.root)
        if name in ROOTED:
            return infer_collective(replace(algo, coll=name.value), root=options.root)
    except VerifyError as error:
        raise SynthError(f"{options.file}: {error.problem}") from None
    return Collective(name, algo.ngpus, algo.nchunksperloop, group=group_of(algo))


def _verify(path: str, algo: Algo, promise: Collective) -> None:
    """Raise SynthError where no runtime would get the right result out of the file."""
    from synth.verify import VerifyError, verify_algo

    refusal: VerifyError | None = None
    for runtime in _RUNTIMES:
        try:
            verify_algo(algo, promise, runtime=runtime, strict=False)
            return
        except VerifyError as error:
            refusal = refusal or error
    if refusal is not None:
        raise SynthError(f"{path}: synth verify refuses it: {refusal.problem} (--no-verify runs it all the same)")
