"""From a machine, a collective and a sketch to the instance that the stages solve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from synth.candidates import LATENCY_BOUND_BYTES
from synth.collective import Collective
from synth.default_sketch import default_sketch
from synth.errors import InputError
from synth.instance import Instance, Symmetry
from synth.paths import Path, find_paths
from synth.reductions.symmetry import find_symmetries, from_offsets
from synth.sketch import Sketch, apply_sketch
from synth.symmetry import free_group
from synth.topology import DeviceKind, Topology

#: Ranks up to which everybody may talk to everybody over the network where latency is all that counts; beyond, connections
#: outgrow the threadblocks of a GPU.
MAX_FULLY_CONNECTED = 32


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
    if collective.num_ranks != topology.num_ranks:
        raise InputError(topology.name, "ranks", topology.num_ranks, f"{collective.num_ranks}, the collective's")
    every_path = tuple(paths) if paths is not None else find_paths(topology)
    rails = buffer_bytes > LATENCY_BOUND_BYTES or topology.num_ranks > MAX_FULLY_CONNECTED
    chosen = sketch if sketch is not None else default_sketch(topology, every_path, collective.name, rails=rails)
    kept = apply_sketch(topology, every_path, chosen)
    symmetries = sketch_symmetries(topology, kept, chosen)
    return Instance(topology, collective, kept, collective.chunk_bytes(buffer_bytes), symmetries)


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
