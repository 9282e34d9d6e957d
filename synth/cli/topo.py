"""`synth topo list|show|check|convert|diff|plot`: the machines that come with synth, and what a description says."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from synth.cli import output, params
from synth.cli.machine import MachineOptions, broken, copies, import_machine, load_machine, restricted
from synth.cli.options import takes_machine
from synth.errors import NoAnswerError, UsageError

if TYPE_CHECKING:
    from synth.topology import Topology

STDOUT = "-"
_debug = click.option("--debug", is_flag=True, help="Show the traceback of a failure.")
_quiet = click.option("-q", "--quiet", is_flag=True, help="No warnings.")
_target = click.option("-o", "--output", metavar="FILE", default=STDOUT, help="Where to write. [standard output]")


@click.group()
def topo() -> None:
    """Look at machine descriptions."""


@topo.command("list")
@_debug
def list_topologies(debug: bool) -> int:
    """List the machines that come with synth."""
    from synth.cli.topo_text import list_text

    output.print_result(list_text().rstrip("\n"))
    return 0


def _of_machine(command: Callable[..., int]) -> Callable[..., int]:
    """The argument and the options of a verb that looks at one machine."""
    options = (
        click.argument("name", metavar="FILE|NAME"),
        click.option("--nodes", callback=params.whole_from(1), metavar="N", help="Copies of a one-node machine. [1]"),
        click.option("--ranks", callback=params.ranks, metavar="R,R,...", help="Only these GPUs, in this order. [all]"),
        _debug,
    )
    for option in reversed(options):
        command = option(command)
    return command


def _machine(given: dict[str, Any], quiet: bool) -> Topology:
    options = MachineOptions.taken(given)
    return load_machine(given["name"], given["nodes"], given["ranks"], options, quiet)


@topo.command("show")
@_of_machine
@_quiet
def show_topology(**given: Any) -> int:
    """Show one machine: a picture, its links and paths, what they share, its NICs."""
    from synth.cli.topo_text import show_text
    from synth.inputs.load import at_fault

    topology = _machine(given, given["quiet"])
    try:
        text = show_text(topology, output.columns())
    except NoAnswerError as error:
        raise at_fault(error, topology, given["name"]) from error
    output.print_result(text.rstrip("\n"))
    return 0


@topo.command("check")
@_of_machine
def check_topology(**given: Any) -> int:
    """Tell all that is suspicious about a machine, and what it would cost.

    A cost compares what allreduce or alltoall can do at most on the machine as described and as it would be without the fault.
    Ends in 0 whatever there is to tell.
    """
    from synth.check_topology import find_doubts

    options = MachineOptions.taken(given)
    imported = import_machine(given["name"], options)
    topology = restricted(broken(copies(imported.topology, given["nodes"]), options), given["ranks"])
    doubts = dict.fromkeys(map(str, (*imported.doubts, *find_doubts(topology))))
    output.print_result("\n".join(doubts) if doubts else f"{topology.name}: nothing suspicious")
    return 0


@topo.command("convert")
@_of_machine
@click.option("--to", "form", required=True, type=click.Choice(["json", "nccl"]), help="The format to write.")
@_target
@_quiet
def convert_topology(**given: Any) -> int:
    """Write a machine as our JSON, or as XML for NCCL_TOPO_FILE.

    What a format cannot say is told on standard error.
    """
    topology = _machine(given, given["quiet"])
    if given["form"] == "json":
        from synth.inputs.topology_json import to_json

        text = to_json(topology)
    else:
        from synth.inputs.nccl_xml_write import to_nccl_xml

        text, lost = to_nccl_xml(topology)
        if not given["quiet"]:
            output.print_lines([f"warning: {doubt}" for doubt in lost])
    _write(given["output"], text)
    return 0


@topo.command("diff")
@click.argument("before", metavar="FILE|NAME")
@click.argument("after", metavar="FILE|NAME")
@_quiet
@_debug
def diff_topologies(**given: Any) -> int:
    """Tell how two machines differ: devices and links only one of them has (-, +), and figures that changed (~).

    Ends in 0 where they are the same, in 1 where they are not. The options say what both files do not, or what is to be changed
    in both.
    """
    from synth.topology_diff import differences

    options = MachineOptions.taken(given)
    before, after = (load_machine(given[key], None, None, options, given["quiet"]) for key in ("before", "after"))
    lines = differences(before, after)
    if lines:
        output.print_result("\n".join(lines))
    return 1 if lines else 0


@topo.command("plot")
@_of_machine
@_target
@_quiet
def plot_topology(**given: Any) -> int:
    """Draw a machine as SVG: GPUs, switches, CPUs and NICs, links as wide as they are fast."""
    from synth.topo_svg import topology_svg

    _write(given["output"], topology_svg(_machine(given, given["quiet"])))
    return 0


def _write(target: str, text: str) -> None:
    """Put a text where `-o` says."""
    from synth.cli.atomic import check_writable, write_all

    if not target:
        raise UsageError("-o takes a path, or - for standard output, not an empty text")
    if target == STDOUT:
        output.print_result(text, end="")
    else:
        check_writable(target)
        write_all({target: text})


for _command in (show_topology, check_topology, convert_topology, diff_topologies, plot_topology):
    takes_machine(_command)
