"""The machine that `--topo`, `--nodes` and `--ranks` name, for verbs that take no sketch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from synth.cli.collectives import MAX_RANKS
from synth.errors import InputError

if TYPE_CHECKING:
    from synth.topology import Topology


def load_machine(topo: str, nodes: int | None, ranks: tuple[int, ...] | None) -> Topology:
    """The topology, replicated over its nodes, then restricted to ranks. InputError for what does not fit together."""
    from synth.inputs.load import load_topology
    from synth.topology import replicate, restrict

    topology = load_topology(topo)
    if nodes is not None:
        if nodes > 1 and nodes * topology.num_ranks > MAX_RANKS:
            most = f"at most {max(1, MAX_RANKS // topology.num_ranks)} of {topology.name} ({MAX_RANKS} GPUs in all)"
            raise InputError("--nodes", "", nodes, most)
        topology = replicate(topology, nodes)
    return topology if ranks is None else restrict(topology, ranks)
