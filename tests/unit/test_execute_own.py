"""Synth's own interpreter with a process for each rank: on the host as it is, on GPUs with a driver of our own in NVIDIA's place."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from msccl_xml.model import Algo
from msccl_xml.write import write_algo
from synth.baselines import BaselineOptions, build
from synth.collective import CollectiveName
from synth.errors import SynthError
from synth.execute import HangError, Job, LostError, Pool, measure
from synth.execute.arithmetic import OPERATIONS, TYPES
from synth.execute.cuda.build import build_host, find_host_compiler
from synth.inputs.load import load_topology
from tests import own_jobs
from tests.algos import RIGHT, all_pairs_allreduce, collective_of, exchange_allgather, ring_allreduce, with_step
from tests.pools import assert_right, job, pool_of, run

pytestmark = pytest.mark.skipif(find_host_compiler() is None, reason="no C++ compiler for the host build")
SIZES = (192, 3000, 4 * 1021)
PATIENCE_S = 1.0


@pytest.fixture(scope="module", autouse=True)
def library() -> str:
    """The host build, made once and not by all workers at a time."""
    return str(build_host())


def own(algo: Algo, *sizes: int, root: int | None = None, **changes: object) -> Job:
    return job(algo, collective_of(algo, root), *sizes, backend="host", **changes)


def assert_gone(pids: list[int]) -> None:
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.parametrize("name", RIGHT)
def test_every_element_is_right_in_every_layout(name: str) -> None:
    algo, root = RIGHT[name]
    rows = run(own(algo, *SIZES, root=root, iterations=3))
    assert_right(rows)
    assert rows[0].remarks == ("a process for each rank; they reach each other through shared memory",)
    for row in rows:
        assert (row.in_place is not None) == algo.inplace
        assert (row.out_of_place is not None) == bool(algo.outofplace)
        assert row.padded == 0


@pytest.mark.parametrize("op", OPERATIONS)
@pytest.mark.parametrize("dtype", TYPES)
def test_types_and_operations(dtype: str, op: str) -> None:
    assert_right(run(own(ring_allreduce(3), 1004, dtype=dtype, op=op)))


def test_sixteen_processes() -> None:
    built = build("tree", load_topology("mesh-4x4"), CollectiveName.ALLREDUCE, 4096, BaselineOptions(protocol="LL"))
    with Pool(16) as pool:
        rows = pool.run(measure, job(built.algo, built.collective, 4100, backend="host"))[0]
    assert_right(rows)


def test_torch_is_timed_beside_it_and_agrees() -> None:
    [row] = run(own(ring_allreduce(3), 1200, rival=True))
    assert row.native_us is not None
    assert row.native_us > 0
    assert len(row.remarks) == 1


def test_figures_tell_wrong_elements() -> None:
    """Both data sets of both layouts see a share that rank 0 stores in the wrong place."""
    wrong = with_step(ring_allreduce(2), 0, 0, 2, dst_offset=1)
    [row] = pool_of(2).run(measure, own(wrong, 4000, dtype="float"))[0]
    assert row.out_of_place is not None
    assert row.out_of_place.wrong is not None
    assert row.out_of_place.wrong > 900


def test_a_job_leaves_no_memory_behind() -> None:
    answers = pool_of(3).run(own_jobs.what_it_costs, own(ring_allreduce(3), *SIZES))
    assert [held for _, held in answers] == [0, 0, 0]


def test_a_hang_names_what_the_threadblocks_of_all_processes_wait_for() -> None:
    with Pool(2, patience_s=PATIENCE_S) as pool:
        with pytest.raises(HangError) as caught:
            pool.run(measure, own(exchange_allgather("Simple", 3), 6000))
        assert pool.broken
    assert caught.value.waits == (
        "gpu 0 tb 0 step 3 (s) waits for room towards gpu 1 on channel 0",
        "gpu 1 tb 0 step 3 (s) waits for room towards gpu 0 on channel 0",
    )
    assert_gone(pool.pids)


@pytest.mark.parametrize("how", [own_jobs.without_rank, own_jobs.without_rank_in_a_launch])
def test_a_rank_that_is_killed_is_named_and_the_others_end(how: object) -> None:
    with Pool(3, patience_s=30) as pool:
        with pytest.raises(LostError, match="^rank 1 died: killed by SIGKILL$"):
            pool.run(how, own(ring_allreduce(3), 6000), 1)  # type: ignore[arg-type]
        assert_gone(pool.pids)


@pytest.mark.parametrize("unit", [1, 5, 600])
@pytest.mark.parametrize("op", ["sum", "avg"])
def test_a_file_is_a_function_on_tensors(tmp_path: Path, op: str, unit: int) -> None:
    path = tmp_path / "ring.xml"
    path.write_text(write_algo(ring_allreduce(3, "LL")))
    answers = pool_of(3).run(own_jobs.call, str(path), op, unit)
    for calls in zip(*answers, strict=True):
        sums = [sum(column) for column in zip(*(given for given, _ in calls), strict=True)]
        assert [output for _, output in calls] == [[total // 3 for total in sums] if op == "avg" else sums] * 3


def test_a_group_of_the_interpreter_stands_in_for_torch(tmp_path: Path) -> None:
    path = tmp_path / "ring.xml"
    path.write_text(write_algo(replace(ring_allreduce(3), min_bytes=40, max_bytes=400)))
    answers = pool_of(3).run(own_jobs.through_group, str(path), [9, 10, 99, 100])
    assert answers == [([6.0] * 4, {"synth": 2, "torch": 2})] * 3


def test_without_a_session_a_rank_that_waits_too_long_tells_what_for(tmp_path: Path) -> None:
    path = tmp_path / "ring.xml"
    path.write_text(write_algo(ring_allreduce(2)))
    first, again = pool_of(2).run(own_jobs.alone, str(path), PATIENCE_S)[0]
    assert "gpu 0 tb 0 step 1 (rrcs) waits for data of gpu 1 on channel 0" in first
    assert "make a new one" in again


# What one GPU for each rank needs of the driver.


def fake(algo: Algo, library: str, *sizes: int, device: int | None = None, **gpus: object) -> list[Any]:
    """What every rank says of a checked job with a GPU for each rank."""
    asked = job(algo, collective_of(algo), *sizes, backend="cuda", iterations=4, warmup=1)
    return pool_of(algo.ngpus).run(own_jobs.on_fake_gpus, library, asked, device, gpus)


@pytest.mark.parametrize("algo", [ring_allreduce(3, "LL128"), all_pairs_allreduce(3)], ids=["ring", "all-pairs"])
def test_a_gpu_for_each_rank(library: str, algo: Algo) -> None:
    for rows, calls, held in fake(algo, library, 192, 3000):
        assert_right(rows)
        assert rows[0].remarks == ("a process for each rank; they reach each other through CUDA IPC",)
        assert calls["cuIpcOpenMemHandle"] == calls["cuIpcCloseMemHandle"] == 2
        halves = [half for row in rows for half in (row.out_of_place, row.in_place) if half is not None]
        assert calls["cuGraphLaunch"] == 5 * len(halves), "checks are launched one by one, timed calls through graphs"
        assert held == 0, "all memory was given back"


@pytest.mark.parametrize(
    ("protocol", "device", "gpus", "told"),
    [
        ("LL", 0, {}, "'ranks 0 and 1 on GPU 0000:00:00.0', expected a GPU for each rank (virtual takes one for all)"),
        ("LL", None, {"apart": ((2, 1),)}, "'ranks 2 and 1', expected GPUs that reach each other: 0000:02:00.0 cannot"),
        ("LL", None, {"hidden": (0,)}, "'ranks 1 and 0', expected GPUs that reach each other: 0000:00:00.0 is hidden"),
        ("LL128", None, {"nvlink": False}, "LL128 needs NVLink from 0000:00:00.0 to 0000:01:00.0"),
    ],
)
def test_gpus_that_cannot_reach_each_other_are_named_by_all_ranks_alike(
    library: str, protocol: str, device: int | None, gpus: dict[str, object], told: str
) -> None:
    """All ranks say the same before anything runs: the workers go on."""
    with pytest.raises(SynthError, match=re.escape(told)):
        fake(ring_allreduce(3, protocol), library, 192, device=device, **gpus)
    assert not pool_of(3).broken


def test_ll_needs_no_nvlink(library: str) -> None:
    for rows, _, _ in fake(ring_allreduce(3, "LL"), library, 192, nvlink=False):
        assert_right(rows)


def test_each_process_counts_its_own_threadblocks(library: str) -> None:
    """Six of a rank fit where all 36 would not; where six do not, a rank is named."""
    for rows, _, _ in fake(all_pairs_allreduce(6), library, 4096, multiprocessors=1, threads=384):
        assert_right(rows)
    with pytest.raises(
        SynthError, match=r"'6 threadblocks of rank \d', expected at most 5: all have to run at a time on 1 "
    ):
        fake(all_pairs_allreduce(6), library, 4096, multiprocessors=1, threads=320)


def test_a_gpu_that_hangs_is_ended_and_the_threadblocks_of_all_processes_are_named(library: str) -> None:
    asked = replace(own(exchange_allgather("Simple", 3), 6000), backend="cuda")
    with Pool(2, patience_s=PATIENCE_S) as pool, pytest.raises(HangError) as caught:
        pool.run(own_jobs.on_fake_gpus, library, asked, None, {})
    assert caught.value.waits == (
        "gpu 0 tb 0 step 3 (s) waits for room towards gpu 1 on channel 0",
        "gpu 1 tb 0 step 3 (s) waits for room towards gpu 0 on channel 0",
    )


def test_where_torch_has_no_symmetric_memory_the_driver_shares_it(library: str) -> None:
    """This torch has none for want of a GPU; all ranks hear of it, and go on together."""
    for how, read in pool_of(3).run(own_jobs.without_symmetric_memory, library):
        assert how.startswith("CUDA IPC (torch's symmetric memory was not to be had: rank 0: ")
        assert read == [0, 7, 14]
