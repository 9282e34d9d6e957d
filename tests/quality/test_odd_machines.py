"""Machines that nobody would draw: one-way links, a switch with a single port, rates and latencies that differ by thousands, shares
that no number of chunks divides, ties wherever one looks, boxes of unequal size; and machines on which there is no answer.

What is promised of every answer: a file that is right as written, no time below the bound, and for large buffers one close to it;
`EXCEPTIONS` says where that is not as close as elsewhere, and why. Times are cost level 2.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from msccl_xml.read import read_algo
from msccl_xml.write import write_algo
from synth.bounds import bound_of
from synth.cli.main import main
from synth.collective import FROM_ROOT, ROOTED, SHARED, TO_ROOT, Collective, CollectiveName
from synth.errors import NoAnswerError
from synth.inputs.topology_json import to_json
from synth.paths import find_paths
from synth.pipeline import synthesize
from synth.request import Result
from synth.topology import Device, DeviceKind, Link, Topology, restrict
from synth.verify import verify_algo
from tests.graphs import both_ways, from_pairs, full, gpus, line, ring, star
from tests.jobs import request

KB, MB, GB = 1 << 10, 1 << 20, 1 << 30
NAMES = tuple(CollectiveName)


def one_way(src: int, dst: int, GBps: float = 10.0) -> Link:
    return Link(f"gpu{src}", f"gpu{dst}", "nvlink", GBps, 1.0)


def wired(name: str, *pairs: tuple[int, int, float, float]) -> Topology:
    """GPUs joined full duplex as (one, other, GB/s, alpha in us) says."""
    count = 1 + max(max(a, b) for a, b, _, _ in pairs)
    links = [link for a, b, GBps, alpha_us in pairs for link in both_ways(f"gpu{a}", f"gpu{b}", GBps, alpha_us)]
    return Topology(name, tuple(gpus(count)), tuple(links))


def with_ports(name: str, base: Topology, *ports: tuple[str, int]) -> Topology:
    """`base` and NVSwitches: a port of 10 GB/s for each (switch, GPU)."""
    switches = [Device(switch, DeviceKind.NVSWITCH) for switch in dict.fromkeys(switch for switch, _ in ports)]
    links = [link for switch, rank in ports for link in both_ways(f"gpu{rank}", switch, 10.0, 0.5)]
    return Topology(name, (*base.devices, *switches), (*base.links, *links))


def unequal_boxes() -> Topology:
    """Three GPUs in one box, one in another, each box behind a NIC of 5 GB/s that hangs on its first GPU."""
    nics = [Device(f"nic{node}", DeviceKind.NIC, node) for node in range(2)]
    links = list(full(3).links)
    for node, rank in enumerate((0, 3)):
        links += both_ways(f"gpu{rank}", f"nic{node}", 5.0, 2.0) + both_ways(f"nic{node}", "network", 5.0, 2.0)
    devices = (*gpus(3), *gpus(1, 3, 1), *nics, Device("network", DeviceKind.NETWORK, -1))
    return Topology("unequal-boxes", devices, tuple(links))


def petersen() -> Topology:
    """Ten GPUs of three links each, no three or four of them in a circle."""
    rim = [(k, (k + 1) % 5) for k in range(5)]
    inside = [(5 + k, 5 + (k + 2) % 5) for k in range(5)]
    return from_pairs("petersen", 10, [*rim, *inside, *((k, k + 5) for k in range(5))])


_ROUND = [(k, (k + 1) % 3) for k in range(3)]
MACHINES = {
    machine.name: machine
    for machine in (
        Topology("one-way-ring", tuple(gpus(4)), tuple(one_way(k, (k + 1) % 4) for k in range(4))),
        replace(ring(4), name="one-way-chord", links=(*ring(4).links, one_way(0, 2))),
        Topology(
            "slow-way-back",
            tuple(gpus(3)),
            tuple(link for a, b in _ROUND for link in (one_way(a, b), one_way(b, a, 0.01))),
        ),
        with_ports("one-port-switch", full(3), ("switch", 0)),
        with_ports("equal-switches", from_pairs("", 4, []), *((switch, k) for k in range(4) for switch in ("a", "b"))),
        wired("rates-by-1000", (0, 1, 100.0, 1.0), (1, 2, 0.1, 1.0), (2, 3, 100.0, 1.0), (3, 0, 0.1, 1.0)),
        wired("rates-by-1e6", (0, 1, 1000.0, 1.0), (1, 2, 1000.0, 1.0), (2, 0, 0.001, 1.0)),
        replace(full(4, alpha_us=0.0), name="no-alpha"),
        wired("alphas-by-1000", (0, 1, 10.0, 0.1), (1, 2, 10.0, 0.1), (2, 3, 10.0, 0.1), (3, 0, 10.0, 100.0)),
        wired("double-link", (0, 1, 20.0, 1.0), (1, 2, 10.0, 1.0), (2, 0, 10.0, 1.0)),
        wired("two-five-seven", (0, 1, 2.0, 1.0), (1, 2, 5.0, 1.0), (2, 0, 7.0, 1.0)),
        from_pairs("two-by-three", 5, [(a, b) for a in (0, 1) for b in (2, 3, 4)]),
        replace(full(5), name="complete"),
        unequal_boxes(),
        petersen(),
    )
}
#: (machine, collective): 1 / GB/s of the limit, from the links that enter (or leave) what is said.
LIMITS = {
    ("one-way-ring", "allgather"): Fraction(3, 4) / 10,
    # From each GPU 1 + 2 + 3 hops of a quarter, over four links in all.
    ("one-way-ring", "alltoall"): Fraction(6, 4) / 10,
    ("one-way-chord", "allgather"): Fraction(3, 4) / 20,
    ("slow-way-back", "allgather"): Fraction(2, 3) / Fraction("10.01"),
    # The switch leads nowhere.
    ("one-port-switch", "allgather"): Fraction(2, 3) / 20,
    ("one-port-switch", "broadcast"): Fraction(1, 20),
    ("equal-switches", "allgather"): Fraction(3, 4) / 20,
    ("equal-switches", "alltoall"): Fraction(3, 4) / 20,
    # Half of the buffer enters the pair {0, 1} over two links of 0.1 GB/s; four quarters, from each of a pair to each of the other.
    ("rates-by-1000", "allgather"): Fraction(1, 2) / Fraction("0.2"),
    ("rates-by-1000", "alltoall"): Fraction(4, 4) / Fraction("0.2"),
    ("rates-by-1e6", "allgather"): Fraction(2, 3) / Fraction("1000.001"),
    ("alphas-by-1000", "allgather"): Fraction(3, 4) / 20,
    ("double-link", "allgather"): Fraction(2, 3) / 20,
    ("double-link", "gather"): Fraction(2, 3) / 30,
    # Into GPU 1, 2/7 of it over one link; out of GPU 0, 2/9.
    ("two-five-seven", "allgather"): Fraction(2, 3) / 7,
    ("two-five-seven", "scatter"): Fraction(2, 3) / 9,
    ("two-by-three", "allgather"): Fraction(4, 5) / 20,
    ("complete", "alltoall"): Fraction(4, 5) / 40,
    ("unequal-boxes", "allgather"): Fraction(3, 4) / 5,
    ("unequal-boxes", "broadcast"): Fraction(1, 5),
    ("petersen", "allgather"): Fraction(9, 10) / 30,
}
#: How close to the bound a large buffer comes, by collective. Schedules within 0.5 % count as equal, and the simulator chooses among
#: them. A pipeline of c chunks over h hops takes (c + h - 1)/c of its bandwidth's time, and c is 256 at most: 1.6 % for five hops.
CLOSE = {name: 1.006 if name in SHARED else 1.02 for name in NAMES} | {CollectiveName.ALLREDUCE: 1.03}
#: Where it does not, and how close it comes. On three GPUs nccl-tests' shares of 1 GB are 4 times an odd number of elements, so that
#: runtimes take 1, 2 or 4 chunks of a share and no more: shares of a third or of 2/7 are not among them.
EXCEPTIONS = {
    ("two-five-seven", "allgather"): 1.051,
    ("two-five-seven", "reduce-scatter"): 1.051,
    ("two-five-seven", "alltoall"): 1.051,
    ("two-five-seven", "gather"): 1.126,
    ("two-five-seven", "scatter"): 1.126,
    ("double-link", "gather"): 1.126,
    ("double-link", "scatter"): 1.126,
    # Many trees from one root: what is lost is lost in the order in which the trees take turns, not in their packing.
    ("complete", "broadcast"): 1.04,
    ("complete", "reduce"): 1.04,
    ("petersen", "broadcast"): 1.11,
    ("petersen", "reduce"): 1.11,
}


def answer(machine: Topology, name: CollectiveName | str, size: int, group: tuple[int, ...] | None = None) -> Result:
    """The pipeline's one file for a size, checked: right as it is written, and no faster than the bound."""
    kind = CollectiveName(name)
    root = 0 if kind in ROOTED else None
    result = synthesize(request(machine, kind, size, root=root, group=group))
    (file,), (row,) = result.files, result.sizes
    chunks = file.chunks_per_rank * file.instances * (machine.num_ranks if kind in SHARED else 1)
    collective = Collective(kind, machine.num_ranks, chunks, root, group)
    verify_algo(read_algo(write_algo(file.algo)), collective)
    bound = bound_of(machine, collective, find_paths(machine, collective))
    assert row.schedule_us >= bound.time_us(size) * (1 - 1e-9)
    assert row.bound_us >= bound.time_us(size) * (1 - 1e-9)
    return result


def over_bound(result: Result) -> float:
    """How many times the bound the answer takes."""
    (row,) = result.sizes
    return row.schedule_us / row.bound_us


@pytest.mark.parametrize(("machine", "name"), LIMITS)
def test_the_limit_is_what_can_be_worked_out(machine: str, name: str) -> None:
    topology, kind = MACHINES[machine], CollectiveName(name)
    chunks = topology.num_ranks if kind in SHARED else 1
    collective = Collective(kind, topology.num_ranks, chunks, 0 if kind in ROOTED else None)
    assert bound_of(topology, collective, find_paths(topology)).us_per_byte == pytest.approx(
        float(LIMITS[machine, name]) * 1e-3, rel=1e-6
    )


def test_far_is_what_is_far_by_the_quickest_way() -> None:
    """GPU 3 is a link of 100 us away from GPU 0, or three of 0.1 us; without alphas nothing is far."""
    far, near = (
        bound_of(machine, Collective(CollectiveName.ALLGATHER, 4, 4), find_paths(machine)).latency_us
        for machine in (MACHINES["alphas-by-1000"], MACHINES["no-alpha"])
    )
    assert far == pytest.approx(0.3)
    assert near == 0.0


QUICK = [name for name in MACHINES if name not in ("petersen", "one-way-chord")]


@pytest.mark.parametrize("machine", QUICK)
def test_a_large_allgather_whose_shares_divide_is_at_the_bound(machine: str) -> None:
    """A share of 256 MB divides by any power of two: 2/7 are then as near as 256 chunks come."""
    topology = MACHINES[machine]
    assert over_bound(answer(topology, "allgather", topology.num_ranks << 28)) <= CLOSE[CollectiveName.ALLGATHER]


@pytest.mark.parametrize("machine", ["double-link", "two-five-seven"])
@pytest.mark.parametrize("name", ["gather", "scatter", "alltoall"])
def test_thirds_and_sevenths_are_met_where_shares_divide(machine: str, name: str) -> None:
    assert over_bound(answer(MACHINES[machine], name, 3 << 28)) <= CLOSE[CollectiveName(name)]


@pytest.mark.parametrize("name", NAMES)
def test_every_collective_beside_a_switch_that_leads_nowhere(name: CollectiveName) -> None:
    machine = MACHINES["one-port-switch"]
    assert over_bound(answer(machine, name, KB)) <= 1 + 1e-6
    assert over_bound(answer(machine, name, GB)) <= CLOSE[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("machine", MACHINES)
def test_every_collective_at_every_size(machine: str, name: CollectiveName) -> None:
    answer(MACHINES[machine], name, KB)
    answer(MACHINES[machine], name, MB)
    assert over_bound(answer(MACHINES[machine], name, GB)) <= EXCEPTIONS.get((machine, name), CLOSE[name])


@pytest.mark.parametrize(
    ("machine", "name"), [("equal-switches", "allgather"), ("no-alpha", "alltoall"), ("one-way-chord", "gather")]
)
def test_ties_fall_the_same_way_every_time(machine: str, name: str) -> None:
    first, second = (answer(MACHINES[machine], name, MB) for _ in range(2))
    assert write_algo(first.files[0].algo) == write_algo(second.files[0].algo)


def test_a_subset_of_ranks_keeps_the_switches_between_them() -> None:
    some = restrict(star(4), [0, 2, 3])
    assert over_bound(answer(some, "allgather", 3 << 28)) <= CLOSE[CollectiveName.ALLGATHER]
    assert some.gpus[1].id == "gpu2"


LONELY = Topology("lonely", tuple(gpus(4)), full(3).links)
LONELY_FIRST = from_pairs("lonely-first", 4, [(1, 2), (2, 3), (3, 1)])
SENDS = replace(LONELY, name="sends", links=(*full(3).links, one_way(3, 0)))
TAKES = replace(LONELY, name="takes", links=(*full(3).links, one_way(0, 3)))
PAIRS = from_pairs("pairs", 4, [(0, 1), (2, 3)])
#: What is asked of, and what is said of it.
IMPOSSIBLE = {
    "a GPU without a link": (LONELY, "gpu0 cannot reach gpu3 (gpu3 has no link)"),
    "the first GPU without a link": (LONELY_FIRST, "gpu0 cannot reach gpu1 (gpu0 has no link)"),
    "no links at all": (Topology("bare", tuple(gpus(4)), ()), "gpu0 cannot reach gpu1 (gpu0 has no link)"),
    "a GPU that can only send": (SENDS, "gpu0 cannot reach gpu3 (no link leads into gpu3)"),
    "a GPU that can only receive": (TAKES, "gpu3 cannot reach gpu0 (no link leads out of gpu3)"),
    "two islands": (PAIRS, "gpu0 cannot reach gpu2"),
    "a GPU behind a switch alone": (with_ports("behind", LONELY, ("switch", 3)), "gpu0 cannot reach gpu3"),
    "a relay that does not take part": (restrict(line(3), [0, 2]), "gpu0 cannot reach gpu2 (gpu0 has no link)"),
}
#: And what else is said where the first rank gets from all others, which is another direction.
TOWARDS_ROOT = {
    "a GPU without a link": "gpu3 cannot reach gpu0 (gpu3 has no link)",
    "the first GPU without a link": "gpu1 cannot reach gpu0 (gpu0 has no link)",
    "no links at all": "gpu1 cannot reach gpu0 (gpu1 has no link)",
    "two islands": "gpu2 cannot reach gpu0",
    "a GPU behind a switch alone": "gpu3 cannot reach gpu0",
    "a relay that does not take part": "gpu2 cannot reach gpu0 (gpu2 has no link)",
}
#: What can be done although not all ranks reach each other.
POSSIBLE = {
    **{("a GPU that can only send", name): SENDS for name in sorted(TO_ROOT)},
    **{("a GPU that can only receive", name): TAKES for name in sorted(FROM_ROOT)},
}


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_no_answer_is_said_in_one_line(case: str) -> None:
    machine, to_all = IMPOSSIBLE[case]
    for name in NAMES:
        if (case, name) in POSSIBLE:
            continue
        said = TOWARDS_ROOT.get(case, to_all) if name in TO_ROOT else to_all
        with pytest.raises(NoAnswerError) as refusal:
            answer(machine, name, MB)
        assert str(refusal.value).startswith(f"{machine.name}: links: {said}, expected a connection between all ranks")
        assert "\n" not in str(refusal.value)
        shared = machine.num_ranks if name in SHARED else 1
        with pytest.raises(NoAnswerError, match=r"cannot reach gpu\d(, | \()"):
            bound_of(machine, Collective(name, machine.num_ranks, shared, 0 if name in ROOTED else None))


@pytest.mark.parametrize(("case", "name"), POSSIBLE, ids=[f"{case}, {name}" for case, name in POSSIBLE])
def test_a_way_back_that_nothing_takes_may_be_missing(case: str, name: CollectiveName) -> None:
    machine = POSSIBLE[case, name]
    assert over_bound(answer(machine, name, KB)) <= 1 + 1e-6
    assert over_bound(answer(machine, name, GB)) <= CLOSE[name]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("machine", [LONELY, SENDS, TAKES, PAIRS], ids=lambda machine: machine.name)
def test_a_group_does_without_who_cannot_be_reached(machine: Topology, name: CollectiveName) -> None:
    # Half of what the two exchange goes over the third GPU, in chunks of its own.
    assert over_bound(answer(machine, name, GB, group=(0, 1))) <= max(CLOSE[name], 1.01)


@pytest.mark.parametrize(("machine", "said"), IMPOSSIBLE.values(), ids=IMPOSSIBLE.keys())
@pytest.mark.parametrize("command", [("allreduce", "--size", "1MB"), ("bound", "allgather")])
def test_no_answer_ends_the_command_in_one_line(
    command: tuple[str, ...], machine: Topology, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "odd.json"
    path.write_text(to_json(machine), encoding="utf-8")
    assert main([*command, "--topo", str(path)]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.splitlines()[-1].startswith("synth: ")
    assert said in told.err.splitlines()[-1]
    assert "Traceback" not in told.err
    assert list(tmp_path.iterdir()) == [path]
