"""Worker processes for tests of execute: started once for each number of ranks, and ended with the test run."""

from __future__ import annotations

import atexit
from dataclasses import replace

from msccl_xml.model import Algo
from synth.collective import Collective
from synth.execute import Job, Measured, Pool, measure

#: A tile this small cuts buffers of a few KB into several.
TILE_BYTES = 256
_pools: dict[int, Pool] = {}


def pool_of(world: int) -> Pool:
    """The pool of so many ranks; a new one where a test has broken the last."""
    if world not in _pools or _pools[world].broken:
        if not _pools:
            atexit.register(_close)
        _pools[world] = Pool(world)
    return _pools[world]


def _close() -> None:
    for pool in _pools.values():
        pool.close()


def job(algo: Algo, collective: Collective, *sizes: int, **changes: object) -> Job:
    """One call of an algorithm in each layout at each size, checked; whole numbers of 32 bits, several tiles."""
    plain = Job(algo, collective, sizes, "int32", iterations=1, warmup=0, tile_bytes=TILE_BYTES)
    return replace(plain, **changes)  # type: ignore[arg-type]


def run(one: Job) -> list[Measured]:
    """The figures of a job, from rank 0; those of all ranks are the same but for the times."""
    answers = pool_of(one.algo.ngpus).run(measure, one)
    assert all(figures(answer) == figures(answers[0]) for answer in answers)
    return answers[0]


def figures(rows: list[Measured]) -> list[tuple[object, ...]]:
    """What there is in figures besides times."""
    return [
        (
            row.bytes,
            row.count,
            *(half and half.wrong for half in (row.out_of_place, row.in_place)),
            row.differing,
            row.padded,
        )
        for row in rows
    ]


def assert_right(rows: list[Measured]) -> None:
    """Every layout that was run has no wrong element and equal bits on all ranks, and at least one was run."""
    for row in rows:
        halves = [half for half in (row.out_of_place, row.in_place) if half is not None]
        assert halves, row
        assert all(half.wrong == 0 for half in halves), row
        assert not row.differing, row
        assert not [remark for remark in row.remarks if "differs" in remark], row
