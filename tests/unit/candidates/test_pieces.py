"""Where chunks come in pieces, and in how many."""

from __future__ import annotations

from dataclasses import replace

import pytest

from synth.candidates.candidate import LARGE_VIEW
from synth.candidates.hierarchy import hierarchy_candidates
from synth.candidates.lean import lean_candidates
from synth.candidates.pieces import finest_pieces, pieced_sums, summed_pieces
from synth.topology import Device, DeviceKind
from tests.graphs import both_ways, dgx1, instance_of, star, two_switches, unequal_ring

POWERS = tuple(1 << k for k in range(9))
KB, MB, GB = 1 << 10, 1 << 20, 1 << 30


@pytest.mark.parametrize("name", ["allgather", "reduce-scatter", "allreduce"])
def test_shares_over_unequal_links_come_in_pieces_first_of_all(name: str) -> None:
    unequal = instance_of(unequal_ring(), name)
    tried = lean_candidates(unequal, POWERS, GB, single=True)
    pieces = [place for place, each in enumerate(tried) if each.pieces]
    if name == "allreduce":
        assert not pieces
        return
    assert pieces == [0]
    assert (tried[0].count, tried[0].pieces, tried[0].in_rounds) == (256, 128, True)
    # A range of sizes, equal links, and a smaller buffer, whose parts were too small, have none.
    assert not any(each.pieces for each in lean_candidates(unequal, POWERS, GB, single=False))
    assert not any(each.pieces for each in lean_candidates(instance_of(star(16), name), POWERS, GB, single=True))
    assert not any(each.pieces for each in lean_candidates(unequal, POWERS, 64 * MB, single=True))


@pytest.mark.parametrize(("size", "count", "pieces"), [(128 * MB, 128, 64), (256 * MB, 256, 81), (512 * MB, 256, 102)])
def test_smaller_shares_come_in_fewer_pieces(size: int, count: int, pieces: int) -> None:
    """A runtime reads 133 of 16 ranks."""
    tried = lean_candidates(instance_of(unequal_ring(), "allgather"), POWERS, size, single=True)
    assert [(each.count, each.pieces) for each in tried if each.pieces] == [(count, pieces)]


def test_where_a_runtime_reads_all_chunks_of_a_share_large_buffers_do_not_come_in_pieces() -> None:
    crowded = two_switches(8)
    for machine, size, pieced in ((dgx1(), 256 * MB, True), (dgx1(), 512 * MB, False), (crowded, 128 * MB, False)):
        tried = lean_candidates(instance_of(machine, "allgather"), POWERS, size, single=True)
        assert any(each.pieces for each in tried) == pieced


def test_by_schedule_the_finest_pieces_are_half_as_large() -> None:
    """With a few messages less than a runtime reads, since waits may need steps of their own."""
    unequal, counts = instance_of(unequal_ring(), "allgather"), (*POWERS, 512)
    (finest,) = finest_pieces(unequal, "auto", counts, GB)
    assert (finest.strategy, finest.count, finest.pieces, finest.in_rounds) == ("trees", 512, 126, True)
    for instance in (
        instance_of(unequal_ring(), "allreduce"),
        instance_of(unequal_ring(), "alltoall"),
        instance_of(star(16), "allgather"),
        instance_of(dgx1(), "allgather"),
    ):
        assert finest_pieces(instance, "auto", counts, GB) == []
    assert finest_pieces(unequal, "flow", counts, GB) == []


@pytest.mark.parametrize(
    ("ranks", "name", "pieces"),
    [
        # Of 16 ranks a runtime reads a finer cut as it is than what is tried.
        (16, "reduce-scatter", None),
        (32, "allgather", None),
        (32, "reduce-scatter", (128, 64)),
        (64, "allgather", (64, 31)),
        (64, "reduce-scatter", (64, 31)),
        # Its halves have messages for half as many, in pieces that are cut finer.
        (64, "allreduce", None),
        # More ranks than are looked at beside the boxes; and more transfers than are worth it.
        (128, "reduce-scatter", (32, 15)),
        (256, "reduce-scatter", None),
    ],
)
def test_over_many_equal_boxes_messages_come_in_pieces(ranks: int, name: str, pieces: tuple[int, int] | None) -> None:
    instance, counts = instance_of(star(ranks), name), (*POWERS, 512, 1024, 2048)
    tried = hierarchy_candidates(instance, "auto", counts, GB, by_time=True, single=True)
    made = [(each.count, each.pieces) for each in tried if each.pieces]
    assert made == ([pieces] if pieces else [])
    assert all(each.in_rounds and each.strategy == "hierarchy-ring" for each in tried if each.pieces)
    shared = hierarchy_candidates(instance, "auto", counts, GB, by_time=True, single=False)
    scheduled = hierarchy_candidates(instance, "auto", counts, GB, by_time=False, single=True)
    smaller = hierarchy_candidates(instance, "auto", counts, 128 * MB, by_time=True, single=True)
    assert not any(each.pieces for each in (*shared, *scheduled, *smaller))


@pytest.mark.parametrize("name", ["allgather", "reduce-scatter"])
def test_where_shares_come_in_pieces_over_very_many_ranks_nothing_else_is_in_rounds(name: str) -> None:
    instance, counts = instance_of(star(128), name), (*POWERS, 512, 1024, 2048)
    tried = hierarchy_candidates(instance, "auto", counts, GB, by_time=True, single=True)
    assert [each.pieces for each in tried if each.in_rounds] == [15]
    assert not tried[1].in_rounds
    assert tried[1].view == LARGE_VIEW


@pytest.mark.parametrize(
    ("ranks", "counts", "pieces"),
    [
        (16, (8, 16, 32, 64, 128, 256), None),
        (24, (8, 23, 46, 92, 178), (92, 86)),
        (24, (8, 23, 46, 80, 92, 178), None),
        (32, (8, 16, 32, 64, 128, 256), (128, 64)),
        (64, (8, 16, 32, 64, 128, 256), (64, 31)),
    ],
)
def test_sums_over_boxes_come_in_pieces_where_no_finer_rounds_are_read(
    ranks: int, counts: tuple[int, ...], pieces: tuple[int, int] | None
) -> None:
    tried = hierarchy_candidates(
        instance_of(star(ranks), "reduce-scatter"), "auto", counts, GB, by_time=True, single=True
    )
    assert [(each.count, each.pieces) for each in tried if each.pieces] == ([pieces] if pieces else [])


@pytest.mark.parametrize(
    ("ranks", "size", "pieces"),
    [
        (16, GB, None),
        (24, GB, (4096, 43)),
        (32, GB, (4096, 32)),
        (32, 512 * MB, (4096, 32)),
        (32, 256 * MB, None),
        (64, GB, (4096, 15)),
        (128, GB, None),
    ],
)
def test_an_allreduce_over_boxes_comes_in_pieces_of_four_chunks(
    ranks: int, size: int, pieces: tuple[int, int] | None
) -> None:
    """Of 16 ranks a runtime reads a finer cut as it is, of 128 hardly any; and chunks of 64 KB are too small."""
    instance, counts = instance_of(star(ranks), "allreduce"), tuple(1 << k for k in range(14))
    boxed = hierarchy_candidates(instance, "auto", counts[:12], size, by_time=True, single=True)
    made = pieced_sums(instance, counts, boxed)
    assert [(each.count, each.pieces) for each in made] == ([pieces] if pieces else [])
    assert all(each.in_rounds and each.strategy == "hierarchy-ring" for each in made)
    assert not pieced_sums(instance, counts, [each for each in boxed if not each.in_rounds])


def test_an_allreduce_over_unequal_links_comes_in_pieces_and_in_smaller_ones_where_ways_share_one() -> None:
    """A runtime reads 66 messages of 16 ranks. Not where links are equal."""
    counts, ring = tuple(1 << k for k in range(13)), unequal_ring()
    ports = [link for rank in (0, 4, 8) for link in both_ways(f"gpu{rank}", "switch")]
    shared = replace(
        ring, devices=(*ring.devices, Device("switch", DeviceKind.PCIE_SWITCH)), links=(*ring.links, *ports)
    )
    for machine, count in ((shared, 4096), (ring, 2048)):
        (made,) = summed_pieces(instance_of(machine, "allreduce"), counts, GB)
        assert (made.strategy, made.count, made.pieces) == ("trees", count, 66)
        assert (made.in_rounds, made.view) == (True, LARGE_VIEW)
    assert summed_pieces(instance_of(star(16), "allreduce"), counts, GB) == []
    assert summed_pieces(instance_of(shared, "allreduce"), counts, MB) == []
