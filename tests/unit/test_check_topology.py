"""What `synth topo check` points at, and what it says that it costs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synth.bounds import ingress_bound
from synth.check_topology import find_doubts
from synth.collective import Collective, CollectiveName
from synth.degrade import with_link, without
from synth.doubts import Doubt
from synth.inputs.catalogue import catalogue_names
from synth.inputs.load import load_topology
from synth.paths import find_paths
from synth.topology import Device, DeviceKind, Link, Topology, replicate

DGX1, H100, B200 = (load_topology(name) for name in ("dgx1", "dgx-h100", "hgx-b200"))
#: Machines of the catalogue whose limits take no time to find, each time that a link is put back.
FEW_LINKS = [name for name in catalogue_names() if len(load_topology(name).links) <= 84]


def only(topology: Topology) -> Doubt:
    (doubt,) = find_doubts(topology)
    return doubt


def limit_GBps(topology: Topology, name: CollectiveName) -> float:
    collective = Collective(name, topology.num_ranks, topology.num_ranks)
    return 1e-3 / ingress_bound(topology, collective, find_paths(topology)).us_per_byte


def test_a_lost_link_is_pointed_at_with_its_cost() -> None:
    changed = without(DGX1, "gpu0-gpu3")
    doubt = only(changed)
    assert doubt.where == "gpu0-gpu3"
    assert doubt.what == "4 lanes of nvlink at each where their twins have 6: a link between them of 2 seems lost"
    before, after = (limit_GBps(machine, CollectiveName.ALLTOALL) for machine in (changed, DGX1))
    assert doubt.cost == f"alltoall at most {before:.4g} GB/s instead of {after:.4g}"
    assert after > 1.4 * before


def test_a_slow_link_is_pointed_at() -> None:
    doubt = only(with_link(DGX1, "gpu0-gpu1=10"))
    assert doubt.where == "gpu0-gpu1"
    assert doubt.what == "10 GB/s a lane where most nvlink links of this kind have 22"
    assert "instead of" in doubt.cost
    absurd = only(with_link(DGX1, "gpu0-gpu1=0.2"))
    assert absurd.what.endswith("have 22, 110 times less")


def test_a_broken_link_of_the_second_box_is_found() -> None:
    assert only(without(replicate(DGX1, 2), "gpu0.1-gpu3.1")).where == "gpu0.1-gpu3.1"


def test_a_gpu_that_lost_its_nvlinks() -> None:
    doubt = only(without(B200, "gpu2-nvswitch0"))
    assert (doubt.where, doubt.what) == ("gpu2", "0 lanes of nvlink where most of its twins have 18")
    whole = limit_GBps(B200, CollectiveName.ALLTOALL)
    assert doubt.cost.endswith(f"instead of {whole:.4g}")


def test_a_gpu_with_fewer_lanes_to_the_switch() -> None:
    links = tuple(
        replace(link, count=12, GBps=12 * 20.6) if {link.src, link.dst} == {"gpu5", "nvswitch0"} else link
        for link in H100.links
    )
    doubt = only(replace(H100, links=links))
    assert (doubt.where, doubt.what) == ("gpu5", "12 lanes of nvlink where most of its twins have 18")
    assert "instead of" in doubt.cost


def test_directions_that_differ_and_links_one_way() -> None:
    slower = tuple(
        replace(link, GBps=40.0) if (link.src, link.dst) == ("gpu3", "gpu0") else link for link in DGX1.links
    )
    told = [doubt for doubt in find_doubts(replace(DGX1, links=slower)) if "one way" in doubt.what]
    assert [(doubt.where, doubt.what) for doubt in told] == [("gpu0-gpu3", "44 GB/s one way, 40 the other")]
    one_way = tuple(link for link in DGX1.links if (link.src, link.dst) != ("gpu3", "gpu0"))
    told = [doubt for doubt in find_doubts(replace(DGX1, links=one_way)) if "none back" in doubt.what]
    assert [(doubt.where, doubt.what) for doubt in told] == [("gpu0-gpu3", "a link from gpu0 to gpu3 only, none back")]
    assert "instead of" in told[0].cost


def test_a_nic_behind_too_little_pcie() -> None:
    doubts = find_doubts(with_link(H100, "nic2-plx2=12"))
    nic = next(doubt for doubt in doubts if doubt.where == "nic2")
    assert nic.what.startswith("a line of 50 GB/s behind a connection of 12")
    whole = limit_GBps(replicate(H100, 2), CollectiveName.ALLTOALL)
    assert nic.cost.startswith("alltoall on two nodes at most")
    assert nic.cost.endswith(f"instead of {whole:.4g}")
    assert all(doubt.where in ("nic2", "nic2-plx2") for doubt in doubts)


def test_ranks_that_do_not_reach_each_other() -> None:
    devices = tuple(Device(f"g{rank}", DeviceKind.GPU, 0, rank) for rank in range(5))
    both = [("g0", "g1"), ("g1", "g0"), ("g2", "g3"), ("g3", "g2")]
    links = tuple(Link(a, b, "nvlink", 20.0, 1.0) for a, b in both)
    doubts = find_doubts(Topology("islands", devices, links))
    assert [(doubt.where, doubt.what, doubt.cost) for doubt in doubts[:2]] == [
        ("g4", "no link at all", "no collective over all ranks is possible"),
        ("g2, g3", "no connection to g0", "no collective over all ranks is possible"),
    ]
    sink = Topology("sink", devices[:2], links[:1])
    assert [doubt.what for doubt in find_doubts(sink)] == [
        "one-way links: g1 cannot reach g0 (no link leads out of g1)",
        "a link from g0 to g1 only, none back",
    ]
    assert find_doubts(sink)[1].cost == "no collective over all ranks is possible"


def test_devices_without_use() -> None:
    extra = (
        Device("plx9", DeviceKind.PCIE_SWITCH),
        Device("cpu9", DeviceKind.CPU),
        Device("nic8", DeviceKind.NIC),
        Device("nic9", DeviceKind.NIC),
    )
    ends = [("plx9", "cpu0"), ("nic8", "network"), ("nic9", "cpu0")]
    links = tuple(Link(a, b, "pcie", 12.0, 0.5) for pair in ends for a, b in (pair, pair[::-1]))
    doubts = find_doubts(replace(DGX1, devices=(*DGX1.devices, *extra), links=(*DGX1.links, *links)))
    assert {doubt.where: doubt.what for doubt in doubts if doubt.where[-1] in "89"} == {
        "plx9": "a pcie-switch with one port in use, to cpu0",
        "cpu9": "no link leads to it: it is of no use",
        "nic8": "no GPU or CPU beside it: it hangs on the network alone",
        "nic9": "not connected to a network, which other NICs are",
    }


def test_rates_that_no_hardware_has() -> None:
    links = tuple(
        replace(link, GBps=25_000.0) if link.kind == "network" and "nic0" in (link.src, link.dst) else link
        for link in H100.links
    )
    told = {doubt.where: doubt.what for doubt in find_doubts(replace(H100, links=links))}
    assert told["nic0-network"] == "25000 GB/s a lane, more than any network link has (400)"
    assert told["nic0"].startswith("a line of 25000 GB/s behind a connection of 48")
    lanes = tuple(replace(link, count=126) if "nvswitch0" in (link.src, link.dst) else link for link in B200.links)
    crowded = find_doubts(replace(B200, links=lanes))
    assert [doubt.where for doubt in crowded if doubt.what == "126 lanes of nvlink, where hardware has 18 at most"] == [
        gpu.id for gpu in B200.gpus
    ]


def test_self_links() -> None:
    loop = Link("gpu0", "gpu0", "nvlink", 22.0, 0.7)
    doubts = find_doubts(replace(DGX1, links=(*DGX1.links, loop)))
    assert ("gpu0", "linked to itself (nvlink)") in [(doubt.where, doubt.what) for doubt in doubts]


def test_far_gpus_are_told_with_what_the_sockets_cost() -> None:
    doubt = only(with_link(load_topology("ndv2"), "cpu0-cpu1=1"))
    assert doubt.where == "gpu4, gpu5, gpu6, gpu7"
    # Their NVLinks lead to GPUs beside the NIC, so that the sockets limit nothing.
    assert doubt.cost == "the limits of allreduce and alltoall stay as they are"
    alone = only(with_link(load_topology("pcie8-1nic"), "cpu0-cpu1=1"))
    assert alone.where == "gpu0, gpu1, gpu2, gpu3"
    assert alone.cost == "allreduce on two nodes at most 1 GB/s instead of 12"


@settings(max_examples=60)
@given(st.sampled_from(FEW_LINKS), st.data())
def test_any_part_of_a_machine_can_be_checked(name: str, data: st.DataObject) -> None:
    topology = load_topology(name)
    kept = data.draw(st.lists(st.booleans(), min_size=len(topology.links), max_size=len(topology.links)))
    links = tuple(link for link, keep in zip(topology.links, kept, strict=True) if keep)
    part = replace(topology, links=links)
    doubts = find_doubts(part)
    assert doubts == find_doubts(part)
    assert all(doubt.where and doubt.what and "\n" not in str(doubt) for doubt in doubts)
    if not all(kept) and len({(link.src, link.dst) for link in links} ^ {(link.dst, link.src) for link in links}):
        assert doubts


@pytest.mark.parametrize("name", catalogue_names())
def test_costs_never_say_that_a_fault_helps(name: str) -> None:
    for doubt in find_doubts(load_topology(name)):
        if "instead of" in doubt.cost:
            have, could = doubt.cost.split(" at most ")[1].split(" GB/s instead of ")
            assert float(have) < float(could)
