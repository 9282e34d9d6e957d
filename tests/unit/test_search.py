"""The clock that times an answer at other sizes, and what a search tries, scores and cuts short."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest

from synth.baselines import BASELINES
from synth.bounds import Bound, bound_of
from synth.build import build_instance
from synth.candidates import Candidate
from synth.candidates.candidate import JOINT, LARGE_VIEW
from synth.candidates.sizes import CONNECTION_BOUND_BYTES
from synth.candidates.transfers import MOST_READ_TRANSFERS, transfers_of
from synth.collective import Collective, CollectiveName
from synth.constants import Constants
from synth.errors import InputError
from synth.inputs.load import load_topology
from synth.paths import Path, find_paths
from synth.plan import Plan
from synth.plan.traits import Traits
from synth.protocols import under_protocol
from synth.request import Progress, Request
from synth.routing.apart import PathsApart
from synth.search import Clock, Ledger, Scored, Search
from synth.search.search import _solved
from synth.solve import Stages
from synth.strategies import StrategyOptions, strategy
from synth.topology import Topology, replicate
from tests.graphs import dgx1, full, line, mesh, ring, star, two_boxes, two_switches
from tests.jobs import request

KB, MB, GB = 1 << 10, 1 << 20, 1 << 30


def searched(job: Request) -> tuple[list[Scored], tuple[str, ...], list[Progress]]:
    """What a search finds, its notes, and what it told on the way."""
    told: list[Progress] = []
    search = Search(Plan(job, find_paths(job.topology)), Ledger(), told.append)
    return search.run(), search.notes, told


def clock_of(topology: Topology, size: int) -> tuple[Clock, float]:
    """A clock on an allgather solved for `size` bytes, and that answer's makespan."""
    search = Search(Plan(request(topology, "allgather", size), find_paths(topology)), Ledger(), lambda _: None)
    instance = build_instance(topology, search.plan.collective(1), size, None, search.plan.paths)
    solution = Stages()(instance, strategy("greedy", StrategyOptions()))
    return Clock(solution), solution.schedule.makespan_us


def test_a_clock_agrees_with_the_answer_at_its_own_size() -> None:
    clock, makespan_us = clock_of(ring(4), MB)
    assert clock.time_us(MB) == pytest.approx(makespan_us)


def test_a_clock_at_other_sizes_and_protocols() -> None:
    clock, _ = clock_of(line(2), 20_000)  # each GPU sends half of the buffer: 10 GB/s is 10,000 bytes a us
    assert clock.time_us(20_000) == pytest.approx(1 + 1)
    assert clock.time_us(80_000) == pytest.approx(1 + 4)
    # LL: a threadblock of Volta moves 39/12 GB/s, and an eighth is received after all of it is out. Estimates are for ranking:
    # between what links alone take and all in a row.
    sent_us = 40_000 / (39_000 / 12)
    assert 3.6 + 1 + sent_us <= clock.estimate_us(80_000, "LL") <= 3.6 + 1 + 0.4 + sent_us * (1 + 1 / 8)
    assert 8.4 + 1 + 4 <= clock.estimate_us(80_000, "Simple") <= 8.4 + 1 + 0.4 + 4 + 3.4 - 0.47


def test_a_search_scores_candidates_at_the_sizes_they_serve() -> None:
    scored, notes, told = searched(request(line(3), "allreduce", KB, 16 * MB, strategy="trees", objective="schedule"))
    assert not notes
    assert all(step.stage == "search" for step in told)
    fractions = [step.fraction or 0.0 for step in told]
    assert fractions == sorted(fractions)
    assert set().union(*(entry.times_us for entry in scored)) == {KB << k for k in range(15)}
    for entry in scored:
        assert all(1 / 1024 <= size / entry.candidate.anchor_bytes <= 1024 for size in entry.times_us)
        assert all(entry.schedules_us[size] <= taken + 1e-9 for size, taken in entry.times_us.items())
        if entry.protocol == "LL":
            assert max(entry.times_us) <= 4 * MB


def test_only_counts_that_divide_are_scored() -> None:
    # Links without latency: cutting finely is worth it. 16 bytes are 4 elements of fp32, 64 KB are 16384.
    scored, _, _ = searched(request(line(2, alpha_us=1e-4), "allreduce", 16, 64 * KB, strategy="trees"))
    assert max(entry.candidate.count for entry in scored) > 4
    assert {size for entry in scored for size in entry.times_us} == {16 << k for k in range(13)}
    assert all(size // 4 % entry.candidate.count == 0 for entry in scored for size in entry.times_us)


def test_a_protocol_asked_for_is_the_only_one() -> None:
    scored, _, _ = searched(request(ring(4), "allgather", 64 * MB, protocol="LL", strategy="greedy", chunks=4))
    assert {entry.protocol for entry in scored} == {"LL"}
    assert all(64 * MB in entry.times_us for entry in scored)


@pytest.mark.parametrize("forks", [True, False])
def test_no_time_left_still_gives_an_answer_and_says_so(forks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("synth.workers._CAN_FORK", forks)
    job = request(ring(4), "allgather", KB, 1024 * MB, time_limit_s=0.0)
    scored, notes, _ = searched(job)
    solved = {entry.candidate for entry in scored}
    # One is waited for; what another process has ready by then, which nothing bounds on a busy machine, is taken, too.
    assert 1 <= len(solved) < len(Plan(job, find_paths(job.topology)).candidates())
    assert forks or len(solved) == 1
    assert len({(entry.candidate, entry.protocol) for entry in scored}) == len(scored)
    assert set().union(*(entry.times_us for entry in scored)) == {KB << k for k in range(21)}
    assert any("--time-limit" in note for note in notes)


@pytest.mark.parametrize("collective", ["allgather", "allreduce", "alltoall"])
@pytest.mark.parametrize("low", [KB, 1024 * MB])
def test_where_time_is_short_nothing_is_cut_finer_than_it_allows(
    collective: str, low: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But over equal boxes, where every rank keeps its share of an allreduce."""
    monkeypatch.setattr("synth.plan.in_time._TRANSFERS_A_SECOND", 200)
    job = request(two_boxes(full(4), range(4)), collective, low, 1024 * MB, objective="time", time_limit_s=2.0)
    plan = Plan(job, find_paths(job.topology))
    planned = [each for wave in plan.waves for each in wave]
    assert plan.is_hurried
    for each in planned:
        transfers = transfers_of(plan.collective(each.count))
        assert transfers <= 400 or each.count == 1 or (each.boxed and each.count == 8)
    scored, notes, _ = searched(job)
    assert scored
    assert "cut coarser" in notes[0]


@pytest.mark.parametrize("collective", ["allgather", "reduce-scatter", "allreduce"])
def test_what_is_cut_to_few_messages_for_want_of_time_comes_in_a_list(collective: str) -> None:
    """Chains of few long rounds end late; a list can be carried out as several instances."""
    job = request(replicate(load_topology("mi250"), 2), collective, GB, objective="time")
    paths = find_paths(job.topology)
    usual, hurried = (Plan(replace(job, time_limit_s=limit), paths).waves[0][0] for limit in (60.0, 1.0))
    assert usual.in_rounds
    assert (hurried.strategy, hurried.view) == (usual.strategy, usual.view)
    assert hurried.count < usual.count
    assert not hurried.in_rounds


def test_with_time_enough_or_a_count_asked_for_the_time_limit_cuts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("synth.plan.in_time._TRANSFERS_A_SECOND", 2_000)
    job = request(star(8), "allreduce", 1024 * MB, objective="time", time_limit_s=30.0)
    paths = find_paths(job.topology)
    usual = Plan(job, paths)
    assert not usual.is_hurried
    assert usual.waves == Plan(replace(job, time_limit_s=1e9), paths).waves
    hurried = Plan(replace(job, time_limit_s=0.0), paths)
    assert hurried.is_hurried
    assert hurried.waves != usual.waves
    asked = Plan(replace(job, time_limit_s=0.0, chunks=1024), paths)
    assert {each.count for wave in asked.waves for each in wave} == {1024}


def test_a_hurried_search_goes_on_while_there_is_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("synth.plan.in_time._TRANSFERS_A_SECOND", 2)
    job = request(mesh(2, 4), "allreduce", GB, objective="time", time_limit_s=100.0)
    search = Search(Plan(job, find_paths(job.topology)), Ledger(), lambda _: None)
    assert search.plan.is_hurried
    waves = list(search.waves())
    assert len(waves) == len(search.plan.waves) > 1
    assert not search.is_over
    (note,) = search.notes
    assert "cut coarser" in note


@pytest.mark.slow
def test_whoever_asks_for_another_wave_when_time_is_up_gets_one_more_candidate() -> None:
    job = request(mesh(2, 4), "allreduce", GB, objective="time", time_limit_s=0.0, jobs=1)
    search = Search(Plan(job, find_paths(job.topology)), Ledger(), lambda _: None)
    solved = [{entry.candidate for entry in scored} for scored in search.waves()]
    assert search.is_over
    assert [len(found) for found in solved] == list(range(1, len(search.plan.waves) + 1))
    assert len(search.plan.waves) > 1
    ended = f"after {len(solved)} of {sum(map(len, search.plan.waves))} candidates"
    assert ended in search.notes[-1]


@pytest.mark.parametrize("size", [MB, GB])
@pytest.mark.parametrize("collective", ["allgather", "allreduce"])
def test_what_takes_longest_of_the_first_wave_is_begun_first(collective: str, size: int) -> None:
    """So that where time is short there is more than others' algorithms; but free roots of small buffers."""
    job = request(mesh(2, 4), collective, size, objective="time")
    wave = Plan(job, find_paths(job.topology)).waves[0]
    free_roots = collective == "allreduce" and size == MB
    assert (wave[0].strategy in BASELINES) == free_roots
    assert len(set(wave)) == len(wave)
    assert any(each.strategy in BASELINES for each in wave)
    assert any(each.strategy not in BASELINES for each in wave)


@pytest.mark.parametrize(("boxes", "finer"), [(8, 1), (16, 2)])
def test_over_many_boxes_as_much_time_is_for_finer_cuts(
    boxes: int, finer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    topology = replicate(load_topology("pcie-2x2-nvlink"), boxes)
    job = request(topology, "allgather", GB, objective="time", time_limit_s=1.0)
    transfers = transfers_of(Plan(job, ()).collective(4))
    monkeypatch.setattr("synth.plan.in_time._TRANSFERS_A_SECOND", transfers)
    plan = Plan(job, find_paths(topology))
    boxed = [each.count for wave in plan.waves for each in wave if each.boxed]
    assert max(boxed) == 4 * finer


@pytest.mark.parametrize("collective", ["allgather", "reduce-scatter", "allreduce"])
def test_over_very_many_ranks_what_is_made_for_an_interpreter_is_tried_first_and_two_at_a_time(
    collective: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("candidates.hierarchy", "candidates.chained", "plan.traits"):
        monkeypatch.setattr(f"synth.{module}.is_large", lambda collective: True)
    job = request(two_boxes(star(4, GBps=200.0), range(4)), collective, GB, objective="time")
    plan = Plan(job, find_paths(job.topology))
    waves = [[each for each in wave if each.view is not None] for wave in plan.waves]
    assert [len(wave) for wave in waves[:2]] == [2, 1 if collective == "allgather" else 2]
    assert waves[:2] == list(map(list, plan.waves[:2]))
    assert waves[2:] == [[]]
    assert plan.waves[2]


def test_of_the_largest_copies_over_many_ranks_the_finest_rounds_come_with_the_pieces() -> None:
    """And after these, which take longest and are begun at once beside coarser rounds."""
    job = request(replicate(load_topology("dgx-h100"), 8), "allgather", GB, objective="time")
    first, later, *_ = Plan(job, find_paths(job.topology)).waves
    assert [each.strategy for each in first] == ["hierarchy-ring"] * 3
    assert [each.ordered for each in first] == ["rounds", "pieces", "rounds"]
    assert first[0].count < first[2].count
    assert {each.strategy for each in later} == {"hierarchy-doubling"}


@pytest.mark.parametrize("collective", ["allgather", "reduce-scatter"])
def test_over_many_ranks_few_hops_come_after_rings_of_boxes(collective: str) -> None:
    """And copies in finer rounds with them; before lists and what libraries would run."""
    job = request(replicate(load_topology("dgx-h100"), 8), collective, 64 * MB, objective="time")
    plan = Plan(job, find_paths(job.topology))
    (first, later, *rest) = plan.waves
    assert {each.strategy for each in first if each.boxed} == {"hierarchy-ring"}
    assert [each.strategy for each in later if not each.in_rounds] == ["hierarchy-doubling"]
    copied = ["hierarchy-ring"] if collective == "allgather" else []
    assert [each.strategy for each in later if each.in_rounds] == [*copied, "hierarchy-doubling"]
    assert any(each.strategy in BASELINES for each in rest[0])


def test_a_count_asked_for_is_the_only_one() -> None:
    scored, _, _ = searched(request(ring(4), "allgather", MB, chunks=3))
    assert {entry.candidate.count for entry in scored} == {3}


def test_a_ledger_adds_up_the_stages() -> None:
    ledger = Ledger()
    for stage in ("a", "b", "a", "end"):
        ledger.enter(stage)
    assert set(ledger.seconds) == {"a", "b"}
    assert 0 <= sum(ledger.seconds.values()) <= ledger.elapsed_s()


def test_the_milp_cuts_as_finely_as_it_can_still_be_solved() -> None:
    scored, _, _ = searched(request(ring(4), "allgather", 16 * MB, strategy="milp"))
    counts = {entry.candidate.count for entry in scored}
    assert {entry.candidate.strategy for entry in scored} == {"milp"}
    assert min(counts) == 1
    assert max(counts) > 1


def test_flow_is_for_chunks_with_one_destination() -> None:
    flows, _, _ = searched(request(ring(4), "alltoall", MB, strategy="flow"))
    assert {entry.candidate.strategy for entry in flows} == {"flow"}
    assert {entry.solution.strategy for entry in flows} == {"flow"}
    with pytest.raises(InputError, match="trees: allgather has chunks for several ranks"):
        searched(request(ring(4), "allgather", MB, strategy="flow"))


def test_over_boxes_what_is_made_for_one_size_and_for_more_are_two_candidates() -> None:
    boxes = two_boxes(full(4, 50.0), range(4))
    plan = Plan(request(boxes, "allgather", 32 * MB, objective="time"), find_paths(boxes))
    listed = [each for each in plan.candidates() if each.boxed and not each.in_rounds]
    assert len({(each.count, each.anchor_bytes) for each in listed}) == 2 * len({each.count for each in listed})
    ranged = Plan(request(boxes, "allgather", 16 * MB, 1 << 30, objective="time"), find_paths(boxes))
    cuts = [(each.count, each.in_rounds) for each in ranged.candidates() if each.boxed]
    assert len(cuts) == len(set(cuts))


@pytest.mark.parametrize("objective", ["time", "schedule"])
@pytest.mark.parametrize("size", [KB, MB, GB])
@pytest.mark.parametrize(
    ("name", "chunks"), [("allgather", 3), ("allgather", 16), ("allreduce", 2), ("allreduce", 100)]
)
def test_over_boxes_there_is_something_in_whatever_cut_is_asked_for(
    name: str, chunks: int, size: int, objective: str
) -> None:
    boxes = two_boxes(full(4, 50.0), range(4))
    job = request(boxes, name, size, objective=objective, strategy="hierarchy", chunks=chunks)
    planned = [each for wave in Plan(job, find_paths(boxes)).waves for each in wave]
    assert planned
    assert all(each.boxed and each.count == chunks for each in planned)


def test_candidates_of_all_sizes_come_in_turn_and_known_algorithms_first() -> None:
    """Wherever a clock ends the search, small and large buffers have had about the same of it."""
    job = request(ring(4), "allreduce", KB, 1 << 30)
    plan = Plan(job, find_paths(ring(4))).candidates()
    known = [candidate for candidate in plan if candidate.strategy in BASELINES]
    assert plan[: len(known)] == known
    first = plan[len(known) : len(known) + 4]
    assert len({candidate.anchor_bytes for candidate in first}) == 4


def test_waves_hold_every_candidate_once_and_others_algorithms_first() -> None:
    job = request(ring(4), "allreduce", 256 * MB, objective="time")
    plan = Plan(job, find_paths(job.topology))
    first, finer, last = plan.waves
    assert sorted((*first, *last), key=repr) == sorted(plan.candidates(), key=repr)
    assert not {*finer} & {*plan.candidates()}
    assert not any(each.strategy in BASELINES for each in (*finer, *last))
    whole = replace(job, min_bytes=KB)
    assert len(Plan(whole, plan.paths).waves) == 1


def _planned(topology: Topology, collective: str, size: int, **fields: str) -> list[Candidate]:
    plan = Plan(request(topology, collective, size, objective="time", **fields), find_paths(topology))
    return [each for wave in plan.waves for each in wave]


def test_beside_free_roots_equal_shares_are_cut_coarsely_alone() -> None:
    """On a mesh, whose corners are worse roots than its middle; not on a torus, nor if trees are what is asked for."""
    cuts = [
        {each.count for each in _planned(topology, "allreduce", 4 * MB, **fields) if each.strategy == "trees"}
        for topology, fields in (
            (mesh(3, 3), {}),
            (load_topology("torus-3x3"), {}),
            (mesh(3, 3), {"strategy": "trees"}),
        )
    ]
    assert [len(each) > 1 for each in cuts] == [False, True, True]


@pytest.mark.parametrize("name", ["allgather", "reduce-scatter", "allreduce"])
def test_a_large_size_is_looked_at_in_one_cut_first(name: str) -> None:
    """In rounds and in a list; finer and coarser cuts are made if that is not near the limit."""
    topology = load_topology("dgx-a100")
    plan = Plan(request(topology, name, GB, objective="time"), find_paths(topology))
    first, *finer, second = ([each for each in wave if each.strategy == "trees"] for wave in plan.waves)
    assert [each.in_rounds for each in first] == [True, False]
    assert len({each.count for each in first}) == 1 < len({each.count for each in second})
    assert [[(each.count, each.in_rounds) for each in wave] for wave in finer] == [[(1024, False)]] * (
        name == "allreduce"
    )


def _apart(topology: Topology, collective: str, size: int, **fields: str) -> list[Candidate]:
    return [each for each in _planned(topology, collective, size, **fields) if each.apart]


@pytest.mark.parametrize("name", ["allgather", "reduce-scatter", "allreduce"])
def test_large_buffers_go_over_paths_that_keep_apart_first(name: str) -> None:
    """In rounds, beside those over all paths; then in a list that is cut finer."""
    topology = load_topology("mi50x8")
    plan = Plan(request(topology, name, GB, objective="time"), find_paths(topology))
    first, second, *_ = ([each for each in wave if each.strategy == "trees"] for wave in plan.waves)
    assert [(each.in_rounds, each.apart) for each in first] == [(True, True), (True, False)]
    assert [(each.in_rounds, each.apart) for each in second] == [(False, True)]
    assert second[0].count > first[0].count


def test_where_some_of_the_paths_meet_after_all_they_come_second() -> None:
    topology = load_topology("pcie8-1nic")
    plan = Plan(request(topology, "allgather", GB, objective="time"), find_paths(topology))
    first, second, *_ = ([each for each in wave if each.strategy == "trees"] for wave in plan.waves)
    assert [each.apart for each in first] == [False, False, False]
    assert [each.apart for each in second] == [True, True]


def test_paths_that_keep_apart_are_tried_beside_others_where_bandwidth_counts() -> None:
    """What is made for an interpreter; not where latency is all that counts, nor where no paths meet."""
    machine = load_topology("mi50x8")
    tried = _apart(machine, "allgather", 4 * MB)
    assert tried
    assert all(each.view for each in tried)
    assert not _apart(machine, "allgather", 64 * KB)
    assert not _apart(machine, "alltoall", GB)
    assert not _apart(load_topology("dgx1"), "allgather", GB)


@pytest.mark.parametrize(("machine", "alone"), [("mi50x8", True), ("pcie8-1nic", False)])
def test_over_boxes_what_keeps_apart_comes_first_beside_others_if_some_of_it_meets(machine: str, alone: bool) -> None:
    topology = replicate(load_topology(machine), 3)
    first, second, *_ = Plan(request(topology, "reduce-scatter", GB, objective="time"), find_paths(topology)).waves
    assert (first[0].apart, first[0].in_rounds) == (True, True)
    assert all(each.apart for each in first) == alone
    assert [(each.apart, each.in_rounds) for each in first if each.apart] == [(True, True)] + [(True, False)] * alone
    assert any(each.apart for each in second) != alone


@pytest.mark.parametrize(
    ("machine", "boxes"), [("mi100x8", 1), ("a100-pcie6", 1), pytest.param("pcie8-1nic", 2, marks=pytest.mark.slow)]
)
def test_free_roots_go_over_paths_that_keep_apart_first_and_in_rounds(machine: str, boxes: int) -> None:
    """Where nothing waits for a link long lists gain nothing. Not in small buffers, whose lists are best."""
    topology = replicate(load_topology(machine), boxes)
    plan = Plan(request(topology, "allreduce", GB, objective="time"), find_paths(topology))
    first = plan.waves[0][0]
    assert (first.strategy, first.in_rounds, first.apart) == (JOINT, True, True)
    assert [each for wave in plan.waves for each in wave if each.apart] == [first]
    assert any(each.strategy == JOINT and not each.apart for wave in plan.waves[1:] for each in wave)
    assert not [each for each in _apart(topology, "allreduce", 4 * MB) if each.strategy == JOINT]


def test_over_boxes_paths_keep_apart_for_large_buffers_and_only_if_few_are_enough() -> None:
    """On rails hardly any meet, and a NIC for each GPU is that GPU's own."""
    boxes = replicate(load_topology("a100-pcie6"), 2)
    assert [each.in_rounds for each in _apart(boxes, "reduce-scatter", GB)] == [True, False]
    assert not _apart(boxes, "reduce-scatter", 4 * MB)
    assert not _apart(replicate(load_topology("ndv2"), 2), "reduce-scatter", GB)
    assert not _apart(replicate(load_topology("dgx-a100"), 2), "reduce-scatter", GB)
    more = replicate(load_topology("a100-pcie6"), 3)
    assert len(find_paths(more)) > 256
    assert [each.in_rounds for each in _apart(more, "reduce-scatter", GB)] == [True, False]


def test_paths_that_keep_apart_are_not_looked_for_where_most_meet_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def looked_for(*_: object) -> frozenset[int]:
        raise AssertionError("looked for")

    monkeypatch.setattr(PathsApart, "__call__", looked_for)
    rails, crowded = (replicate(load_topology(name), 2) for name in ("ndv2", "a100-pcie6"))
    assert not Plan(request(rails, "allgather", GB), find_paths(rails)).apart()
    with pytest.raises(AssertionError, match="looked for"):
        assert Plan(request(crowded, "allgather", GB), find_paths(crowded)).apart()
    # Each pair of an alltoall sends something else, so that it takes long sooner.
    assert len(find_paths(crowded)) > 64
    assert not Plan(request(crowded, "alltoall", GB), find_paths(crowded)).apart()


def test_a_connection_has_no_more_messages_in_rounds_than_a_threadblock_has_steps() -> None:
    """Where one path leads into a rank all that it gets comes over that: cut half as finely as where there are three."""
    cuts = {}
    for machine in ("pcie8-1nic", "mi50x8"):
        (paced,) = (each for each in _apart(load_topology(machine), "allgather", GB) if each.in_rounds)
        cuts[machine] = paced.count
    assert cuts == {"pcie8-1nic": 32, "mi50x8": 64}


@pytest.mark.parametrize(("size", "tried"), [(4 * MB, True), (16 * MB, False)])
def test_one_message_for_a_share_is_tried_where_latency_counts(size: int, tried: bool) -> None:
    assert any(each.strategy == "milp" for each in _planned(load_topology("dgx1"), "allgather", size)) is tried


@pytest.mark.parametrize("size", [4 * MB, 256 * MB])
def test_later_waves_keep_the_places_of_earlier_ones(size: int) -> None:
    job = request(ring(4), "allreduce", size, objective="time")
    search = Search(Plan(job, find_paths(job.topology)), Ledger(), lambda _: None)
    waves = [list(scored) for scored in search.waves()]
    assert len(waves) == (3 if size > CONNECTION_BOUND_BYTES else 2)
    for one, two in pairwise(waves):
        assert [entry.candidate for entry in two[: len(one)]] == [entry.candidate for entry in one]
        assert len(two) > len(one)


@pytest.mark.slow
def test_what_comes_in_pieces_is_begun_ahead_if_a_core_is_left() -> None:
    """So is one candidate after one other, and of small buffers whatever comes later; but not what else there is of large ones."""

    def begun(topology: Topology, name: str, size: int, jobs: int = 2) -> tuple[int, int]:
        plan = Plan(request(topology, name, size, objective="time", jobs=jobs), find_paths(topology))
        return Search(plan, Ledger(), lambda _: None)._begun_ahead, len(plan.waves)

    boxes = replicate(load_topology("dgx-a100"), 3)
    assert begun(boxes, "allreduce", GB) == (2, 4)
    assert begun(boxes, "allreduce", GB, jobs=1) == (1, 4)
    assert begun(replicate(load_topology("dgx-a100"), 2), "allreduce", GB) == (2, 4)
    assert begun(ring(4), "allreduce", GB)[0] == 1
    small, waves = begun(ring(4), "allreduce", MB)
    assert small == waves > 1


def test_waves_that_are_begun_ahead_find_what_one_process_finds() -> None:
    job = request(full(6), "allreduce", 16 * MB, objective="time")
    plans = [Plan(replace(job, jobs=jobs), find_paths(job.topology)) for jobs in (1, 2)]
    alone, spread = (Search(plan, Ledger(), lambda _: None).run() for plan in plans)
    assert [(each.candidate, each.protocol, each.times_us) for each in spread] == [
        (each.candidate, each.protocol, each.times_us) for each in alone
    ]


@pytest.mark.parametrize(("behind", "kept"), [(1.0, True), (1.09, True), (1.2, False)])
def test_free_roots_are_cut_finer_only_where_they_are_not_far_behind(behind: float, kept: bool) -> None:
    job = request(ring(4), "allreduce", 256 * MB, objective="schedule")
    search = Search(Plan(job, find_paths(job.topology)), Ledger(), lambda _: None)
    finer = [Candidate(JOINT, 64, job.max_bytes), Candidate("trees", 64, job.max_bytes)]
    assert search._hopeful(finer) == finer
    next(search.waves())
    others = [entry for entry in search.scored if entry.candidate.strategy != JOINT]
    best_us = min(entry.schedules_us[job.max_bytes] for entry in others)
    candidate = replace(others[0].candidate, strategy=JOINT)
    found = replace(others[0], candidate=candidate, schedules_us={job.max_bytes: best_us * behind})
    search.scored = [*others, found]
    assert search._hopeful(finer) == (finer if kept else finer[1:])


@pytest.mark.parametrize("name", ["allgather", "allreduce"])
@pytest.mark.parametrize("nics", [1, 4])
def test_where_schedules_decide_and_gpus_share_a_nic_one_box_is_solved_first(name: str, nics: int) -> None:
    """At most half as finely as a runtime reads, for links alone, too; it ends the search unless it is far from the limit."""
    job = request(two_boxes(full(4), range(nics)), name, GB, objective="schedule")
    plan = Plan(job, find_paths(job.topology))
    first, second, *_ = plan.waves
    assert any(each.boxed and each.view is None for each in first) == (nics == 1)
    assert not all(each.boxed for each in second)
    listed = [each for wave in plan.waves for each in wave]
    assert len(listed) == len(set(listed))
    if nics == 1:
        counts = [128, 64] if name == "allgather" else [256]
        assert [each.count for each in first if each.view is None] == counts
        assert [each.count for each in first if each.view is not None] == counts
        assert transfers_of(plan.collective(first[0].count)) <= MOST_READ_TRANSFERS * job.topology.num_ranks / 2
        assert min(each.count for each in first) > max(each.count for each in plan.candidates() if each.boxed)
        assert set(plan.candidates()) < set(listed)


@pytest.mark.parametrize("name", ["allgather", "alltoall"])
@pytest.mark.parametrize(("size", "opens"), [(16 * MB, False), (32 * MB, True), (GB, True)])
@pytest.mark.parametrize("ranks", [6, 9, 17])
def test_where_schedules_of_large_buffers_decide_what_is_for_an_interpreter_comes_first(
    name: str, size: int, opens: bool, ranks: int
) -> None:
    """Then what is cut finely without regard to it, and what is cut finest for it, of 9 to 16 ranks the latter first; last what is
    cut finest without regard to it, but for a list of more ranks.
    """
    job = request(ring(ranks), name, size, objective="schedule")
    plan = Plan(job, find_paths(job.topology))
    by_time = Plan(replace(job, objective="time"), plan.paths)
    assert plan.opens_interpreted == opens
    if not opens:
        assert plan.waves[0] != by_time.waves[0]
        assert not plan.finest_kept_up_with
        return
    replaced = [each for each in by_time.waves[0] if each not in plan.waves[0]]
    finest = [each for each in plan.waves[0] if each not in by_time.waves[0]]
    if ranks > 16 and name == "allgather":
        # A list of many ranks is as fine as a runtime reads at once, for an interpreter, too, since all do alike, and so are rounds.
        assert {each.strategy for each in (*replaced, *finest)} == {"trees"}
        assert [(each.in_rounds, each.view) for each in finest] == [(True, LARGE_VIEW), (False, LARGE_VIEW)]
        counts = [2, 28, 28] if size == 32 * MB else [36, 120, 120]
        assert [each.count for each in (*replaced, *finest)] == counts
        assert max(each.count for wave in plan.waves for each in wave) == finest[0].count
    else:
        assert plan.waves[0] == by_time.waves[0]
    planned = {each for wave in plan.waves[1:] for each in wave}
    assert planned.isdisjoint(plan.waves[0])
    assert {*plan.candidates()} <= planned | {*plan.waves[0]}
    assert all(each.in_rounds for each in plan.finest_kept_up_with)
    kept = tuple(each for each in plan.finest_kept_up_with if each not in plan.waves[0])
    position = plan.waves.index(kept) if kept else len(plan.waves)
    early = ranks == 9 and bool(plan.finest_kept_up_with)
    assert (position == 1) == early
    assert not any(each.in_rounds for wave in plan.waves[position + 1 + early :] for each in wave)


@pytest.mark.parametrize(("ranks", "opened"), [(16, False), (20, True)])
def test_of_many_ranks_with_free_roots_the_finest_list_comes_first(ranks: int, opened: bool) -> None:
    grid = mesh(ranks // 4, 4)
    plan = Plan(request(grid, "allreduce", MB, objective="schedule"), find_paths(grid))
    finest = max(each.count for wave in plan.waves for each in wave if each.strategy == "joint")
    first = [(each.strategy, each.count, each.in_rounds) for each in plan.waves[0][:2]]
    assert (first[0] == ("joint", finest, False)) == opened
    assert not opened or first[1] == ("joint", plan.waves[0][1].count, False)
    again = [each for wave in plan.waves[1:] for each in wave if each in plan.waves[0]]
    assert not again


@pytest.mark.parametrize("ranks", [16, 20])
def test_of_many_ranks_with_free_roots_large_buffers_are_cut_finely_at_once(ranks: int) -> None:
    """In a list and in rounds, and nothing coarser follows: that takes seconds, and is far behind."""
    grid = mesh(ranks // 4, 4)
    plan = Plan(request(grid, "allreduce", GB, objective="schedule"), find_paths(grid))
    joint = [{(each.in_rounds, each.count) for each in wave if each.strategy == "joint"} for wave in plan.waves]
    finest = max(count for wave in joint for _, count in wave)
    others = [each for wave in plan.waves[1:] for each in wave if each.strategy in ("trees", "joint")]
    assert (joint[0] == {(False, finest), (True, finest)}) == (ranks > 16)
    assert (not others) == (ranks > 16)


def test_where_time_is_short_free_roots_of_many_ranks_are_cut_coarsely() -> None:
    grid = mesh(5, 4)
    plans = [
        Plan(request(grid, "allreduce", GB, objective="schedule", time_limit_s=limit_s), find_paths(grid))
        for limit_s in (2.0, 30.0)
    ]
    hurried, usual = (max(each.count for each in plan.waves[0] if each.in_rounds) for plan in plans)
    assert hurried < usual


def test_the_limit_is_found_once_for_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[CollectiveName] = []

    def counted(topology: Topology, collective: Collective, paths: tuple[Path, ...], **options: bool) -> Bound:
        if not options:
            found.append(collective.name)
        return bound_of(topology, collective, paths, **options)

    monkeypatch.setattr("synth.plan.asked.bound_of", counted)
    grid = mesh(3, 4)
    plan = Plan(request(grid, "allreduce", GB, objective="schedule"), find_paths(grid))
    assert plan.opens_interpreted
    assert plan.waves
    assert found == [CollectiveName.ALLREDUCE]


def test_a_range_that_is_compared_by_schedule_has_one_wave() -> None:
    job = request(ring(6), "allgather", MB, GB, objective="schedule")
    plan = Plan(job, find_paths(job.topology))
    assert not plan.opens_interpreted
    assert len(plan.waves) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["broadcast", "reduce"])
def test_small_tiles_go_first_through_many_boxes_where_a_runtime_takes_them(name: str) -> None:
    def tiled(machine: str, **fields: str) -> list[bool]:
        """By wave whether it has small tiles."""
        boxes = replicate(load_topology(machine), 8)
        plan = Plan(request(boxes, name, GB, root=0, **fields), find_paths(boxes))
        return [any(each.chained and each.view == "LL128" for each in wave) for wave in plan.waves]

    first, *later = tiled("dgx-a100")
    assert first
    assert not any(later)
    assert not any(tiled("dgx-a100", protocol="Simple"))
    assert not any(tiled("dgx-h100"))
    assert any(tiled("dgx-h100", protocol="LL128"))


def test_rings_are_not_looked_for_where_they_would_not_be_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    boxes = replicate(load_topology("dgx-a100"), 2)
    looked: list[int] = []
    monkeypatch.setattr(Traits, "has_rings", property(lambda traits: bool(looked.append(1))))
    _planned(boxes, "broadcast", GB)
    assert not looked
    _planned(boxes, "reduce", GB)
    assert looked


@pytest.mark.slow
@pytest.mark.parametrize("machine", ["pcie8-1nic", "azure-nc96v4"])
def test_where_more_than_nics_limits_all_ranks_are_solved_at_once(machine: str) -> None:
    """Ways inside meet in PCIe switches, or go over NVLink or PCIe."""
    boxes = replicate(load_topology(machine), 2)
    first, *_ = Plan(request(boxes, "allgather", GB, objective="schedule"), find_paths(boxes)).waves
    assert {each.boxed for each in first} == {True, False}


@pytest.mark.parametrize("name", ["allgather", "reduce-scatter"])
def test_over_boxes_the_first_wave_comes_in_rounds(name: str) -> None:
    job = request(two_boxes(full(4), range(1)), name, GB, objective="time")
    plan = Plan(job, find_paths(job.topology))
    first, second, *_ = plan.waves
    assert [(each.boxed, each.in_rounds, each.view) for each in first] == [
        (True, True, LARGE_VIEW),
        (False, True, LARGE_VIEW),
        *([(False, False, None)] if name == "allgather" else []),
    ]
    assert {each.strategy for each in second} >= {*BASELINES} & {each.strategy for each in plan.candidates()}
    assert sorted((each for wave in plan.waves for each in wave), key=repr) == sorted(plan.candidates(), key=repr)


@pytest.mark.parametrize(
    ("name", "counts"), [("allgather", (64, 64)), ("reduce-scatter", (64,)), ("allreduce", (512,))]
)
def test_where_one_box_loads_links_as_little_as_can_be_nothing_is_made_for_all_ranks(
    name: str, counts: tuple[int, ...]
) -> None:
    """What is cut finer comes second, others' algorithms and coarser lists third."""
    job = request(two_boxes(star(8, GBps=200.0), range(8)), name, GB, objective="time")
    plan = Plan(job, find_paths(job.topology))
    first, second, third, *_ = plan.waves
    assert [(each.boxed, each.in_rounds) for each in first] == [(True, True), (True, False)][: len(counts)]
    assert tuple(each.count for each in first) == counts
    assert second == plan.finer_cuts == (replace(first[0], count=2 * counts[0]),)
    assert {each.strategy for each in third} >= {*BASELINES} & {each.strategy for each in plan.candidates()}
    assert not any(each.strategy == "trees" for each in plan.candidates())
    assert sorted((each for wave in plan.waves for each in wave), key=repr) == sorted(plan.candidates(), key=repr)


@pytest.mark.parametrize(
    ("machine", "collective", "size", "finer"),
    [
        ("pcie8-1nic", "allreduce", GB, ("trees", 512, None)),
        # Roots are free there.
        ("mi100x8", "allreduce", GB, (JOINT, 1024, LARGE_VIEW)),
        ("pcie8-1nic", "reduce-scatter", GB, None),
        ("pcie8-1nic", "allreduce", MB, None),
        # On paths that keep apart no message waits for a link, and no two ranks' ways meet.
        ("mi50x8", "allreduce", GB, None),
        ("dgx1", "allreduce", GB, None),
        ("mesh-3x3", "allreduce", GB, None),
    ],
)
def test_where_ways_meet_an_allreduce_of_few_ranks_is_cut_finer_next(
    machine: str, collective: str, size: int, finer: tuple[str, int, str | None] | None
) -> None:
    job = request(load_topology(machine), collective, size, objective="time")
    plan = Plan(job, find_paths(job.topology))
    assert [(each.strategy, each.count, each.view) for each in plan.finer_cuts] == ([finer] if finer else [])
    assert not finer or plan.waves[1] == plan.finer_cuts


@pytest.mark.parametrize(("size", "counts"), [(GB, [4]), (64 * MB, [])])
def test_large_chunks_with_one_destination_over_boxes_are_cut_finer_next(size: int, counts: list[int]) -> None:
    job = request(replicate(load_topology("mi250"), 2), "alltoall", size, objective="time")
    plan = Plan(job, find_paths(job.topology))
    assert [(each.strategy, each.count) for each in plan.finer_cuts] == [("hierarchy-direct", each) for each in counts]
    assert not counts or plan.waves[1] == plan.finer_cuts


@pytest.mark.parametrize(("boxes", "wave"), [(4, 1), (8, 0)])
def test_an_allreduce_in_pieces_is_for_what_fine_rounds_do_not_bring_near(boxes: int, wave: int) -> None:
    """Of 32 ranks a runtime reads these, of 64 only coarse ones."""
    job = request(replicate(load_topology("dgx-a100"), boxes), "allreduce", GB, objective="time")
    plan = Plan(job, find_paths(job.topology))
    pieced = [number for number, each in enumerate(plan.waves) if any(candidate.pieces for candidate in each)]
    assert pieced == [wave]
    assert [each.count for each in plan.waves[wave] if each.pieces] == [4096]
    assert [each.count for each in plan.finer_cuts] == ([4096] if wave else [])


@pytest.mark.parametrize(("machine", "first"), [("mi250", (2048, 66)), ("dgx2", (256, None)), ("mi100x8", (512, None))])
def test_an_allreduce_over_links_of_unequal_width_begins_with_pieces(
    machine: str, first: tuple[int, int | None]
) -> None:
    """Not where all are as wide, or ways meet."""
    job = request(load_topology(machine), "allreduce", GB, objective="time")
    made = [each for each in Plan(job, find_paths(job.topology)).waves[0] if each.strategy not in BASELINES]
    assert (made[0].count, made[0].pieces) == first


@pytest.mark.parametrize(("limit_s", "made"), [(30.0, (4096, 15)), (10.0, (512, None))])
def test_where_time_is_short_pieces_count_for_less_than_their_chunks(
    limit_s: float, made: tuple[int, int | None]
) -> None:
    """All chunks of 4096 are more transfers than go into half a minute."""
    job = request(replicate(load_topology("dgx-a100"), 8), "allreduce", GB, objective="time")
    plan = Plan(replace(job, time_limit_s=limit_s), find_paths(job.topology))
    finest = max(plan.waves[0], key=lambda each: each.count)
    assert (finest.count, finest.pieces) == made


@pytest.mark.parametrize(("low", "size", "several"), [(GB, GB, True), (MB, GB, False), (64 * MB, 64 * MB, False)])
def test_chunks_of_one_large_buffer_alone_enter_boxes_over_several_gates(low: int, size: int, several: bool) -> None:
    job = replace(request(two_boxes(star(8, GBps=100.0), range(8)), "allgather", size, objective="time"), min_bytes=low)
    search = Search(Plan(job, find_paths(job.topology)), Ledger(), lambda _: None)
    solution = search.solve(Candidate("hierarchy-ring", 8, size, LARGE_VIEW))
    assert solution is not None
    paths, boxes = solution.instance.paths, search.plan.boxes
    assert boxes is not None
    entered = Counter(
        transfer.chunk
        for transfer in solution.schedule.transfers()
        if boxes.box_of[paths[transfer.path].src] != boxes.box_of[paths[transfer.path].dst]
    )
    assert (max(entered.values()) > 1) == several


@pytest.mark.parametrize(("box", "nics"), [(dgx1(), 8), (star(8, GBps=200.0), 1), (star(8, GBps=200.0), 3)])
def test_where_links_inside_boxes_are_unequal_or_gpus_share_nics_all_ranks_are_packed_too(
    box: Topology, nics: int
) -> None:
    job = request(two_boxes(box, range(nics)), "allgather", GB, objective="time")
    plan = Plan(job, find_paths(job.topology))
    assert any(each.strategy == "trees" for each in plan.candidates())
    assert plan.finer_cuts == ()


@pytest.mark.parametrize("name", ["allgather", "reduce-scatter", "allreduce"])
def test_boxes_of_nics_enough_are_all_that_is_tried_of_one_medium_size(name: str) -> None:
    """Where GPUs share a NIC trees of all ranks may be better, and so they may be for small buffers and over a range."""

    def whole(nics: int, size: int, low: int | None = None) -> bool:
        job = replace(request(two_boxes(full(4), range(nics)), name, size, objective="time"), min_bytes=low or size)
        planned = [each for wave in Plan(job, find_paths(job.topology)).waves for each in wave]
        assert any(each.boxed for each in planned)
        return any(each.strategy in ("trees", "greedy") for each in planned)

    assert not whole(4, 16 * MB)
    assert not whole(2, 64 * MB)
    assert all([whole(1, 16 * MB), whole(4, 4 * MB), whole(1, GB), whole(4, 16 * MB, low=MB)])


@pytest.mark.parametrize(("box", "nics", "inside"), [(dgx1(), 8, True), (dgx1(), 1, False), (full(4), 4, False)])
def test_trees_of_all_ranks_are_finer_where_unequal_links_inside_boxes_limit(
    box: Topology, nics: int, inside: bool
) -> None:
    """With a NIC of 1,000 GB/s for every GPU a box's own links are what limits, with one for all the network is."""
    job = request(two_boxes(box, range(nics), GBps=1000.0 if nics > 1 else 10.0), "allgather", GB, objective="time")
    plan = Plan(job, find_paths(job.topology))
    packed = max(each.count for each in plan.candidates() if each.strategy == "trees")
    assert (transfers_of(plan.collective(packed)) > 16_000) == inside


def test_the_number_of_rounds_says_what_other_sizes_and_protocols_take() -> None:
    job = request(star(4), "reduce-scatter", GB, objective="time")
    search = Search(Plan(job, find_paths(job.topology)), Ledger(), lambda _: None)
    solution = search.solve(Candidate("trees", 16, GB, LARGE_VIEW, in_rounds=True))
    assert solution is not None
    assert solution.interpreted is not None
    clock, constants = Clock(solution), Constants.for_topology(job.topology)
    assert clock.time_us(GB) == pytest.approx(solution.schedule.makespan_us)
    all_us, simple, wider = solution.interpreted.makespan_us, constants.simple, constants.ll128
    assert clock.estimate_us(GB, "Simple") == pytest.approx(simple.launch_us + all_us)
    assert clock.estimate_us(GB // 2, "Simple") == pytest.approx(simple.launch_us + all_us / 2)
    assert clock.estimate_us(GB, "LL128") == pytest.approx(
        wider.launch_us + all_us * simple.rate_GBps / wider.rate_GBps
    )


@pytest.mark.parametrize(
    ("topology", "size", "strategy", "runs"),
    [
        (ring(8), GB, "trees", 8),
        (dgx1(), GB, "trees", 2),
        (dgx1(), 16 * MB, "trees", 2),
        (dgx1(), GB, "flow", 2),
        (dgx1(), 8 * MB, "trees", None),  # latency counts as much
        (dgx1(), GB, "greedy", None),
        (line(6), GB, "trees", None),  # nothing rotates
        (replicate(load_topology("azure-nc96v4"), 2), GB, "trees", None),  # ways meet, some keep apart
    ],
)
@pytest.mark.parametrize("in_rounds", [False, True])
def test_large_packings_are_made_for_one_run_of_ranks_that_do_alike(
    topology: Topology, size: int, strategy: str, runs: int | None, in_rounds: bool
) -> None:
    job = request(topology, "alltoall" if strategy == "flow" else "allgather", size, objective="time")
    search = Search(Plan(job, find_paths(job.topology)), Ledger(), lambda _: None)
    candidate = Candidate(strategy, 32, size, LARGE_VIEW, in_rounds=in_rounds and strategy == "trees")
    solution = search.solve(candidate)
    assert solution is not None
    assert solution.strategy == strategy
    assert (solution.folded and solution.folded.boxes.count) == runs


def test_no_round_is_shorter_than_the_mean_latency_of_messages_and_half_of_what_a_threadblock_takes() -> None:
    """Few messages cross the network, whose latency is several times that inside a box."""
    job = request(two_boxes(full(4), range(4)), "allgather", GB, objective="time")
    search = Search(Plan(job, find_paths(job.topology)), Ledger(), lambda _: None)
    solution = search.solve(Candidate("trees", 16, GB, LARGE_VIEW, in_rounds=True))
    assert solution is not None
    simple = Constants.for_topology(job.topology).simple
    paths = under_protocol(solution.instance, "Simple").paths
    latencies = [paths[send.path].alpha_us for send in solution.schedule.sends]
    mean_us, part_us = sum(latencies) / len(latencies), 0.5 * solution.chunk_bytes(KB) / (simple.rate_GBps * 1e3)
    assert max(latencies) > 2 * mean_us
    estimate_us = Clock(solution).estimate_us(KB, "Simple")
    assert estimate_us == pytest.approx(simple.launch_us + solution.rounds * (mean_us + part_us))


def test_more_messages_than_steps_are_no_answer_in_rounds() -> None:
    job = request(line(3), "allgather", GB, objective="time")
    search = Search(Plan(job, find_paths(job.topology)), Ledger(), lambda _: None)
    assert search.solve(Candidate("trees", 128, GB, LARGE_VIEW, in_rounds=True)) is not None
    assert search.solve(Candidate("trees", 256, GB, LARGE_VIEW, in_rounds=True)) is None


@pytest.mark.slow
def test_ll_is_estimated_on_as_many_threadblocks_as_a_gpu_has_room_for() -> None:
    topology = full(4, GBps=100.0)
    for most, copies in ((64, 8), (20, 4), (6, 2), (5, 1)):
        scored, *_ = searched(request(topology, "allgather", KB, MB, max_threadblocks=most))
        low = [entry for entry in scored if entry.protocol == "LL" and entry.candidate.strategy == "trees"]
        assert low
        assert {entry.copies for entry in low} == {copies}
        for entry in low:
            assert set(entry.wide_us) <= set(entry.times_us)
            assert bool(entry.wide_us) == (copies > 1)
            assert all(taken <= entry.times_us[size] for size, taken in entry.wide_us.items())


def test_instances_are_as_many_as_buffers_divide_by() -> None:
    """Of 1 MB nccl-tests gives each of nine ranks 29,124 elements, of 2 MB 58,252: 9 divides the one, 4 the other, and 8 neither."""
    topology = ring(9)
    for size, copies in ((MB, 9), (2 * MB, 4)):
        job = request(topology, "reduce-scatter", size, objective="time")
        search = Search(Plan(job, find_paths(topology)), Ledger(), lambda _: None)
        candidate = Candidate("greedy", 1, size)
        solution = search.solve(candidate)
        assert solution is not None
        low, *_ = search.score(candidate, solution)
        assert (low.protocol, low.copies) == ("LL", copies)
        assert set(low.wide_us) == set(low.times_us)


def test_few_long_messages_are_estimated_on_many_threadblocks_under_every_protocol() -> None:
    scored, *_ = searched(request(full(4, GBps=100.0), "allgather", 16 * KB, GB, max_threadblocks=64))
    assert {entry.protocol for entry in scored if entry.wide_us} >= {"LL", "Simple"}
    for entry in scored:
        if entry.protocol != "LL":
            few = len(entry.solution.schedule.sends) <= 1_000
            largest = 128 * MB if entry.candidate.strategy == "ring" else 64 * MB
            assert all(few and size <= largest for size in entry.wide_us)


def test_an_instance_carries_its_part_of_every_message() -> None:
    """So many instances move so many times the bytes in the same time, over links that do not mind."""
    topology = ring(4, GBps=1e6, alpha_us=0.5)
    search = Search(Plan(request(topology, "allgather", MB), find_paths(topology)), Ledger(), lambda _: None)
    solution = search.solve(Candidate("trees", 2, MB))
    assert solution is not None
    clock = Clock(solution)
    for copies in (2, 8):
        assert clock.estimate_us(copies * MB, "LL", copies) == pytest.approx(clock.estimate_us(MB, "LL"), rel=1e-3)


@pytest.mark.parametrize(
    ("objective", "name", "most_us"),
    [
        ("time", "exchange-4-2", 1.5),
        ("schedule", "exchange-4-2-in-8", 1.46),
        ("schedule", "exchange-4-2-turned-in-32", 1.43),
    ],
)
def test_a_small_allreduce_is_tried_in_exchanges_and_a_clock_times_them(
    objective: str, name: str, most_us: float
) -> None:
    """On a DGX-1 quads give each other all they have, then each GPU and its neighbour in the other quad: two hops of 0.7 us."""
    job = request(dgx1(), "allreduce", KB, objective=objective)
    search = Search(Plan(job, find_paths(job.topology)), Ledger(), lambda _: None)
    tried = [each for each in search.plan.candidates() if each.exchanged]
    assert name in [each.strategy for each in tried]
    solution = search.solve(next(each for each in tried if each.strategy == name))
    assert solution is not None
    assert solution.written is not None
    assert 1.4 < solution.schedule.makespan_us < most_us
    assert Clock(solution).time_us(KB) == pytest.approx(solution.schedule.makespan_us)
    assert Clock(solution).time_us(2 * KB) > solution.schedule.makespan_us


def test_over_nodes_exchanges_of_small_and_of_larger_buffers_have_paths_of_their_own() -> None:
    job = request(replicate(load_topology("ndv2"), 2), "allreduce", 64 * KB, MB, objective="time")
    plan = Plan(job, find_paths(job.topology))
    assert plan.instance(16, 64 * KB).paths != plan.instance(16, 128 * KB).paths
    search = Search(plan, Ledger(), lambda _: None)
    solved = {each.anchor_bytes: search.solve(each) for each in plan.candidates() if each.exchanged}
    assert {size > 64 * KB for size in solved} == {True}
    for size, solution in solved.items():
        assert solution is not None
        assert solution.instance.paths == plan.instance(16, size).paths


@pytest.mark.parametrize(("runtime", "most"), [("msccl", 32), ("executor", 16), ("rccl", 16)])
def test_there_are_no_more_slices_than_a_runtime_reads_the_steps_of(runtime: str, most: int) -> None:
    job = request(dgx1(), "allreduce", 64 * KB, objective="schedule", runtime=runtime)
    plan = Plan(job, find_paths(job.topology))
    assert (
        max(plan.exchanges(each.anchor_bytes)[each.strategy].count for each in plan.candidates() if each.exchanged)
        == most
    )


@pytest.mark.parametrize(
    "job",
    [
        request(dgx1(), "allgather", KB),
        request(dgx1(), "allreduce", 16 * MB),
        request(dgx1(), "allreduce", KB, strategy="trees"),
        request(dgx1(), "allreduce", KB, group=(0, 1, 4)),
    ],
    ids=["allgather", "large", "trees", "group"],
)
def test_what_moves_much_or_is_asked_for_otherwise_is_not_exchanged(job: Request) -> None:
    assert not any(each.exchanged for each in Plan(job, find_paths(job.topology)).candidates())


def test_a_cut_that_is_asked_for_is_kept_by_exchanges() -> None:
    job = request(dgx1(), "allreduce", KB, chunks=2, objective="time")
    tried = [each for each in Plan(job, find_paths(job.topology)).candidates() if each.exchanged]
    assert {each.count for each in tried} == {2}
    assert not any("4p" in each.strategy or "8p" in each.strategy for each in tried)


def test_in_a_range_rings_are_made_for_the_largest_buffers_and_for_the_others() -> None:
    """Six rings share out chunks that the smallest buffers do not divide by; what is for 32 MB at most is not parted for 1 GB."""
    plan = Plan(request(dgx1(), "allgather", KB, GB, objective="time"), find_paths(dgx1()))
    rings = [candidate for candidate in plan.candidates() if candidate.strategy == "ring"]
    assert [(candidate.count, candidate.anchor_bytes) for candidate in rings] == [(256, GB), (256, 32 * MB)]
    large, others = map(plan.served, rings)
    assert (*others, *large) == plan.sizes
    assert large[0] == 64 * MB
    search = Search(plan, Ledger(), lambda _: None)
    served = [{entry.protocol: [*entry.times_us] for entry in _solved(search, each)[0]} for each in rings]
    assert [*served[0]] == ["Simple"]
    assert [*served[1]] == ["LL", "Simple"]
    assert max(served[1]["LL"]) == 4 * MB
    assert max(served[1]["Simple"]) == 32 * MB
    assert min(served[1]["Simple"]) == 8 * KB  # a chunk of four bytes


def test_messages_of_many_chunks_are_worth_more_instances() -> None:
    """43 chunks of 256 bytes go round in one message: each of eight instances has its 1.3 KB of that."""
    plan = Plan(request(dgx1(), "allgather", 512 * KB, objective="time"), find_paths(dgx1()))
    search = Search(plan, Ledger(), lambda _: None)
    ring_of_six = search.solve(next(each for each in plan.candidates() if each.strategy == "ring"))
    assert ring_of_six is not None
    assert ring_of_six.chunk_bytes(512 * KB) == 256
    assert ring_of_six.is_worth_parting(512 * KB, 8)
    assert not ring_of_six.is_worth_parting(8 * KB, 8)
    single = search.solve(Candidate("greedy", 8, 512 * KB))
    assert single is not None
    assert single.is_worth_parting(64 * KB, 8)
    assert not single.is_worth_parting(32 * KB, 8)


@pytest.mark.parametrize(
    ("machine", "even"),
    [
        (star(8, GBps=200.0), True),
        (full(8, GBps=50.0), True),
        (two_boxes(star(4, GBps=200.0), range(4)), True),
        (dgx1(), False),
        (two_switches(8), False),
    ],
)
def test_large_vectors_are_cut_evenly_where_ranks_are_alike(machine: Topology, even: bool) -> None:
    """A vector of 250,000,000 elements divides by 250, which is 31 chunks for some of eight ranks, 32 for others, and by 200."""
    job = request(machine, "allreduce", 1_000_000_000, objective="time")
    counts = {each.count for each in Plan(job, find_paths(machine)).candidates() if each.in_rounds}
    assert counts
    assert all(count % 8 == 0 for count in counts) is even
