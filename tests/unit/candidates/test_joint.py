"""What is tried with free roots."""

from __future__ import annotations

from synth.candidates.candidate import LARGE_VIEW
from synth.candidates.joint import joint_candidates
from tests.graphs import instance_of, mesh

POWERS = tuple(1 << k for k in range(9))
MB, GB = 1 << 20, 1 << 30


def test_free_roots_come_in_rounds_for_large_buffers() -> None:
    instance = instance_of(mesh(3, 3), "allreduce")
    assert [each.in_rounds for each in joint_candidates(instance, POWERS, MB)] == [False]
    tried = joint_candidates(instance, (*POWERS, 512), GB)
    assert {each.strategy for each in tried} == {"joint"}
    assert [(each.count, each.in_rounds, each.view) for each in tried] == [
        (512, True, LARGE_VIEW),
        (512, False, None),
        (256, False, None),
        (256, True, LARGE_VIEW),
    ]
    assert [(each.count, each.in_rounds) for each in joint_candidates(instance, [16], GB)] == [(16, True), (16, False)]
    assert joint_candidates(instance_of(mesh(3, 3), "allgather"), POWERS, GB) == []
