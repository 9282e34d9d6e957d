"""Whatever the machine, the collective, the schedule and the options: the program passes the judge."""

from __future__ import annotations

import contextlib
import random
from dataclasses import replace
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from msccl_xml.limits import check_limits
from msccl_xml.model import Algo
from synth.collective import COMBINING, ROOTED, CollectiveName
from synth.errors import NoAnswerError
from synth.instance import Instance
from synth.lowering import Drafts, LoweringOptions, lower, lowered_collective
from synth.timing import check_schedule
from synth.topology import Topology
from synth.verify import verify_algo
from tests import graphs
from tests.schedules import random_schedule, tree_schedule

MACHINES: list[Topology] = [
    graphs.ring(2),
    graphs.ring(4),
    graphs.line(4),
    graphs.full(4),
    graphs.star(4),
    graphs.mesh(2, 3),
    graphs.full(3, GBps=60.0),
    graphs.two_boxes(graphs.ring(3), (0, 1)),
    graphs.two_boxes(graphs.full(2), (0, 1)),
]
RUNTIMES = ("msccl", "executor", "rccl")
#: (inplace, both_layouts) of the options: which calls a file is for.
APART, IN_PLACE, BOTH = (False, False), (True, False), (False, True)


@st.composite
def instances(draw: st.DrawFn) -> Instance:
    """A collective on a small machine, with few or many small or large chunks."""
    machine = draw(st.sampled_from(MACHINES))
    name = draw(st.sampled_from(CollectiveName))
    group = draw(graphs.groups(machine.num_ranks))
    root = draw(st.sampled_from(group or range(machine.num_ranks))) if name in ROOTED else None
    chunks, chunk_bytes = draw(st.integers(1, 6)), draw(st.sampled_from([1e2, 1e6]))
    return graphs.instance_of(machine, name, chunks, chunk_bytes, root=root, group=group)


@st.composite
def options(draw: st.DrawFn, collective: CollectiveName) -> LoweringOptions:
    """Any way to lower the collective."""
    return LoweringOptions(
        runtime=draw(st.sampled_from(RUNTIMES)),  # type: ignore[arg-type]
        protocol=draw(st.sampled_from(["Simple", "LL", "LL128"])),  # type: ignore[arg-type]
        inplace=collective is not CollectiveName.ALLTOALL and draw(st.booleans()),
        both_layouts=draw(st.booleans()),
        instances=draw(st.integers(1, 2)),
        channels=draw(st.sampled_from([None, 1, 3])),
    )


@settings(max_examples=300)
@given(st.data(), instances(), st.integers(0, 2**32), st.sampled_from([1, 3, 6]))
def test_any_schedule_lowers_to_a_program_that_passes_the_judge(
    data: st.DataObject, instance: Instance, seed: int, most_together: int
) -> None:
    schedule = random_schedule(instance, random.Random(seed), most_together)
    check_schedule(instance, schedule)
    chosen = data.draw(options(instance.collective.name))
    algo = lower(instance, schedule, chosen)
    verify_algo(algo, lowered_collective(instance.collective, chosen), runtime=chosen.runtime)
    assert check_limits(algo, chosen.runtime, full_ops=False) == []


@settings(max_examples=80)
@given(st.data(), instances(), st.integers(0, 2**32), st.sampled_from([1, 3, 6]))
def test_drafts_that_were_made_for_others_change_nothing(
    data: st.DataObject, instance: Instance, seed: int, most_together: int
) -> None:
    """Whatever else the schedule was lowered to before, and wherever it is too much for the limits."""
    schedule = random_schedule(instance, random.Random(seed), most_together)
    drafts = Drafts()
    for _ in range(data.draw(st.integers(2, 5))):
        chosen = replace(
            data.draw(options(instance.collective.name)),
            max_bytes=data.draw(st.sampled_from([1 << 12, 1 << 20, 1 << 30])),
            max_threadblocks=data.draw(st.sampled_from([6, 64])),
            reuses_scratch=data.draw(st.booleans()),
        )
        try:
            expected: Algo | str = lower(instance, schedule, chosen)
        except NoAnswerError as refusal:
            expected = str(refusal)
        try:
            found: Algo | str = lower(instance, schedule, chosen, drafts)
        except NoAnswerError as refusal:
            found = str(refusal)
        assert found == expected
    before = len(drafts.made)
    with contextlib.suppress(NoAnswerError):
        lower(instance, schedule, chosen, drafts)
    assert len(drafts.made) == before


@pytest.mark.parametrize(
    ("runtime", "layouts"),
    [("msccl", APART), ("msccl", IN_PLACE), ("rccl", APART), ("rccl", IN_PLACE), ("rccl", BOTH)],
    ids=["msccl-apart", "msccl-in-place", "rccl-apart", "rccl-in-place", "rccl-both"],
)
@pytest.mark.parametrize("together", [False, True], ids=["single", "together"])
@pytest.mark.parametrize("name", CollectiveName)
def test_every_collective_on_a_large_mesh(
    name: CollectiveName, runtime: Literal["msccl", "rccl"], together: bool, layouts: tuple[bool, bool]
) -> None:
    inplace, both = layouts
    if name is CollectiveName.ALLTOALL and inplace:
        pytest.skip("alltoall has no in-place call")
    instance = graphs.instance_of(graphs.dgx1(), name, 4, root=3 if name in ROOTED else None)
    schedule = tree_schedule(instance, together=together)
    chosen = LoweringOptions(runtime=runtime, inplace=inplace, both_layouts=both)
    algo = lower(instance, schedule, chosen)
    verify_algo(algo, lowered_collective(instance.collective, chosen), runtime=runtime)
    assert check_limits(algo, runtime, full_ops=False) == []


@settings(max_examples=150)
@given(
    st.sampled_from(MACHINES),
    st.sampled_from(sorted(COMBINING)),
    st.integers(1, 6),
    st.sampled_from([APART, IN_PLACE, BOTH]),
    st.sampled_from(["Simple", "LL"]),
    st.integers(0, 2**32),
    st.sampled_from([4, 64]),
)
def test_any_reduction_lowers_to_plain_steps(
    machine: Topology,
    name: CollectiveName,
    chunks: int,
    layouts: tuple[bool, bool],
    protocol: Literal["Simple", "LL"],
    seed: int,
    threadblocks: int,
) -> None:
    """Few threadblocks: receives, sums and sends of several connections take turns in one."""
    instance = graphs.instance_of(machine, name, chunks, root=1 if name in ROOTED else None)
    schedule = random_schedule(instance, random.Random(seed), 1 + seed % 4)
    inplace, both = layouts
    chosen = LoweringOptions("rccl", protocol, inplace, both, max_threadblocks=threadblocks)
    algo = lower(instance, schedule, chosen)
    verify_algo(algo, instance.collective, runtime="rccl")
    assert check_limits(algo, "rccl", full_ops=False) == []


def test_the_same_schedule_gives_the_same_program() -> None:
    instance = graphs.instance_of(graphs.mesh(2, 3), "allreduce", 12)
    programs = [lower(instance, random_schedule(instance, random.Random(5), 3), LoweringOptions()) for _ in range(2)]
    assert programs[0] == programs[1]
