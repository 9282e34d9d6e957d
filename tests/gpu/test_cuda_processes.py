"""The interpreter with a process and a GPU for each rank; skipped where there are not two GPUs that reach each other.

Figures that are told and not judged are written to the folder that SYNTH_KEEP_FIGURES names.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
import torch

from msccl_xml.model import Algo
from msccl_xml.write import write_algo
from synth.cli.main import main
from synth.errors import InputError
from synth.execute import HangError, Job, Measured, Pool, measure
from synth.execute.arithmetic import OPERATIONS, TYPES
from synth.execute.cuda.driver import load_driver
from tests import own_jobs
from tests.algos import all_pairs_allreduce, alltoall, collective_of, exchange_allgather, ring_allgather, ring_allreduce
from tests.pools import assert_right

GPUS = min(torch.cuda.device_count(), 8)
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(GPUS < 2, reason=f"a GPU for each rank: two are the least, torch sees {GPUS}"),
]
LAUNCHES = 10_000
BUILDERS = (ring_allreduce, all_pairs_allreduce, ring_allgather, alltoall)


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    try:
        load_driver()
    except InputError as error:
        pytest.skip(str(error))
    with Pool(GPUS, "nccl") as workers:
        yield workers


def job(algo: Algo, *sizes: int, dtype: str = "float", op: str = "sum", rival: bool = False) -> Job:
    """A checked job with a GPU for each rank."""
    return Job(algo, collective_of(algo), sizes, dtype, op, "cuda", iterations=20, warmup=5, rival=rival)


def right(pool: Pool, one: Job, function: Callable[..., list[Measured]] = measure) -> list[Measured]:
    """The figures of a job on rank 0; LL128 is refused without NVLink, and then skipped."""
    try:
        rows: list[Measured] = pool.run(function, one)[0]
    except Exception as error:
        if "LL128 needs NVLink" in str(error):
            pytest.skip(str(error))
        raise
    assert_right(rows)
    return rows


def keep(name: str, figures: Any) -> None:
    """Write figures down where the environment asks for it."""
    if folder := os.environ.get("SYNTH_KEEP_FIGURES"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        (Path(folder) / name).write_text(json.dumps(figures, indent=2), encoding="utf-8")


@pytest.mark.parametrize("protocol", ["Simple", "LL", "LL128"])
@pytest.mark.parametrize("builder", BUILDERS)
def test_every_element_is_right(pool: Pool, builder: Callable[..., Algo], protocol: str) -> None:
    rows = right(pool, job(builder(GPUS, protocol), 1 << 10, 1_000_000, 64 << 20))
    assert "they reach each other through " in rows[0].remarks[0]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("op", OPERATIONS)
def test_types_and_operations(pool: Pool, dtype: str, op: str) -> None:
    right(pool, job(ring_allreduce(GPUS, "LL"), 100_000, dtype=dtype, op=op))


@pytest.mark.parametrize("protocol", ["Simple", "LL", "LL128"])
def test_cuda_ipc_in_place_of_symmetric_memory(pool: Pool, protocol: str) -> None:
    rows = right(pool, job(ring_allreduce(GPUS, protocol), 1 << 10, 16 << 20), own_jobs.by_cuda_ipc)
    assert rows[0].remarks[0].endswith("through CUDA IPC")


@pytest.mark.parametrize("protocol", ["Simple", "LL", "LL128"])
def test_ten_thousand_launches_end_and_are_right(pool: Pool, protocol: str) -> None:
    right(pool, job(ring_allreduce(GPUS, protocol), 1 << 10))  # or skipped
    answers = pool.run(own_jobs.launches, job(ring_allreduce(GPUS, protocol), 64 << 10), LAUNCHES)
    assert [found for _, found in answers] == [[GPUS]] * GPUS
    keep(f"processes-latency-us-{protocol}.json", [time_us for time_us, _ in answers])


def test_torchs_own_collective_beside_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "ring.xml"
    path.write_text(write_algo(ring_allreduce(GPUS)), encoding="utf-8")
    assert main(["run", str(path), "--backend", "cuda", "--sizes", "1KB:256MB", "--compare", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["placement"] == "processes"
    assert all(row["torch"] is not None for row in document["sizes"])
    keep("processes-beside-nccl.json", document)


def test_a_hang_is_ended_and_the_threadblocks_of_both_gpus_are_named() -> None:
    algo = exchange_allgather("Simple", 3)
    with Pool(2, "nccl", patience_s=2.0) as pool, pytest.raises(HangError) as caught:
        pool.run(measure, job(algo, 64 << 20))
    assert len([line for line in caught.value.waits if "waits for room towards gpu" in line]) == 2
