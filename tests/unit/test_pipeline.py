"""The pipeline's promises about a set of files: they cover the range, runtimes take them, and the notes say what to know."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest

from msccl_xml.limits import MAX_FILES
from msccl_xml.model import Algo
from msccl_xml.read import read_algo
from msccl_xml.write import write_algo
from synth.chunks import divides, moved_bytes, range_sizes
from synth.collective import ROOTED, SHARED, Collective, CollectiveName
from synth.errors import InputError, NoAnswerError
from synth.inputs.load import load_topology
from synth.paths import find_paths
from synth.pipeline import _files, _Foreseen, synthesize
from synth.plan import Plan
from synth.request import Progress, Request, Result
from synth.search import Ledger, Search
from synth.topology import Topology
from synth.trial import Trial
from synth.verify import VerifyError, verify_algo
from tests.graphs import both_ways, from_pairs, gpus, line, ring, two_boxes
from tests.jobs import request

KB, MB = 1 << 10, 1 << 20
MACHINE = line(3)


@cache
def made(name: CollectiveName, low: int, high: int, changes: frozenset[tuple[str, object]]) -> Result:
    return synthesize(request(MACHINE, name, low, None if low == high else high, **dict(changes)))


def answer(name: str, low: int = KB, high: int = MB, **changes: object) -> Result:
    """The pipeline's answer on three GPUs in a row, made once; for a range unless both sizes are equal."""
    return made(CollectiveName(name), low, high, frozenset({"runtime": "msccl", **changes}.items()))


@pytest.mark.parametrize(
    ("name", "runtime"),
    [("allreduce", "msccl"), ("allgather", "msccl"), ("allgather", "executor"), ("allgather", "rccl")],
)
def test_files_cover_the_range_without_gap_or_overlap(name: str, runtime: str) -> None:
    result = answer(name, runtime=runtime)
    assert 1 <= len(result.files) <= MAX_FILES
    assert result.files[0].min_bytes == moved_bytes(CollectiveName(name), MACHINE.num_ranks, KB)
    assert result.files[-1].max_bytes == MB
    for earlier, later in pairwise(result.files):
        assert later.min_bytes == earlier.max_bytes + 1
    beyond = 1 if runtime == "msccl" else 0  # microsoft/msccl reads maxBytes as the first size not covered
    for file in result.files:
        assert (file.algo.min_bytes, file.algo.max_bytes) == (file.min_bytes, file.max_bytes + beyond)


@pytest.mark.slow
def test_with_more_files_no_size_is_worse_off() -> None:
    """Over a range as small as this all is compared at every size, so that files for fewer of them are no slower in all."""
    few, many = (
        answer("allreduce", runtime="executor", max_files=1),
        answer("allreduce", runtime="executor", max_files=8),
    )
    assert len(few.files) == 1 < len(many.files) <= 8
    assert math.prod(row.time_us for row in many.sizes) < math.prod(row.time_us for row in few.sizes)


@pytest.mark.parametrize("name", list(CollectiveName))
@pytest.mark.parametrize("high", [KB, MB])
def test_a_file_covers_what_its_sizes_really_move(name: CollectiveName, high: int) -> None:
    """An allgather of 1 KB on three ranks moves 1008 bytes: a file from 1024 on would never be chosen."""
    result = answer(name, KB, high)
    for row in result.sizes:
        file = result.files[row.file]
        assert file.min_bytes <= moved_bytes(name, MACHINE.num_ranks, row.bytes) <= row.bytes <= file.max_bytes


@pytest.mark.parametrize("name", list(CollectiveName))
def test_chunks_divide_every_size_of_a_files_range(name: CollectiveName) -> None:
    for file in answer(name).files:
        for size in range_sizes(KB, MB):
            if file.min_bytes <= moved_bytes(name, MACHINE.num_ranks, size) <= file.max_bytes:
                assert divides(name, MACHINE.num_ranks, file.chunks_per_rank * file.instances, size)


@pytest.mark.parametrize("name", list(CollectiveName))
def test_files_are_right_as_written_and_as_described(name: CollectiveName) -> None:
    for file in answer(name).files:
        shares = MACHINE.num_ranks if name in SHARED else 1
        root = 0 if name in ROOTED else None
        collective = Collective(name, MACHINE.num_ranks, file.chunks_per_rank * file.instances * shares, root)
        algo = read_algo(write_algo(file.algo))
        verify_algo(algo, collective, runtime="msccl")
        assert algo.proto == file.protocol
        assert file.channels == algo.nchannels
        assert file.threadblocks == max(len(gpu.threadblocks) for gpu in algo.gpus)
        assert file.steps == max(len(tb.steps) for gpu in algo.gpus for tb in gpu.threadblocks)


@pytest.mark.parametrize("name", list(CollectiveName))
def test_every_size_has_a_row_of_the_file_that_serves_it(name: CollectiveName) -> None:
    result = answer(name)
    factor = Collective(name, 3, 3, 0 if name in ROOTED else None).busbw_factor()
    assert tuple(row.bytes for row in result.sizes) == range_sizes(KB, MB)
    for row in result.sizes:
        file = result.files[row.file]
        assert file.min_bytes <= moved_bytes(name, MACHINE.num_ranks, row.bytes) <= file.max_bytes
        assert 0 < row.bound_us <= row.schedule_us * (1 + 1e-9)
        assert row.schedule_us <= row.time_us * (1 + 1e-9)
        assert row.algbw_GBps == pytest.approx(row.bytes / row.time_us / 1e3)
        assert row.busbw_GBps == pytest.approx(row.algbw_GBps * factor)
        assert row.efficiency == pytest.approx(row.bound_us / row.time_us)


@pytest.mark.parametrize("high", [None, MB])
def test_one_size_gives_one_file(high: int | None) -> None:
    result = synthesize(request(MACHINE, "allgather", MB, high, strategy="greedy", chunks=4))
    # nccl-tests gives each of 3 ranks a multiple of 16 bytes: 16 bytes of the buffer are left over.
    assert [(file.min_bytes, file.max_bytes) for file in result.files] == [(MB - 16, MB)]
    assert [row.bytes for row in result.sizes] == [MB]


def test_chunks_that_do_not_divide_give_a_warning() -> None:
    result = answer("allreduce", KB, KB, chunks=3, strategy="greedy")
    assert result.files[0].chunks_per_rank == 3
    assert any(note.startswith("warning: 3 chunks do not divide a buffer of 1KB") for note in result.notes)
    assert not any(
        note.startswith("warning") for note in answer("allreduce", KB, KB, chunks=2, strategy="greedy").notes
    )


def test_instances_count_when_chunks_are_asked_for() -> None:
    # 1 KB is 256 elements: 128 chunks divide it, 128 chunks of 4 instances do not.
    result = answer("allreduce", KB, KB, chunks=128, instances=4, strategy="greedy")
    assert any(note.startswith("warning") for note in result.notes)


def test_instances_that_divide_nothing_are_named() -> None:
    with pytest.raises(NoAnswerError, match="--instances: 3 copies"):
        answer("allreduce", KB, KB, instances=3, strategy="greedy")


def test_instances_multiply_the_chunks_of_the_file() -> None:
    file = answer("allgather", MB, MB, instances=2, chunks=2).files[0]
    assert (file.instances, file.chunks_per_rank) == (2, 2)
    assert file.algo.nchunksperloop == 2 * 2 * MACHINE.num_ranks


@pytest.mark.parametrize("name", list(CollectiveName))
def test_only_rooted_collectives_come_with_a_note_about_the_root(name: CollectiveName) -> None:
    notes = answer(name).notes
    assert any("right for root 0 only" in note for note in notes) == (name in ROOTED)
    assert any("custom" in note for note in notes) == (name in ("gather", "scatter"))


def test_the_root_asked_for_is_the_root() -> None:
    result = answer("broadcast", MB, MB, root=2, chunks=2)
    verify_algo(result.files[0].algo, Collective(CollectiveName.BROADCAST, 3, 2, 2), runtime="msccl")
    assert any("right for root 2 only" in note for note in result.notes)


def test_the_bound_quoted_for_allreduce_says_what_it_limits() -> None:
    result = synthesize(request(ring(3), "allreduce", KB, strategy="greedy", chunks=1))
    assert any("at one rank" in note for note in result.notes)


def test_a_protocol_and_a_strategy_asked_for_are_used() -> None:
    result = answer("allgather", MB, MB, protocol="LL128", strategy="trees", chunks=4)
    assert (result.files[0].protocol, result.files[0].strategy) == ("LL128", "trees")


def test_stages_and_progress_are_told() -> None:
    told: list[Progress] = []
    result = synthesize(request(MACHINE, "allgather", MB, strategy="trees", chunks=2), told.append)
    assert {step.stage for step in told} >= {"search", "simulation", "verify"}
    names = [row.name for row in result.stages]
    assert len(names) == len(set(names))
    assert {"topology", "routing", "ordering", "scheduling", "lowering", "simulation", "verify", "bound"} <= set(names)
    routing = next(row for row in result.stages if row.name == "routing")
    assert routing.bound is not None
    assert routing.gap is not None
    assert routing.gap >= -1e-9


@pytest.mark.parametrize("machine", [from_pairs("alone", 1, []), from_pairs("none", 0, [])], ids=lambda t: t.name)
def test_fewer_than_two_gpus_have_nothing_to_say_to_each_other(machine: Topology) -> None:
    with pytest.raises(InputError, match="2 or more GPUs"):
        synthesize(request(machine, "allreduce", MB))


def test_a_machine_in_two_parts_has_no_answer() -> None:
    with pytest.raises(NoAnswerError, match="gpu0 cannot reach gpu2"):
        synthesize(request(from_pairs("apart", 4, [(0, 1), (2, 3)]), "allreduce", MB))


@pytest.mark.parametrize("threadblocks", [4, 8])
def test_no_more_threadblocks_than_allowed(threadblocks: int) -> None:
    job: Request = request(ring(4), "allgather", MB, max_threadblocks=threadblocks, strategy="greedy", chunks=2)
    assert synthesize(job).files[0].threadblocks <= threadblocks


def test_more_threadblocks_needed_than_allowed_is_no_answer() -> None:
    # Every GPU of a ring sends to two others or more and receives from two: one threadblock cannot.
    with pytest.raises(NoAnswerError):
        synthesize(request(ring(4), "alltoall", MB, max_threadblocks=1, strategy="greedy", chunks=1))


@pytest.mark.slow
def test_what_candidates_were_compared_by_is_said_where_nobody_said_it() -> None:
    """A graph does not say which GPUs its ranks are; the catalogue does."""

    def is_said(job: Request) -> bool:
        return any(note.startswith("compared by exact schedule") for note in synthesize(job).notes)

    assert is_said(request(ring(4), "allgather", 64 << 10))
    assert not is_said(request(ring(4), "allgather", 64 << 10, objective="schedule"))
    assert not is_said(request(load_topology("pcie-2x2-nvlink"), "allgather", 64 << 10))


def test_a_machine_whose_gpus_are_not_named_is_compared_by_time() -> None:
    """A dump of nvidia-smi does not name them, but has the CPUs that they hang off: it is for running, and a note says as what."""
    machine = load_topology("pcie4-lanes-1nic")
    job = request(machine, "allgather", 64 << 10)
    assert machine.is_machine
    assert not machine.names_gpus
    assert job.by_time
    assert not replace(job, objective="schedule").by_time
    assert any("times are as if they were Volta's" in note for note in synthesize(job).notes)
    assert not ring(4).is_machine
    assert not request(ring(4), "allgather", 64 << 10).by_time


@pytest.mark.parametrize(("high", "foreseen"), [(MB, 1), (2 * MB, 0)])
def test_a_file_of_one_size_that_was_verified_ahead_is_not_verified_again(
    high: int, foreseen: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = request(ring(4), "allgather", MB, high, objective="time", jobs=1)
    search = Search(Plan(job, find_paths(job.topology)), Ledger(), lambda _: None)
    trial = Trial(search.plan, search.ledger, lambda _: None)
    trial.look_at(search.run())
    segments = trial.segments(1)
    verified: list[Algo] = []
    monkeypatch.setattr("synth.pipeline.verify_algo", lambda algo, *_, **__: verified.append(algo))
    ahead = _Foreseen(trial)
    ahead.verify(trial.contenders[segments[0].candidate])
    assert len(verified) == foreseen
    files = _files(job, trial, segments, ahead.files)
    assert verified == [file.algo for file in files]


def test_a_wrong_file_says_so_where_it_is_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise VerifyError("wrong")

    job = request(ring(4), "allgather", MB, objective="time", jobs=1)
    search = Search(Plan(job, find_paths(job.topology)), Ledger(), lambda _: None)
    trial = Trial(search.plan, search.ledger, lambda _: None)
    trial.look_at(search.run())
    segments = trial.segments(1)
    monkeypatch.setattr("synth.pipeline.verify_algo", refuse)
    ahead = _Foreseen(trial)
    ahead.verify(trial.contenders[segments[0].candidate])
    with pytest.raises(VerifyError, match="wrong"):
        _files(job, trial, segments, ahead.files)


def test_where_what_there_was_time_for_serves_not_all_sizes_what_is_coarsest_is_made_all_the_same() -> None:
    """Few of 10 MB, 20 MB, ... divide by the chunks that the first candidate is cut into."""
    job = request(two_boxes(line(2), (0,)), "broadcast", 10**7, 64 * 10**7, time_limit_s=0.001)
    result = synthesize(job)
    assert result.cut_short
    assert [row.bytes for row in result.sizes] == list(range_sizes(job.min_bytes, job.max_bytes))
    assert min(file.chunks_per_rank for file in result.files) < max(row.chunks for row in result.tried)


@pytest.mark.slow
def test_where_a_runtime_holds_no_cut_that_was_tried_coarser_ones_are() -> None:
    """Of a slow link between two halves of a tree the greedy makes 127 parts at least, and 508 steps of a threadblock."""
    pairs = [((rank - 1) // 2, rank) for rank in range(1, 6)]
    links = [link for a, b in pairs for link in both_ways(f"gpu{a}", f"gpu{b}", 1.0 if b == 2 else 1000.0, 0.0)]
    tree = Topology("tree", tuple(gpus(6)), tuple(links))
    (file,) = synthesize(request(tree, "allgather", MB, strategy="greedy")).files
    assert (file.strategy, file.chunks_per_rank) == ("greedy", 43)
    with pytest.raises(NoAnswerError, match="try fewer --chunks"):
        synthesize(request(tree, "allgather", MB, strategy="greedy", chunks=127))
