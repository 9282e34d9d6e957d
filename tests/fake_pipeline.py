"""A pipeline that answers at once, for tests of the command line: right in form, and a real allgather of two ranks."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from msccl_xml.model import Algo, Buffer, Gpu, Step, StepType, Threadblock
from synth.request import FilePlan, Progress, Request, Result, SizeRow, StageRow

TOPOLOGY = """{
  "format": 1,
  "name": "pair",
  "about": "two GPUs and a link, for tests",
  "devices": [
    {"id": "gpu0", "kind": "gpu", "rank": 0},
    {"id": "gpu1", "kind": "gpu", "rank": 1},
    {"id": "nic0", "kind": "nic"}
  ],
  "links": [
    {"between": ["gpu0", "gpu1"], "kind": "nvlink", "GBps": 20.0, "alpha_us": 1.0},
    {"between": ["gpu0", "nic0"], "kind": "pcie", "GBps": 10.0, "alpha_us": 1.0},
    {"between": ["gpu1", "nic0"], "kind": "pcie", "GBps": 10.0, "alpha_us": 1.0}
  ]
}
"""


def allgather_of_two(min_bytes: int = 0, max_bytes: int = 1 << 20) -> Algo:
    """An out-of-place allgather that verifies: each rank copies its own chunk, sends it, and receives the other's."""

    def program(rank: int) -> Gpu:
        other = 1 - rank
        exchange = (
            Step(StepType.SEND, Buffer.INPUT, 0, Buffer.OUTPUT, rank),
            Step(StepType.RECV, Buffer.INPUT, 0, Buffer.OUTPUT, other),
        )
        own = (Step(StepType.COPY, Buffer.INPUT, 0, Buffer.OUTPUT, rank),)
        return Gpu(rank, 1, 2, 0, (Threadblock(0, other, other, 0, exchange), Threadblock(1, -1, -1, 0, own)))

    return Algo(
        name="pair",
        coll="allgather",
        proto="Simple",
        ngpus=2,
        nchannels=1,
        nchunksperloop=2,
        gpus=(program(0), program(1)),
        inplace=False,
        outofplace=True,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
    )


@dataclass
class FakePipeline:
    """Records what it is asked; answers with `num_files` files that split the range, or raises what it is told to."""

    num_files: int = 1
    raises: BaseException | None = None
    requests: list[Request] = field(default_factory=list)

    def synthesize(self, request: Request, progress: Callable[[Progress], None]) -> Result:
        self.requests.append(request)
        progress(Progress("routing", "[trees] 64KB", None, None))
        progress(Progress("scheduling", "64KB", 0.5, 12.5))
        if self.raises is not None:
            raise self.raises
        edges = [request.min_bytes << position for position in range(self.num_files)]
        tops = [edge - 1 for edge in edges[1:]] + [request.max_bytes]
        files = tuple(plan(low, high) for low, high in zip(edges, tops, strict=True))
        sizes = tuple(SizeRow(low, 12.5, 5.24, 2.62, 12.5, 10.0, 0.8, index) for index, low in enumerate(edges))
        stages = (StageRow("routing", 0.1, "optimal", 3.0, 3.0, 0.0), StageRow("scheduling", 0.2, "done"))
        notes = ("the bound is that of the worst cut",)
        name = request.topology.name
        return Result(
            request.collective, name, request.topology.num_ranks, request.strategy, files, sizes, stages, notes
        )


def plan(low: int, high: int) -> FilePlan:
    return FilePlan(allgather_of_two(low, high), low, high, "Simple", 1, 1, 1, 2, 2, "trees")


def install(monkeypatch: pytest.MonkeyPatch, fake: FakePipeline) -> FakePipeline:
    """Put the fake where the command line looks for the pipeline."""
    import synth

    module = types.ModuleType("synth.pipeline")
    module.synthesize = fake.synthesize  # type: ignore[attr-defined]
    module.available_cores = lambda: 1  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "synth.pipeline", module)
    monkeypatch.setattr(synth, "pipeline", module, raising=False)
    return fake


def write_topology(directory: Path) -> Path:
    path = directory / "pair.json"
    path.write_text(TOPOLOGY, encoding="utf-8")
    return path
