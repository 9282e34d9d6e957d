"""The machine that the command line names: a description, what the user adds to it, copies of it, and what is broken."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from synth.cli import output
from synth.errors import InputError
from synth.group import group_text

if TYPE_CHECKING:
    from synth.doubts import Imported
    from synth.topology import Topology

#: A GPU has a path to every other, so a million paths. No answer for more would come within a day.
MAX_RANKS = 1024


@dataclass(frozen=True, slots=True)
class MachineOptions:
    """What is said of a machine beside its description: what the file does not say, and what is broken or slow."""

    nvlink: str | None = None
    nics: str | None = None
    arch: str | None = None
    without: tuple[str, ...] = ()
    link: tuple[str, ...] = ()

    @classmethod
    def taken(cls, given: MutableMapping[str, Any]) -> MachineOptions:
        """The values of `synth.cli.options.machine_options`, taken out of what click hands over."""
        return cls(**{name: given.pop(name) for name in cls.__dataclass_fields__})


def import_machine(topo: str, options: MachineOptions) -> Imported:
    """The description alone, with the doubts that reading it raised."""
    from synth.doubts import Hints
    from synth.inputs.load import import_topology

    return import_topology(topo, Hints(options.nvlink, options.nics, options.arch))


def load_described(topo: str, options: MachineOptions, quiet: bool = False) -> Topology:
    """The description alone; doubts go to standard error as warnings, unless `quiet`."""
    imported = import_machine(topo, options)
    if not quiet:
        output.print_lines([f"warning: {doubt}" for doubt in imported.doubts])
    return imported.topology


def load_machine(
    topo: str,
    nodes: int | None,
    ranks: tuple[int, ...] | None,
    options: MachineOptions | None = None,
    quiet: bool = False,
) -> Topology:
    """The description, replicated over its nodes, with what is broken taken out, then restricted to ranks.

    Raises InputError for what does not fit together.
    """
    options = options or MachineOptions()
    topology = broken(copies(load_described(topo, options, quiet), nodes), options)
    return restricted(topology, ranks)


def copies(topology: Topology, nodes: int | None) -> Topology:
    """So many copies of the machine; InputError where they cannot be joined, or are more than can be planned for."""
    from synth.topology import replicate

    if nodes is None:
        return topology
    if nodes > 1 and nodes * topology.num_ranks > MAX_RANKS:
        most = f"at most {max(1, MAX_RANKS // topology.num_ranks)} of {topology.name} ({MAX_RANKS} GPUs in all)"
        raise InputError("--nodes", "", nodes, most)
    return replicate(topology, nodes)


def broken(topology: Topology, options: MachineOptions) -> Topology:
    """The machine without what `--without` names, and with links at the rates of `--link`."""
    from synth.degrade import with_link, without

    for change in options.link:
        topology = with_link(topology, change)
    for what in options.without:
        topology = without(topology, what)
    return topology


def group_in(group: tuple[int, ...] | None, topology: Topology) -> tuple[int, ...] | None:
    """The ranks that take part, None where that is all of them; InputError for ranks that the machine lacks, or fewer than two."""
    if group is None or group == tuple(range(topology.num_ranks)):
        return None
    if len(group) < 2 or group[-1] >= topology.num_ranks:
        expected = f"2 or more ranks from 0 to {topology.num_ranks - 1} of {topology.name}"
        raise InputError("--group", "", group_text(group), expected)
    return group


def restricted(topology: Topology, ranks: tuple[int, ...] | None) -> Topology:
    """The machine with only these ranks; all of them where none are named."""
    from synth.topology import restrict

    return topology if ranks is None else restrict(topology, ranks)
