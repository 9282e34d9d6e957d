"""TACCL's topology profiles: units, shapes, and messages that name what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synth.errors import InputError
from synth.inputs.taccl import import_taccl_topology, is_taccl_topology, parse_taccl_topology
from synth.paths import find_paths
from synth.topology import Link, Topology, replicate
from tests import graphs

DATA = Path(__file__).parents[1] / "data" / "taccl"
#: NDv2 numbers its GPUs otherwise than a DGX-1, so neighbours are counted, not compared by name.
NDV2_NEIGHBOURS = 4


def profile(name: str) -> Topology:
    return parse_taccl_topology((DATA / name).read_text(), name)


def changed(**fields: Any) -> str:
    """The NDv2 1 MB profile with some fields set, or taken out where None."""
    data = json.loads((DATA / "topo-ndv2-1MB.json").read_text())
    return json.dumps({key: value for key, value in {**data, **fields}.items() if value is not None})


@pytest.mark.parametrize("name", ["topo-ndv2-1MB.json", "topo-ndv2-32KB.json", "topo-ndv2-1KB.json"])
def test_the_three_ndv2_profiles_are_one_machine(name: str) -> None:
    topology = profile(name)
    rates = {(link.src, link.dst): link for link in topology.links}
    assert rates["gpu0", "gpu1"].GBps == pytest.approx(1e6 / 23 / 1e3, rel=0.01)
    assert rates["gpu2", "gpu0"].GBps == pytest.approx(1e6 / 46 / 1e3, rel=0.01)
    assert rates["nic0", "network"].GBps == pytest.approx(1e6 / 105 / 1e3, rel=0.01)
    assert {link.gap_us for link in topology.links if link.kind == "nvlink"} == {0.3}
    assert {link.gap_us for link in topology.links if link.kind == "network"} == {2.6}
    assert all(link.alpha_us == 0 for link in topology.links)


def test_ndv2_is_a_mesh_of_six_lanes_a_gpu() -> None:
    topology = profile("topo-ndv2-1MB.json")
    paths = find_paths(topology)
    for rank in range(8):
        rates = sorted(path.GBps for path in paths if path.src == rank)
        assert rates == pytest.approx([1000 / 46, 1000 / 46, 1000 / 23, 1000 / 23])
    assert len(paths) == 8 * NDV2_NEIGHBOURS == len(find_paths(graphs.dgx1()))


def test_a_message_on_a_taccl_link_occupies_it_for_alpha_and_beta() -> None:
    topology = replicate(profile("topo-ndv2-1MB.json"), 2)
    by_ends = {(path.src, path.dst): path for path in find_paths(topology)}
    assert by_ends[0, 1].latency_us(1e6) == pytest.approx(23.3)
    assert max(by_ends[0, 1].busy_us(1e6)) == pytest.approx(23.3)
    assert by_ends[0, 9].latency_us(1e6) == pytest.approx(107.6)


def test_dgx2_has_one_port_a_gpu_and_a_nic_for_two() -> None:
    topology = replicate(profile("topo-dgx2-1MB.json"), 2)
    by_ends = {(path.src, path.dst): path for path in find_paths(topology)}
    to_all = {by_ends[0, dst].links[0] for dst in range(1, 16)}
    assert len(to_all) == 1
    assert by_ends[0, 15].GBps == pytest.approx(125)
    assert by_ends[0, 15].latency_us(1e6) == pytest.approx(8.3)
    shared = set(by_ends[2, 16].links) & set(by_ends[3, 16].links)
    assert any(topology.links[link].src == "nic1" for link in shared)
    assert by_ends[2, 16].links[1] != by_ends[4, 16].links[1]


def test_custom_matrices_are_read_dst_by_src() -> None:
    topology = profile("topo-custom-1MB.json")
    links = [link for link in topology.links if link.kind == "nvlink"]
    assert {(link.src, link.dst): link.count for link in links} == {
        ("gpu0", "gpu1"): 2,
        ("gpu0", "gpu2"): 1,
        ("gpu1", "gpu0"): 1,
        ("gpu1", "gpu2"): 1,
        ("gpu2", "gpu1"): 1,
    }
    assert [link.GBps for link in links] == pytest.approx([50, 12.5, 20, 20, 20])


def test_chunk_and_scale_can_be_stated() -> None:
    topology = parse_taccl_topology(changed(name="mine_64KB", chunk_bytes=2_000_000, time_scale=2), "f.json")
    link = topology.links[0]
    assert link.GBps == pytest.approx(2e6 / 11.5 / 1e3)
    assert link.gap_us == pytest.approx(0.15)


def test_a_name_without_a_size_means_one_megabyte() -> None:
    assert parse_taccl_topology(changed(name="mine"), "f.json").links[0].GBps == pytest.approx(1000 / 23)


@pytest.mark.parametrize("nics", [None, 0, -1])
def test_a_profile_without_nics_is_one_node_alone(nics: int | None) -> None:
    text = changed(nics_per_node=nics, remote_alpha=None, remote_beta=None)
    topology = parse_taccl_topology(text, "f.json")
    assert {device.kind for device in topology.devices} == {"gpu"}
    with pytest.raises(InputError, match="--nodes"):
        replicate(topology, 2)


@pytest.mark.parametrize(("count", "nics"), [(8, 3), (8, 8), (8, 12), (8, 1)])
def test_every_gpu_has_a_nic_and_every_nic_a_gpu(count: int, nics: int) -> None:
    topology = parse_taccl_topology(changed(nics_per_node=nics), "f.json")
    joined = [(link.src, link.dst) for link in topology.links if link.kind == "pcie" and link.src.startswith("gpu")]
    assert {gpu for gpu, _ in joined} == {f"gpu{i}" for i in range(count)}
    assert {nic for _, nic in joined} == {f"nic{i}" for i in range(nics)}


@pytest.mark.parametrize(
    ("text", "field", "says"),
    [
        ("{", "line 1", "JSON"),
        ("[]", "the file", "TACCL profile"),
        (changed(gpus_per_node=16), "gpus_per_node", "8"),
        (changed(gpus_per_node="8"), "gpus_per_node", "whole number"),
        (changed(alpha=None), "alpha", "missing"),
        (changed(alpha=-1), "alpha", "number"),
        (changed(node_betas_list=[1, 2, 3]), "node_betas_list", "1 beta"),
        (changed(node_betas_list=[23, 0]), "node_betas_list[1]", "above 0"),
        (changed(remote_beta=None), "remote_beta", "missing"),
        (changed(name=""), "name", "printable"),
        (changed(name="x_0KB"), "name", "above 0"),
        (changed(links=[[0]], betas=[[0]]), "links", "8 rows"),
        (changed(gpus_per_node=2, links=[[0, 1], [1]], betas=[[0, 1], [1, 0]]), "links[1]", "2 entries"),
        (changed(gpus_per_node=2, links=[[0, 1], [1, 0]], betas=[[0, 0], [1, 0]]), "betas[0][1]", "above 0"),
        (changed(gpus_per_node=2, links=[[1, 1], [1, 0]], betas=[[1, 1], [1, 0]]), "links[0][0]", "itself"),
    ],
)
def test_messages_name_file_and_field(text: str, field: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_taccl_topology(text, "f.json")
    assert caught.value.source == "f.json"
    assert caught.value.field.startswith(field)
    assert says in str(caught.value)


def test_a_profile_is_told_from_other_json() -> None:
    assert is_taccl_topology(json.loads(changed()))
    assert not is_taccl_topology({"format": 1, "devices": []})
    assert not is_taccl_topology({"nnodes": 1, "intranode_sketch": {}})


@given(
    field=st.sampled_from(["name", "gpus_per_node", "nics_per_node", "alpha", "node_betas_list", "betas", "links"]),
    value=st.none()
    | st.booleans()
    | st.integers(-2, 20)
    | st.floats()
    | st.text(max_size=9)
    | st.lists(st.floats() | st.lists(st.integers(0, 3), max_size=8), max_size=8),
)
def test_no_value_in_any_field_breaks_the_reader(field: str, value: Any) -> None:
    links: tuple[Link, ...] = ()
    failed: InputError | None = None
    try:
        links = parse_taccl_topology(changed(**{field: value}), "f.json").links
    except InputError as error:
        failed = error
    assert failed is None or failed.source == "f.json"
    assert all(0 < link.GBps < float("inf") and 0 <= link.gap_us < float("inf") for link in links)


def test_what_only_convention_says_is_doubted() -> None:
    def doubts(text: str) -> str:
        return "\n".join(str(doubt) for doubt in import_taccl_topology(text, "p.json").doubts)

    assert doubts(changed()) == ""
    assert "no chunk size in 'NDv2'" in doubts(changed(name="NDv2"))
    assert doubts(changed(name="NDv2", chunk_bytes=1_000_000)) == ""
    assert "times are taken to be multiplied by 10" in doubts((DATA / "topo-ndv2-32KB.json").read_text())
    assert "blocks of neighbours" in doubts(changed(nics_per_node=4))
    pair = {"gpus_per_node": 2, "nics_per_node": 0, "alpha": 1, "links": [[0, 1], [2, 0]], "betas": [[0, 4], [4, 0]]}
    assert "not the same in both directions" in doubts(json.dumps({"name": "X_1MB", **pair}))
