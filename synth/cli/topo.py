"""`synth topo list|show`: the machines that come with synth, and what one description says."""

from __future__ import annotations

import click

from synth.cli import output


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
    from synth.inputs.load import load_topology

    output.print_result(show_text(load_topology(name)).rstrip("\n"))
    return 0
