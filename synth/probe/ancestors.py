"""A PCIe tree where the kernel's is hidden (containers, virtual machines): what NVML tells of the GPUs' common ancestors."""

from __future__ import annotations

from itertools import pairwise

from synth.inputs.builder import Builder
from synth.probe.rates import generation_speed, pcie_GBps
from synth.probe.recording import Recording
from synth.topology import DeviceKind

#: What two GPUs share at least, by the level of their nearest common ancestor.
_ONE_SWITCH = frozenset({"internal", "single"})
_SWITCHES = _ONE_SWITCH | {"multiple"}
_ONE_CPU = _SWITCHES | {"hostbridge", "node"}


def ancestors_known(recording: Recording) -> bool:
    """Whether NVML tells the common ancestor of every pair of GPUs."""
    told = {(pair.a, pair.b) for pair in recording.pairs if pair.ancestor}
    indices = [gpu.index for gpu in recording.gpus]
    return all((a, b) in told for a in indices for b in indices if a < b)


def add_tree_of_ancestors(builder: Builder, recording: Recording) -> dict[int, str]:
    """Add switches, CPUs and PCIe links as the levels of common ancestors have them; the CPU of each GPU by its place.

    The links between switches and to CPUs are taken to be as fast as the fastest GPU's below: NVML does not tell them.
    """
    cost = "rates of switches' uplinks are taken from the GPUs below, and NICs cannot be placed"
    builder.doubt("PCIe", "the tree is hidden: built from NVML's levels of common ancestors", cost)
    near, far, cpus = (_groups(recording, levels) for levels in (_ONE_SWITCH, _SWITCHES, _ONE_CPU))
    names: dict[tuple[int, ...], str] = {}
    for group in dict.fromkeys(near + far):
        if len(group) > 1:
            names[group] = builder.add(DeviceKind.PCIE_SWITCH, f"plx{len(names)}")
    cpu_ids = {group: builder.add(DeviceKind.CPU, f"cpu{number}") for number, group in enumerate(dict.fromkeys(cpus))}
    joined: dict[tuple[str, str], float] = {}
    for place, gpu in enumerate(recording.gpus):
        speed = generation_speed(gpu.pcie_gen_max or gpu.pcie_gen)
        rate = pcie_GBps(gpu.pcie_width or gpu.pcie_width_max, speed)
        switches = [names[group] for group in dict.fromkeys((near[place], far[place])) if group in names]
        for hop in pairwise([f"gpu{place}", *switches, cpu_ids[cpus[place]]]):
            joined[hop] = max(rate, joined.get(hop, 0.0))
    for (lower, upper), rate in joined.items():
        builder.between(lower, upper, "pcie", rate)
    return {place: cpu_ids[group] for place, group in enumerate(cpus)}


def _groups(recording: Recording, levels: frozenset[str]) -> list[tuple[int, ...]]:
    """For each GPU, by place, the places that it is joined to by pairs of these levels, its own included."""
    place_of = {gpu.index: place for place, gpu in enumerate(recording.gpus)}
    group = list(range(len(place_of)))
    for pair in recording.pairs:
        if pair.ancestor in levels and pair.a in place_of and pair.b in place_of:
            a, b = group[place_of[pair.a]], group[place_of[pair.b]]
            group = [min(a, b) if number in (a, b) else number for number in group]
    return [tuple(other for other in range(len(group)) if group[other] == number) for number in group]
