"""Symmetries: what is found on known machines, and that everything found is one."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from synth.instance import Symmetry
from synth.paths import Path, find_paths
from synth.reductions.symmetry import find_symmetries, from_offsets
from synth.symmetry import after, free_group, identity, orbits
from synth.topology import Topology, replicate
from tests.graphs import dgx1, from_pairs, full, line, mesh, ring, star, two_boxes


def assert_symmetry(topology: Topology, paths: tuple[Path, ...], symmetry: Symmetry) -> None:
    assert sorted(symmetry.ranks) == list(range(topology.num_ranks))
    assert sorted(symmetry.paths) == list(range(len(paths)))
    assert sorted(symmetry.links) == list(range(len(topology.links)))
    for path in paths:
        image = paths[symmetry.paths[path.index]]
        assert (image.src, image.dst) == (symmetry.ranks[path.src], symmetry.ranks[path.dst])
        assert (image.alpha_us, image.occupancy) == (path.alpha_us, path.occupancy)
        assert image.links == tuple(symmetry.links[link] for link in path.links)
    for index, link in enumerate(topology.links):
        image_link = topology.links[symmetry.links[index]]
        assert replace(image_link, src="", dst="") == replace(link, src="", dst="")


@pytest.mark.parametrize(
    ("topology", "order"),
    [
        (ring(5), 5),
        (line(4), 2),
        (full(6), 6),
        (star(16), 16),
        (mesh(2, 3), 2),
        (mesh(4, 4), 4),
        (mesh(3, 3), 1),
        (dgx1(), 4),
        (two_boxes(dgx1()), 2),
        (two_boxes(dgx1(), range(8)), 8),
        (two_boxes(star(8), range(8)), 16),
        (two_boxes(ring(4), (0, 2)), 4),
    ],
    ids=lambda value: value.name if isinstance(value, Topology) else str(value),
)
def test_group_on_known_machines(topology: Topology, order: int) -> None:
    paths = find_paths(topology)
    found = find_symmetries(topology, paths)
    group = free_group(found)
    assert (len(group) if group is not None else 1) == order
    for symmetry in group or ():
        assert_symmetry(topology, paths, symmetry)
    assert find_symmetries(topology, paths) == found


def test_dgx1_has_xor_1_and_xor_4() -> None:
    topology = dgx1()
    group = free_group(find_symmetries(topology, find_paths(topology)))
    assert group is not None
    images = {member.ranks for member in group}
    assert {tuple(rank ^ mask for rank in range(8)) for mask in (0, 1, 4, 5)} == images


def test_search_finds_what_no_usual_candidate_is() -> None:
    # A ring whose GPUs are numbered at random: no rotation of the numbers and no mask turns it.
    order = (0, 3, 5, 1, 6, 2, 4)
    topology = from_pairs("shuffled", 7, [(order[i], order[(i + 1) % 7]) for i in range(7)])
    paths = find_paths(topology)
    group = free_group(find_symmetries(topology, paths))
    assert group is not None
    assert len(group) == 7
    for symmetry in group:
        assert_symmetry(topology, paths, symmetry)


def test_unlike_links_are_no_symmetry() -> None:
    topology = ring(4)
    slower = replace(topology.links[0], GBps=topology.links[0].GBps / 2)
    uneven = replace(topology, links=(slower, *topology.links[1:]))
    assert find_symmetries(uneven, find_paths(uneven)) == ()


def test_shared_switch_ports_are_kept_apart() -> None:
    # Two GPUs behind each of two switches: 1 and 2 look alike pair by pair, but 0 shares its uplink with 1 only.
    topology = replicate(star(2), 1)
    both = two_boxes(topology, (0, 1))
    paths = find_paths(both)
    for symmetry in find_symmetries(both, paths):
        assert_symmetry(both, paths, symmetry)
        assert Counter(both.node_of(rank) for rank in symmetry.ranks[:2]).most_common(1)[0][1] == 2


def test_work_limit_ends_the_search() -> None:
    topology = dgx1()
    assert find_symmetries(topology, find_paths(topology), work_limit=0) == ()


def test_taccl_offsets() -> None:
    topology = dgx1()
    paths = find_paths(topology)
    half, pairs, wrong, no_group = from_offsets([(4, 8), (1, 2), (2, 4), (1, 3)], topology, paths)
    assert half is not None
    assert pairs is not None
    assert half.ranks == (4, 5, 6, 7, 0, 1, 2, 3)
    assert pairs.ranks == (1, 0, 3, 2, 5, 4, 7, 6)
    assert (wrong, no_group) == (None, None)
    assert after(half, half) == identity(8, len(paths), len(topology.links))


def test_group_that_is_not_free_is_refused() -> None:
    mirror = Symmetry((0, 2, 1), (), ())
    assert free_group([mirror]) is None
    assert free_group([]) is None


def test_orbits() -> None:
    assert orbits(6, [(1, 0, 2, 3, 4, 5), (0, 1, 2, 4, 5, 3)]) == (0, 0, 2, 3, 3, 3)
    assert orbits(3, []) == (0, 1, 2)
