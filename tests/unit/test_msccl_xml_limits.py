from __future__ import annotations

from dataclasses import replace

import pytest

from msccl_xml.limits import LIMITS, RUNTIMES, check_limits, coll_spelling
from msccl_xml.model import Algo, Gpu, Threadblock
from tests.algos import (
    O,
    S,
    algo_of,
    direct_reduce_scatter,
    ring_allgather,
    ring_allreduce,
    step,
    with_step,
    with_steps,
)

RING = ring_allreduce(3)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_small_file_is_within_all_limits(runtime: str) -> None:
    assert check_limits(RING, runtime) == []


def _one_gpu(**changes: object) -> Algo:
    tb = Threadblock(0, -1, -1, 0, (step("cpy"),))
    algo = algo_of("allreduce", 3, [Gpu(0, 3, 3, 0, (tb,))], "LL", inplace=True, outofplace=True)
    return replace(algo, **changes)  # type: ignore[arg-type]


def _fused(length: int) -> Algo:
    return with_steps(_one_gpu(), 0, 0, tuple(step("re", (S, k), (O, 0)) for k in range(length)))


@pytest.mark.parametrize(
    ("algo", "refusing", "problem"),
    [
        (with_steps(_one_gpu(), 0, 0, (step("cpy"),) * 65), {"executor", "rccl"}, "65 steps"),
        (with_steps(_one_gpu(), 0, 0, (step("cpy"),) * 257), set(RUNTIMES), "257 steps"),
        (_one_gpu(nchannels=33), {"msccl", "executor"}, "nchannels is 33"),
        (_one_gpu(outofplace=None), {"executor", "rccl"}, "outofplace is missing"),
        (_one_gpu(max_bytes=None), {"executor", "rccl"}, "maxBytes is missing"),
        (_one_gpu(min_bytes=2, max_bytes=1), {"msccl"}, "minBytes 2 is above maxBytes 1"),
        (_one_gpu(nthreads=100), {"msccl"}, "nthreads is 100"),
        (_one_gpu(coll="custom"), {"executor", "rccl"}, "coll is 'custom'"),
        (_one_gpu(coll="alltoall", name="2D"), {"msccl"}, "an alltoall named 2D"),
        (_one_gpu(nchunksperloop=4), {"msccl"}, "i_chunks is 3, msccl expects 4 for allreduce (or 0)"),
        (with_step(_one_gpu(), 0, 0, 0, count=72), set(RUNTIMES), "cnt is 72"),
        (with_step(_one_gpu(), 0, 0, 0, src_offset=32768), set(RUNTIMES), "an offset is above 32767"),
        (with_step(_one_gpu(), 0, 0, 0, depid=64), {"rccl"}, "waits for threadblock 64"),
        (with_step(_one_gpu(), 0, 0, 0, depid=128), set(RUNTIMES), "waits for threadblock 128"),
        (_fused(15), set(), ""),
        (_fused(16), {"msccl", "executor"}, "16 re steps are fused"),
        (direct_reduce_scatter(2), {"executor", "rccl"}, "coll is 'reduce_scatter'"),
        (replace(direct_reduce_scatter(2), coll="reducescatter"), {"msccl"}, "coll is 'reducescatter'"),
    ],
)
def test_each_runtime_has_its_own_limits(algo: Algo, refusing: set[str], problem: str) -> None:
    found = {runtime: check_limits(algo, runtime) for runtime in RUNTIMES}
    assert {runtime for runtime, problems in found.items() if problems} == refusing
    for runtime in refusing:
        assert any(problem in line for line in found[runtime])


def _wide(tbs: int, send: int = -1, channels: int = 1) -> Algo:
    blocks = tuple(Threadblock(k, send, -1, k % channels, (step("cpy"),)) for k in range(tbs))
    return _one_gpu(gpus=(Gpu(0, 3, 3, 0, blocks),), nchannels=channels)


@pytest.mark.parametrize(("tbs", "refusing"), [(64, set()), (65, {"rccl"}), (217, {"msccl", "rccl"})])
def test_threadblocks_of_a_gpu(tbs: int, refusing: set[str]) -> None:
    assert {runtime for runtime in RUNTIMES if check_limits(_wide(tbs), runtime)} == refusing


def test_threadblocks_on_a_channel_and_elements_of_a_rank() -> None:
    assert check_limits(_wide(31, send=1), "msccl") == []
    assert "32 send threadblocks on channel 0" in check_limits(_wide(32, send=1), "msccl")[0]
    steps = (step("cpy"),) * 63
    many = tuple(Threadblock(k, -1, -1, 0, steps) for k in range(64))
    assert "elements as this rank reads the file" in check_limits(_one_gpu(gpus=(Gpu(0, 3, 3, 0, many),)), "rccl")[0]


def test_a_build_without_fused_operations_is_asked_about_separately() -> None:
    assert "rrs needs a rccl with fused operations" in check_limits(RING, "rccl", full_ops=False)[0]
    assert check_limits(RING, "msccl", full_ops=False) == []
    assert check_limits(ring_allgather(2), "rccl", full_ops=False) == []


@pytest.mark.parametrize("collective", ["allreduce", "allgather", "reduce-scatter", "gather", "scatter", "alltoall"])
def test_every_spelling_is_one_that_the_runtime_reads(collective: str) -> None:
    for runtime, limits in LIMITS.items():
        assert coll_spelling(collective, runtime) in limits.colls
