"""Symmetries of a machine, found from its graph: generators of a group that acts freely on the ranks.

Free means that no member but the identity leaves a rank in place. Only such a group may identify chunks: under a
symmetry that keeps a chunk's source, equal use of two equal ways in would bring the chunk twice
(docs/formulation.md, section 7).

Candidates are the permutations that machines usually have (rotations of nodes, of boxes, of groups; XOR masks),
then what a bounded search over the graph finds. Each is verified exactly: links go to links alike, paths to paths
alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from synth.instance import Symmetry
from synth.paths import Path
from synth.reductions.automorphism import Budget, DeviceGraph, extend
from synth.symmetry import free_group, orbits
from synth.topology import Topology

#: Looks at a link that a search may take: about two seconds, and far more than machines of some hundred devices need.
DEFAULT_WORK_LIMIT = 2_000_000


def find_symmetries(
    topology: Topology, paths: Sequence[Path], *, work_limit: int = DEFAULT_WORK_LIMIT
) -> tuple[Symmetry, ...]:
    """Generators of a group of symmetries that acts freely on the ranks, as large as the search finds (often none
    or few).

    Deterministic: `work_limit` counts looks at a link, and what is found before it ends is returned.
    """
    verifier = Verifier(topology, paths, Budget(work_limit))
    best: tuple[Symmetry, ...] = ()
    best_order = 1
    for recipe in (_rotations(topology), _masks(topology)):
        generators, order = _free_generators(topology.num_ranks, (verifier.symmetry(ranks) for ranks in recipe))
        if order > best_order:
            best, best_order = generators, order
        if best_order == topology.num_ranks:
            return best
    found = _free_generators(topology.num_ranks, [*best, *_searched(verifier, best)])
    return found[0] if found[1] > best_order else best


def from_offsets(
    offsets: Iterable[tuple[int, int]], topology: Topology, paths: Sequence[Path]
) -> tuple[Symmetry | None, ...]:
    """TACCL's `symmetry_offsets`: for each (offset, group), the rotation by `offset` inside every run of `group`
    ranks.

    None in the place of one that is no symmetry of the machine, or whose group does not divide the ranks.
    """
    verifier = Verifier(topology, paths)
    count = topology.num_ranks
    result: list[Symmetry | None] = []
    for offset, group in offsets:
        sensible = group > 0 and count % group == 0
        result.append(verifier.symmetry(_rotation(count, group, offset)) if sensible else None)
    return tuple(result)


class Verifier:
    """Turns permutations of ranks into symmetries of one machine, and refuses what is none; `budget` is for the search."""

    def __init__(self, topology: Topology, paths: Sequence[Path], budget: Budget | None = None) -> None:
        self.topology = topology
        self.paths = paths
        self.budget = budget or Budget(DEFAULT_WORK_LIMIT)
        self.graph = DeviceGraph(topology)
        self.by_links = {path.links: path.index for path in paths}
        self.between: dict[tuple[int, int], list[tuple[object, ...]]] = {}
        for path in paths:
            self.between.setdefault((path.src, path.dst), []).append((path.alpha_us, path.occupancy))

    def symmetry(self, ranks: Sequence[int]) -> Symmetry | None:
        """The permutation of ranks extended to paths and links, or None where it is no symmetry or the budget ends."""
        if sorted(ranks) != list(range(self.topology.num_ranks)):
            return None
        for (src, dst), alike in self.between.items():
            if self.between.get((ranks[src], ranks[dst])) != alike:
                return None
        gpus = self.topology.gpus
        return self.extension({gpu.id: gpus[image].id for gpu, image in zip(gpus, ranks, strict=True)})

    def extension(self, fixed: dict[str, str]) -> Symmetry | None:
        """A symmetry that takes the devices of `fixed` as told, or None."""
        devices = extend(self.graph, fixed, self.budget)
        return self.by_devices(devices) if devices is not None else None

    def by_devices(self, devices: Mapping[str, str]) -> Symmetry | None:
        """The permutation of devices as a symmetry, or None where it is none."""
        links = self.graph.link_map(devices)
        if links is None:
            return None
        image_of_paths: list[int] = []
        for path in self.paths:
            image = self.by_links.get(tuple(links[link] for link in path.links))
            if image is None or not _alike(path, self.paths[image]):
                return None
            image_of_paths.append(image)
        ranks = (self.topology.by_id[devices[gpu.id]].rank for gpu in self.topology.gpus)
        return Symmetry(tuple(rank for rank in ranks if rank is not None), tuple(image_of_paths), links)


def _alike(path: Path, image: Path) -> bool:
    return path.alpha_us == image.alpha_us and path.occupancy == image.occupancy


def _free_generators(num_ranks: int, candidates: Iterable[Symmetry | None]) -> tuple[tuple[Symmetry, ...], int]:
    """The candidates, taken in order, that keep the group free and make it larger; and the order of that group."""
    generators: tuple[Symmetry, ...] = ()
    order = 1
    for candidate in candidates:
        group = free_group((*generators, candidate)) if candidate is not None else None
        if candidate is not None and group is not None and len(group) > order:
            generators, order = (*generators, candidate), len(group)
        if order == num_ranks:
            break
    return generators, order


def _rotation(count: int, group: int, offset: int) -> tuple[int, ...]:
    return tuple(rank // group * group + (rank % group + offset) % group for rank in range(count))


def _rotations(topology: Topology) -> Iterator[tuple[int, ...]]:
    """Rotation of all ranks, then of nodes, then inside groups (a box first), each by ever larger steps."""
    count = topology.num_ranks
    box = count // max(topology.num_nodes, 1)
    yield _rotation(count, count, 1)
    if topology.num_nodes > 1 and count % topology.num_nodes == 0:
        yield _rotation(count, count, box)
    divisors = [size for size in range(count, 1, -1) if count % size == 0]
    for size in sorted(divisors, key=lambda size: size != box):
        for offset in (offset for offset in range(1, size // 2 + 1) if size % offset == 0):
            yield _rotation(count, size, offset)


def _masks(topology: Topology) -> Iterator[tuple[int, ...]]:
    """XOR with every mask that keeps the ranks among themselves (all where their number is a power of two), and
    node rotation.
    """
    count = topology.num_ranks
    nodes = topology.num_nodes
    if nodes > 1 and count % nodes == 0:
        yield _rotation(count, count, count // nodes)
    for mask in range(1, count):
        image = tuple(rank ^ mask for rank in range(count))
        if max(image) < count:
            yield image


def _searched(verifier: Verifier, known: Sequence[Symmetry]) -> Iterator[Symmetry]:
    """Symmetries that take rank 0 to the ranks that the known ones do not, one each where the search finds one."""
    gpus = verifier.topology.gpus
    orbit = orbits(len(gpus), (symmetry.ranks for symmetry in known))
    for gpu, representative in zip(gpus, orbit, strict=True):
        if representative != orbit[0] and verifier.budget.left > 0:
            found = verifier.extension({gpus[0].id: gpu.id})
            if found is not None:
                yield found
