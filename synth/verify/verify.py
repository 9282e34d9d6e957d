"""Verify an algorithm: structure, limits, deadlock, races, result. Everything is symbolic; nothing is sampled."""

from __future__ import annotations

from msccl_xml.check import check_structure, fused_runs
from msccl_xml.errors import AlgoError
from msccl_xml.limits import RUNTIMES, check_limits
from msccl_xml.model import Algo
from synth.collective import Collective
from synth.collector import collector_paused
from synth.verify.errors import VerifyError
from synth.verify.extent import check_extent
from synth.verify.granularity import granularities
from synth.verify.graph import build_graph, list_program, order_events
from synth.verify.layout import check_bounds, layouts_of
from synth.verify.races import check_races
from synth.verify.values import Fused, check_values


@collector_paused()
def verify_algo(algo: Algo, collective: Collective, *, runtime: str = "msccl", strict: bool = True) -> None:
    """Raise VerifyError unless `runtime` loads `algo` and every run of it does what `collective` promises.

    Checked, in this order: the extent, the structure (msccl_xml.check), the limits of `runtime`, and then for each layout that
    the file claims (in place, out of place): bounds, deadlock, data races, reads of memory that nobody wrote, the
    result; at every size that the runtime would choose the file for.

    `strict` asks for two promises of NCCL that many published files break while their result is right: an
    out-of-place call leaves the send buffer alone, and all ranks that receive a sum receive the same bits.
    """
    if runtime not in RUNTIMES:
        raise VerifyError(f"runtime is {runtime!r}, expected one of {' '.join(RUNTIMES)}")
    check_extent(algo)
    _check_document(algo, collective, runtime)
    layouts = layouts_of(algo, collective)
    fused = _fused(algo) if algo.proto == "Simple" else {}
    for layout in layouts:
        check_bounds(list_program(algo), layout, collective.members, const_input=strict)
    for granularity in granularities(algo, runtime):
        graph = build_graph(algo, granularity)
        order = order_events(graph)
        for layout in layouts:
            check_races(graph, order, layout)
            check_values(graph, order, layout, collective, same_order=strict, fused=fused)


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
