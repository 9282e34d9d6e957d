"""The eight verbs that synthesize: one command each, with the same options and one implementation."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from msccl_xml.limits import LIMITS
from synth.cli import output
from synth.cli.machine import MAX_RANKS as MAX_RANKS
from synth.cli.machine import MachineOptions, broken, copies, group_in, load_described, restricted
from synth.cli.options import VerbCommand, option_groups
from synth.collective import ROOTED, CollectiveName, root_of
from synth.errors import CheckError, InputError, SynthError, UsageError
from synth.group import group_text
from synth.texts import read_text

if TYPE_CHECKING:
    from synth.cli.targets import Target
    from synth.request import Progress, Request, Result
    from synth.sketch import Sketch
    from synth.topology import Topology

DEFAULT_SIZES = (1 << 10, 1 << 30)


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a synthesizing verb, as click hands them over."""

    topo: str
    machine: MachineOptions
    nodes: int | None
    ranks: tuple[int, ...] | None
    group: tuple[int, ...] | None
    size: int | None
    sizes: tuple[int, int] | None
    root: int | None
    runtime: str
    strategy: str
    objective: str
    protocol: str
    instances: int | None
    chunks: int | None
    max_threadblocks: int | None
    files: int
    sketch: str | None
    time_limit: float
    jobs: int | None
    thorough: bool
    no_cache: bool
    seed: int
    inplace: bool | None
    solver: str
    output: str | None
    report: str | None
    quiet: bool
    debug: bool


def synthesize(collective: CollectiveName, options: Options) -> int:
    """Make the files of one collective, print their paths, and return 0.

    Checked before the work: the command line, the inputs, and whether the answer can be written.
    """
    from synth.cli.targets import check_target, choose_target
    from synth.inputs.load import at_fault
    from synth.verify import VerifyError

    sizes = _sizes(options)
    target = choose_target(options.output, options.report, single_size=options.size is not None or sizes[0] == sizes[1])
    topology, sketch = _machine(options)
    request = _request(collective, options, topology, sketch, sizes)
    check_target(target, request)
    with output.narrate(options.quiet) as tell:
        try:
            result = _answer(request, options, tell)
        except VerifyError as error:  # of a file of our own making: not the input's fault
            raise CheckError("verify", error.problem, error.witness) from error
        except SynthError as error:
            raise at_fault(error, topology, options.topo) from error
    _deliver(target, request, result, options.quiet)
    return 0


def _answer(request: Request, options: Options, tell: Callable[[Progress], None]) -> Result:
    if options.no_cache:
        from synth import pipeline

        return pipeline.synthesize(request, tell)
    from synth.cache import cache_directory, synthesize_cached

    return synthesize_cached(request, cache_directory(os.environ), tell)


def _deliver(target: Target, request: Request, result: Result, quiet: bool) -> None:
    """Write the files and the report, all or nothing, then say what they are worth."""
    from msccl_xml.write import write_algo
    from synth.cli.atomic import write_all
    from synth.cli.report import report_text
    from synth.cli.targets import STDOUT, name_files

    paths = name_files(target, request, result.files)
    texts = {path: write_algo(plan.algo) for path, plan in zip(paths, result.files, strict=True)}
    to_write = {path: text for path, text in texts.items() if path != STDOUT}
    if target.report is not None:
        to_write[target.report] = report_text(result, paths)
    write_all(to_write, target.new_directory)
    if not quiet:
        output.print_summary(result, paths)
    if target.file == STDOUT:
        output.print_result(texts[STDOUT], end="")
    else:
        output.print_result(":".join(paths))


def _sizes(options: Options) -> tuple[int, int]:
    if options.size is not None and options.sizes is not None:
        raise UsageError("--size and --sizes exclude each other")
    if options.size is not None:
        return options.size, options.size
    return options.sizes or DEFAULT_SIZES


def _machine(options: Options) -> tuple[Topology, Sketch | None]:
    """The topology, replicated over its nodes, changed as the options say, then restricted to ranks; and the sketch, read
    against it.
    """
    from synth.inputs.sketch_json import parse_sketch

    topology = load_described(options.topo, options.machine, options.quiet)
    text = None if options.sketch is None else read_text(options.sketch)
    topology = broken(_copies(topology, options, text), options.machine)
    topology = restricted(topology, options.ranks)
    if options.sketch is None or text is None:
        return topology, None
    return topology, parse_sketch(text, options.sketch, topology)


def _copies(topology: Topology, options: Options, sketch_text: str | None) -> Topology:
    """The topology as often as `--nodes` says, or else the sketch."""
    from synth.inputs.sketch_json import sketch_nodes
    from synth.topology import replicate

    if options.nodes is not None:
        return copies(topology, options.nodes)
    if options.sketch is None or sketch_text is None or topology.num_nodes > 1:
        return topology
    nodes = sketch_nodes(sketch_text, options.sketch)
    try:
        return topology if nodes is None or nodes * topology.num_ranks > MAX_RANKS else replicate(topology, nodes)
    except InputError as error:
        raise InputError(options.sketch, "nodes", nodes, f"1 on {error.field}, which has {error.value}") from error


def _request(
    collective: CollectiveName,
    options: Options,
    topology: Topology,
    sketch: Sketch | None,
    sizes: tuple[int, int],
) -> Request:
    from synth.pipeline import available_cores
    from synth.request import Request

    group = group_in(options.group, topology)
    return Request(
        topology=topology,
        collective=collective,
        root=_root(collective, options.root, topology, group),
        group=group,
        min_bytes=sizes[0],
        max_bytes=sizes[1],
        runtime=options.runtime,
        strategy=options.strategy,
        protocol=None if options.protocol == "auto" else options.protocol,
        instances=options.instances,
        chunks=options.chunks,
        max_threadblocks=options.max_threadblocks,
        max_files=_files(options),
        sketch=sketch,
        time_limit_s=options.time_limit,
        seed=options.seed,
        inplace=_inplace(collective, options.inplace),
        solver=options.solver,
        objective=options.objective,
        jobs=options.jobs or available_cores(),
        thorough=options.thorough,
    )


def _root(
    collective: CollectiveName, root: int | None, topology: Topology, group: tuple[int, ...] | None
) -> int | None:
    """The root, the first rank that takes part where none is given; InputError for one that does not, UsageError where the
    collective has none.
    """
    if collective not in ROOTED:
        if root is not None:
            raise UsageError(f"--root: {collective} has no root")
        return None
    if root is not None and not 0 <= root < topology.num_ranks:
        raise InputError("--root", "", root, f"a rank from 0 to {topology.num_ranks - 1} of {topology.name}")
    if root is not None and group is not None and root not in group:
        raise InputError("--root", "", root, f"a rank of --group {group_text(group)}")
    return root_of(collective, root, group)


def _files(options: Options) -> int:
    """How many files a range may have; InputError where the runtime would not load so many."""
    most = LIMITS[options.runtime].files
    if options.files > most:
        raise InputError("--files", "", options.files, f"at most {most}, which is all that {options.runtime} loads")
    return options.files


def _inplace(collective: CollectiveName, inplace: bool | None) -> bool | None:
    if inplace and collective is CollectiveName.ALLTOALL:
        raise UsageError("--in-place: alltoall cannot be called in place")
    return inplace


def _command(collective: CollectiveName) -> click.Command:
    def callback(**given: Any) -> int:
        return synthesize(collective, Options(machine=MachineOptions.taken(given), **given))

    return VerbCommand(
        collective.value,
        callback=callback,
        params=[option for group in option_groups(collective in ROOTED).values() for option in group],
        help=f"Make {collective} files for a machine and print their paths.",
        short_help=f"Make {collective} files for a machine.",
    )


COMMANDS: tuple[click.Command, ...] = tuple(_command(collective) for collective in CollectiveName)
