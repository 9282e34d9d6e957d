"""From a machine, a collective and a sketch to the instance that the stages solve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from synth.boxes import Boxes
from synth.candidates.sizes import LATENCY_BOUND_BYTES
from synth.collective import Collective, CollectiveName
from synth.default_sketch import default_sketch
from synth.errors import InputError
from synth.instance import Instance, Symmetry
from synth.paths import Path, find_paths
from synth.reductions.boxes import find_boxes, nodes_of
from synth.reductions.fold import share_nothing
from synth.reductions.symmetry import find_symmetries, from_offsets
from synth.routing.patterns import strides
from synth.sketch import Sketch, apply_sketch
from synth.symmetry import free_group
from synth.topology import DeviceKind, Topology

#: Ranks up to which everybody may talk to everybody over the network where latency is all that counts; beyond, connections
#: outgrow the threadblocks of a GPU.
MAX_FULLY_CONNECTED = 32
#: Ranks up to which all symmetries are searched for: the search takes a second there, and grows faster than the square.
MAX_SEARCHED = 64


def build_instance(
    topology: Topology,
    collective: Collective,
    buffer_bytes: float,
    sketch: Sketch | None = None,
    paths: Sequence[Path] | None = None,
) -> Instance:
    """The instance of `collective` on `topology` for a buffer of `buffer_bytes` (as nccl-tests counts it).

    Without a sketch the derived one is used; `paths` (those of `find_paths`, which is called where they are not given)
    are cut down to what the sketch allows. Symmetries are the sketch's where it has some, else whatever is found.

    Raises InputError where the sketch does not fit the machine, NoAnswerError where the machine is not connected.
    """
    return Builder(topology, sketch, paths).instance(collective, buffer_bytes)


@dataclass
class Builder:
    """Builds the instances of one machine under one sketch, and keeps what they share. `paths` are as for `build_instance`."""

    topology: Topology
    sketch: Sketch | None = None
    paths: Sequence[Path] | None = None
    _cut: dict[tuple[CollectiveName, bool, int | None, tuple[int, ...] | None], tuple[Sketch, tuple[Path, ...]]] = (
        field(default_factory=dict)
    )
    _symmetries: dict[tuple[CollectiveName, bool, tuple[int, ...] | None], tuple[Symmetry, ...]] = field(
        default_factory=dict
    )
    _boxed: dict[tuple[CollectiveName, str], tuple[tuple[Path, ...], Boxes] | None] = field(default_factory=dict)

    def instance(self, collective: Collective, buffer_bytes: float) -> Instance:
        """The instance of a collective for a buffer size."""
        self._check(collective)
        rails = buffer_bytes > LATENCY_BOUND_BYTES or self.topology.num_ranks > MAX_FULLY_CONNECTED
        sketch, kept = self._kept(collective, rails)
        key = collective.name, rails, collective.group
        if key not in self._symmetries:
            found = self._found(kept, sketch)
            self._symmetries[key] = tuple(each for each in found if _keeps(each, collective.members))
        symmetries = self._symmetries[key]
        return Instance(self.topology, collective, kept, collective.chunk_bytes(buffer_bytes), symmetries)

    def boxed(self, collective: Collective, buffer_bytes: float, pattern: str) -> tuple[Instance, Boxes] | None:
        """The instance of a collective on a cluster of equal boxes that share no link, with the paths that a pattern of
        boxes needs and the rotation of boxes for a symmetry; None where the machine is no such cluster. `pattern` is one
        that synth.routing.patterns knows.
        """
        self._check(collective)
        if collective.group is not None:
            return None
        key = collective.name, pattern
        if key not in self._boxed:
            self._boxed[key] = self._find_boxes(collective, pattern)
        found = self._boxed[key]
        if found is None:
            return None
        paths, boxes = found
        chunk_bytes = collective.chunk_bytes(buffer_bytes)
        return Instance(self.topology, collective, paths, chunk_bytes, (boxes.rotation,)), boxes

    def _found(self, kept: tuple[Path, ...], sketch: Sketch) -> tuple[Symmetry, ...]:
        """The symmetries of what the sketch leaves: on large machines the rotation of boxes alone, where there is one."""
        if self.topology.num_ranks > MAX_SEARCHED and not sketch.symmetry_offsets:
            boxes = boxes_of(self.topology, kept)
            if boxes is not None:
                return (boxes.rotation,)
        return sketch_symmetries(self.topology, kept, sketch)

    def _find_boxes(self, collective: Collective, pattern: str) -> tuple[tuple[Path, ...], Boxes] | None:
        nodes = nodes_of(self.topology)
        if len(nodes) < 2:
            return None
        _, kept = self._kept(collective, True)
        steps = strides(pattern, len(nodes))
        wanted = {0, *steps, *(len(nodes) - step for step in steps)}
        place = {rank: number for number, ranks in enumerate(nodes) for rank in ranks}
        near = [path for path in kept if (place[path.dst] - place[path.src]) % len(nodes) in wanted]
        paths = tuple(replace(path, index=index) for index, path in enumerate(near))
        boxes = boxes_of(self.topology, paths)
        return (paths, boxes) if boxes is not None and share_nothing(paths, boxes) else None

    def _kept(self, collective: Collective, rails: bool) -> tuple[Sketch, tuple[Path, ...]]:
        """The sketch, and the paths that it leaves."""
        key = collective.name, rails, collective.root, collective.group
        if key not in self._cut:
            if self.paths is None:
                self.paths = find_paths(self.topology, collective)
            chosen = self.sketch or default_sketch(self.topology, self.paths, collective.name, rails=rails)
            self._cut[key] = chosen, apply_sketch(self.topology, self.paths, chosen, collective)
        return self._cut[key]

    def _check(self, collective: Collective) -> None:
        if collective.num_ranks != self.topology.num_ranks:
            raise InputError(
                self.topology.name, "ranks", self.topology.num_ranks, f"{collective.num_ranks}, the collective's"
            )


def _keeps(symmetry: Symmetry, ranks: frozenset[int]) -> bool:
    return all(symmetry.ranks[rank] in ranks for rank in ranks)


def sketch_symmetries(topology: Topology, paths: Sequence[Path], sketch: Sketch) -> tuple[Symmetry, ...]:
    """The symmetries that the sketch states, checked on what it leaves of the machine; where it states none, what a
    search finds. Links that no path crosses do not count: they stay in place.

    Raises InputError for a rotation that does not map what is left onto itself, and for several that together keep some
    rank in place (`synth.reductions.symmetry` says why these do not serve).
    """
    used = sorted({link for path in paths for link in path.links})
    core = _core(topology, used)
    place = {link: position for position, link in enumerate(used)}
    core_paths = [replace(path, links=tuple(place[link] for link in path.links)) for path in paths]
    found = _stated(core, core_paths, sketch) if sketch.symmetry_offsets else find_symmetries(core, core_paths)
    return tuple(_on_all_links(symmetry, used, len(topology.links)) for symmetry in found)


def boxes_of(topology: Topology, paths: Sequence[Path]) -> Boxes | None:
    """The equal boxes of a cluster that can be rotated, on the links that `paths` cross; None where there are none."""
    used = sorted({link for path in paths for link in path.links})
    place = {link: position for position, link in enumerate(used)}
    core_paths = [replace(path, links=tuple(place[link] for link in path.links)) for path in paths]
    found = find_boxes(_core(topology, used), core_paths)
    if found is None:
        return None
    return replace(found, rotation=_on_all_links(found.rotation, used, len(topology.links)))


def _core(topology: Topology, used: Sequence[int]) -> Topology:
    """The GPUs, the links `used`, and the devices that these join."""
    links = tuple(topology.links[link] for link in used)
    ends = {end for link in links for end in (link.src, link.dst)}
    devices = tuple(device for device in topology.devices if device.kind is DeviceKind.GPU or device.id in ends)
    return replace(topology, devices=devices, links=links)


def _on_all_links(symmetry: Symmetry, used: Sequence[int], num_links: int) -> Symmetry:
    links = list(range(num_links))
    for link, image in zip(used, symmetry.links, strict=True):
        links[link] = used[image]
    return replace(symmetry, links=tuple(links))


def _stated(topology: Topology, paths: Sequence[Path], sketch: Sketch) -> tuple[Symmetry, ...]:
    """The sketch's rotations as symmetries, the identity left out."""
    stated = []
    images = from_offsets(sketch.symmetry_offsets, topology, paths)
    for pair, symmetry in zip(sketch.symmetry_offsets, images, strict=True):
        if symmetry is None:
            expected = f"a rotation that leaves {topology.name}, as the sketch cuts it down, unchanged"
            raise InputError(sketch.source, "symmetry", list(pair), expected)
        if symmetry.ranks != tuple(range(topology.num_ranks)):
            stated.append(symmetry)
    if stated and free_group(stated) is None:
        offsets = [list(pair) for pair in sketch.symmetry_offsets]
        expected = "rotations that combine to none that leaves a rank in place"
        raise InputError(sketch.source, "symmetry", offsets, expected)
    return tuple(stated)
