"""Files run on GPUs: by nccl-tests in a runtime that loads them, or by `synth run` where there is none. What cannot be is a skip."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from msccl_xml.model import Algo
from synth.bench.gpu.launch import CHOOSING, Launch, with_file, without_file
from synth.bench.gpu.measurement import FAILED, OK, SKIPPED, WRONG, Measurement
from synth.bench.gpu.nccl_tests import TestOutput, parse_nccl_tests
from synth.bench.gpu.synth_run import parse_synth_run
from synth.collective import CollectiveName
from synth.errors import InputError, NoAnswerError, SynthError
from synth.request import Progress
from synth.units import format_size

#: Seconds that one program may take: a file that hangs is told as such.
TIMEOUT_S = 600.0
#: What `synth run` carries data by: the last two need no GPU, and tell whether results are right, not how fast they come.
BACKENDS = ("nccl", "cuda", "gloo", "host")
WITHOUT_GPU = ("gloo", "host")
_NVIDIA = re.compile(r"nvidia[0-9]+")


@dataclass(frozen=True)
class Target:
    """A file to be measured: `simulated_us` holds its sizes (bytes, ascending) and what the simulator says of them."""

    machine: str
    collective: CollectiveName
    algo: Algo
    text: str
    xml_hash: str
    simulated_us: Mapping[int, float]

    @property
    def sizes(self) -> list[int]:
        return sorted(self.simulated_us)


class _EndedError(SynthError):
    """A program that did not do what it should: exit code, signal or time."""


def count_gpus(devices: str = "/dev", kfd: str = "/sys/class/kfd/kfd/topology/nodes") -> int:
    """GPUs of this host, NVIDIA's or AMD's, as their drivers list them."""
    try:
        nvidia = sum(_NVIDIA.fullmatch(name) is not None for name in os.listdir(devices))
    except OSError:
        nvidia = 0
    amd = 0
    for file in Path(kfd).glob("*/gpu_id"):
        try:
            amd += file.read_text(encoding="ascii").strip() not in ("", "0")
        except OSError:
            continue
    return nvidia or amd


def measure_targets(
    targets: Sequence[Target],
    launch: Launch,
    *,
    backend: str | None = None,
    commit: str = "",
    gpus: int | None = None,
    tell: Callable[[Progress], None] = lambda _: None,
    keep: Callable[[Sequence[Measurement]], None] = lambda _: None,
) -> list[Measurement]:
    """Every target at its sizes. `backend` is that of `synth run` (None: nccl-tests with `launch`, whose ranks are those of each
    target); `gpus` how many there are (None: this host's); `keep` gets those of a target as soon as they are there. Nothing is
    raised for what a machine lacks: it is a skip.
    """
    found: list[Measurement] = []
    here = count_gpus() if gpus is None else gpus
    for number, target in enumerate(targets):
        tell(Progress("gpu", f"{target.machine}, {target.collective}, {_span(target)}", number / len(targets)))
        way = "nccl-tests" if backend is None else f"synth run, {backend}"
        blank = Measurement(
            at=datetime.now(UTC).isoformat(timespec="seconds"),
            commit_id=commit,
            machine=target.machine,
            collective=target.collective.value,
            bytes=0,
            xml_hash=target.xml_hash,
            way=way,
            status=SKIPPED,
        )
        measured = _measured(target, replace(launch, ranks=target.algo.ngpus), backend, here, blank)
        keep(measured)
        found += measured
    return found


def _measured(target: Target, launch: Launch, backend: str | None, gpus: int, blank: Measurement) -> list[Measurement]:
    # Ranks of `synth run --backend cuda` may share a GPU; other hosts' GPUs are the launcher's to find.
    shared = backend == "cuda" or (backend is None and launch.extra)
    needed = 0 if backend in WITHOUT_GPU else 1 if shared else target.algo.ngpus
    if gpus < needed:
        return [replace(blank, problem=f"{gpus} GPUs here, {needed} needed")]
    try:
        if backend is None:
            return list(_with_nccl_tests(target, launch, blank))
        return list(_with_synth_run(target, backend, blank))
    except NoAnswerError as lack:
        return [replace(blank, problem=str(lack))]
    except (_EndedError, InputError) as error:
        return [replace(blank, status=FAILED, problem=" ".join(str(error).split()))]


def _with_nccl_tests(target: Target, launch: Launch, blank: Measurement) -> Iterator[Measurement]:
    with tempfile.TemporaryDirectory(prefix="synth-bench-") as folder:
        path = _written(target, folder)
        variables = with_file(target.algo, launch.runtime, path)
        ours = launch.command(target.collective, target.sizes, variables)
        own = without_file(launch.runtime)
        theirs = launch.command(target.collective, target.sizes, own)
        outputs = [_output(ours, variables), _output(theirs, own)]
    told = " ".join([*(f"{name}={value}" for name, value in variables.items()), shlex.join(ours)])
    yield from _rows(target, outputs[0], outputs[1], replace(blank, command=told))


def _with_synth_run(target: Target, backend: str, blank: Measurement) -> Iterator[Measurement]:
    with tempfile.TemporaryDirectory(prefix="synth-bench-") as folder:
        sizes = f"{format_size(target.sizes[0])}:{format_size(target.sizes[-1])}"
        words = ["run", _written(target, folder), "--backend", backend, "--sizes", sizes]
        # torch's own collective is what would run without the file.
        words += ["--compare"] if backend == "nccl" else []
        out = _printed([sys.executable, "-m", "synth", *words, "--json"], {}, _is_json)
    ours, theirs = parse_synth_run(out, "synth run")
    told = replace(blank, command=shlex.join(["synth", *words]))
    for row in _rows(target, ours, theirs, told):
        # What a CPU takes says nothing about the simulation of GPUs.
        yield replace(row, simulated_us=None) if backend in WITHOUT_GPU else row


def _written(target: Target, folder: str) -> str:
    """The file alone in a folder, which other processes and users may read."""
    os.chmod(folder, 0o755)
    path = os.path.join(folder, f"{target.collective}.xml")
    Path(path).write_text(target.text, encoding="ascii", newline="\n")
    return path


def _output(command: Sequence[str], variables: Mapping[str, str]) -> TestOutput:
    """The table that a program of nccl-tests prints."""
    return parse_nccl_tests(_printed(command, variables, _judged), os.path.basename(command[0]))


def _printed(command: Sequence[str], variables: Mapping[str, str], is_answer: Callable[[str], bool]) -> str:
    """What a program prints. Raises _EndedError where it fails, without an answer, or takes too long; all of its processes are ended
    then.
    """
    environment = {name: value for name, value in os.environ.items() if name not in CHOOSING} | dict(variables)
    pipe = subprocess.PIPE
    try:
        process = subprocess.Popen(
            command, stdout=pipe, stderr=pipe, text=True, errors="replace", env=environment, start_new_session=True
        )
    except OSError as error:
        raise _EndedError(f"{command[0]}: cannot be run: {error.strerror or error}") from error
    try:
        out, err = process.communicate(timeout=TIMEOUT_S)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            told = f"{command[0]}: no end after {TIMEOUT_S:g} s: it hangs, or the sizes are too large"
            raise _EndedError(told) from error
        raise
    if process.returncode != 0 and not is_answer(out):
        lines = [line.strip() for line in (*out.splitlines(), *err.splitlines()) if line.strip()]
        told = f"{command[0]}: exit code {process.returncode}: {lines[-1] if lines else 'nothing was printed'}"
        raise _EndedError(told)
    return out


def _is_json(out: str) -> bool:
    """Whether `synth run` ended badly because results are wrong: it tells them all the same."""
    return out.lstrip().startswith("{")


def _judged(out: str) -> bool:
    """Whether a program ended badly because its results are wrong: then its table says where."""
    try:
        output = parse_nccl_tests(out, "")
    except InputError:
        return False
    halves = [half for row in output.rows for half in (row.out_of_place, row.in_place) if half is not None]
    return bool(output.out_of_bounds) or any(half.wrong for half in halves)


def _rows(target: Target, output: TestOutput, plain: TestOutput | None, blank: Measurement) -> Iterator[Measurement]:
    """A measurement for each size that was wanted. A file is called the way that it is for: in place where it says so."""
    in_place = target.algo.inplace
    ours = {row.bytes: row.half(in_place) for row in output.rows}
    theirs = {} if plain is None else {row.bytes: row.half(in_place) for row in plain.rows}
    for size in target.sizes:
        half = ours.get(size)
        if half is None or half.time_us is None:
            yield replace(blank, bytes=size, problem="the program has no row of this size")
            continue
        # Versions before 2.13 judge all sizes together.
        wrong = half.wrong if half.wrong is not None else output.out_of_bounds
        other = theirs.get(size)
        yield replace(
            blank,
            bytes=size,
            status=WRONG if wrong else OK,
            problem=f"{wrong} elements are wrong" if wrong else "" if wrong == 0 else "results were not checked",
            with_us=half.time_us,
            without_us=None if other is None else other.time_us,
            wrong=wrong,
            simulated_us=target.simulated_us[size],
        )


def _span(target: Target) -> str:
    return f"{format_size(target.sizes[0])} to {format_size(target.sizes[-1])}"
