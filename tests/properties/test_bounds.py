"""Bounds against everything that knows better: all cuts, the whole linear programs, and schedules, which none may undercut."""

from __future__ import annotations

from fractions import Fraction
from itertools import chain, combinations

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from synth.baselines import BASELINES, BaselineOptions, build
from synth.bounds import bound_of, ingress_bound
from synth.bounds.machine import Machine
from synth.collective import ROOTED, SHARED, Collective, CollectiveName
from synth.errors import NoAnswerError
from synth.instance import Instance
from synth.paths import find_paths
from synth.scheduling import MilpScheduling, Scheduling
from synth.solve import Stages
from synth.strategies import StrategyOptions, strategy
from synth.topology import Device, DeviceKind, Link, Topology

NAMES = tuple(CollectiveName)
#: The scheduling program is left to its own tests.
STAGES = Stages(scheduling=Scheduling(exact=MilpScheduling(max_binaries=0)))
RATES = st.sampled_from([0.02, 1.0, 2.0, 5.0, 10.0, 12.5, 1 / 3, 20.0])


@st.composite
def machines(draw: st.DrawFn, max_ranks: int = 5) -> Topology:
    """GPUs of one or two boxes on a one-way ring, with more one-way links; some meet at switches, boxes at a network."""
    count = draw(st.integers(2, max_ranks))
    boxes = draw(st.integers(1, 2))
    devices = [Device(f"gpu{k}", DeviceKind.GPU, k * boxes // count, k) for k in range(count)]
    pairs = [(a, b) for a in range(count) for b in range(count) if a != b]
    chosen = {(rank, (rank + 1) % count) for rank in range(count)} | draw(st.sets(st.sampled_from(pairs)))
    alphas = st.sampled_from([0.0, 0.5, 3.0])
    links = [Link(f"gpu{a}", f"gpu{b}", "nvlink", draw(RATES), draw(alphas)) for a, b in sorted(chosen)]
    for name, kind in (("switch", DeviceKind.NVSWITCH), ("net", DeviceKind.NETWORK)):
        if draw(st.booleans()):
            devices.append(Device(name, kind, -1 if kind is DeviceKind.NETWORK else 0))
            for rank in sorted(draw(st.sets(st.integers(0, count - 1), min_size=1))):
                links += [Link(f"gpu{rank}", name, "nvlink", draw(RATES), draw(alphas))]
                links += [Link(name, f"gpu{rank}", "nvlink", draw(RATES), draw(alphas))]
    return Topology("drawn", tuple(devices), tuple(links))


def collective_of(
    name: CollectiveName, ranks: int, root: int, per_rank: int = 1, group: tuple[int, ...] | None = None
) -> Collective:
    chunks = per_rank * ranks if name in SHARED else per_rank
    return Collective(name, ranks, chunks, root if name in ROOTED else None, group)


def brute_force(topology: Topology, collective: Collective) -> float:
    """The worst cut of the links in use, over all sets of devices: the largest share that must leave over what can, in us a byte."""
    links = [topology.links[i] for i in {link for path in find_paths(topology) for link in path.links}]
    ids, worst = [device.id for device in topology.devices], 0.0
    for side in (set(s) for s in chain.from_iterable(combinations(ids, k) for k in range(1, len(ids)))):
        ranks = frozenset(gpu.rank for gpu in topology.gpus if gpu.id in side and gpu.rank is not None)
        share = float(must_leave(collective, ranks))
        rate = sum(link.GBps * 1e3 for link in links if link.src in side and link.dst not in side)
        if share:
            worst = max(worst, share / rate)
    return worst


def must_leave(collective: Collective, ranks: frozenset[int]) -> Fraction:
    """The share of the buffer that a set of ranks has to send to the others, from the table of sources and destinations."""
    leaving = 0
    for chunk in range(collective.num_chunk_ids):
        sources, dests = collective.sources(chunk), collective.destinations(chunk)
        inside = bool(sources & ranks) if collective.combining else sources <= ranks
        leaving += inside and bool(dests - ranks)
    return Fraction(leaving, collective.chunks)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("alltoall", "allreduce")])
@settings(max_examples=40)
@given(data=st.data())
def test_the_cut_is_the_worst_of_all(name: CollectiveName, data: st.DataObject) -> None:
    topology = data.draw(machines())
    collective = collective_of(name, topology.num_ranks, data.draw(st.integers(0, topology.num_ranks - 1)))
    found = bound_of(topology, collective, find_paths(topology))
    cut, copies = brute_force(topology, collective), copies_us_per_byte(topology, name)
    assert found.us_per_byte == pytest.approx(max(cut, copies), rel=1e-9 if copies <= cut else 1e-6)
    # A cut is named unless there is more to say than it does.
    assert (found.cut is not None) == (found.us_per_byte <= cut * (1 + 1e-6))


def copies_us_per_byte(topology: Topology, name: CollectiveName) -> float:
    """Eq. 40a the other way: the least time in which paths bring every rank what it takes in, and away what it gives.

    0 for collectives that it says nothing of.
    """
    halves = {"allgather": ["dst"], "reduce-scatter": ["src"], "allreduce": ["dst", "src"]}.get(name, [])
    if not halves:
        return 0.0
    paths, ranks = find_paths(topology), topology.num_ranks
    links = sorted({link for path in paths for link in path.links})
    # Bytes on every path in each half, what is reduced at each rank, and the time in units of the widest link.
    width = max(topology.links[link].GBps for link in links)
    columns = len(halves) * len(paths) + ranks + 1
    load, need = np.zeros((len(links), columns)), np.zeros((len(halves) * ranks, columns))
    load[:, -1] = [-topology.links[link].GBps / width for link in links]
    for half, end in enumerate(halves):
        for at, path in enumerate(paths, half * len(paths)):
            need[half * ranks + getattr(path, end), at] = -1.0
            for link in path.links:
                load[links.index(link), at] += 1.0
        need[half * ranks : (half + 1) * ranks, -1 - ranks : -1] = -np.eye(ranks)
    weights = np.zeros((1, columns))
    weights[0, -1 - ranks : -1] = 1.0
    # Of a collective of shares, every rank keeps its own.
    bounds = [(0, None)] * (columns - 1 - ranks) + [(0, 1) if len(halves) > 1 else (1 / ranks, 1 / ranks)] * ranks
    rhs = np.concatenate([np.zeros(len(links)), -np.ones(len(need))])
    cost = np.zeros(columns)
    cost[-1] = 1.0
    answer = linprog(cost, np.vstack([load, need]), rhs, weights, [1.0], bounds=[*bounds, (0, None)])
    assert answer.status == 0
    return float(answer.fun / (width * 1e3))


@pytest.mark.parametrize("name", [name for name in NAMES if name != "alltoall"])
@settings(max_examples=40)
@given(data=st.data())
def test_the_cut_of_a_group_is_the_worst_of_all(name: CollectiveName, data: st.DataObject) -> None:
    topology = data.draw(machines())
    group = tuple(sorted(data.draw(st.sets(st.integers(0, topology.num_ranks - 1), min_size=2))))
    collective = collective_of(name, topology.num_ranks, data.draw(st.sampled_from(group)), group=group)
    paths = find_paths(topology)
    found = bound_of(topology, collective, paths)
    assert found.us_per_byte == pytest.approx(brute_force(topology, collective), rel=1e-9)
    solution = STAGES(Instance(topology, collective, paths, 3e5), strategy("greedy", StrategyOptions()))
    assert solution.schedule.makespan_us >= found.time_us(3e5 * collective.chunks) * (1 - 1e-9)


@settings(max_examples=40)
@given(topology=machines())
def test_allreduce_of_any_algorithm_is_bounded_by_the_worst_cut(topology: Topology) -> None:
    collective = collective_of(CollectiveName.ALLREDUCE, topology.num_ranks, 0)
    found = bound_of(topology, collective, find_paths(topology))
    assert found.any_us_per_byte == pytest.approx(brute_force(topology, collective), rel=1e-9)


@settings(max_examples=40)
@given(topology=machines())
def test_alltoall_is_the_maximum_concurrent_flow(topology: Topology) -> None:
    collective = collective_of(CollectiveName.ALLTOALL, topology.num_ranks, 0)
    found = bound_of(topology, collective, find_paths(topology))
    assert found.us_per_byte == pytest.approx(concurrent_us_per_byte(topology), rel=1e-6)


def concurrent_us_per_byte(topology: Topology) -> float:
    """The whole linear program: a flow for every pair, on the links in use."""
    machine = Machine.of(topology, find_paths(topology))
    edges, size, ranks = len(machine.links), len(topology.devices), topology.num_ranks
    pairs = [(s, d) for s in range(ranks) for d in range(ranks) if s != d]
    columns = len(pairs) * edges + 1
    balance, wanted = np.zeros((len(pairs) * size, columns)), np.zeros(len(pairs) * size)
    load = np.hstack([np.tile(np.eye(edges), len(pairs)), -machine.rates[:, None]])
    for at, (src, dst) in enumerate(pairs):
        for edge in range(edges):
            balance[at * size + machine.heads[edge], at * edges + edge] += 1
            balance[at * size + machine.tails[edge], at * edges + edge] -= 1
        wanted[at * size + machine.gpus[dst]], wanted[at * size + machine.gpus[src]] = 1 / ranks, -1 / ranks
    objective = np.zeros(columns)
    objective[-1] = 1e3
    load[:, -1] /= 1e3
    answer = linprog(objective, load, np.zeros(edges), balance, wanted)
    assert answer.status == 0
    return float(answer.x[-1]) / 1e3


@settings(max_examples=30)
@given(topology=machines(max_ranks=4))
def test_allreduce_by_roots_is_the_linear_program_over_flows(topology: Topology) -> None:
    collective = collective_of(CollectiveName.ALLREDUCE, topology.num_ranks, 0)
    found = bound_of(topology, collective, find_paths(topology))
    copies = copies_us_per_byte(topology, CollectiveName.ALLREDUCE)
    best = max(rooted_us_per_byte(topology), copies, found.any_us_per_byte or 0.0)
    assert found.us_per_byte == pytest.approx(best, rel=1e-5)
    # Eq. 28 is what some of its cuts say.
    assert found.us_per_byte >= ingress_bound(topology, collective, find_paths(topology)).us_per_byte * (1 - 1e-6)


def rooted_us_per_byte(topology: Topology) -> float:
    """Eq. 39 with flows instead of cuts: for every rank, flows from the weighted roots within the broadcasts' loads, and back."""
    machine = Machine.of(topology, find_paths(topology))
    edges, size, ranks = len(machine.links), len(topology.devices), topology.num_ranks
    columns = ranks + 2 * edges + 2 * ranks * edges
    into = np.zeros((size, edges))
    into[machine.heads, np.arange(edges)] += 1.0
    into[machine.tails, np.arange(edges)] -= 1.0
    inner = sorted(set(range(size)) - set(machine.gpus.tolist()))
    equal, most, rhs = [], [], []
    for half, sign in ((0, 1.0), (1, -1.0)):
        load = slice(ranks + half * edges, ranks + (half + 1) * edges)
        balanced = np.zeros((len(inner), columns))
        balanced[:, load] = into[inner]
        equal.append(balanced)
        for rank in range(ranks):
            first = ranks + 2 * edges + (half * ranks + rank) * edges
            flow = np.zeros((edges, columns))
            flow[:, first : first + edges], flow[:, load] = np.eye(edges), -np.eye(edges)
            most.append(flow)
            rhs += [0.0] * edges
            kept = np.zeros((size, columns))
            kept[:, first : first + edges] = into
            kept[machine.gpus, np.arange(ranks)] = sign
            equal.append(np.delete(kept, machine.gpus[rank], axis=0))
    shared = np.zeros((edges, columns))
    shared[:, ranks : ranks + 2 * edges] = np.hstack([np.eye(edges), np.eye(edges)])
    most.append(shared)
    scale = float(machine.rates.max())
    rhs += (machine.rates / scale).tolist()
    cost = np.zeros(columns)
    cost[:ranks] = -1.0
    fixed = np.vstack(equal)
    answer = linprog(cost, np.vstack(most), np.array(rhs), fixed, np.zeros(len(fixed)))
    assert answer.status == 0
    return float(-1.0 / (answer.fun * scale))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("which", ["greedy", "trees"])
@settings(max_examples=12)
@given(data=st.data())
def test_no_schedule_beats_the_bound(which: str, name: CollectiveName, data: st.DataObject) -> None:
    topology = data.draw(machines())
    root, per_rank = data.draw(st.integers(0, topology.num_ranks - 1)), data.draw(st.integers(1, 3))
    collective = collective_of(name, topology.num_ranks, root, per_rank)
    chunk_bytes = data.draw(st.sampled_from([16.0, 1e3, 1e4, 3e5, 4e6]))
    instance = Instance(topology, collective, find_paths(topology), chunk_bytes)
    solution = STAGES(instance, strategy(which, StrategyOptions()))
    bound = bound_of(topology, collective, instance.paths)
    assert solution.schedule.makespan_us >= bound.time_us(chunk_bytes * collective.chunks) * (1 - 1e-9)
    ingress = ingress_bound(topology, collective, instance.paths)
    assert bound.time_us(chunk_bytes * collective.chunks) >= ingress.time_us(chunk_bytes * collective.chunks) * (
        1 - 1e-6
    )


@pytest.mark.parametrize("name", BASELINES)
@settings(max_examples=25)
@given(data=st.data(), size=st.sampled_from([64.0, 1e3, 1e5, 1e6, 1e8]))
def test_no_baseline_beats_the_bound(name: str, data: st.DataObject, size: float) -> None:
    topology = data.draw(machines(6))
    kind = data.draw(st.sampled_from(sorted(BASELINES[name].collectives)))
    root = data.draw(st.integers(0, topology.num_ranks - 1)) if kind in ROOTED else 0
    paths = find_paths(topology)
    try:
        built = build(name, topology, kind, size, BaselineOptions(root=root), paths)
    except NoAnswerError as refusal:
        event(f"refused: {refusal}")
        return
    asked = collective_of(kind, topology.num_ranks, root)
    assert built.schedule.makespan_us >= bound_of(topology, asked, paths).time_us(size) * (1 - 1e-9)
