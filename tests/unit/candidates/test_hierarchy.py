"""What is tried for one of several equal boxes."""

from __future__ import annotations

import pytest

from synth.candidates import Candidate
from synth.candidates.candidate import LARGE_VIEW, STAR
from synth.candidates.hierarchy import hierarchy_candidates
from synth.candidates.joint import joint_candidates
from synth.candidates.lean import lean_candidates
from synth.candidates.transfers import transfers_of, with_count
from tests.graphs import instance_of, star

POWERS = tuple(1 << k for k in range(9))
MB, GB = 1 << 20, 1 << 30


@pytest.mark.parametrize(
    ("name", "size", "made"),
    [
        ("allgather", 256 * MB, [("ring", 8, True), ("doubling", 8, False), ("doubling", 8, True)]),
        (
            "reduce-scatter",
            256 * MB,
            [("doubling", 8, False), ("ring", 8, True), ("doubling", 8, True), ("ring", 8, False)],
        ),
        (
            "allreduce",
            GB,
            [("ring", 512, False), ("doubling", 512, False), ("doubling", 512, True), ("ring", 512, True)],
        ),
        ("allgather", 64 * MB, [("doubling", 8, True), ("ring", 8, True), ("doubling", 1, False)]),
        ("reduce-scatter", 64 * MB, [("doubling", 8, True), ("ring", 8, True), ("doubling", 8, False)]),
        ("allgather", 8 * MB, []),
    ],
)
def test_over_boxes_of_very_many_ranks_what_is_made_for_an_interpreter_comes_first(
    name: str, size: int, made: list[tuple[str, int, bool]]
) -> None:
    instance, counts = instance_of(star(128, alpha_us=0.01), name), (*POWERS, 512, 1024)

    def viewed(*, by_time: bool = True, single: bool = True) -> list[Candidate]:
        tried = hierarchy_candidates(instance, "auto", counts, size, by_time=by_time, single=single)
        known = [each for each in tried if each.view is not None]
        assert tried[: len(known)] == known
        assert len(tried) > len(known)
        return known

    alone = viewed()
    assert [(each.strategy.removeprefix("hierarchy-"), each.count, each.in_rounds) for each in alone] == made
    assert viewed(single=False) == alone[:1]
    assert viewed(by_time=False) == []


def test_of_still_more_ranks_rounds_are_cut_finer_than_lists() -> None:
    """Messages are what rounds have in each of them; a list is as good with fewer."""
    instance, counts = instance_of(star(256, alpha_us=0.01), "allgather"), (*POWERS, 512, 1024)
    tried = hierarchy_candidates(instance, "auto", counts, GB, by_time=True, single=True)
    assert [(each.count, each.in_rounds) for each in tried[:3]] == [(4, True), (2, False), (4, True)]


@pytest.mark.parametrize(
    ("name", "size", "made"),
    [
        ("allgather", 256 * MB, [("doubling", 8, False), ("ring", 16, True), ("doubling", 16, True)]),
        ("reduce-scatter", 64 * MB, [("doubling", 8, False), ("doubling", 16, True)]),
        ("allreduce", GB, [("doubling", 512, False), ("doubling", 512, True)]),
        ("allreduce", 8 * MB, None),
    ],
)
def test_over_boxes_of_many_ranks_some_pass_few_boxes_last(
    name: str, size: int, made: list[tuple[str, int, bool]] | None
) -> None:
    def tried(ranks: int, *, single: bool = True) -> list[Candidate]:
        instance = instance_of(star(ranks, alpha_us=0.01), name)
        planned = hierarchy_candidates(instance, "auto", (*POWERS, 512, 1024), size, by_time=True, single=single)
        return [each for each in planned if each.view is not None]

    assert {each.strategy for each in (*tried(32), *tried(64, single=False))} <= {"hierarchy-ring"}
    many = [(each.strategy.removeprefix("hierarchy-"), each.count, each.in_rounds) for each in tried(64)]
    assert many[len(many) - len(made or []) :] == (made or [])
    assert sum(strategy == "doubling" for strategy, *_ in many) == (2 if made else 0)


@pytest.mark.parametrize(("ranks", "size", "alone", "in_range"), [
    (64, MB, False, False),
    (128, MB, True, True),
    (128, 16 * MB, True, True),
    (128, 32 * MB, False, False),
    (256, MB, True, False),
])  # fmt: skip
def test_many_boxes_send_to_each_other_directly_up_to_medium_sizes(
    ranks: int, size: int, alone: bool, in_range: bool
) -> None:
    instance = instance_of(star(ranks), "allgather")
    for single, starred in ((True, alone), (False, in_range)):
        tried = hierarchy_candidates(instance, "auto", POWERS, size, by_time=True, single=single)
        assert any(each.strategy == STAR for each in tried) is starred


@pytest.mark.parametrize(("ranks", "finest"), [(8, 64), (16, 64), (32, 32), (64, 4)])
def test_equal_boxes_are_cut_as_packings_are_for_large_buffers(ranks: int, finest: int) -> None:
    """In a list; in rounds as finely as transfers allow, which is finer where each rank would have few chunks."""
    instance = instance_of(star(ranks), "allgather")
    tried = hierarchy_candidates(instance, "auto", POWERS, GB, by_time=True)
    assert [each.in_rounds for each in tried] == [True, *[False] * (len(tried) - 1)]
    assert tried[0].count == finest
    listed = tried[1:]
    packed = lean_candidates(instance, POWERS, GB, single=True)
    assert {each.count for each in listed} == {each.count for each in packed}
    assert {(each.strategy, each.view) for each in tried} == {("hierarchy-ring", LARGE_VIEW)}
    for size, by_time in ((MB, True), (GB, False)):
        others = hierarchy_candidates(instance, "auto", POWERS, size, by_time=by_time)
        assert {each.view for each in others} == {None}
    assert hierarchy_candidates(instance, "trees", POWERS, GB, by_time=True) == []


def test_over_equal_boxes_one_medium_size_is_tried_with_what_is_made_for_more() -> None:
    instance = instance_of(star(16), "allgather")
    usual = hierarchy_candidates(instance, "auto", POWERS, 32 * MB, by_time=True)
    tried = hierarchy_candidates(instance, "auto", POWERS, 32 * MB, by_time=True, single=True)
    assert [each for each in tried if each.anchor_bytes == 32 * MB] == usual
    beyond = [each for each in tried if each.anchor_bytes > 32 * MB]
    assert {each.anchor_bytes for each in beyond} == {256 * MB}
    assert [each.count for each in beyond] == [each.count for each in usual if not each.in_rounds]
    large = hierarchy_candidates(instance, "auto", POWERS, GB, by_time=True)
    assert hierarchy_candidates(instance, "auto", POWERS, GB, by_time=True, single=True) == large


def test_alltoall_over_equal_boxes_is_cut_little() -> None:
    counts = [
        each.count for each in hierarchy_candidates(instance_of(star(16), "alltoall"), "auto", POWERS, GB, by_time=True)
    ]
    assert counts == [1, 4]
    many = hierarchy_candidates(instance_of(star(128), "alltoall"), "hierarchy", POWERS, GB, by_time=True)
    assert [(each.strategy, each.count) for each in many] == [("hierarchy-direct", 1)]
    assert hierarchy_candidates(instance_of(star(16), "gather", root=0), "auto", POWERS, GB, by_time=True) == []


@pytest.mark.parametrize("name", ["allgather", "reduce-scatter", "allreduce"])
def test_large_clusters_are_cut_as_finely_as_a_runtime_reads(name: str) -> None:
    instance = instance_of(star(128), name)
    tried = hierarchy_candidates(instance, "auto", tuple(1 << k for k in range(12)), GB, by_time=True)
    assert tried
    for each in tried:
        assert 2 * transfers_of(with_count(instance.collective, each.count)) < 4_095 * 128


@pytest.mark.parametrize(("name", "ranks", "cuts"), [
    ("reduce-scatter", 8, [64]),
    ("reduce-scatter", 16, [64]),
    ("reduce-scatter", 32, [32, 64]),
    ("reduce-scatter", 64, [4, 16]),
    ("allreduce", 8, [512]),
    ("allreduce", 16, [512, 1024]),
    ("allreduce", 32, [512, 1024]),
])  # fmt: skip
def test_sums_over_many_boxes_are_cut_as_finely_as_a_runtime_reads(name: str, ranks: int, cuts: list[int]) -> None:
    instance = instance_of(star(ranks), name)
    tried = hierarchy_candidates(instance, "auto", tuple(1 << k for k in range(12)), GB, by_time=True)
    assert [each.count for each in tried if each.in_rounds] == cuts
    for count in cuts:
        # A send and a receive of every transfer, and the elements around them.
        assert 2 * transfers_of(with_count(instance.collective, count)) < 4_095 * ranks


@pytest.mark.parametrize(("size", "paced"), [(8 * MB, False), (16 * MB, True), (64 * MB, True)])
def test_what_has_a_long_way_to_go_comes_in_rounds_from_medium_sizes_on(size: int, paced: bool) -> None:
    instance = instance_of(star(16), "allreduce")
    boxed = hierarchy_candidates(instance, "auto", POWERS, size, by_time=True)
    assert boxed
    for tried in (boxed, joint_candidates(instance, POWERS, size)):
        assert any(each.in_rounds for each in tried) == paced


@pytest.mark.parametrize(("ranks", "cuts"), [(48, [64, 128, 256]), (64, [64, 128, 256]), (24, [32, 64, 128])])
def test_a_vector_without_whole_shares_is_cut_for_boxes_as_well(ranks: int, cuts: list[int]) -> None:
    tried = hierarchy_candidates(instance_of(star(ranks), "allreduce"), "hierarchy", POWERS, GB, by_time=False)
    assert {each.count for each in tried} <= set(cuts)
    assert max(each.count for each in tried) == cuts[-1]
