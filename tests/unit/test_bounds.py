"""Bounds worked out by hand. 10 GB/s is 10,000 bytes a µs: a share s of the buffer over k such links takes s / 10,000 k a byte."""

from __future__ import annotations

from itertools import chain

import pytest

from synth.bounds import Bound, bound_of, ingress_bound
from synth.collective import Collective, CollectiveName
from synth.instance import Instance
from synth.ir import Message
from synth.paths import find_paths
from synth.timing import retime
from synth.topology import Device, DeviceKind, Topology
from tests.graphs import both_ways, from_pairs, full, gpus, instance_of, line, ring, star, two_boxes


def bound(topology: Topology, name: str, root: int | None = None) -> Bound:
    instance = instance_of(topology, name, root=root)
    return ingress_bound(topology, instance.collective, instance.paths)


def test_a_bound_is_the_larger_of_latency_and_bandwidth() -> None:
    both = Bound(2.0, 0.5, "")
    assert both.time_us(1) == 2.0
    assert both.time_us(100) == 50.0


@pytest.mark.parametrize(
    ("topology", "name", "us_per_byte", "latency_us"),
    [
        # A GPU of the ring lacks 3/4 and has two links; the farthest is two hops away.
        (ring(4), "allgather", 3 / 4 / 20_000, 2.0),
        (ring(4), "reduce-scatter", 3 / 4 / 20_000, 2.0),
        (ring(4), "alltoall", 3 / 4 / 20_000, 2.0),
        # Around a switch a GPU has one link, and a path two alphas.
        (star(4), "allgather", 3 / 4 / 10_000, 2.0),
        # The end of a line lacks 2/3 and has one link.
        (line(3), "allgather", 2 / 3 / 10_000, 2.0),
        # Of 4 GPUs, each with three links, in two boxes: half of everything crosses a NIC of 2 GB/s, 8 alphas and 2 hops.
        (two_boxes(full(2), GBps=2.0), "allgather", 1 / 2 / 2_000, 10.0),
        # Half of a rank's buffer stays in the box: of 4 buffers, 2/4 each leave a box of 2, so 1 buffer over 2 GB/s.
        (two_boxes(full(2), GBps=2.0), "alltoall", 1.0 / 2_000, 10.0),
    ],
)
def test_what_gets_into_gpus_and_boxes(topology: Topology, name: str, us_per_byte: float, latency_us: float) -> None:
    found = bound(topology, name)
    assert found.us_per_byte == pytest.approx(us_per_byte, rel=1e-6)
    assert found.latency_us == pytest.approx(latency_us)


def test_a_box_bounds_although_its_nic_is_as_wide_as_its_links() -> None:
    # 4 GPUs a box, 3 links each: a GPU lacks 7/8 and has 30 GB/s, but half of everything crosses one NIC of 10 GB/s.
    assert bound(two_boxes(full(4)), "allgather").us_per_byte == pytest.approx(1 / 2 / 10_000, rel=1e-6)


@pytest.mark.parametrize(
    ("name", "us_per_byte"),
    [
        ("broadcast", 1 / 10_000),  # the whole buffer into the end of the line
        ("reduce", 1 / 10_000),
        ("gather", 2 / 3 / 20_000),  # the root in the middle lacks 2/3 and has two links; an end sends 1/3 over one
        ("scatter", 2 / 3 / 20_000),
    ],
)
def test_rooted_collectives_on_a_line_with_the_root_in_the_middle(name: str, us_per_byte: float) -> None:
    found = bound(line(3), name, root=1)
    assert found.us_per_byte == pytest.approx(us_per_byte, rel=1e-6)
    assert found.latency_us == 1.0


def test_latency_of_rooted_collectives_counts_from_the_root() -> None:
    assert bound(line(4), "broadcast", root=0).latency_us == 3.0
    assert bound(line(4), "gather", root=1).latency_us == 2.0


@pytest.mark.parametrize(
    ("topology", "us_per_byte"),
    [
        # Eq. 28 over single GPUs: every byte enters 3 of 4 going up and 3 going down, over 8 links in all.
        (ring(4), 2 * 3 / 80_000),
        (star(4), 2 * 3 / 40_000),
        # Over the two boxes: up over one NIC, down over the other, 2 GB/s each.
        (two_boxes(full(2), GBps=2.0), 2 / 4_000),
    ],
)
def test_allreduce_quotes_the_limit_of_reducing_at_one_rank(topology: Topology, us_per_byte: float) -> None:
    assert bound(topology, "allreduce").us_per_byte == pytest.approx(us_per_byte, rel=1e-6)


def test_which_set_bounds_is_said() -> None:
    assert "gpu3" in bound(from_pairs("tail", 4, [(0, 1), (1, 2), (0, 2), (2, 3)]), "allgather").what
    assert "one rank" in bound(ring(4), "allreduce").what


def test_a_bound_is_never_above_the_cut_for_rates_that_are_no_round_numbers() -> None:
    machine = ring(5, GBps=1 / 3)
    for name in CollectiveName:
        root = 0 if name in ("broadcast", "reduce", "gather", "scatter") else None
        if name is CollectiveName.ALLGATHER:
            assert bound(machine, name, root).us_per_byte <= 4 / 5 / (2e3 / 3)
        assert bound(machine, name, root).us_per_byte > 0


def test_one_gpu_has_nothing_to_wait_for() -> None:
    alone = bound(from_pairs("alone", 1, []), "allreduce")
    assert (alone.latency_us, alone.us_per_byte) == (0.0, 0.0)


def test_what_crosses_a_link_first_need_not_be_on_the_way_of_what_crosses_it_last() -> None:
    """Rank 2 has a long way to rank 0, which it can begin at once, and a short one over rank 1, whose last hop shares a link."""
    switched = [both_ways("gpu1", "switch", alpha_us=0.5), both_ways("gpu2", "switch", alpha_us=3.0)]
    links = [*both_ways("switch", "gpu0", alpha_us=0.5), *chain(*switched), *both_ways("gpu2", "gpu1", alpha_us=0.1)]
    topology = Topology("shared", (*gpus(3), Device("switch", DeviceKind.NVSWITCH)), tuple(links))
    paths = find_paths(topology)
    over = {(path.src, path.dst): path.index for path in paths if "switch" in topology.links[path.links[0]].dst}
    (aside,) = (path.index for path in paths if (path.src, path.dst) == (2, 1) and path.index not in over.values())
    asked = Collective(CollectiveName.BROADCAST, 3, 3, 2, (0, 2))
    instance = Instance(topology, asked, paths, 1e6)
    at_once = [Message((0,), over[2, 0]), Message((1,), over[2, 0])]
    schedule = retime(instance, [*at_once, Message((2,), aside), Message((2,), over[1, 0])])
    assert schedule.makespan_us == pytest.approx(301.0)
    assert bound_of(topology, asked, paths).time_us(3e6) == pytest.approx(schedule.makespan_us)
