"""Groups of symmetries: products, the group that generators make, and orbits.

What a symmetry of a machine is says `synth.instance.Symmetry`; how they are found, `synth.reductions.symmetry`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from synth.instance import Instance, Symmetry


def identity(num_ranks: int, num_paths: int, num_links: int) -> Symmetry:
    """The symmetry that leaves everything in place."""
    return Symmetry(tuple(range(num_ranks)), tuple(range(num_paths)), tuple(range(num_links)))


def after(second: Symmetry, first: Symmetry) -> Symmetry:
    """The symmetry that does `first`, then `second`."""
    return Symmetry(
        tuple(second.ranks[rank] for rank in first.ranks),
        tuple(second.paths[path] for path in first.paths),
        tuple(second.links[link] for link in first.links),
    )


def free_group(generators: Sequence[Symmetry]) -> tuple[Symmetry, ...] | None:
    """Every member of the generated group, the identity first; None where the group does not act freely on the ranks.

    A free group has at most as many members as there are ranks, so this ends early on large groups.
    """
    if not generators:
        return None
    first = generators[0]
    unit = identity(len(first.ranks), len(first.paths), len(first.links))
    members = {unit: None}
    frontier = [unit]
    while frontier:
        grown: list[Symmetry] = []
        for member in frontier:
            for generator in generators:
                product = after(generator, member)
                if product in members:
                    continue
                if any(rank == image for rank, image in enumerate(product.ranks)) or len(members) == len(unit.ranks):
                    return None
                members[product] = None
                grown.append(product)
        frontier = grown
    return tuple(members)


def members_of(instance: Instance, generators: Sequence[Symmetry]) -> tuple[Symmetry, ...]:
    """Every member of the group that some of an instance's symmetries generate: the identity first, alone if there are none."""
    alone = identity(instance.num_ranks, len(instance.paths), len(instance.topology.links))
    return free_group(generators) or (alone,)


def orbits(size: int, permutations: Iterable[Sequence[int]]) -> tuple[int, ...]:
    """For each of 0..size-1 the smallest element of its orbit under the group that the permutations generate."""
    parent = list(range(size))

    def root(item: int) -> int:
        while parent[item] != item:
            parent[item] = parent[parent[item]]
            item = parent[item]
        return item

    for permutation in permutations:
        for item, image in enumerate(permutation):
            low, high = sorted((root(item), root(image)))
            parent[high] = low
    return tuple(root(item) for item in range(size))
