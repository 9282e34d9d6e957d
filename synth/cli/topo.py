"""`synth topo list|show`: the machines that come with synth, and what one description says."""

from __future__ import annotations

import click

from synth.cli import output
from synth.errors import NoAnswerError


@click.group()
def topo() -> None:
    """Look at machine descriptions."""


@topo.command("list")
@click.option("--debug", is_flag=True, help="Show the traceback of a failure.")
def list_topologies(debug: bool) -> int:
    """List the machines that come with synth."""
    from synth.cli.topo_text import list_text

    output.print_result(list_text().rstrip("\n"))
    return 0


@topo.command("show")
@click.argument("name", metavar="FILE|NAME")
@click.option("--debug", is_flag=True, help="Show the traceback of a failure.")
def show_topology(name: str, debug: bool) -> int:
    """Show the devices, links and paths of one machine."""
    from synth.cli.topo_text import show_text
    from synth.inputs.load import at_fault, load_topology

    topology = load_topology(name)
    try:
        text = show_text(topology, output.columns())
    except NoAnswerError as error:
        raise at_fault(error, topology, name) from error
    output.print_result(text.rstrip("\n"))
    return 0
