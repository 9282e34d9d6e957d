"""The simulator as a whole: what is refused, who waits in a hang, equal runs, leaps over tiles, what a trace holds."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from itertools import pairwise

import pytest

from msccl_xml.model import Algo, Gpu, Threadblock
from synth.baselines import BaselineOptions, build
from synth.bounds import ingress_bound
from synth.collective import CollectiveName
from synth.errors import EffortError, InputError, NoAnswerError
from synth.inputs.load import load_topology
from synth.paths import find_paths
from synth.simulate import Simulator, paths_by_pair
from synth.simulate.engine import Engine
from synth.simulate.leap import leap
from synth.topology import Topology, replicate
from tests import graphs
from tests.algos import (
    RIGHT,
    I,
    O,
    algo_of,
    alltoall,
    collective_of,
    exchange_allgather,
    relay_broadcast,
    ring_allgather,
    ring_allreduce,
    step,
    with_steps,
)

BASELINES = [
    ("ring", "dgx1", "Simple"),
    ("ring", "dgx1", "LL"),
    ("ring", "star", "LL128"),
    ("all-pairs", "star", "LL"),
    ("halving-doubling", "star", "Simple"),
    ("tree", "dgx1", "LL"),
]
MACHINES = {"dgx1": graphs.dgx1(), "star": graphs.star(4, 100.0, 0.35)}


def baseline(name: str, machine: str, proto: str) -> Algo:
    options = BaselineOptions(protocol=proto)  # type: ignore[arg-type]
    return build(name, MACHINES[machine], CollectiveName.ALLREDUCE, 1 << 20, options).algo


def test_another_number_of_gpus_is_refused() -> None:
    with pytest.raises(InputError, match=r"ngpus: 3, expected 4, the GPUs of ring4"):
        Simulator(ring_allreduce(3), graphs.ring(4))


def test_an_unknown_protocol_is_refused() -> None:
    with pytest.raises(InputError, match="proto: 'Complex', expected Simple or LL or LL128"):
        Simulator(ring_allreduce(3, "Complex"), graphs.ring(3)).time_us(1024)


def test_a_pair_without_a_path_is_named() -> None:
    with pytest.raises(InputError, match="gpu 0 to gpu 2"):
        Simulator(alltoall(3), graphs.line(3)).time_us(3 << 10)


def test_a_file_may_join_gpus_over_the_cpu_though_ours_go_around() -> None:
    """On a DGX-1 GPUs 0 and 5 have no NVLink: a runtime connects them over PCIe and the CPUs."""
    from synth.inputs.load import load_topology

    topology = load_topology("dgx1")
    assert not [path for path in find_paths(topology) if (path.src, path.dst) == (0, 5)]
    send = Gpu(0, 1, 1, 0, (Threadblock(0, 5, -1, 0, (step("s"),)),))
    receive = Gpu(5, 1, 1, 0, (Threadblock(0, -1, 0, 0, (step("r"),)),))
    others = [Gpu(rank, 1, 1, 0, ()) for rank in range(8) if rank not in (0, 5)]
    gpus = sorted([send, receive, *others], key=lambda gpu: gpu.id)
    algo = replace(algo_of("custom", 1, [send, receive], "Simple", inplace=True, outofplace=True), ngpus=8)
    time_us = Simulator(replace(algo, gpus=tuple(gpus)), topology).time_us(64 << 20)
    assert time_us == pytest.approx((64 << 20) / 6e3, rel=0.03)  # the link between the sockets, 6 GB/s


def test_a_hang_names_who_waits_for_what() -> None:
    """Three transfers before the first receive are more than the two that a connection of Simple holds."""
    topology = graphs.line(2)
    assert Simulator(exchange_allgather("Simple", 2), topology).time_us(4 << 20) > 0
    assert Simulator(exchange_allgather("LL", 3), topology).time_us(6 << 20) > 0
    with pytest.raises(NoAnswerError) as failure:
        Simulator(exchange_allgather("Simple", 3), topology).time_us(48 << 20)
    told = str(failure.value)
    assert "gpu 0 tb 0 step 3 (s)" in told
    assert "waits for room towards gpu 1" in told
    assert "\n" not in told


@pytest.mark.parametrize(("proto", "room"), [("Simple", 2), ("LL", 8), ("LL128", 8)])
@pytest.mark.parametrize("chunk_bytes", [64, 3 << 20])
def test_a_connection_holds_so_many_transfers_and_no_more(proto: str, room: int, chunk_bytes: int) -> None:
    """Both ranks send all before they receive: that ends well while all fits, however small or large a transfer is."""
    topology = graphs.line(2)
    for chunks in (room, room + 1):
        simulator = Simulator(exchange_allgather(proto, chunks), topology)
        size = 2 * chunks * chunk_bytes
        if chunks == room:
            assert simulator.time_us(size) > 0
        else:
            with pytest.raises(NoAnswerError, match="waits for room"):
                simulator.time_us(size)


def test_a_wait_for_data_that_nobody_sends_is_a_hang() -> None:
    algo = ring_allgather(3)
    steps = algo.gpus[1].threadblocks[0].steps
    broken = with_steps(algo, 1, 0, (steps[0], *steps[2:]))
    with pytest.raises(NoAnswerError, match=r"hangs after .* gpu 2 tb 0 step . \(r\w*\) waits for data of gpu 1"):
        Simulator(broken, graphs.ring(3)).time_us(3 << 10)


def test_what_nobody_receives_is_told() -> None:
    algo = ring_allgather(3)
    steps = algo.gpus[1].threadblocks[0].steps
    broken = with_steps(algo, 1, 0, (*steps, step("s", (I, 0))))
    with pytest.raises(NoAnswerError, match="gpu 1 to gpu 2 on channel 0 what is never received"):
        Simulator(broken, graphs.ring(3)).time_us(3 << 10)


def test_threadblocks_that_wait_for_each_other_are_a_hang() -> None:
    tbs = tuple(
        Threadblock(k, -1, -1, 0, (step("cpy", wait=(1 - k, 1), hasdep=True), step("cpy", hasdep=True)))
        for k in range(2)
    )
    algo = algo_of("custom", 1, [Gpu(0, 1, 1, 0, tbs)], "Simple", inplace=True, outofplace=True)
    with pytest.raises(NoAnswerError, match="gpu 0 tb 0 step 0 .cpy. waits for a flag of tb 1"):
        Simulator(algo, graphs.line(1)).time_us(1024)


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.parametrize("size", [1 << 10, 1 << 20, 24 << 20])
def test_no_run_beats_the_bound(name: str, size: int) -> None:
    algo, root = RIGHT[name]
    topology = graphs.full(algo.ngpus)
    bound = ingress_bound(topology, collective_of(algo, root), find_paths(topology))
    assert Simulator(algo, topology).time_us(size) > bound.time_us(size)


@pytest.mark.parametrize("instances", [1, 4])
@pytest.mark.parametrize("case", BASELINES, ids="-".join)
def test_no_run_beats_its_busiest_link_and_threadblock(case: tuple[str, str, str], instances: int) -> None:
    name, machine, protocol = case
    options = BaselineOptions(protocol=protocol, instances=instances)  # type: ignore[arg-type]
    algo = build(name, MACHINES[machine], CollectiveName.ALLREDUCE, 1 << 20, options).algo
    simulator = Simulator(algo, MACHINES[machine])
    for size in (0, 1 << 10, 1 << 20, 16 << 20):
        assert simulator.least_us(size) <= simulator.time_us(size) * (1 + 1e-9)


def test_a_link_that_is_always_busy_and_a_threadblock_that_is_are_all_there_is_to_wait_for() -> None:
    """One sender over a slow link, and over a quick one."""
    algo, size = relay_broadcast(), 64 << 20
    for GBps in (1.0, 1e4):
        simulator = Simulator(algo, graphs.line(3, GBps))
        assert simulator.least_us(size) == pytest.approx(simulator.time_us(size), rel=0.07)


@pytest.mark.parametrize("case", BASELINES, ids="-".join)
def test_more_takes_longer_and_quicker_links_take_less(case: tuple[str, str, str]) -> None:
    algo, topology = baseline(*case), MACHINES[case[1]]
    times = [Simulator(algo, topology).time_us(1 << k) for k in range(12, 26)]
    assert times == sorted(times)
    quicker = replace(topology, links=tuple(replace(link, GBps=2 * link.GBps) for link in topology.links))
    assert Simulator(algo, quicker).time_us(16 << 20) <= Simulator(algo, topology).time_us(16 << 20)


@pytest.mark.parametrize("case", BASELINES, ids="-".join)
def test_equal_inputs_give_equal_runs(case: tuple[str, str, str]) -> None:
    algo, topology = baseline(*case), MACHINES[case[1]]
    runs = [Simulator(algo, topology).trace(1 << 20) for _ in range(2)]
    assert runs[0] == runs[1]
    shared = Simulator(algo, topology, paths=paths_by_pair(topology))
    assert shared.time_us(1 << 20) == Simulator(algo, topology).time_us(1 << 20)


def uneven_pair(proto: str = "LL") -> Algo:
    """Two connections over one link: the second sends a chunk whenever the first has sent two, so their rates keep changing."""
    first = tuple(step("s", (I, k), hasdep=k == 1) for k in range(2))
    send = (Threadblock(0, 1, -1, 0, first), Threadblock(1, 1, -1, 1, (step("s", (I, 2), wait=(0, 1)),)))
    receive = (
        Threadblock(0, -1, 0, 0, tuple(step("r", dst=(O, k)) for k in range(2))),
        Threadblock(1, -1, 0, 1, (step("r", dst=(O, 2)),)),
    )
    gpus = [Gpu(0, 3, 3, 0, send), Gpu(1, 3, 3, 0, receive)]
    return algo_of("broadcast", 3, gpus, proto, inplace=True, outofplace=False)


def offset_pair(proto: str) -> Algo:
    """Two connections over one link, the second half a tile behind: a local copy keeps their sends from ending together."""
    first = (step("s", (I, 0), hasdep=True), step("cpy", (I, 0), (O, 0)), step("s", (I, 1)))
    send = (
        Threadblock(0, 1, -1, 0, first),
        Threadblock(1, 1, -1, 1, (step("s", (I, 2), wait=(0, 0)), step("s", (I, 3)))),
    )
    receive = tuple(
        Threadblock(c, -1, 0, c, (step("r", dst=(O, 2 * c)), step("r", dst=(O, 2 * c + 1)))) for c in range(2)
    )
    gpus = [Gpu(0, 4, 4, 0, send), Gpu(1, 4, 4, 0, receive)]
    return algo_of("broadcast", 4, gpus, proto, inplace=True, outofplace=False)


def uneven_ring(slow_GBps: float, alpha_us: float = 1.0) -> Topology:
    """A ring of four whose first link is slower than the others."""
    ring = graphs.ring(4, 10.0, alpha_us)
    links = tuple(replace(link, GBps=slow_GBps) if link.src == "gpu0" else link for link in ring.links)
    return replace(ring, links=links)


LONG = {
    "uneven-pair-ll": (uneven_pair(), graphs.line(2, 3.0), 1 << 25),
    "uneven-pair-ll128": (uneven_pair("LL128"), graphs.line(2, 9.0), 1 << 28),
    "uneven-pair-simple": (uneven_pair("Simple"), graphs.line(2, 20.0), 1 << 29),
    "uneven-pair-late": (uneven_pair(), graphs.line(2, 5.0, 40.0), 1 << 25),
    "offset-pair-ll": (offset_pair("LL"), graphs.line(2, 15.0), 1 << 25),
    "offset-pair-simple": (offset_pair("Simple"), graphs.line(2, 30.0), 1 << 29),
    "uneven-ring": (ring_allreduce(4, "LL"), uneven_ring(3.0), 1 << 25),
    "uneven-ring-late": (ring_allreduce(4, "LL"), uneven_ring(9.9, 70.0), 1 << 25),
    "late-ring": (ring_allreduce(3, "LL"), graphs.ring(3, 10.0, 60.0), 1 << 25),
    "late-allgather": (ring_allgather(4, "LL", 3), uneven_ring(8.0, 90.0), 1 << 26),
    "late-allgather-simple": (ring_allgather(4, "Simple"), uneven_ring(9.0, 300.0), 1 << 29),
    "ring-simple": (ring_allreduce(4), graphs.ring(4), 1 << 29),
    "ring-ll": (ring_allreduce(4, "LL", 2), graphs.ring(4), 1 << 26),
    "ring-partial": (ring_allreduce(3, "LL128"), graphs.ring(3), (1 << 27) + 4),
    "allgather": (ring_allgather(4, "LL", 2), graphs.ring(4), 1 << 26),
    "alltoall": (alltoall(4, "LL"), graphs.star(4), 1 << 25),
    "dgx1-ring": (baseline("ring", "dgx1", "LL"), MACHINES["dgx1"], 1 << 26),
    "star-all-pairs": (baseline("all-pairs", "star", "LL"), MACHINES["star"], 1 << 24),
}


def leaps(algo: Algo, topology, size: int) -> tuple[float, float, int, int]:
    """(time, time of a full run, operations run, operations of a full run)."""
    engines: list[Engine] = []
    for full in (False, True):
        engine = Simulator(algo, topology, full=full)._engine(size)
        engine.run()
        engines.append(engine)
    short, long = engines
    return short.now, long.now, short.steps_done, long.steps_done


@pytest.mark.parametrize("name", LONG)
def test_leaping_over_equal_tiles_agrees_with_running_them(name: str) -> None:
    algo, topology, size = LONG[name]
    time_us, full_us, run, all_of_them = leaps(algo, topology, size)
    assert time_us == pytest.approx(full_us, rel=1e-9)
    assert run < all_of_them / 2  # it did leap


def test_a_local_threadblock_that_runs_ahead_does_not_keep_the_rest_from_leaping() -> None:
    algo = ring_allgather(3, "LL")
    copy = Threadblock(1, -1, -1, 0, (step("cpy", (I, 0), (O, 0)),))
    gpus = tuple(replace(gpu, threadblocks=(*gpu.threadblocks, copy)) for gpu in algo.gpus)
    time_us, full_us, run, all_of_them = leaps(replace(algo, gpus=gpus), graphs.ring(3, 1.0), 1 << 25)
    assert time_us == pytest.approx(full_us, rel=1e-9)
    assert run < all_of_them / 2


def test_groups_that_drift_apart_are_leapt_by_their_paces() -> None:
    """Rank 0 to 1 is four times as quick as 1 to 2, by flags only: the first group is through long before the second."""
    base = graphs.line(3, 1.0)
    links = tuple(replace(link, GBps=4.0) if {link.src, link.dst} == {"gpu0", "gpu1"} else link for link in base.links)
    topology = replace(base, links=links)
    size = 2 * 2000 * (32 << 10)
    time_us, full_us, run, all_of_them = leaps(relay_broadcast("LL", 2), topology, size)
    assert time_us == pytest.approx(full_us, rel=1 / 1000)
    assert run < all_of_them / 4


def test_a_leap_takes_flows_in_flight_along() -> None:
    """A flow that is cut off by 100 us has as much left to move as before: it ends 100 us later, at whatever rate."""
    engine = Simulator(ring_allreduce(3), graphs.ring(3))._engine(1 << 30)
    blocks = range(len(engine.length))
    for turn in range(2):  # begin the first operation, then its first slice
        engine.now = engine.horizon = turn * engine.step_us
        for block in blocks:
            (engine._look if turn else engine._go)(block)
    engine._settle()
    ends = [engine.fluid.end_us(block) for block in blocks]
    assert engine.due_us == ends
    leap(engine, [5 for _ in blocks], 100.0)
    assert engine.due_us == pytest.approx([end + 100.0 for end in ends])
    assert [engine.fluid.end_us(block) for block in blocks] == pytest.approx([end + 100.0 for end in ends])
    assert (engine.tile, engine.done) == ([5 for _ in blocks], [5 * engine.length[0] for _ in blocks])


def test_what_ends_later_than_was_thought_is_looked_at_when_it_was_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be on time again until then; what ends sooner is looked at sooner."""
    engine = Simulator(ring_allreduce(3), graphs.ring(3))._engine(1 << 20)
    ends = iter([5.0, 7.0, 6.0, 4.0])
    monkeypatch.setattr(engine.fluid, "settle", lambda _: {0: next(ends)})
    seen = []
    for _ in range(4):
        engine._settle()
        seen.append((engine.wake_us[0], engine.due_us[0], len(engine.events)))
    assert seen == [(5.0, 5.0, 1), (7.0, 5.0, 1), (6.0, 5.0, 1), (4.0, 4.0, 2)]
    engine.horizon = 4.0  # it was looked at, and is late
    monkeypatch.setattr(engine.fluid, "settle", lambda _: {0: 4.5})
    engine._settle()
    assert (engine.due_us[0], len(engine.events)) == (4.5, 3)


def test_a_run_ends_where_there_are_more_events_or_new_rates_than_are_allowed() -> None:
    """Where flows share links each that ends is news for others."""
    topology = graphs.star(4)
    algo = build("all-pairs", topology, CollectiveName.ALLTOALL, 1 << 20).algo
    engine = Simulator(algo, topology)._engine(1 << 20)
    engine.run()
    most, whole_us = engine.count, Simulator(algo, topology).time_us(1 << 20)
    assert most > engine.fluid.touched > 0
    assert Simulator(algo, topology).time_us(1 << 20, most_events=most) == whole_us
    with pytest.raises(EffortError, match=f"{most - 1} allowed"):
        Simulator(algo, topology).time_us(1 << 20, most_events=most - 1)
    crowded = Simulator(algo, topology)._engine(1 << 20, most_events=most)
    crowded.fluid.touched = most
    with pytest.raises(EffortError, match=f"{most + 1} new rates"):
        crowded.run()


def test_few_tiles_are_all_run() -> None:
    time_us, full_us, run, all_of_them = leaps(ring_allreduce(4), graphs.ring(4), 1 << 25)
    assert (time_us, run) == (full_us, all_of_them)


def test_a_trace_has_every_operation_once_and_no_threadblock_does_two_at_a_time() -> None:
    algo, tiles = ring_allreduce(4), 3
    trace = Simulator(algo, graphs.ring(4)).trace(4 * tiles * (2 << 20))
    assert not trace.cut
    counted = Counter((one.rank, one.tb, one.step, one.tile) for one in trace.activities)
    assert len(counted) == 4 * 7 * tiles
    assert set(counted.values()) == {1}
    rows = defaultdict(list)
    for one in trace.activities:
        rows[one.rank, one.tb].append((one.start_us, one.end_us))
    for row in rows.values():
        assert all(before[1] <= after[0] for before, after in pairwise(row))


def test_a_wait_holds_in_every_tile() -> None:
    """The sender of a relay waits for the receiver's flag of the same tile, not only of the first."""
    trace = Simulator(relay_broadcast("LL", 1), graphs.line(3, 2.0)).trace(20 * (32 << 10))
    ends = {one.tile: one.end_us for one in trace.activities if (one.rank, one.tb) == (1, 0)}
    starts = {one.tile: one.start_us for one in trace.activities if (one.rank, one.tb) == (1, 1)}
    assert set(starts) == set(range(20))
    assert all(starts[tile] >= ends[tile] for tile in starts)


def test_data_is_sent_before_it_is_received() -> None:
    trace = Simulator(ring_allgather(3), graphs.ring(3)).trace(3 << 20)
    ends = {(one.rank, one.step): one.end_us for one in trace.activities}
    for rank in range(3):
        assert ends[(rank + 1) % 3, 2] > ends[rank, 1] + graphs.ALPHA_US


def test_a_trace_is_cut_where_it_would_be_too_long() -> None:
    trace = Simulator(ring_allreduce(4), graphs.ring(4)).trace(64 << 20, most=10)
    assert trace.cut
    assert len(trace.activities) == 10
    whole = Simulator(ring_allreduce(4), graphs.ring(4)).trace(64 << 20)
    assert trace.activities == whole.activities[:10]


@pytest.mark.parametrize("nodes", [1, 2])
def test_groups_that_wait_for_each_other_keep_one_pace(nodes: int) -> None:
    """Bridged pairs: threadblocks on different connections hold each other up by flags alone, over hundreds of tiles."""
    topology = replicate(load_topology("pcie-2x2-nvlink"), nodes)
    size = 64 << 20
    built = build("all-pairs", topology, CollectiveName.ALLREDUCE, size, BaselineOptions(protocol="LL"))
    leapt_us = Simulator(built.algo, topology).time_us(size)
    if nodes == 1:
        assert leapt_us == pytest.approx(Simulator(built.algo, topology, full=True).time_us(size), rel=0.005)
    else:
        assert leapt_us > size / 12e3  # less than it, over a NIC of 12 GB/s, cannot be
