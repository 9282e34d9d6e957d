"""Machines with something broken or slow."""

from __future__ import annotations

import pytest

from synth.degrade import with_link, without
from synth.errors import InputError
from synth.inputs.load import load_topology
from synth.paths import find_paths
from synth.topology import Device, DeviceKind, Link, Topology, replicate
from synth.topology_diff import differences

DGX1 = load_topology("dgx1")


def test_without_a_link() -> None:
    changed = without(DGX1, "gpu0-gpu3")
    assert differences(DGX1, changed) == ("- nvlink gpu0 - gpu3: 44 GB/s, 2 lanes, 0.7 us",)
    assert changed == without(DGX1, "gpu0-gpu3")
    assert without(DGX1, "gpu3-gpu0").links == changed.links
    assert changed.name == "dgx1 without gpu0-gpu3"
    assert (0, 3) not in {(path.src, path.dst) for path in find_paths(changed)}


def test_without_a_nic_of_a_second_box() -> None:
    two = replicate(DGX1, 2)
    changed = without(two, "nic1.1")
    gone = {line.split(":")[0] for line in differences(two, changed)}
    assert gone == {"- nic nic1.1", "- pcie nic1.1 - plx1.1", "- network nic1.1 - network"}
    find_paths(changed)


def test_without_a_gpu_ranks_close_up() -> None:
    changed = without(DGX1, "gpu3")
    assert [gpu.id for gpu in changed.gpus] == ["gpu0", "gpu1", "gpu2", "gpu4", "gpu5", "gpu6", "gpu7"]
    assert [gpu.rank for gpu in changed.gpus] == list(range(7))
    assert not any("gpu3" in (link.src, link.dst) for link in changed.links)
    assert without(without(DGX1, "gpu3"), "gpu0-gpu1").name == "dgx1 without gpu3 without gpu0-gpu1"


@pytest.mark.parametrize(("change", "pair"), [("gpu0-gpu1=10", ("gpu0", "gpu1")), ("gpu3-gpu0=0.5", ("gpu0", "gpu3"))])
def test_a_link_at_another_rate(change: str, pair: tuple[str, str]) -> None:
    changed = with_link(DGX1, change)
    rate = float(change.partition("=")[2])
    new = {(link.src, link.dst): link.GBps for link in changed.links if {link.src, link.dst} == set(pair)}
    assert new == {pair: rate, pair[::-1]: rate}
    assert [link.count for link in changed.links] == [link.count for link in DGX1.links]
    assert len(differences(DGX1, changed)) == 1


def test_parallel_links_keep_their_shares() -> None:
    gpus = tuple(Device(f"g-{rank}", DeviceKind.GPU, 0, rank) for rank in (0, 1))
    links = (
        Link("g-0", "g-1", "nvlink", 30.0, 1.0),
        Link("g-0", "g-1", "pcie", 10.0, 1.0),
        Link("g-1", "g-0", "nvlink", 5, 1),
    )
    changed = with_link(Topology("dashes", gpus, links), "g-0-g-1=8")
    assert [link.GBps for link in changed.links] == [6.0, 2.0, 8.0]


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("gpu9", r"--without: 'gpu9', expected a device, or two .* in dgx1 \(close to it: gpu"),
        ("gpuO-gpu1", r"two devices that a link joins, in dgx1 \(close to it: .*gpu0-gpu1"),
        ("gpu0-gpu5", r"none joins gpu0 and gpu5; links of gpu0 lead to gpu1, gpu2, gpu3, gpu4, plx0"),
        ("gpu0-gpu0", r"two devices that a link joins"),
        ("", r"--without: ''"),
        ("-", r"--without: '-'"),
        ("zzzzzzzzzz", r"\(gpu0, gpu1, gpu2, .*, \.\.\.\)"),
    ],
)
def test_what_is_not_there(what: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        without(DGX1, what)


@pytest.mark.parametrize(
    "change",
    [
        "gpu0-gpu1",
        "gpu0-gpu1=",
        "gpu0-gpu1=x",
        "gpu0-gpu1=0",
        "gpu0-gpu1=-3",
        "gpu0-gpu1=inf",
        "gpu0-gpu1=nan",
        "=5",
        "gpu0=5",
    ],
)
def test_what_is_no_rate_of_a_link(change: str) -> None:
    with pytest.raises(InputError, match="^--link: ") as caught:
        with_link(DGX1, change)
    assert "\n" not in str(caught.value)


def test_the_last_gpu_stays() -> None:
    one = Topology("one", (Device("g", DeviceKind.GPU, 0, 0),), ())
    with pytest.raises(InputError, match="the only GPU"):
        without(one, "g")
