"""The document: spelling, names, chunk counts, layouts, and the numbers that dependences name."""

from __future__ import annotations

import pytest

from msccl_xml.model import StepType
from msccl_xml.read import read_algo
from msccl_xml.write import write_algo
from synth.collective import ROOTED, CollectiveName
from synth.errors import InputError
from synth.ir import Message
from synth.lowering import LoweringOptions, lower
from synth.timing import retime
from synth.verify import verify_algo
from tests import graphs
from tests.schedules import direct_schedule, tree_schedule


@pytest.mark.parametrize(
    ("name", "msccl", "executor"),
    [
        ("allreduce", "allreduce", "allreduce"),
        ("reduce-scatter", "reduce_scatter", "reducescatter"),
        ("gather", "custom", "gather"),
        ("scatter", "custom", "scatter"),
    ],
)
def test_every_runtime_reads_its_own_spelling(name: str, msccl: str, executor: str) -> None:
    root = 0 if CollectiveName(name) in ROOTED else None
    instance = graphs.instance_of(graphs.ring(4), name, 4, root=root)
    schedule = tree_schedule(instance)
    assert lower(instance, schedule, LoweringOptions()).coll == msccl
    assert lower(instance, schedule, LoweringOptions(runtime="executor")).coll == executor
    assert lower(instance, schedule, LoweringOptions(runtime="rccl")).coll == executor


def test_custom_declares_all_chunks_of_both_buffers() -> None:
    instance = graphs.instance_of(graphs.ring(4), "scatter", 2, root=1)
    algo = lower(instance, tree_schedule(instance), LoweringOptions())
    assert {(gpu.input_chunks, gpu.output_chunks) for gpu in algo.gpus} == {(8, 8)}
    there = lower(instance, tree_schedule(instance), LoweringOptions(runtime="executor"))
    assert [gpu.input_chunks for gpu in there.gpus] == [0, 8, 0, 0]


def test_names_are_safe_and_short() -> None:
    machine = graphs.from_pairs('a <very> "long" name ' * 6, 2, [(0, 1)])
    instance = graphs.instance_of(machine, "allreduce", 4)
    algo = lower(instance, tree_schedule(instance), LoweringOptions(protocol="LL128"))
    assert len(algo.name) <= 63
    assert algo.name.startswith("synth-allreduce-a-")
    assert algo.name.endswith("-LL128-4")
    assert lower(instance, tree_schedule(instance), LoweringOptions(name="mine")).name == "mine"
    assert read_algo(write_algo(algo)) == algo


@pytest.mark.parametrize(
    ("runtime", "inplace", "both", "expected"),
    [
        ("msccl", False, True, (False, True)),
        ("msccl", True, True, (True, False)),
        ("executor", False, True, (True, True)),
        ("executor", True, True, (True, True)),
        ("executor", True, False, (True, False)),
        ("rccl", False, False, (False, True)),
    ],
)
def test_layouts_are_claimed_where_the_runtime_tells_them_apart(
    runtime: str, inplace: bool, both: bool, expected: tuple[bool, bool]
) -> None:
    instance = graphs.instance_of(graphs.ring(4), "allgather", 1)
    options = LoweringOptions(runtime=runtime, inplace=inplace, both_layouts=both)  # type: ignore[arg-type]
    algo = lower(instance, tree_schedule(instance), options)
    assert (algo.inplace, algo.outofplace) == expected
    verify_algo(algo, instance.collective, runtime=runtime)


def test_alltoall_has_no_in_place_call() -> None:
    instance = graphs.instance_of(graphs.full(3), "alltoall", 1)
    with pytest.raises(InputError, match="--in-place"):
        lower(instance, direct_schedule(instance), LoweringOptions(inplace=True))
    both = lower(instance, direct_schedule(instance), LoweringOptions(runtime="executor", both_layouts=True))
    assert (both.inplace, both.outofplace) == (False, True)


def test_an_in_place_scatter_of_one_pointer_copies_its_share_last() -> None:
    """The share of rank 0 lies where the root's own has to go."""
    instance = graphs.instance_of(graphs.full(3), "scatter", 2, root=1)
    algo = lower(instance, direct_schedule(instance), LoweringOptions(inplace=True))
    verify_algo(algo, instance.collective)
    copies = [step for gpu, _, _, step in algo.steps() if gpu.id == 1 and step.type is StepType.COPY]
    assert [(step.src_offset, step.dst_offset, step.count) for step in copies] == [(2, 0, 2)]
    assert all(step.depid >= 0 for step in copies)


def test_several_waits_stand_on_nops_and_the_last_on_the_step() -> None:
    instance = graphs.instance_of(graphs.full(4), "gather", 1, root=3)
    over = {(path.src, path.dst): path.index for path in instance.paths}
    messages = [Message((0,), over[0, 2]), Message((1,), over[1, 2]), Message((0, 1, 2), over[2, 3])]
    algo = lower(instance, retime(instance, messages), LoweringOptions())
    verify_algo(algo, instance.collective)
    nops = [(tb, number) for gpu, tb, number, step in algo.steps() if step.type is StepType.NOP]
    assert nops
    for tb, number in nops:
        assert tb.steps[number].depid >= 0
        assert tb.steps[number + 1].depid >= 0


@pytest.mark.parametrize(
    ("field", "value"),
    [("runtime", "nccl"), ("protocol", "ll"), ("instances", 0), ("max_threadblocks", 0), ("channels", 33)],
)
def test_options_that_no_program_can_have_are_refused(field: str, value: object) -> None:
    with pytest.raises(InputError):
        LoweringOptions(**{field: value})  # type: ignore[arg-type]
