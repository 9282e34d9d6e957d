"""`synth verify FILE...`: run files symbolically and say of each whether it does what it claims."""

from __future__ import annotations

import dataclasses
import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from msccl_xml.limits import RUNTIMES
from synth.cli import output
from synth.collective import ROOTED, Collective, CollectiveName
from synth.errors import SynthError, UsageError

if TYPE_CHECKING:
    from msccl_xml.model import Algo

STDIN = "-"
EVERY_RUNTIME = "all"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one file: `reason` is None where it passed; `witness` are the lines that prove the reason.

    `warning` is what would have failed it under `--strict`; `group` the ranks that take part where not all do.
    """

    path: str
    ok: bool
    reason: str | None = None
    witness: tuple[str, ...] = ()
    warning: str | None = None
    group: str | None = None


@click.command(short_help="Check that files do what they claim.")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--runtime",
    type=click.Choice((*RUNTIMES, EVERY_RUNTIME)),
    default="msccl",
    show_default=True,
    help="Whose rules and limits hold.",
)
@click.option(
    "--collective",
    type=click.Choice([name.value for name in CollectiveName]),
    help="What the file is to do. [default: what it says]",
)
@click.option("--root", type=int, metavar="RANK", help="Its root, where it has one. [default: found by trying]")
@click.option(
    "--strict",
    is_flag=True,
    help="Fail files that write to the send buffer, or whose ranks may differ in the last bits.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the verdicts as JSON.")
@click.option("--debug", is_flag=True, help="Show the traceback of a failure.")
def verify(
    files: tuple[str, ...],
    runtime: str,
    collective: str | None,
    root: int | None,
    strict: bool,
    as_json: bool,
    debug: bool,
) -> int:
    """Check that files do what they claim: result, races, deadlock, limits.

    FILE is MSCCL XML from anywhere; - reads standard input. Ends in 1 if any file fails.
    """
    name = None if collective is None else CollectiveName(collective)
    if name is not None and name not in ROOTED and root is not None:
        raise UsageError(f"--root: {name} has no root")
    runtimes = RUNTIMES if runtime == EVERY_RUNTIME else (runtime,)
    verdicts = [judge(path, runtimes, name, root, strict=strict) for path in files]
    if as_json:
        document = {"files": [dataclasses.asdict(verdict) for verdict in verdicts]}
        output.print_result(json.dumps(document, indent=2))
    else:
        for verdict in verdicts:
            _tell(verdict)
    return 0 if all(verdict.ok for verdict in verdicts) else 1


def judge(
    path: str, runtimes: tuple[str, ...], name: CollectiveName | None, root: int | None, *, strict: bool = False
) -> Verdict:
    """The verdict on the file at `path` under the rules of all `runtimes`; a file that cannot be read fails.

    Without `strict`, what only strictness refuses is a warning: such files give right sums and are widely used.
    """
    from msccl_xml.errors import AlgoError, XmlError
    from msccl_xml.read import read_algo
    from synth.group import group_text
    from synth.verify import VerifyError, infer_collective, verify_algo
    from synth.workers import available_cores

    jobs = available_cores()
    try:
        algo = read_algo(_read(path))
        collective = infer_collective(algo, root=root) if name is None else _named(algo, name, root)
        warning = None
        for runtime in runtimes:
            try:
                verify_algo(algo, collective, runtime=runtime, jobs=jobs)
            except VerifyError as error:
                if strict:
                    raise
                verify_algo(algo, collective, runtime=runtime, strict=False, jobs=jobs)
                warning = _one_line(error.problem)
    except XmlError as error:
        return Verdict(path, False, _one_line(str(error)))
    except AlgoError as error:
        return Verdict(path, False, _one_line(str(error).partition("\n")[0]), error.neighbours)
    except VerifyError as error:
        return Verdict(path, False, _one_line(error.problem), error.witness)
    except SynthError as error:
        return Verdict(path, False, _one_line(str(error)))
    except OSError as error:
        return Verdict(path, False, f"cannot be read: {error.strerror or error}")
    group = None if collective.group is None else group_text(collective.group)
    return Verdict(path, True, warning=warning, group=group)


def _named(algo: Algo, name: CollectiveName, root: int | None) -> Collective:
    """What the file is to do as the user says; a root that is not given is found as for a file that says so itself."""
    from synth.group import group_of
    from synth.verify import infer_collective

    if name in ROOTED:
        return infer_collective(dataclasses.replace(algo, coll=name.value), root=root)
    return Collective(name, algo.ngpus, algo.nchunksperloop, group=group_of(algo))


def _read(path: str) -> bytes:
    if path == STDIN:
        return sys.stdin.buffer.read()
    with open(path, "rb") as file:
        return file.read()


def _tell(verdict: Verdict) -> None:
    """One line a file on standard output; what proves a failure on standard error."""
    output.print_result(f"OK   {verdict.path}" if verdict.ok else f"FAIL {verdict.path}: {verdict.reason}")
    output.print_lines([f"  {line}" for line in verdict.witness])
    if verdict.group is not None:
        output.print_lines([f"  of ranks {verdict.group} alone; the others relay"])
    if verdict.warning is not None:
        output.print_lines([f"  warning: {verdict.warning}"])


def _one_line(text: str) -> str:
    return " ".join(text.split())
