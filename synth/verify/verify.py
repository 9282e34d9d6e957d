"""Verify an algorithm: structure, limits, deadlock, races, result. Everything is symbolic; nothing is sampled."""

from __future__ import annotations

from functools import cached_property
from typing import Literal, NamedTuple

from msccl_xml.check import check_structure, fused_runs
from msccl_xml.errors import AlgoError
from msccl_xml.limits import RUNTIMES, check_limits
from msccl_xml.model import Algo
from synth.collective import Collective
from synth.collector import collector_paused
from synth.verify.errors import VerifyError
from synth.verify.extent import check_extent
from synth.verify.granularity import granularities
from synth.verify.graph import Graph, build_graph, list_program, order_events
from synth.verify.layout import check_bounds, layouts_of
from synth.verify.races import check_races
from synth.verify.values import Fused, check_values
from synth.workers import in_parallel

#: Steps from which on checks are spread over processes: below, they end within a fraction of a second.
_WORTH_A_PROCESS = 10_000


@collector_paused()
def verify_algo(
    algo: Algo, collective: Collective, *, runtime: str = "msccl", strict: bool = True, jobs: int = 1
) -> None:
    """Raise VerifyError unless `runtime` loads `algo` and every run of it does what `collective` promises.

    Checked, in this order: the extent, the structure (msccl_xml.check), the limits of `runtime`, and then for each layout that
    the file claims (in place, out of place): bounds, deadlock, data races, reads of memory that nobody wrote, the
    result; at every size that the runtime would choose the file for.

    `strict` asks for two promises of NCCL that many published files break while their result is right: an
    out-of-place call leaves the send buffer alone, and all ranks that receive a sum receive the same bits. With `jobs`, checks of a
    large file run on as many processes.
    """
    if runtime not in RUNTIMES:
        raise VerifyError(f"runtime is {runtime!r}, expected one of {' '.join(RUNTIMES)}")
    check_extent(algo)
    _check_document(algo, collective, runtime)
    judged = _Judged(algo, collective, strict)
    sizes = granularities(algo, runtime)
    tasks = [_Task("bounds")]
    for size in sizes:
        tasks += [_Task("races", size), _Task("values", size)]
    large = sum(1 for _ in algo.steps()) >= _WORTH_A_PROCESS
    for _ in in_parallel(jobs if large else 1, _Judged.carry_out, judged, tasks):
        pass


class _Task(NamedTuple):
    """One check, of transfers that hold so many chunks where that matters."""

    check: Literal["bounds", "races", "values"]
    granularity: int = 0


class _Judged:
    """A document that is well-formed, and what is to be found out about it, in whichever process."""

    def __init__(self, algo: Algo, collective: Collective, strict: bool) -> None:
        self._algo, self._collective, self._strict = algo, collective, strict
        self._layouts = layouts_of(algo, collective)
        self._ordered: tuple[Graph, list[int]] | None = None

    def carry_out(self, task: _Task) -> None:
        """Raise VerifyError where the check finds something."""
        match task.check:
            case "bounds":
                program = list_program(self._algo)
                for layout in self._layouts:
                    check_bounds(program, layout, self._collective.members, const_input=self._strict)
            case "races":
                for layout in self._layouts:
                    check_races(*self._events(task.granularity), layout)
            case "values":
                for layout in self._layouts:
                    check_values(
                        *self._events(task.granularity),
                        layout,
                        self._collective,
                        same_order=self._strict,
                        fused=self._fused,
                    )

    @cached_property
    def _fused(self) -> Fused:
        return _fused(self._algo) if self._algo.proto == "Simple" else {}

    def _events(self, granularity: int) -> tuple[Graph, list[int]]:
        """The graph and an order of its events: the last one is kept, as several checks in a row ask for it."""
        if self._ordered is None or self._ordered[0].granularity != granularity:
            graph = build_graph(self._algo, granularity)
            self._ordered = graph, order_events(graph)
        return self._ordered


def _check_document(algo: Algo, collective: Collective, runtime: str) -> None:
    try:
        check_structure(algo)
    except AlgoError as error:
        head, *lines = str(error).split("\n")
        raise VerifyError(head, tuple(lines)) from None
    problems = check_limits(algo, runtime)
    if problems:
        raise VerifyError(f"beyond what {runtime} takes: {problems[0]}", tuple(f"  {line}" for line in problems[1:]))
    if algo.ngpus != collective.num_ranks:
        raise VerifyError(f"ngpus is {algo.ngpus}, the collective has {collective.num_ranks} ranks")
    if algo.nchunksperloop != collective.chunks:
        raise VerifyError(f"nchunksperloop is {algo.nchunksperloop}, the collective has {collective.chunks} chunks")


def _fused(algo: Algo) -> Fused:
    return {
        (gpu.id, tb.id, number): number == run[-1]
        for gpu in algo.gpus
        for tb in gpu.threadblocks
        for run in fused_runs(tb)
        for number in run
    }
