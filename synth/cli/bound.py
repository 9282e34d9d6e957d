"""`synth bound COLLECTIVE --topo T`: the machine's own limit, and what sets it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from synth.cli import output, params
from synth.cli.machine import MachineOptions, group_in, load_machine
from synth.cli.options import takes_machine
from synth.collective import Collective, CollectiveName, root_of
from synth.errors import InputError, SynthError, UsageError
from synth.group import group_text

if TYPE_CHECKING:
    from synth.bounds import Bound, Cut
    from synth.topology import Topology

DEFAULT_SIZES = (1 << 10, 1 << 30)
#: Ranks up to which every path is looked at; there are a million between a thousand GPUs.
MOST_WITH_PATHS = 128
#: Links that the text lists before it counts the rest.
_MOST_LINKS = 8


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the verb, as click hands them over."""

    collective: str
    topo: str
    machine: MachineOptions
    nodes: int | None
    ranks: tuple[int, ...] | None
    group: tuple[int, ...] | None
    root: int | None
    size: int | None
    sizes: tuple[int, int] | None
    as_json: bool
    debug: bool


@click.command(short_help="Say what no algorithm can beat on a machine.")
@click.argument("collective", type=click.Choice([name.value for name in CollectiveName]))
@click.option("--topo", required=True, metavar="FILE|NAME", help="The machine: a file, or a name of `synth topo list`.")
@click.option("--nodes", callback=params.whole_from(1), metavar="N", help="Copies of a one-node machine. [1]")
@click.option("--ranks", callback=params.ranks, metavar="R,R,...", help="Only these GPUs, in this order. [all]")
@click.option(
    "--group",
    callback=params.group,
    metavar="R,R-R,...",
    help="Only these ranks take part; the others may relay. [all]",
)
@click.option("--root", type=int, metavar="RANK", help="The rank that is the root, where there is one. [0]")
@click.option("--size", callback=params.size, metavar="SIZE", help="One buffer size, such as 64MB.")
@click.option("--sizes", callback=params.size_range, metavar="LOW:HIGH", help="Doublings of a range. [1KB:1GB]")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
@click.option("--debug", is_flag=True, help="Show the traceback of a failure.")
def bound(**given: Any) -> int:
    """Say what no algorithm for COLLECTIVE can beat on a machine, and which cut or links set the limit.

    The bandwidth is the limit for a large buffer, the latency that for a small one; times are the least at each size.
    """
    run(Options(machine=MachineOptions.taken(given), **given))
    return 0


takes_machine(bound)


def run(options: Options) -> None:
    """Read, prove, print."""
    from synth.bounds import bound_of
    from synth.chunks import range_sizes
    from synth.inputs.load import at_fault
    from synth.paths import find_paths

    if options.size is not None and options.sizes is not None:
        raise UsageError("--size and --sizes exclude each other")
    low, high = (options.size, options.size) if options.size is not None else options.sizes or DEFAULT_SIZES
    topology = load_machine(options.topo, options.nodes, options.ranks, options.machine)
    if topology.num_ranks < 2:
        raise InputError(options.topo, "ranks", topology.num_ranks, "2 or more GPUs")
    name = CollectiveName(options.collective)
    group = group_in(options.group, topology)
    root = root_of(name, options.root, group)
    collective = Collective(name, topology.num_ranks, topology.num_ranks, root, group)
    try:
        paths = find_paths(topology, collective) if topology.num_ranks <= MOST_WITH_PATHS else None
        found = bound_of(topology, collective, paths)
    except SynthError as error:
        raise at_fault(error, topology, options.topo) from error
    sizes = range_sizes(low, high)
    if options.as_json:
        output.print_result(json.dumps(_document(found, collective, topology, sizes), indent=2))
    else:
        output.print_result(_text(found, collective, topology, sizes))


def _document(found: Bound, collective: Collective, topology: Topology, sizes: tuple[int, ...]) -> dict[str, Any]:
    """`cut` lists the links that are full, and GPUs where a single cut sets the limit; `any_algorithm` is there for allreduce."""
    document: dict[str, Any] = {
        "collective": str(collective.name),
        "topology": topology.name,
        "ranks": topology.num_ranks,
        "group": collective.group,
        "root": collective.root,
        "algbw_GBps": found.algbw_GBps,
        "busbw_GBps": found.algbw_GBps * collective.busbw_factor(),
        "latency_us": found.latency_us,
        "what": found.what,
        "cut": _cut(found.cut, found.full),
        "sizes": [_row(found, collective, size) for size in sizes],
    }
    if found.any_us_per_byte:
        document["any_algorithm"] = {"algbw_GBps": 1e-3 / found.any_us_per_byte, "cut": _cut(found.any_cut, ())}
    return document


def _cut(cut: Cut | None, full: tuple[str, ...]) -> dict[str, Any]:
    if cut is None:
        return {"gpus": [], "links": list(full), "GBps": None, "direction": None}
    direction = "into" if cut.into else "out of"
    return {"gpus": list(cut.gpus), "links": list(cut.links), "GBps": cut.GBps, "direction": direction}


def _row(found: Bound, collective: Collective, size: int) -> dict[str, float]:
    from synth.units import bandwidth_GBps

    algbw = bandwidth_GBps(size, found.time_us(size))
    return {
        "bytes": size,
        "bound_us": found.time_us(size),
        "algbw_GBps": algbw,
        "busbw_GBps": algbw * collective.busbw_factor(),
    }


def _text(found: Bound, collective: Collective, topology: Topology, sizes: tuple[int, ...]) -> str:
    """The limit, what sets it, and a line for each size."""
    from synth.units import format_size

    grouped = "" if collective.group is None else f", group {group_text(collective.group)}"
    rooted = grouped + ("" if collective.root is None else f", root {collective.root}")
    busbw = found.algbw_GBps * collective.busbw_factor()
    lines = [
        f"{collective.name} on {topology.name}, {topology.num_ranks} ranks{rooted}",
        f"limit    {found.algbw_GBps:.2f} GB/s (busbw {busbw:.2f} GB/s), latency {found.latency_us:.2f} us",
        f"set by   {found.what}",
    ]
    links = found.cut.links if found.cut is not None else found.full
    if links:
        lines.append(f"over     {_listed(links)}")
    if found.any_us_per_byte and found.any_cut is not None:
        from synth.bounds.words import cut_words

        lines.append(
            f"any algorithm: {1e-3 / found.any_us_per_byte:.2f} GB/s, what must get {cut_words(found.any_cut)}"
        )
    lines += ["", f"{'size':>8} {'bound us':>12} {'algbw GB/s':>11} {'busbw GB/s':>11}"]
    for size in sizes:
        row = _row(found, collective, size)
        figures = f"{row['bound_us']:>12.2f} {row['algbw_GBps']:>11.2f} {row['busbw_GBps']:>11.2f}"
        lines.append(f"{format_size(size):>8} {figures}")
    return "\n".join(lines)


def _listed(links: tuple[str, ...]) -> str:
    if len(links) <= _MOST_LINKS:
        return ", ".join(links)
    return f"{', '.join(links[: _MOST_LINKS - 1])} and {len(links) - _MOST_LINKS + 1} more links"
