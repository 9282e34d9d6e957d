"""Equal boxes of a cluster, found from its graph: nodes of as many GPUs each, and a rotation of all of them that is a symmetry.

The rotation takes the k-th device of its kind in a node to the k-th in the next node, and leaves in place what belongs to no node.
Clusters that were put together from copies of a node look like this; where it fails, the search of automorphism.py looks for another
way to take the GPUs there. Either answer is verified link by link and path by path.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from synth.boxes import Boxes
from synth.instance import Symmetry
from synth.paths import Path
from synth.reductions.symmetry import Verifier
from synth.topology import Device, DeviceKind, Topology


def find_boxes(topology: Topology, paths: Sequence[Path]) -> Boxes | None:
    """The boxes of a cluster whose nodes can be rotated, in order of their first rank; None where it has no such nodes.

    `paths` are the paths in use: links that none of them crosses may differ from node to node, and stay in place.
    """
    ranks = nodes_of(topology)
    if len(ranks) < 2 or len({len(box) for box in ranks}) > 1:
        return None
    image = [0] * topology.num_ranks
    for here, there in zip(ranks, (*ranks[1:], ranks[0]), strict=True):
        for rank, target in zip(here, there, strict=True):
            image[rank] = target
    verifier = Verifier(topology, paths)
    devices = _next_devices(topology, [topology.node_of(box[0]) for box in ranks])
    rotation = verifier.by_devices(devices) if devices is not None else None
    if rotation is None:
        rotation = verifier.symmetry(image)
    if rotation is None or rotation.ranks != tuple(image):
        return None
    return _freely(Boxes(ranks, rotation))


def nodes_of(topology: Topology) -> tuple[tuple[int, ...], ...]:
    """The ranks of every node with GPUs, in order of first rank."""
    nodes: dict[int, list[int]] = defaultdict(list)
    for rank in range(topology.num_ranks):
        nodes[topology.node_of(rank)].append(rank)
    return tuple(map(tuple, nodes.values()))


def _next_devices(topology: Topology, nodes: Sequence[int]) -> dict[str, str] | None:
    """Every device's image: the one at its place, among those of its kind, in the next node; GPUs are in order of rank."""
    by_node: dict[int, dict[DeviceKind, list[Device]]] = defaultdict(lambda: defaultdict(list))
    for device in topology.devices:
        by_node[device.node][device.kind].append(device)
    image = {device.id: device.id for device in topology.devices}
    for here, there in zip(nodes, (*nodes[1:], nodes[0]), strict=True):
        for kind in by_node[here].keys() | by_node[there].keys():
            own, others = (sorted(by_node[node][kind], key=_rank) for node in (here, there))
            if len(own) != len(others):
                return None
            image.update((device.id, other.id) for device, other in zip(own, others, strict=True))
    return image


def _rank(device: Device) -> int:
    return -1 if device.rank is None else device.rank


def _freely(boxes: Boxes) -> Boxes | None:
    """The boxes if going once round brings every path back, and every link that moves at all."""
    last = boxes.count - 1
    rotation = boxes.rotation
    again = Symmetry(
        rotation.ranks,
        tuple(boxes.paths[last][list(rotation.paths)].tolist()),
        tuple(boxes.links[last][list(rotation.links)].tolist()),
    )
    whole = again.paths == tuple(range(len(again.paths))) and again.links == tuple(range(len(again.links)))
    return boxes if whole else None
