"""`synth run FILE`: execute a file with real data in real processes, check every element, and print what nccl-tests prints."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from synth.cli import output, params
from synth.collective import ROOTED, CollectiveName
from synth.errors import InputError, SynthError, UsageError

if TYPE_CHECKING:
    from msccl_xml.model import Algo
    from synth.collective import Collective
    from synth.execute import Job, Measured

STDIN = "-"
DEFAULT_SIZES = (1 << 10, 1 << 20)
BACKENDS = ("gloo", "nccl", "cuda", "host")
#: Those that run through torch.distributed; the others are synth's own interpreter.
_TORCH = ("gloo", "nccl")
_RUNTIMES = ("msccl", "executor", "rccl")


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the verb, as click hands them over."""

    file: str
    backend: str
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
@click.option("--compare", is_flag=True, help="Time torch's own collective beside it.")
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
        if options.backend in _TORCH and _under_torchrun():
            return _run_in_rank(options)
        job = job_of(options)
        return _tell(options, job, _start(options, job))
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


def _least(promise: Collective, element_bytes: int) -> int:
    """The smallest buffer of which every rank gets something."""
    from synth.chunks import SHARE_ALIGNMENT_BYTES
    from synth.collective import SHARED

    return promise.num_ranks * max(SHARE_ALIGNMENT_BYTES, element_bytes) if promise.name in SHARED else element_bytes


def _start(options: Options, job: Job) -> list[Measured]:
    """Run on this machine, in processes of our own."""
    from synth.execute import Pool, measure
    from synth.execute.communicator import NEEDS_TORCH

    if options.backend not in _TORCH:
        return _own_interpreter(options.backend, job)
    if importlib.util.find_spec("torch") is None:
        raise SynthError(NEEDS_TORCH)
    if options.backend == "nccl":
        _check_gpus(job.algo.ngpus)
    with Pool(job.algo.ngpus, options.backend, options.patience) as pool:
        rows: list[Measured] = pool.run(measure, job)[0]
    return rows


def _own_interpreter(backend: str, job: Job) -> list[Measured]:
    """`synth.execute.cuda.run(job, backend)`: the same job, the same figures."""
    try:
        interpreter = importlib.import_module("synth.execute.cuda").run
    except (ImportError, AttributeError):
        raise InputError("--backend", "", backend, "gloo or nccl: this synth has no synth.execute.cuda.run") from None
    rows: list[Measured] = interpreter(job, backend)
    return rows


def _check_gpus(needed: int) -> None:
    from synth.execute.communicator import gpus_seen

    seen = gpus_seen()
    if seen < needed:
        raise InputError("--backend", "nccl", f"{seen} GPUs", f"{needed}, one for each rank (gloo needs none)")


def _under_torchrun() -> bool:
    return all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))


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
        return _tell(options, job, rows)


def _tell(options: Options, job: Job, rows: list[Measured]) -> int:
    from synth.cli.run_text import Header, remarks_of, run_json, run_text

    header = Header(options.file, options.backend, job.promise, job.dtype, job.op)
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
    return Collective(name, algo.ngpus, algo.nchunksperloop)


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
