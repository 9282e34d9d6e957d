"""Pictures of machines: the SVG, the characters, and where devices stand in both."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from lxml import etree

from synth.cli.topo_picture import picture
from synth.inputs.catalogue import catalogue_names
from synth.inputs.load import load_topology
from synth.topo_layout import forest
from synth.topo_svg import topology_svg
from synth.topology import Device, DeviceKind, Link, Topology, replicate

SVG = "{http://www.w3.org/2000/svg}"
MACHINES = [(name, 1) for name in catalogue_names()] + [
    ("dgx1", 4),
    ("dgx-a100", 4),
    ("pcie-2x2-nvlink", 2),
    ("h800", 3),
]


def machine(name: str, nodes: int) -> Topology:
    return replicate(load_topology(name), nodes)


def drawn(topology: Topology) -> etree._Element:
    return etree.fromstring(topology_svg(topology).encode())


def boxes(root: etree._Element) -> list[tuple[float, float, float, float]]:
    """(left, top, right, bottom) of every device."""
    found = []
    for rect in root.iter(f"{SVG}rect"):
        if rect.get("class") in ("gpu", "nic", "cpu", "hub"):
            x, y, width, height = (float(rect.get(key, "0")) for key in ("x", "y", "width", "height"))
            found.append((x, y, x + width, y + height))
    return found


def width_of(root: etree._Element, ends: str) -> float:
    (line,) = [
        line for line in root.iter(f"{SVG}path", f"{SVG}line") if (line.findtext(f"{SVG}title") or "").startswith(ends)
    ]
    return float(line.get("stroke-width", "0"))


@pytest.mark.parametrize(("name", "nodes"), MACHINES)
def test_every_device_and_every_pair_is_drawn_once_within_the_picture(name: str, nodes: int) -> None:
    topology = machine(name, nodes)
    root = drawn(topology)
    width, height = float(root.get("width", "0")), float(root.get("height", "0"))
    places = boxes(root)
    assert len(places) == len(topology.devices)
    assert all(left >= 0 and top >= 0 and right <= width and bottom <= height for left, top, right, bottom in places)
    lines = [line for line in root.iter(f"{SVG}path", f"{SVG}line") if line.find(f"{SVG}title") is not None]
    assert len(lines) == len({frozenset((link.src, link.dst)) for link in topology.links})
    texts = {text.text for text in root.iter(f"{SVG}text")}
    assert {gpu.id for gpu in topology.gpus} <= texts


@pytest.mark.parametrize(("name", "nodes"), MACHINES)
def test_no_device_hides_another(name: str, nodes: int) -> None:
    places = boxes(drawn(machine(name, nodes)))
    for position, (left, top, right, bottom) in enumerate(places):
        for other in places[position + 1 :]:
            assert right <= other[0] or other[2] <= left or bottom <= other[1] or other[3] <= top


def test_lines_are_as_wide_as_links_are_fast() -> None:
    root = drawn(load_topology("dgx1"))
    widths = [width_of(root, ends) for ends in ("gpu0 - gpu3:", "gpu0 - gpu1:", "gpu0 - plx0:", "cpu0 - cpu1:")]
    assert widths == sorted(widths, reverse=True)
    assert len(set(widths)) == 4


def test_thirty_two_gpus_stay_in_a_handy_shape() -> None:
    root = drawn(machine("dgx1", 4))
    width, height = float(root.get("width", "0")), float(root.get("height", "0"))
    assert width < 1.8 * height
    assert width < 1500


def test_names_are_escaped_and_colours_follow_the_reader() -> None:
    topology = load_topology("ring4")
    names = {gpu.id: f'<&"{gpu.rank}\x01>' for gpu in topology.gpus}
    odd = replace(
        topology,
        name="a<b>&c",
        devices=tuple(replace(device, id=names[device.id]) for device in topology.devices),
        links=tuple(replace(link, src=names[link.src], dst=names[link.dst]) for link in topology.links),
    )
    text = topology_svg(odd)
    root = etree.fromstring(text.encode())
    assert "a<b>&c" in {element.text for element in root.iter(f"{SVG}text")}
    assert '<&"0?>' in {element.text for element in root.iter(f"{SVG}text")}
    assert "prefers-color-scheme:dark" in text
    assert topology_svg(odd) == text


@pytest.mark.parametrize("devices", [0, 1])
def test_nearly_nothing_can_be_drawn(devices: int) -> None:
    gpus = tuple(Device(f"g{rank}", DeviceKind.GPU, 0, rank) for rank in range(devices))
    assert len(boxes(drawn(Topology("few", gpus, ())))) == devices
    assert picture(Topology("few", gpus, ()), 80).count("g0") == devices


def test_loose_and_odd_links_do_no_harm() -> None:
    topology = load_topology("pcie-2x2-nvlink")
    links = (
        Link("gpu0", "gpu0", "nvlink", 1.0, 1.0),
        Link("nic0", "gpu3", "odd", 3.0, 1.0),
        Link("cpu0", "network", "x", 1, 1),
    )
    odd = replace(topology, links=(*topology.links, *links))
    assert len(boxes(drawn(odd))) == len(topology.devices)
    assert picture(odd, 100)


@pytest.mark.parametrize(("name", "nodes"), MACHINES)
def test_a_tree_holds_every_device_once(name: str, nodes: int) -> None:
    topology = machine(name, nodes)
    for node in range(nodes):
        leaves = [leaf for root in forest(topology, node) for leaf in root.leaves()]
        wanted = [
            device.id
            for device in topology.devices
            if device.node == node and device.kind in (DeviceKind.GPU, DeviceKind.NIC)
        ]
        assert sorted(leaves) == sorted(wanted)


@pytest.mark.parametrize("width", [60, 80, 100])
@pytest.mark.parametrize(("name", "nodes"), MACHINES)
def test_the_picture_of_characters_keeps_its_width(name: str, nodes: int, width: int) -> None:
    text = picture(machine(name, nodes), width)
    assert max(map(len, text.splitlines())) <= max(width, 60)
    assert text.isascii()


def test_the_picture_of_two_bridged_pairs() -> None:
    assert picture(load_topology("pcie-2x2-nvlink"), 100).splitlines() == [
        "Picture, rates in GB/s each way",
        "  cpu0 --- 16 -- cpu1",
        "  +----+----+    +----+",
        "  gpu0 gpu1 nic0 gpu2 gpu3",
        "  +240=+         +240=+",
        "            +  network: 12.5 each",
        "  pcie: cpu - gpu 24, cpu - nic 24",
        "  socket: cpu - cpu 16",
    ]


def test_boxes_that_look_alike_are_drawn_once() -> None:
    assert (
        picture(machine("dgx-h100", 3), 100).splitlines()[0]
        == "Picture of node 0, 1, 2 (ids of the first), rates in GB/s each way"
    )
    mixed = machine("dgx1", 2)
    gone = replace(mixed, links=tuple(link for link in mixed.links if {link.src, link.dst} != {"gpu0.1", "gpu1.1"}))
    assert re.findall("Picture of node ([0-9])", picture(gone, 100)) == ["0", "1"]


def test_what_does_not_fit_is_left_out_and_said() -> None:
    text = picture(load_topology("dgx2"), 72)
    assert "(NICs left out: too many for the width)" in text
    assert "g15" in text
    assert "(not drawn: more GPUs than 40 characters hold)" in picture(load_topology("dgx2"), 40)
