"""Merging boxes into clusters, as values and from the small JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from synth.cluster import Cable, NetworkKind, NetworkPlan, merge
from synth.doubts import Doubt, Hints, Imported
from synth.errors import InputError
from synth.inputs.cluster_json import import_cluster, is_cluster
from synth.inputs.load import import_topology, load_topology
from synth.paths import find_paths
from synth.topology import DeviceKind, Topology, replicate
from synth.topology_diff import differences

DGX1, A100X4, PCIE = (load_topology(name) for name in ("dgx1", "a100x4", "pcie-2x2-nvlink"))


def networks(topology: Topology) -> dict[str, set[str]]:
    """Who hangs on each network device."""
    hubs = {device.id for device in topology.devices if device.kind is DeviceKind.NETWORK}
    return {hub: {link.src for link in topology.links if link.dst == hub} for hub in hubs}


def test_equal_boxes_on_a_switch_are_what_nodes_makes() -> None:
    merged = merge([DGX1] * 3, NetworkPlan())
    assert differences(replicate(DGX1, 3), merged) == ()
    assert merged.name == "dgx1x3"


def test_unequal_boxes_keep_their_own_links_and_ranks_count_on() -> None:
    merged = merge([DGX1, A100X4, PCIE], NetworkPlan())
    assert [gpu.rank for gpu in merged.gpus] == list(range(16))
    assert [gpu.node for gpu in merged.gpus] == [0] * 8 + [1] * 4 + [2] * 4
    assert merged.gpus[8].id == "gpu0.1"
    assert merged.name == "dgx1+a100x4+pcie-2x2-nvlink"
    for number, box in enumerate((DGX1, A100X4, PCIE)):
        inside = [link for link in merged.links if merged.by_id[link.src].node == merged.by_id[link.dst].node == number]
        own = [link for link in box.links if "network" not in (link.src, link.dst)]
        assert [(link.kind, link.GBps, link.count, link.alpha_us) for link in inside] == [
            (link.kind, link.GBps, link.count, link.alpha_us) for link in own
        ]
    assert networks(merged) == {"network": {"nic0", "nic1", "nic2", "nic3", "nic0.1", "nic1.1", "nic0.2"}}
    rates = {link.src: link.GBps for link in merged.links if link.dst == "network"}
    assert (rates["nic0"], rates["nic0.1"], rates["nic0.2"]) == (12.5, 25.0, 12.5)
    find_paths(merged)


def test_rails_join_nics_of_one_position() -> None:
    merged = merge([DGX1, A100X4], NetworkPlan(NetworkKind.RAILS, GBps=10.0, alpha_us=0.5))
    assert networks(merged) == {
        "rail0": {"nic0", "nic0.1"},
        "rail1": {"nic1", "nic1.1"},
        "rail2": {"nic2"},
        "rail3": {"nic3"},
    }
    wires = [link for link in merged.links if link.kind == "network"]
    assert {(link.GBps, link.alpha_us) for link in wires} == {(10.0, 0.5)}
    assert len(find_paths(merged)) > 0


def test_cables_alone_and_beside_a_switch() -> None:
    cable = Cable(((0, "nic1"), (1, "nic0")))
    alone = merge([DGX1, A100X4], NetworkPlan(NetworkKind.CABLES, cables=(cable,)))
    assert networks(alone) == {}
    wires = [(link.src, link.dst, link.GBps) for link in alone.links if link.kind == "network"]
    assert wires == [("nic1", "nic0.1", 12.5), ("nic0.1", "nic1", 12.5)]
    crossing = {path.links for path in find_paths(alone) if alone.node_of(path.src) != alone.node_of(path.dst)}
    assert all(any(alone.links[link].kind == "network" for link in links) for links in crossing)
    both = merge([DGX1, A100X4], NetworkPlan(cables=(replace(cable, GBps=3.0),)))
    assert len(networks(both)["network"]) == 6
    assert [link.GBps for link in both.links if (link.src, link.dst) == ("nic1", "nic0.1")] == [3.0]


def test_a_network_name_that_a_box_uses_is_left_to_it() -> None:
    devices = tuple(replace(device, id="rail0") if device.id == "nic0" else device for device in PCIE.devices)
    links = tuple(
        replace(link, src=link.src.replace("nic0", "rail0"), dst=link.dst.replace("nic0", "rail0"))
        for link in PCIE.links
    )
    box = replace(PCIE, devices=devices, links=links)
    merged = merge([box, box], NetworkPlan(NetworkKind.RAILS))
    assert len({device.id for device in merged.devices}) == len(merged.devices)
    find_paths(merged)


@pytest.mark.parametrize(
    ("nodes", "plan", "told"),
    [
        ([DGX1, load_topology("ring4")], NetworkPlan(), r"cluster\[1\]: ring4: 'no NIC'"),
        ([replicate(DGX1, 2), DGX1], NetworkPlan(), r"cluster\[0\]: dgx1x2: '2 nodes'"),
        (
            [DGX1, DGX1],
            NetworkPlan(cables=(Cable(((0, "nic0"), (2, "nic0"))),)),
            r"between\[1\]: 2, expected .* 0 to 1",
        ),
        ([DGX1, DGX1], NetworkPlan(cables=(Cable(((0, "gpu0"), (1, "nic0"))),)), "'0:gpu0', expected a NIC of box 0"),
        ([DGX1, DGX1], NetworkPlan(cables=(Cable(((1, "nic0"), (1, "nic1"))),)), "two NICs of different boxes"),
    ],
)
def test_what_cannot_be_merged(nodes: list[Topology], plan: NetworkPlan, told: str) -> None:
    with pytest.raises(InputError, match=told):
        merge(nodes, plan)


def read(tmp_path: Path, content: object) -> Imported:
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps(content), encoding="utf-8")
    return import_cluster(file.read_text(encoding="utf-8"), str(file), import_topology)


def test_the_file(tmp_path: Path) -> None:
    (tmp_path / "box.json").write_text(
        json.dumps(
            {
                "format": 1,
                "devices": [{"id": "g", "kind": "gpu", "rank": 0}, {"id": "n", "kind": "nic"}],
                "links": [{"between": ["g", "n"], "kind": "pcie", "GBps": 20, "alpha_us": 0.5}],
            }
        ),
        encoding="utf-8",
    )
    boxes = [{"topo": "box.json", "count": 2}, {"topo": "pcie-2x2-nvlink"}]
    cluster = read(tmp_path, {"format": 1, "cluster": boxes, "network": {"kind": "switch"}}).topology
    assert cluster.name == "cluster"
    assert [gpu.id for gpu in cluster.gpus] == ["g", "g.1", "gpu0.2", "gpu1.2", "gpu2.2", "gpu3.2"]
    assert {link.src: link.GBps for link in cluster.links if link.dst == "network"} == {
        "n": 20.0,
        "n.1": 20.0,
        "nic0.2": 12.5,
    }
    find_paths(cluster)
    cables = [{"between": ["0:n", "1:n"], "GBps": 5}, {"between": ["0:n", "2:nic0"], "alpha_us": 2}]
    cabled = read(tmp_path, {"format": 1, "name": "c", "cluster": boxes, "cables": cables}).topology
    wires = [(link.src, link.dst, link.GBps, link.alpha_us) for link in cabled.links if link.kind == "network"]
    assert wires[::2] == [("n", "n.1", 5.0, 0.6), ("n", "nic0.2", 12.5, 2.0)]


def test_doubts_and_hints_of_boxes() -> None:
    asked: list[tuple[str, Hints]] = []

    def load(name: str, hints: Hints) -> Imported:
        asked.append((name, hints))
        return Imported(PCIE, (Doubt("gpu0", "odd"),))

    text = json.dumps(
        {"format": 1, "cluster": [{"topo": "a", "count": 2}, {"topo": "b", "arch": "sm_80", "nics": "2x5"}]}
    )
    imported = import_cluster(text, "c.json", load)
    assert asked == [("a", Hints()), ("b", Hints(nics="2x5", arch="sm_80"))]
    assert list(map(str, imported.doubts)) == ["a: gpu0: odd", "b: gpu0: odd"]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ({"cluster": [{"topo": "dgx1"}]}, "format: missing"),
        ({"format": 1, "cluster": []}, "at least one box"),
        ({"format": 1, "cluster": {"topo": "dgx1"}}, "a list"),
        ({"format": 1, "cluster": [{"topo": "dgx1", "nodes": 2}]}, r"cluster\[0\]: 'nodes', expected one of the keys"),
        ({"format": 1, "cluster": [{"topo": "dgx1", "count": 0}]}, r"cluster\[0\].count: 0"),
        (
            {"format": 1, "cluster": [{"topo": "dgx1", "count": 200}]},
            r"cluster\[0\].count: 200, expected at most 1024 GPUs",
        ),
        ({"format": 1, "cluster": [{"topo": "dgxx"}]}, r"cluster\[0\].topo: 'dgxx', expected a file, or a name"),
        ({"format": 1, "cluster": [{"topo": "cluster.json"}]}, r"cluster\[0\].topo: 'cluster.json', expected a box"),
        ({"format": 1, "cluster": [{"topo": "dgx1", "arch": "volta"}]}, r"cluster\[0\].arch: 'volta'"),
        ({"format": 1, "cluster": [{"topo": "ring4", "count": 2}]}, r"cluster\[0\]: ring4: 'no NIC'"),
        ({"format": 1, "cluster": [{"topo": "dgx1"}], "network": {"kind": "torus"}}, "network.kind: 'torus'"),
        ({"format": 1, "cluster": [{"topo": "dgx1"}], "network": {"GBps": 0}}, "network.GBps: 0"),
        ({"format": 1, "cluster": [{"topo": "dgx1"}], "cables": [{"between": ["0:nic0"]}]}, r"cables\[0\].between"),
        (
            {"format": 1, "cluster": [{"topo": "dgx1"}], "cables": [{"between": ["nic0", "1:x"]}]},
            r"between\[0\]: 'nic0'",
        ),
        ({"format": 1, "cluster": [{"topo": "dgx1"}], "cables": [{"between": ["0:x", "1:x"]}]}, "cluster.json: cables"),
    ],
)
def test_a_bad_file(content: dict[str, object], told: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=told) as caught:
        read(tmp_path, content)
    assert str(caught.value).startswith(str(tmp_path / "cluster.json"))


def test_telling_clusters_from_topologies() -> None:
    assert is_cluster({"cluster": []})
    assert not is_cluster({"format": 1, "devices": []})
    assert not is_cluster([])
