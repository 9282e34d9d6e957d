"""Reading topology JSON: what a file may say, what is said of one that may not, and where."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from synth.errors import InputError
from synth.inputs.load import load_topology, parse_any
from synth.inputs.topology_json import parse_topology, to_json
from synth.paths import find_paths
from synth.topology import Device, DeviceKind, Link, Topology

TWO_GPUS: list[dict[str, Any]] = [
    {"id": "a", "kind": "gpu", "rank": 0},
    {"id": "b", "kind": "gpu", "rank": 1},
    {"id": "sw", "kind": "nvswitch"},
]
LINK = {"between": ["a", "b"], "kind": "nvlink", "GBps": 20.0, "alpha_us": 0.7}


def parse(**changes: Any) -> Topology:
    return parse_topology(json.dumps({"format": 1, "devices": TWO_GPUS, "links": [LINK], **changes}), "m.json")


def parse_link(**changes: Any) -> Link:
    link = {key: value for key, value in {**LINK, **changes}.items() if value is not None}
    return parse(links=[link]).links[0]


def test_both_directions_of_a_link_carry_all_lanes() -> None:
    topology = parse(links=[{**LINK, "count": 3, "GBps": 22.1, "gap_us": 0.5}])
    assert topology.links == (
        Link("a", "b", "nvlink", 66.3, 0.7, 0.5, 3),
        Link("b", "a", "nvlink", 66.3, 0.7, 0.5, 3),
    )


def test_from_and_to_is_one_way() -> None:
    one_way = {"from": "b", "to": "a", "kind": "nvlink", "GBps": 5, "alpha_us": 1}
    assert parse(links=[one_way]).links == (Link("b", "a", "nvlink", 5.0, 1.0),)


def test_parallel_equals_are_one_capacity_and_others_are_not() -> None:
    extra = [LINK, {**LINK, "GBps": 5}, {**LINK, "alpha_us": 2}, {**LINK, "kind": "xgmi"}]
    forward = [link for link in parse(links=extra).links if link.src == "a"]
    assert [(link.kind, link.GBps, link.count, link.alpha_us) for link in forward] == [
        ("nvlink", 25.0, 2, 0.7),
        ("nvlink", 20.0, 1, 2.0),
        ("xgmi", 20.0, 1, 0.7),
    ]


@pytest.mark.parametrize(
    ("link", "GBps", "alpha_us"),
    [
        ({"kind": "nvlink"}, 20.0, 0.7),
        ({"kind": "nvlink", "gen": 4, "count": 2}, 41.2, 0.7),
        ({"kind": "nvlink", "gen": 2, "between": ["a", "sw"]}, 22.0, 0.35),
        ({"kind": "pcie", "gen": 4}, 24.0, 0.5),
        ({"kind": "network"}, 12.5, 0.3),
        ({"kind": "network", "GBps": 25}, 25.0, 0.3),
        ({"kind": "xgmi", "gen": 3, "alpha_us": 2}, 36.0, 2.0),
    ],
)
def test_what_is_left_out_has_the_default_of_kind_and_generation(
    link: dict[str, Any], GBps: float, alpha_us: float
) -> None:
    read = parse_link(**{"GBps": None, "alpha_us": None, **link})
    assert (read.GBps, read.alpha_us) == (GBps, alpha_us)


def test_a_kind_without_defaults_may_be_any_word() -> None:
    assert parse_link(kind="direct").kind == "direct"


def test_name_about_sources_and_path_rules() -> None:
    topology = parse(
        about="Two.", sources={"nvlink": "measured"}, paths={"relay_through": ["nvswitch"], "fallback": []}
    )
    assert topology.name == "m"
    assert topology.about == "Two.\nnvlink: measured"
    assert topology.relay_through == {DeviceKind.NVSWITCH}
    assert topology.fallback == frozenset()


def test_a_network_stands_in_no_node() -> None:
    devices = [*TWO_GPUS, {"id": "ib", "kind": "network"}, {"id": "eth", "kind": "network", "node": 0}]
    assert [device.node for device in parse(devices=devices).devices] == [0, 0, 0, -1, -1]


def test_one_gpu_is_a_topology() -> None:
    assert parse(devices=TWO_GPUS[:1], links=[]).num_ranks == 1


BAD_FILES: list[tuple[dict[str, Any], str]] = [
    ({"format": 2}, "m.json: format: 2, expected"),
    ({"format": True}, "m.json: format: True, expected"),
    ({"nodes": 2}, "m.json: key: 'nodes', expected one of the keys"),
    ({"name": ""}, "m.json: name: '', expected"),
    ({"name": "two\nlines"}, "m.json: name: 'two\\nlines', expected"),
    ({"about": 3}, "m.json: about: 3, expected a string"),
    ({"about": "bell\a"}, "m.json: about: 'bell\\x07', expected"),
    ({"sources": ["x"]}, "m.json: sources: ['x'], expected an object"),
    ({"devices": {}}, "m.json: devices: {}, expected a list"),
    ({"devices": []}, "m.json: devices: '0 devices and no GPU', expected at least one"),
    ({"devices": [3]}, "m.json: devices[0]: 3, expected an object"),
    ({"devices": [{"id": "a", "kind": "tpu"}]}, "m.json: devices[0].kind: 'tpu', expected one of gpu"),
    ({"devices": [{"kind": "gpu", "rank": 0}]}, "m.json: devices[0].id: missing, expected a string"),
    ({"devices": [{"id": "a", "kind": "gpu"}]}, "m.json: devices[0].rank: missing, expected a whole number"),
    ({"devices": [{"id": "a", "kind": "gpu", "rank": 0.0}]}, "m.json: devices[0].rank: 0.0, expected"),
    ({"devices": [{"id": "a", "kind": "gpu", "rank": 1}]}, "m.json: devices[0].rank: 1, expected ranks 0 to 0"),
    ({"devices": [*TWO_GPUS, {**TWO_GPUS[1], "id": "c"}]}, "m.json: devices[3].rank: 1, expected ranks 0 to 2"),
    ({"devices": [*TWO_GPUS, TWO_GPUS[2]]}, "m.json: devices[3].id: 'sw', expected an id that no other"),
    ({"devices": [{"id": "s", "kind": "cpu", "rank": 0}]}, "m.json: devices[0].rank: 0, expected no rank on a cpu"),
    ({"devices": [{**TWO_GPUS[0], "node": -1}]}, "m.json: devices[0].node: -1, expected"),
    ({"devices": [{**TWO_GPUS[0], "speed": 1}]}, "m.json: devices[0]: 'speed', expected one of the keys"),
    ({"links": "none"}, "m.json: links: 'none', expected a list"),
    ({"paths": {"relay_through": ["gpu"]}}, "m.json: paths.relay_through[0]: 'gpu', expected one of nvswitch"),
    ({"paths": {"fallback": "cpu"}}, "m.json: paths.fallback: 'cpu', expected a list"),
    ({"paths": {"via": []}}, "m.json: paths: 'via', expected one of the keys"),
]


@pytest.mark.parametrize(("changes", "message"), BAD_FILES, ids=[message for _, message in BAD_FILES])
def test_a_fault_is_named_with_its_field(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(**changes)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


BAD_LINKS: list[tuple[dict[str, Any], str]] = [
    ({"between": ["a", "gpu9"]}, "links[0].between[1]: 'gpu9', expected the id of a device"),
    ({"between": ["a", "a"]}, "links[0].between[1]: 'a', expected another device"),
    ({"between": ["a"]}, "links[0].between: ['a'], expected two device ids"),
    ({"between": ["a", ["b"]]}, "links[0].between[1]: ['b'], expected the id"),
    ({"between": None}, "links[0]: 'neither', expected either between"),
    ({"from": "a", "to": "b"}, "links[0]: 'between, from, to', expected either"),
    ({"between": None, "from": "a"}, "links[0].to: missing, expected"),
    ({"between": None, "from": "a", "to": "x"}, "links[0].to: 'x', expected the id"),
    ({"GBps": 0}, "links[0].GBps: 0, expected a number above 0"),
    ({"GBps": -1.5}, "links[0].GBps: -1.5, expected a number above 0"),
    ({"GBps": float("nan")}, "links[0].GBps: nan, expected a number"),
    ({"GBps": float("inf")}, "links[0].GBps: inf, expected a number"),
    ({"GBps": 2e6}, "links[0].GBps: 2000000.0, expected a number above 0, at most"),
    ({"GBps": "20"}, "links[0].GBps: '20', expected a number"),
    ({"GBps": True}, "links[0].GBps: True, expected a number"),
    ({"alpha_us": -1}, "links[0].alpha_us: -1, expected a number from 0"),
    ({"gap_us": -0.1}, "links[0].gap_us: -0.1, expected a number from 0"),
    ({"count": 0}, "links[0].count: 0, expected a whole number from 1"),
    ({"count": 1.5}, "links[0].count: 1.5, expected a whole number"),
    ({"kind": 7}, "links[0].kind: 7, expected a string"),
    ({"kind": "NV Link"}, "links[0].kind: 'NV Link', expected a word in small letters"),
    ({"kind": "nvlnk", "GBps": None}, "links[0].kind: 'nvlnk', expected GBps and alpha_us, or a kind"),
    ({"gen": 9}, "links[0].gen: 9, expected a generation of nvlink: 1, 2, 3, 4, 5"),
    ({"kind": "socket", "gen": 1}, "links[0].gen: 1, expected a generation of socket: it has none"),
    ({"lanes": 2}, "links[0]: 'lanes', expected one of the keys"),
]


@pytest.mark.parametrize(("changes", "message"), BAD_LINKS, ids=[message for _, message in BAD_LINKS])
def test_a_fault_of_a_link_is_named_with_its_field(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_link(**changes)
    assert str(caught.value).startswith(f"m.json: {message}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"format": 1,\n "devices" []}', "m.json: line 2, column 12: "),
        ('{"format": 1, "format": 1}', "m.json: key: 'format', expected each key once"),
        ("[1]", "m.json: the file: [1], expected an object"),
        ("", "m.json: line 1, column 1: "),
        ("[" * 200_000, "m.json: "),
        ('{"format": ' + "1" * 5000 + "}", "m.json: "),
        ('{"format": 1e' + "9" * 30 + "}", "m.json: format: inf, expected"),
    ],
)
def test_text_that_is_no_json_object(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_topology(text, "m.json")
    assert str(caught.value).startswith(message)


def test_writing_is_readable_and_stable() -> None:
    topology = parse(links=[{**LINK, "count": 2}, {"from": "a", "to": "sw", "kind": "nvlink"}])
    text = to_json(topology)
    assert '{"between": ["a", "b"], "kind": "nvlink", "count": 2, "GBps": 20.0, "alpha_us": 0.7}' in text
    assert parse_topology(text, "other") == topology
    assert to_json(parse_topology(text, "other")) == text


def test_a_rate_that_no_float_times_its_lanes_gives_survives_writing() -> None:
    rates = [3.0 + step * 2**-51 for step in range(8)]
    digits = []
    for rate in rates:
        topology = Topology(
            "t",
            (Device("a", DeviceKind.GPU, 0, 0), Device("b", DeviceKind.GPU, 0, 1)),
            (Link("a", "b", "nvlink", rate, 0.0, 0.0, 3),),
        )
        text = to_json(topology)
        assert parse_topology(text, "t") == topology
        digits.append(len(text.partition('"GBps": ')[2].partition(",")[0]))
    assert max(digits) > 20  # some have no such float: a decimal stands there
    assert min(digits) < 20


def test_an_existing_file_goes_before_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("dgx1.json").write_text(to_json(parse()))
    Path("dgx2").mkdir()
    assert load_topology("dgx1.json").num_ranks == 2
    assert load_topology("dgx1").num_ranks == 8
    assert load_topology("dgx2").num_ranks == 16


def test_a_name_that_is_nothing_gets_close_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"--topo: 'DGX_1', expected .*close to it: dgx1,"):
        load_topology("DGX_1")
    with pytest.raises(InputError, match=r"one of .*a100x4, .*dgx-a100"):
        load_topology("../zzzzzz")
    with pytest.raises(InputError, match="expected a file, not a folder"):
        load_topology(str(tmp_path))
    with pytest.raises(InputError, match="--topo"):
        load_topology("a\0b")
    with pytest.raises(InputError, match="expected a file, or a name"):
        load_topology("schema")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "'an empty file', expected our topology JSON"),
        (b" \n", "'an empty file'"),
        (b"\x80\x81", "byte 0: 'no UTF-8 text'"),
        (b"<?xml version='1.0'?><system/>", "line 1, <system>: 'no <cpu>', expected NCCL topology XML"),
        (b"\tGPU0\tGPU1\tNIC0\nGPU0\t X \tOK\tPIX\n", "line 2, GPU0: 'OK', expected 3 cells"),
        (b"\x1b[4m\tGPU0\tGPU1\n", "rows: 'none of a GPU', expected the whole output of nvidia-smi topo -m"),
        (b"hello", "'hello', expected our topology JSON"),
        (b"[]", "expected our topology JSON"),
        (b"{}", "format: missing, expected"),
    ],
)
def test_other_files_are_refused_by_kind(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        load_topology(str(path))
    assert str(path) in str(caught.value)
    assert message in str(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission(tmp_path: Path) -> None:
    path = tmp_path / "secret.json"
    path.write_text("{}")
    path.chmod(0)
    with pytest.raises(InputError, match="expected a file that can be read"):
        load_topology(str(path))


def test_a_taccl_profile_goes_to_its_own_reader() -> None:
    profile = {"name": "X_1MB", "gpus_per_node": 4, "alpha": 1, "node_betas_list": [8], "node_invbws_list": [9]}
    topology = parse_any(json.dumps(profile), "x.json")
    assert topology.num_ranks == 4
    assert parse_topology(to_json(topology), "x.json") == topology


def test_a_byte_order_mark_is_passed_over() -> None:
    assert parse_any("\ufeff" + to_json(parse()), "m.json") == parse()


PEERS = Path(__file__).resolve().parents[3] / "shared" / "peers" / "instances"


@pytest.mark.skipif(not PEERS.is_dir(), reason="needs the peers' instances")
def test_instances_of_peers_are_read() -> None:
    for path in sorted(PEERS.glob("*.json")):
        topology = load_topology(str(path))
        assert len(find_paths(topology)) >= topology.num_ranks
        assert parse_topology(to_json(topology), "again") == topology


def test_arch_is_kept_and_checked() -> None:
    gpus = [{**TWO_GPUS[0], "arch": "sm_80"}, TWO_GPUS[1], TWO_GPUS[2]]
    topology = parse(devices=gpus)
    assert [gpu.arch for gpu in topology.gpus] == ["sm_80", ""]
    assert parse_topology(to_json(topology), "m.json") == topology
    with pytest.raises(InputError, match=r"devices\[0\].arch"):
        parse(devices=[{**TWO_GPUS[0], "arch": "Volta"}, *TWO_GPUS[1:]])
    with pytest.raises(InputError, match="no arch on a nvswitch"):
        parse(devices=[*TWO_GPUS[:2], {**TWO_GPUS[2], "arch": "sm_70"}])
