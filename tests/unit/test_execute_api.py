"""A file as a function on tensors, as a group of functions, and as DistributedDataParallel's allreduce."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

from msccl_xml.model import Algo
from msccl_xml.write import write_algo
from synth.errors import SynthError
from synth.execute.api import promise_of, read_file
from tests import execute_jobs
from tests.algos import (
    all_pairs_allreduce,
    direct_reduce_scatter,
    relay_broadcast,
    relayed_allreduce,
    ring_allgather,
    ring_allreduce,
)
from tests.pools import pool_of


def written(folder: Path, name: str, algo: Algo) -> str:
    path = folder / name
    path.write_text(write_algo(algo))
    return str(path)


@pytest.mark.parametrize("unit", [1, 5, 600])
@pytest.mark.parametrize("op", ["sum", "max", "avg"])
def test_an_allreduce_of_one_tensor(tmp_path: Path, op: str, unit: int) -> None:
    path = written(tmp_path, "ring.xml", ring_allreduce(3))
    answers = pool_of(3).run(execute_jobs.call, path, op, unit)
    columns = list(zip(*(given for given, _ in answers), strict=True))
    expected = {
        "sum": [sum(c) for c in columns],
        "max": [max(c) for c in columns],
        "avg": [sum(c) // 3 for c in columns],
    }
    assert [output for _, output in answers] == [expected[op]] * 3


def test_a_file_that_is_only_for_calls_in_place_takes_them(tmp_path: Path) -> None:
    path = written(tmp_path, "pairs.xml", all_pairs_allreduce(3))
    answers = pool_of(3).run(execute_jobs.call, path, "sum", 7)
    assert answers[0][1] == [sum(column) for column in zip(*(given for given, _ in answers), strict=True)]


@pytest.mark.parametrize("in_place", [False, True])
def test_a_layout_that_the_file_lacks_takes_a_copy(tmp_path: Path, in_place: bool) -> None:
    """Called out of place, and made for the one or the other."""
    algo = replace(ring_allgather(3), inplace=in_place, outofplace=not in_place)
    path = written(tmp_path, "gather.xml", algo)
    assert pool_of(3).run(execute_jobs.gather_shares, path, 2)[1] == [0, 0, 1, 1, 2, 2]


def test_a_broadcast_takes_the_tensor_of_its_root(tmp_path: Path) -> None:
    path = written(tmp_path, "relay.xml", relay_broadcast())
    answers = pool_of(3).run(execute_jobs.call, path, "sum", 5, 0)
    assert [output for _, output in answers] == [answers[0][0]] * 3


def test_tensors_that_do_not_fit_are_told_apart(tmp_path: Path) -> None:
    path = written(tmp_path, "scatter.xml", direct_reduce_scatter(2))
    told = pool_of(2).run(execute_jobs.misuse, path)[0]
    assert told == [
        "input: None, expected a tensor: reduce-scatter has two",
        "output: elements: 5, expected 4 for reduce-scatter of 8 elements",
        "input: 'torch.float32 on cpu', expected torch.float64 on cpu as output",
        "input: (2,), expected a contiguous tensor",
        "output: 'overlaps input', expected one memory as in NCCL's in-place calls, or two",
        "tensor: dtype: 'torch.complex64', expected one of int8 uint8 int16 int32 int64 half float double bfloat16",
    ]


def test_a_group_sends_each_size_to_the_file_that_covers_it_and_the_rest_to_torch(tmp_path: Path) -> None:
    """Files for 40 to 399 bytes (the last byte is left out by microsoft/msccl) and from 4000 bytes on."""
    small = written(tmp_path, "small.xml", replace(ring_allreduce(3), min_bytes=40, max_bytes=400))
    large = written(tmp_path, "large.xml", replace(all_pairs_allreduce(3), min_bytes=4000, max_bytes=1 << 20))
    answers = pool_of(3).run(execute_jobs.through_group, [small, large], [9, 10, 99, 100, 1000])
    assert answers == [([6.0] * 5 + [6.0], {"synth": 3, "torch": 3})] * 3


def test_a_file_of_some_of_the_ranks_serves_no_group(tmp_path: Path) -> None:
    path = written(tmp_path, "some.xml", relayed_allreduce())
    with pytest.raises(SynthError, match="group: '0,2', expected a file of all ranks"):
        pool_of(4).run(execute_jobs.through_group, [path], [9])


def test_training_by_the_hook_has_the_losses_of_training_without(tmp_path: Path) -> None:
    """Two ranks: a sum of two does not depend on the order, so that the losses are the same to the last bit."""
    path = written(tmp_path, "ring.xml", ring_allreduce(2))
    for with_hook, without, calls in pool_of(2).run(execute_jobs.losses, path):
        assert with_hook == without
        assert with_hook[-1] < with_hook[0]
        assert calls == {"synth": 5, "torch": 0}


def test_what_a_file_computes_has_to_be_told_where_it_does_not_say() -> None:
    algo = replace(ring_allreduce(2), coll="custom")
    with pytest.raises(SynthError, match="coll: 'custom', expected a collective"):
        promise_of(algo, "file.xml", None, None)
    assert promise_of(algo, "file.xml", "allreduce", None).name == "allreduce"
    with pytest.raises(SynthError, match="file.xml: root: None"):
        promise_of(relay_broadcast(), "file.xml", None, None)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(SynthError, match="none.xml: cannot be read"):
        read_file(str(tmp_path / "none.xml"))
    (tmp_path / "bad.xml").write_text("<algo")
    with pytest.raises(SynthError, match="bad.xml: "):
        read_file(str(tmp_path / "bad.xml"))
