"""What a protocol makes of a machine's paths, for estimates made from exact schedules (cost level 2), and where LL128 is safe.

The figures are those of the simulator (constants.py): a share of the wire goes to flags, and a topology's alpha stands for the
fastest protocol, LL, so that slower ones add the difference.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from synth.constants import Constants, ProtocolConstants
from synth.errors import NoAnswerError
from synth.instance import Instance
from synth.paths import Path, PathKind, find_paths, kind_of
from synth.topology import DeviceKind, Link, Topology

#: Where microsoft/msccl chooses LL128 by itself (NCCL 2.12, ncclTopoTuneModel): all GPUs are of the one or all of the other.
_LL128_ARCHS = frozenset({"sm_70", "sm_80"})
#: Those that only NCCL after 2.12 lists beside them.
_LATER_LL128_ARCHS = frozenset({"sm_90", "sm_100"})


def under_protocol(instance: Instance, name: str, used: Collection[int] | None = None) -> Instance:
    """The instance with every path, or each of those `used`, as the protocol sees it: its wire share and its latency a hop.

    Raises InputError for a protocol that nobody has.
    """
    protocol = Constants.for_topology(instance.topology).of(name)
    paths = (
        _path(instance.topology, path, protocol) if used is None or path.index in used else path
        for path in instance.paths
    )
    return replace(instance, paths=tuple(paths))


def _path(topology: Topology, path: Path, protocol: ProtocolConstants) -> Path:
    extra_us = protocol.hop_us(kind_of(topology, path))
    occupancy = tuple((gap, per_byte / protocol.wire) for gap, per_byte in path.occupancy)
    return replace(path, alpha_us=path.alpha_us + extra_us, GBps=path.GBps * protocol.wire, occupancy=occupancy)


def ll128_is_safe(topology: Topology, paths: Sequence[Path] | None = None) -> bool:
    """Whether a file in LL128 is chosen on this machine without being asked for, and the hardware keeps what LL128 builds on.

    microsoft/msccl takes it on GPUs that are all sm_70 or all sm_80; elsewhere, on an H100 too, NCCL_PROTO has to name it.
    `paths` are the topology's, or those that an algorithm uses, for callers that have them; found where left out.
    """
    archs = {gpu.arch for gpu in topology.gpus}
    return archs <= _LL128_ARCHS and keeps_lines(topology, paths)


def keeps_lines(topology: Topology, paths: Sequence[Path] | None = None) -> bool:
    """Whether 128 bytes that leave a GPU arrive as one, which LL128 relies on; `paths` as in `ll128_is_safe`.

    NCCL vouches for it between GPUs that are all sm_70, all sm_80, all sm_90 or all sm_100 (a mixture is not), over NVLink inside a
    node, and from node to node over NICs that only PCIe switches part from their GPUs (tuning.cc: typeIntra <= PATH_NVL,
    typeInter <= PATH_PXB).
    """
    archs = {gpu.arch for gpu in topology.gpus}
    if len(archs) != 1 or not archs <= _LL128_ARCHS | _LATER_LL128_ARCHS:
        return False
    try:
        used = find_paths(topology) if paths is None else paths
    except NoAnswerError:
        return False
    numbers: dict[tuple[str, DeviceKind], int] = {}
    sort_of = [numbers.setdefault(_sort(topology, link), len(numbers)) for link in topology.links]
    node = [gpu.node for gpu in topology.gpus]
    # Paths are judged by what they cross: a large cluster has but a few kinds.
    kinds = {(node[path.src] == node[path.dst], *[sort_of[link] for link in path.links]): path for path in used}
    return all(_keeps_lines(topology, path) for path in kinds.values())


def _sort(topology: Topology, link: Link) -> tuple[str, DeviceKind]:
    """What counts of a link here: its word, and what it leads to."""
    return link.kind, topology.by_id[link.dst].kind


def _keeps_lines(topology: Topology, path: Path) -> bool:
    kind = kind_of(topology, path)
    if kind is not PathKind.NETWORK or topology.gpus[path.src].node == topology.gpus[path.dst].node:
        return kind is PathKind.NVLINK
    return all(topology.by_id[topology.links[link].dst].kind is not DeviceKind.CPU for link in path.links)
