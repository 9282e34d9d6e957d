"""`synth bench run|compare|history|report|gpu`: the nightly job, its history, and its report."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from msccl_xml.limits import RUNTIMES
from synth.cli import output, params
from synth.errors import UsageError

if TYPE_CHECKING:
    from synth.bench.executors import Slots
    from synth.bench.report import ReportData
    from synth.bench.store import Store

_DEFAULT_STORE = "bench.sqlite"
_LAUNCHERS = ("auto", "mpirun", "torchrun", "none")
_BACKENDS = ("nccl", "cuda", "gloo", "host")
_DEFAULT_SIZES = (1 << 10, 1 << 30)

_debug = click.option("--debug", is_flag=True, help="Show the traceback of a failure.")
_quiet = click.option("-q", "--quiet", is_flag=True, help="No progress.")
_store = click.option(
    "--store",
    default=_DEFAULT_STORE,
    show_default=True,
    metavar="DB",
    help="The history: an SQLite file that only grows.",
)


@click.group()
def bench() -> None:
    """Run a suite of syntheses, keep its history, and tell what got worse."""


def _forms(command: Callable[..., int]) -> Callable[..., int]:
    """The options that say which forms of the report are written where."""
    options = (
        click.option("--report", metavar="HTML", help="Write the report as one HTML page."),
        click.option("--markdown", metavar="FILE", help="Write it as Markdown, for a pull request or a chat."),
        click.option("--junit", metavar="FILE", help="Write it as JUnit XML, for CI systems."),
    )
    for option in reversed(options):
        command = option(command)
    return command


@bench.command("run")
@click.option(
    "--suite", default="quick", show_default=True, metavar="quick|nightly|FILE", help="What is run: TOML or JSON."
)
@click.option("--jobs", callback=params.whole_from(1), metavar="N", help="Processes on this host. [one for each core]")
@click.option("--scheduler", metavar="ADDRESS", help="Run on the workers of a Dask cluster, such as tcp://host:8786.")
@_store
@_forms
@_quiet
@_debug
def run_suite(**given: Any) -> int:
    """Run a suite, and compare it with the run before.

    A run that was ended before its end is taken up by the same command. Ends in 1 if something got worse or is wrong.
    """
    from synth.bench.fingerprint import origin
    from synth.bench.report import gather
    from synth.bench.run import run_suite as run
    from synth.bench.store import Store
    from synth.bench.suite import load_suite

    if given["jobs"] is not None and given["scheduler"] is not None:
        raise UsageError("--jobs and --scheduler exclude each other: a cluster's workers are as many as they are")
    _check_forms(given)
    suite = load_suite(given["suite"])
    make = _executor(given["jobs"] or _cores(), given["scheduler"])
    with Store(given["store"], write=True) as store, output.narrate(given["quiet"]) as tell:
        done = run(suite, store, origin(), make, tell=tell)
        data = gather(store, done)
    return _deliver(data, given)


def _executor(jobs: int, scheduler: str | None) -> Callable[[], AbstractContextManager[Slots]]:
    from synth.bench.executors import dask_executor, local_executor

    return partial(local_executor, jobs) if scheduler is None else partial(dask_executor, scheduler)


def _cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@bench.command("report")
@click.option(
    "--run", "run_name", default="latest", show_default=True, metavar="RUN", help="A run, as `compare` takes."
)
@_store
@_forms
@_debug
def write_report(**given: Any) -> int:
    """Write the report of a run that is in the history."""
    from synth.bench.between import find_run
    from synth.bench.report import gather
    from synth.bench.store import Store

    _check_forms(given)
    with Store(given["store"]) as store:
        data = gather(store, find_run(store, given["run_name"]))
    return _deliver(data, given)


@bench.command("compare")
@click.argument("before", metavar="[A]", required=False)
@click.argument("after", metavar="[B]", default="latest")
@_store
@_forms
@_debug
def compare_two(**given: Any) -> int:
    """Tell what changed from run A to run B, and end in 1 if something got worse.

    A run is its number, the beginning of its commit, latest, or latest~1 for the one before that. Without A and B: the latest run
    and the one before it of the same suite.
    """
    from synth.bench.between import find_run, require_previous
    from synth.bench.report import gather
    from synth.bench.store import Store

    _check_forms(given)
    with Store(given["store"]) as store:
        named = None if given["before"] is None else find_run(store, given["before"])
        after = find_run(store, given["after"])
        before = named or require_previous(store, after)
        data = gather(store, after, before)
    return _deliver(data, given)


@bench.command("history")
@click.argument("case", metavar="CASE")
@_store
@_debug
def show_history(case: str, store: str, debug: bool) -> int:
    """Tell how a case went over all runs, the oldest first.

    CASE is machine/collective/size/strategy/seed; the last two may be left out.
    """
    from synth.bench.history_text import history_text
    from synth.bench.store import Store

    with Store(store) as opened:
        output.print_result(history_text(opened, case))
    return 0


@bench.command("gpu")
@click.argument("files", nargs=-1, metavar="[FILE...]")
@click.option("--topo", metavar="FILE|NAME", help="The machine that the FILEs are for.")
@click.option("--nodes", callback=params.whole_from(1), metavar="N", help="Copies of a one-node machine. [1]")
@click.option("--sizes", callback=params.size_range, metavar="LOW:HIGH", help="Doublings of a range. [1KB:1GB]")
@click.option("--run", "run_name", default="latest", metavar="RUN", help="Without FILEs: those of this run. [latest]")
@click.option("--machine", metavar="NAME", help="Without FILEs: only those of this machine.")
@click.option("--runtime", type=click.Choice(RUNTIMES), default="msccl", help="The library that loads them. [msccl]")
@click.option("--binaries", default="", metavar="DIR", help="Where all_reduce_perf and the others are. [PATH]")
@click.option("--launcher", type=click.Choice(_LAUNCHERS), default="auto", help="[mpirun if there, else one process]")
@click.option("--launcher-args", default="", metavar="WORDS", help="Further words for it: '--hostfile hosts'.")
@click.option("--backend", type=click.Choice(_BACKENDS), help="Measure with `synth run` on this, not with nccl-tests.")
@click.option("--iters", callback=params.whole_from(1), default="20", metavar="N", help="Timed calls. [20]")
@_store
@_forms
@_quiet
@_debug
def measure_on_gpus(**given: Any) -> int:
    """Measure files on GPUs with nccl-tests, with and without each file, beside what the simulator says.

    What is missing here (a GPU, a program) is a skip, and said so. Ends in 1 if a result is wrong or a program fails.
    """
    from synth.bench.fingerprint import origin
    from synth.bench.gpu.drive import measure_targets
    from synth.bench.gpu.measurement import keep
    from synth.bench.store import Store

    _check_forms(given)
    if not given["files"] and given["topo"] is not None:
        raise UsageError("--topo says which machine FILEs are for, and there are none")
    launch = _launch(given)
    with Store(given["store"], write=True) as store, output.narrate(given["quiet"]) as tell:
        targets = _targets(store, given)
        found = measure_targets(
            targets, launch, backend=given["backend"], commit=origin().commit, tell=tell, keep=partial(keep, store)
        )
        if not given["files"]:
            _write_forms(_data(store, given["run_name"]), given)
    output.print_result("\n".join(dict.fromkeys(item.line for item in found)))
    return 1 if any(item.is_wrong for item in found) else 0


def _targets(store: Store, given: dict[str, Any]) -> list[Any]:
    from synth.bench.between import find_run
    from synth.bench.gpu.targets import targets_of_files, targets_of_run
    from synth.cli.machine import load_machine

    if not given["files"]:
        return targets_of_run(store, find_run(store, given["run_name"]), given["machine"])
    if given["topo"] is None:
        raise UsageError("FILEs need --topo, the machine that they are for")
    if any(given[name] is not None for name in ("report", "markdown", "junit")):
        raise UsageError("a report is of a run in the history: leave the FILEs out, or the report")
    topology = load_machine(given["topo"], given["nodes"], None)
    return targets_of_files(given["files"], topology, given["sizes"] or _DEFAULT_SIZES, given["runtime"])


def _launch(given: dict[str, Any]) -> Any:
    import shlex

    from synth.bench.gpu.launch import Launch

    try:
        extra = tuple(shlex.split(given["launcher_args"]))
    except ValueError as error:
        raise UsageError(
            f"--launcher-args: {given['launcher_args']!r}, expected words as a shell takes them"
        ) from error
    return Launch(given["launcher"], given["runtime"], 0, given["binaries"], extra, given["iters"])


def _data(store: Store, run_name: str) -> ReportData:
    from synth.bench.between import find_run
    from synth.bench.report import gather

    return gather(store, find_run(store, run_name))


def _deliver(data: ReportData, given: dict[str, Any]) -> int:
    """Write the forms that were asked for, print the few lines that a person needs, and return the exit code."""
    _write_forms(data, given)
    output.print_result("\n".join(data.lines()))
    return data.exit_code


def _write_forms(data: ReportData, given: dict[str, Any]) -> None:
    from synth.bench.report import html_text, junit_text, markdown_text
    from synth.cli.atomic import write_all

    forms = {"report": html_text, "markdown": markdown_text, "junit": junit_text}
    write_all({given[name]: make(data) for name, make in forms.items() if given[name] is not None})


def _check_forms(given: dict[str, Any]) -> None:
    """Raise where a form could not be written: before hours of work, not after."""
    from synth.cli.atomic import check_writable

    paths = [given[name] for name in ("report", "markdown", "junit") if given[name] is not None]
    if len(set(paths)) != len(paths):
        raise UsageError("--report, --markdown and --junit have to name different files")
    for path in paths:
        check_writable(path)
