"""Sketches: what a person (or `default_sketch`) knows of good routes before any search, said with device names.

A sketch only ever takes away. It says which ordered pairs of GPUs may exchange data inside a node and across nodes (so
which GPUs relay for the others), through whom a GPU's data leaves its node, whether a switch is used with few or many
connections, which rotations of the ranks leave the problem unchanged, and into how many chunks a rank's share is cut.
TACCL (NSDI '23, section 3) calls the same a communication sketch; `synth.inputs.sketch_json` reads its files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from synth.collective import Collective
from synth.errors import InputError
from synth.paths import Path, joined_pairs, senders_and_receivers, unreached
from synth.topology import Topology

#: (sending GPU, receiving GPU), by device id.
Pair = tuple[str, str]
_NAMES_SHOWN = 4


@dataclass(frozen=True, slots=True)
class SwitchPolicy:
    """GPUs around one switch, in order, and whether they talk to few others through it or to all of them.

    Few means those 1, 2, 4, ... places further on in the order (a ring with shortcuts): about log2 n connections a GPU
    instead of n - 1, and every GPU still reaches every other in about log2 n hops.
    """

    gpus: tuple[str, ...]
    few: bool

    def pairs(self) -> Iterator[Pair]:
        """The connections that the policy keeps."""
        count = len(self.gpus)
        steps = [1 << power for power in range((count - 1).bit_length())] if self.few else range(1, count)
        for position, gpu in enumerate(self.gpus):
            for step in steps:
                yield gpu, self.gpus[(position + step) % count]


@dataclass(frozen=True, slots=True)
class Sketch:
    """What is allowed; None or an empty tuple leaves a thing free.

    `within` and `across` list the ordered GPU pairs that may exchange data inside a node and between nodes. `leaves_by`
    has (GPU, sender): the GPU's data leaves its node through that sender; only senders named there send across. A pair
    covered by `switches` is kept if one of the policies keeps it. A symmetry offset (o, g) rotates the ranks by o
    inside each group of g. `num_ranks` and `num_nodes` are those of the machine that the sketch is for. `source` is the
    file, for messages.
    """

    source: str
    within: tuple[Pair, ...] | None = None
    across: tuple[Pair, ...] | None = None
    leaves_by: tuple[Pair, ...] = ()
    switches: tuple[SwitchPolicy, ...] = ()
    symmetry_offsets: tuple[tuple[int, int], ...] = ()
    chunks_per_rank: int | None = None
    num_ranks: int | None = None
    num_nodes: int | None = None

    def describe(self) -> str:
        """The sketch in one line, for the summary."""
        parts = []
        if self.within is not None:
            parts.append(f"{len(self.within)} pairs inside nodes")
        if self.across is not None:
            senders, receivers = _distinct(a for a, _ in self.across), _distinct(b for _, b in self.across)
            parts.append(f"{len(self.across)} pairs across nodes, from {_shown(senders)} to {_shown(receivers)}")
        if self.leaves_by:
            parts.append(f"data leaves nodes by {_shown(_distinct(sender for _, sender in self.leaves_by))}")
        for policy in self.switches:
            parts.append(f"{'few' if policy.few else 'many'} connections between {_shown(policy.gpus)}")
        parts += [f"rotation by {offset} in groups of {group}" for offset, group in self.symmetry_offsets]
        if self.chunks_per_rank is not None:
            parts.append(f"chunks {self.chunks_per_rank}")
        return f"{self.source}: {'; '.join(parts) or 'all paths'}"


def apply_sketch(
    topology: Topology, paths: Sequence[Path], sketch: Sketch, collective: Collective | None = None
) -> tuple[Path, ...]:
    """The paths that the sketch allows, in the order given, with `index` the new position.

    Raises InputError where the sketch is for another machine (number of ranks or nodes, a device that is not there, a
    pair that no path joins) and where over what it leaves some sender of the collective does not reach some receiver
    (without a collective: some rank some other).
    """
    _check_machine(topology, sketch)
    joined = {(topology.gpus[path.src].id, topology.gpus[path.dst].id) for path in paths}
    _check_pairs(topology, sketch, joined)
    allowed = _allowed(topology, sketch, joined)
    kept = [path for path in paths if (topology.gpus[path.src].id, topology.gpus[path.dst].id) in allowed]
    left = joined_pairs(topology.num_ranks, [(path.src, path.dst) for path in kept])
    gap = unreached(left, *senders_and_receivers(topology, collective))
    if gap is not None:
        src, dst = (topology.gpus[rank].id for rank in gap)
        raise InputError(
            sketch.source,
            "",
            f"{src} does not reach {dst}",
            "paths, also over other GPUs, between all GPUs that exchange data",
        )
    return tuple(replace(path, index=index) for index, path in enumerate(kept))


def crosses_nodes(topology: Topology, pair: Pair) -> bool:
    """Whether the pair's GPUs stand in different nodes."""
    return topology.by_id[pair[0]].node != topology.by_id[pair[1]].node


def _allowed(topology: Topology, sketch: Sketch, joined: set[Pair]) -> set[Pair]:
    within = joined if sketch.within is None else set(sketch.within)
    across = joined if sketch.across is None else set(sketch.across)
    senders = {sender for _, sender in sketch.leaves_by}
    kept_by_switch = {pair for policy in sketch.switches for pair in policy.pairs()}
    group_of = [frozenset(policy.gpus) for policy in sketch.switches]
    allowed = set()
    for pair in joined:
        if crosses_nodes(topology, pair):
            keep = pair in across and (not senders or pair[0] in senders)
        else:
            covered = any(pair[0] in group and pair[1] in group for group in group_of)
            keep = pair in within and (not covered or pair in kept_by_switch)
        if keep:
            allowed.add(pair)
    return allowed


def _check_machine(topology: Topology, sketch: Sketch) -> None:
    here = f"{topology.name} has {topology.num_ranks} GPUs in {topology.num_nodes} nodes"
    for field, wanted, actual in (
        ("nodes", sketch.num_nodes, topology.num_nodes),
        ("gpus", sketch.num_ranks, topology.num_ranks),
    ):
        if wanted is not None and wanted != actual:
            raise InputError(sketch.source, field, wanted, f"{actual}: a sketch for this machine ({here})")


def _check_pairs(topology: Topology, sketch: Sketch, joined: set[Pair]) -> None:
    gpus = {gpu.id for gpu in topology.gpus}
    named: dict[str, list[str]] = {
        "within": [gpu for pair in sketch.within or () for gpu in pair],
        "across": [gpu for pair in sketch.across or () for gpu in pair],
        "leaves_by": [gpu for pair in sketch.leaves_by for gpu in pair],
        "switches": [gpu for policy in sketch.switches for gpu in policy.gpus],
    }
    for field, names in named.items():
        for name in names:
            if name not in gpus:
                raise InputError(sketch.source, field, name, f"a GPU of {topology.name} (a sketch for this machine)")
    wanted = {
        "within": sketch.within or (),
        "across": sketch.across or (),
        "switches": [pair for policy in sketch.switches for pair in policy.pairs()],
    }
    for field, pairs in wanted.items():
        for pair in pairs:
            if pair not in joined or crosses_nodes(topology, pair) != (field == "across"):
                place = "in different nodes" if field == "across" else "in one node"
                raise InputError(sketch.source, field, " -> ".join(pair), f"two GPUs {place} that a path joins")
    for gpu, sender in sketch.leaves_by:
        if crosses_nodes(topology, (gpu, sender)):
            raise InputError(sketch.source, "leaves_by", f"{gpu} by {sender}", "a sender in the GPU's own node")


def _distinct(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def _shown(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_NAMES_SHOWN])
    return shown if len(names) <= _NAMES_SHOWN else f"{shown}, ... ({len(names)} GPUs)"
