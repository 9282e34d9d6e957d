"""`synth explain FILE...`: would a runtime load a file and choose it, and if not, what mends it."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import TYPE_CHECKING, Any

import click

from msccl_xml.limits import RUNTIMES
from synth.cli import output, params
from synth.cli.machine import MachineOptions, load_machine
from synth.cli.options import takes_machine
from synth.errors import SynthError, UsageError

if TYPE_CHECKING:
    from synth.explain import FileReport, Question

STDIN = "-"
EVERY_RUNTIME = "all"
DEFAULT_SIZES = (1 << 10, 1 << 30)
#: More than any file that a runtime could hold; a wrong one should not fill the memory.
MAX_FILE_BYTES = 256 << 20


@click.command(short_help="Say whether a runtime would load and choose files.")
@click.argument("files", nargs=-1, metavar="FILE...")
@click.option(
    "--config", metavar="FILE", help="The files are those that this MSCCL_CONFIG registers (microsoft/msccl only)."
)
@click.option("--topo", metavar="FILE|NAME", help="The machine: gives the ranks, and the connections of each NIC.")
@click.option("--nodes", callback=params.whole_from(1), metavar="N", help="Copies of a one-node machine. [1]")
@click.option("--ranks", callback=params.whole_from(1), metavar="N", help="Ranks. [as each file says]")
@click.option("--type", "element", default="float32", show_default=True, metavar="TYPE", help="Element type.")
@click.option("--in-place/--out-of-place", "inplace", default=None, help="Only calls in place, or out of place. [both]")
@click.option("--sizes", callback=params.size_range, metavar="LOW:HIGH", help="The sizes asked about. [1KB:1GB]")
@click.option("--runtime", type=click.Choice((*RUNTIMES, EVERY_RUNTIME)), default=EVERY_RUNTIME, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print the answers as JSON.")
@click.option("--debug", is_flag=True, help="Show the traceback of a failure.")
def explain(files: tuple[str, ...], **options: Any) -> int:
    """Say of each FILE whether a runtime would load it, and choose it at each size; if not, why, and what mends it.

    FILE is MSCCL XML from anywhere; - reads standard input. Files are judged together, in the order in which they would be
    loaded. --config stands in place of FILEs: its bounds and protocols count, not those in the files. Ends in 1 if there is a file
    that no runtime asked about would load.
    """
    from synth.explain import explain as judge

    question = _question(files, options)
    if question.config is not None:
        files = tuple(registration.path for registration in question.config.registrations)
    reports = judge([(path, _read(path)) for path in files], question)
    if options["as_json"]:
        output.print_result(json.dumps({"files": [_document(report) for report in reports]}, indent=2))
    else:
        from synth.cli.explain_text import report_text

        output.print_result(report_text(reports))
    return 0 if all(any(load.ok for load in report.loads.values()) for report in reports) else 1


takes_machine(explain)


def _question(files: tuple[str, ...], options: dict[str, Any]) -> Question:
    from synth.chunks import range_sizes
    from synth.explain import ELEMENT_BYTES, Question, read_config

    machine = MachineOptions.taken(options)
    if bool(files) == (options["config"] is not None):
        raise UsageError("give FILEs, or --config, which names files itself")
    if options["config"] is not None and options["runtime"] not in (EVERY_RUNTIME, "msccl"):
        raise UsageError(f"--config: {options['runtime']} reads no such file, only msccl does")
    if options["element"] not in ELEMENT_BYTES:
        raise UsageError(f"--type {options['element']}: expected one of {' '.join(ELEMENT_BYTES)}")
    if options["topo"] is not None and options["ranks"] is not None:
        raise UsageError("--topo and --ranks exclude each other")
    if options["topo"] is None and options["nodes"] is not None:
        raise UsageError("--nodes needs --topo")
    topology = None if options["topo"] is None else load_machine(options["topo"], options["nodes"], None, machine)
    return Question(
        sizes=range_sizes(*(options["sizes"] or DEFAULT_SIZES)),
        element_bytes=ELEMENT_BYTES[options["element"]],
        places=(True, False) if options["inplace"] is None else (options["inplace"],),
        runtimes=_runtimes(options),
        ranks=options["ranks"] if topology is None else topology.num_ranks,
        topology=topology,
        config=None if options["config"] is None else read_config(_read(options["config"]), options["config"]),
    )


def _runtimes(options: dict[str, Any]) -> tuple[str, ...]:
    if options["config"] is not None:
        return ("msccl",)
    return RUNTIMES if options["runtime"] == EVERY_RUNTIME else (options["runtime"],)


def _read(path: str) -> bytes:
    try:
        if path == STDIN:
            content = sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
        else:
            with open(path, "rb") as file:
                content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise SynthError(f"{path}: cannot be read: {error.strerror or error}") from error
    if len(content) > MAX_FILE_BYTES:
        raise SynthError(f"{path}: more than {MAX_FILE_BYTES} bytes, which no runtime could hold")
    return content


def _document(report: FileReport) -> dict[str, Any]:
    """The report as JSON has it: answers of a size stand beside the size under the runtime's name."""
    document = dataclasses.asdict(report)
    for row in document["sizes"]:
        row |= row.pop("answers")
    return document
