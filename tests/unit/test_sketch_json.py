"""Sketch files of both forms: what they mean on their machine, and messages where they do not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synth.build import build_instance
from synth.collective import Collective, CollectiveName
from synth.errors import InputError
from synth.inputs.sketch_json import is_sketch, parse_sketch, sketch_nodes
from synth.inputs.taccl import parse_taccl_topology
from synth.inputs.topology_json import parse_topology
from synth.instance import Instance
from synth.paths import find_paths
from synth.sketch import Sketch, apply_sketch
from synth.topology import Topology, replicate

TESTS = Path(__file__).parents[1]
DATA = TESTS / "data" / "taccl"
SHIPPED = TESTS.parent / "topologies"


def machine(kind: str, nodes: int) -> Topology:
    name = f"topo-{kind}-1MB.json"
    return replicate(parse_taccl_topology((DATA / name).read_text(), name), nodes)


def allgather(topology: Topology, sketch: Sketch) -> Instance:
    chunks = topology.num_ranks * (sketch.chunks_per_rank or 1)
    collective = Collective(CollectiveName.ALLGATHER, topology.num_ranks, chunks)
    return build_instance(topology, collective, 1 << 20, sketch)


def crossing(instance: Instance) -> set[tuple[int, int]]:
    node_of = instance.topology.node_of
    return {(path.src, path.dst) for path in instance.paths if node_of(path.src) != node_of(path.dst)}


def read(name: str, topology: Topology) -> Sketch:
    return parse_sketch((DATA / name).read_text(), name, topology)


def own(**fields: Any) -> str:
    return json.dumps({"format": 1, "across": "all", **fields})


def taccl(**fields: Any) -> str:
    data = json.loads((DATA / "sk1-ndv2-n2.json").read_text())
    return json.dumps({**data, **fields})


@pytest.mark.parametrize(
    ("name", "kind", "nodes", "chunks", "num_crossing", "num_symmetries"),
    [
        ("sk1-ndv2-n2.json", "ndv2", 2, 1, 2, 1),
        ("sk2-ndv2-n2.json", "ndv2", 2, 1, 128, 1),
        ("sk3-ndv2-n2.json", "ndv2", 2, 1, 16, 1),
        ("sk1-ndv2-n4.json", "ndv2", 4, 1, 12, 1),
        ("sk1-dgx2-n2.json", "dgx2", 2, 2, 16, 2),
        ("sk2-dgx2-n2.json", "dgx2", 2, 1, 32, 2),
    ],
)
def test_taccl_sketches_mean_what_they_say(
    name: str, kind: str, nodes: int, chunks: int, num_crossing: int, num_symmetries: int
) -> None:
    topology = machine(kind, nodes)
    assert sketch_nodes((DATA / name).read_text(), name) == nodes
    sketch = read(name, topology)
    assert sketch.chunks_per_rank == chunks
    instance = allgather(topology, sketch)
    assert len(crossing(instance)) == num_crossing
    assert len(instance.symmetries) == num_symmetries


def test_a_one_node_sketch_keeps_all_and_counts_chunks() -> None:
    topology = machine("ndv2", 1)
    sketch = read("sk-ndv2-n1.json", topology)
    assert sketch.chunks_per_rank == 6
    assert apply_sketch(topology, find_paths(topology), sketch) == find_paths(topology)


def test_relays_go_from_sender_to_receiver_of_every_other_node() -> None:
    instance = allgather(machine("ndv2", 4), read("sk1-ndv2-n4.json", machine("ndv2", 4)))
    assert crossing(instance) == {(8 * a, 8 * b + 1) for a in range(4) for b in range(4) if a != b}


def test_uc_min_has_few_connections_and_uc_max_all() -> None:
    topology = machine("dgx2", 2)
    few, many = (
        sum(path.src == 0 and path.dst < 16 for path in allgather(topology, read(name, topology)).paths)
        for name in ("sk1-dgx2-n2.json", "sk2-dgx2-n2.json")
    )
    assert (few, many) == (4, 15)


def test_roles_name_the_sender_of_each_gpu_in_every_node() -> None:
    sketch = read("sk1-dgx2-n2.json", machine("dgx2", 2))
    assert ("gpu4", "gpu5") in sketch.leaves_by
    assert ("gpu4.1", "gpu5.1") in sketch.leaves_by
    assert len(sketch.leaves_by) == 32


@pytest.mark.parametrize(
    ("name", "kind", "nodes", "field"),
    [
        ("sk1-ndv2-n2.json", "ndv2", 1, "nnodes"),
        ("sk1-ndv2-n2.json", "ndv2", 4, "nnodes"),
        ("sk1-dgx2-n2.json", "ndv2", 2, "intranode_sketch.switches[0]"),
        ("sk1-ndv2-n4.json", "dgx2", 2, "nnodes"),
    ],
)
def test_a_sketch_for_another_machine_says_so(name: str, kind: str, nodes: int, field: str) -> None:
    with pytest.raises(InputError, match="a sketch for this machine") as caught:
        read(name, machine(kind, nodes))
    assert (caught.value.source, caught.value.field) == (name, field)


def test_a_relay_between_gpus_of_another_box_is_refused_by_its_symmetry() -> None:
    """NDv2's sketch names only places that a DGX-2 has too; its rotation gives it away."""
    topology = machine("dgx2", 2)
    with pytest.raises(InputError, match="unchanged"):
        allgather(topology, read("sk1-ndv2-n2.json", topology))


@pytest.mark.parametrize(
    ("text", "field", "says"),
    [
        ("{]", "line 1", "JSON"),
        ("{}", "the file", "TACCL sketch"),
        ('{"format": 1, "devices": [], "across": "all"}', "the file", "TACCL sketch"),
        ('{"nnodes": 2}', "intranode_sketch", "missing"),
        (taccl(nnodes="2"), "nnodes", "whole number"),
        (taccl(intranode_sketch={"strategy": "best"}), "intranode_sketch.strategy", "switch"),
        (taccl(intranode_sketch={"strategy": "switch", "switches": []}), "intranode_sketch.switch_hyperedge", "a list"),
        (
            taccl(
                intranode_sketch={
                    "strategy": "switch",
                    "switches": [[0, 1]],
                    "switch_hyperedge_strategy": ["uc-mid"],
                }
            ),
            "intranode_sketch.switch_hyperedge_strategy[0]",
            "uc-min",
        ),
        (taccl(internode_sketch={"strategy": "relay", "internode_conn": "ring"}), "internode_sketch", "direct-map"),
        (
            taccl(internode_sketch={"strategy": "relay", "internode_conn": {"0": [8]}}),
            "internode_sketch.internode_conn.0",
            "0 to 7",
        ),
        (
            taccl(internode_sketch={"strategy": "relay", "internode_conn": {"x": [0]}}),
            "internode_sketch.internode_conn",
            "0 to 7",
        ),
        (taccl(symmetry_offsets=[[8, 12]]), "symmetry_offsets[0]", "divides the 16 ranks"),
        (taccl(symmetry_offsets=[8, 16]), "symmetry_offsets[0]", "list"),
        (taccl(hyperparameters={"input_chunkup": 0}), "hyperparameters.input_chunkup", "whole number"),
        (own(format=2), "format", "expected 1"),
        (own(acros="all"), "key", "across"),
        (own(nodes=4), "nodes", "2 nodes"),
        (own(gpus_per_node=16), "gpus_per_node", "8 GPUs"),
        (own(across={"gpu0": ["gpu8"]}), "across.gpu0", "gpu7"),
        (own(across=3), "across", "same"),
        (own(within=[["gpu0", "gpu0"]]), "within[0]", "two different"),
        (own(switches=[{"gpus": "all", "connections": "some"}]), "switches[0].connections", "few"),
        (own(switches=[{"gpus": ["gpu1", "gpu1"], "connections": "few"}]), "switches[0].gpus", "once"),
        (own(leaves_by={"gpu1": ["gpu0"], "gpu0": ["gpu0"]}), "leaves_by", "once"),
        (own(chunks=0), "chunks", "whole number"),
    ],
)
def test_messages_name_file_field_and_what_may_stand_there(text: str, field: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_sketch(text, "s.json", machine("ndv2", 2))
    assert caught.value.source == "s.json"
    assert caught.value.field.startswith(field)
    assert says in str(caught.value)


def test_our_form_says_the_same_as_taccls() -> None:
    topology = machine("dgx2", 2)
    relays = {f"gpu{i + 1}": [f"gpu{i}"] for i in range(0, 16, 2)}
    text = own(
        nodes=2,
        gpus_per_node=16,
        across=relays,
        leaves_by={f"gpu{i + 1}": [f"gpu{i}", f"gpu{i + 1}"] for i in range(0, 16, 2)},
        switches=[{"gpus": "all", "connections": "few"}],
        symmetry=[[2, 16], [16, 32]],
        chunks=2,
    )
    assert sketch_nodes(text, "s") == 2
    ours, theirs = parse_sketch(text, "s", topology), read("sk1-dgx2-n2.json", topology)
    assert apply_sketch(topology, find_paths(topology), ours) == apply_sketch(topology, find_paths(topology), theirs)
    assert ours.symmetry_offsets == theirs.symmetry_offsets
    assert ours.chunks_per_rank == theirs.chunks_per_rank


def test_within_lists_the_connections_of_every_node() -> None:
    topology = machine("dgx2", 2)
    ring = [[f"gpu{i}", f"gpu{(i + 1) % 16}"] for i in range(16)]
    instance = allgather(topology, parse_sketch(own(within=ring, across="same"), "s", topology))
    inside = {(path.src, path.dst) for path in instance.paths} - crossing(instance)
    assert inside == {(16 * n + i, 16 * n + (i + 1) % 16) for n in range(2) for i in range(16)}
    assert crossing(instance) == {(i, (i + 16) % 32) for i in range(32)}


def test_kinds_of_file_are_told_apart() -> None:
    assert sketch_nodes(own(), "s") is None
    assert is_sketch(json.loads(own()))
    assert is_sketch(json.loads(taccl()))
    assert not is_sketch(json.loads((DATA / "topo-ndv2-1MB.json").read_text()))
    assert not is_sketch([])


@pytest.mark.parametrize("path", sorted((SHIPPED / "sketches").glob("*.json")), ids=lambda path: path.stem)
def test_shipped_sketches_fit_the_machines_they_name(path: Path) -> None:
    box = {"ndv2-relay": "ndv2", "dgx2-pairs": "dgx2", "rails": "dgx-a100"}[path.stem]
    file = SHIPPED / f"{box}.json"
    topology = replicate(parse_topology(file.read_text(), file.name), 2)
    sketch = parse_sketch(path.read_text(), path.name, topology)
    instance = allgather(topology, sketch)
    assert 0 < len(crossing(instance)) <= topology.num_ranks
    assert instance.symmetries


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 40) | st.floats() | st.sampled_from(["", "0", "all", "gpu1", "relay"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["0", "1", "gpu1", "gpus"]), inner),
    max_leaves=6,
)
FIELDS = ["nnodes", "intranode_sketch", "internode_sketch", "symmetry_offsets", "hyperparameters"]
OWN_FIELDS = ["nodes", "gpus_per_node", "within", "across", "leaves_by", "switches", "symmetry", "chunks", "format"]


@given(own_form=st.booleans(), data=st.data())
def test_no_value_in_any_field_breaks_the_reader(own_form: bool, data: st.DataObject) -> None:
    field = data.draw(st.sampled_from(OWN_FIELDS if own_form else FIELDS))
    value = {field: data.draw(JSON_VALUES)}
    topology = machine("ndv2", 2)
    text = own(**value) if own_form else taccl(**value)
    failed: InputError | None = None
    try:
        apply_sketch(topology, find_paths(topology), parse_sketch(text, "s.json", topology))
    except InputError as error:
        failed = error
    assert failed is None or failed.source == "s.json"
