"""Sketch files: TACCL's, and our own in the same spirit with device names (docs/sketches.md), told apart by content.

Both describe one node, by places (TACCL) or by the ids of the first node's GPUs (ours), and hold for every node: place
p of a node is its GPU of the p-th lowest rank.
"""

from __future__ import annotations

from synth.errors import InputError
from synth.inputs.fields import Fields, decode_json
from synth.inputs.places import (
    Nodes,
    Place,
    by_name,
    by_place,
    read_list,
    read_mapping,
    read_object,
    read_pair,
    require_distinct,
)
from synth.sketch import Pair, Sketch, SwitchPolicy
from synth.topology import Topology

FORMAT = 1
_KEYS = (
    "format",
    "name",
    "about",
    "nodes",
    "gpus_per_node",
    "within",
    "across",
    "leaves_by",
    "switches",
    "symmetry",
    "chunks",
)
_MAX_COUNT = 1_000_000
_INTRANODE = ("none", "switch", "minmax", "maxmin")
_HYPEREDGE = {"uc-min": True, "uc-max": False}
_CONNECTIONS = {"few": True, "many": False}
_KINDS = "a TACCL sketch (nnodes, intranode_sketch, ...) or one of ours (format, across, ...; docs/sketches.md)"


def sketch_nodes(text: str, source: str) -> int | None:
    """The number of nodes that a sketch is for; None where it says nothing. Raises InputError for what is no sketch."""
    root = _root(text, source)
    key = "nnodes" if "nnodes" in root.data else "nodes"
    return root.integer(key, 1, _MAX_COUNT) if key in root.data else None


def parse_sketch(text: str, source: str, topology: Topology) -> Sketch:
    """The sketch that a file describes, for the machine `topology` (all its nodes).

    Raises InputError naming the field, and where the sketch is for another machine. What TACCL's `strategy` minmax and
    maxmin, `enforce_ordering` and hyperparameters other than `input_chunkup` tune is TACCL's own search: they change
    nothing here.
    """
    root = _root(text, source)
    nodes = Nodes.of(topology, root)
    return _taccl_sketch(root, nodes) if "nnodes" in root.data else _own_sketch(root, nodes)


def is_sketch(value: object) -> bool:
    """Whether a decoded JSON value is a sketch of either form (for telling kinds of file apart)."""
    if not isinstance(value, dict) or "devices" in value:
        return False
    return (
        "nnodes" in value
        or "intranode_sketch" in value
        or ("format" in value and any(key in value for key in _KEYS[4:]))
    )


def _root(text: str, source: str) -> Fields:
    data = decode_json(text, source)
    if not isinstance(data, dict) or not is_sketch(data):
        raise InputError(source, "the file", "other JSON", _KINDS)
    if "nnodes" in data or "intranode_sketch" in data:
        root = Fields(source, "", data)
        root.integer("nnodes", 1, _MAX_COUNT)
        return root
    root = Fields.of(data, source, "", _KEYS)
    root.integer("format", FORMAT, FORMAT)
    return root


def _taccl_sketch(root: Fields, nodes: Nodes) -> Sketch:
    nodes.check(root, "nnodes", root.integer("nnodes", 1, _MAX_COUNT), len(nodes.gpus), "nodes")
    inside = read_object(root, "intranode_sketch")
    switches: list[SwitchPolicy] = []
    if inside.choice("strategy", _INTRANODE) == "switch":
        switches = _taccl_switches(inside, nodes)
    across: tuple[Pair, ...] | None = None
    leaves_by: tuple[Pair, ...] = ()
    if len(nodes.gpus) > 1 and "internode_sketch" in root.data:
        between = read_object(root, "internode_sketch")
        if between.choice("strategy", ("relay", "none")) == "relay":
            across, leaves_by = _taccl_relays(between, nodes)
    chunks = read_object(root, "hyperparameters", {}).integer("input_chunkup", 1, _MAX_COUNT, 1)
    return Sketch(
        source=root.source,
        across=across,
        leaves_by=leaves_by,
        switches=tuple(switches),
        symmetry_offsets=_symmetry(root, "symmetry_offsets", nodes),
        chunks_per_rank=chunks,
        num_ranks=len(nodes.gpus) * nodes.places,
        num_nodes=len(nodes.gpus),
    )


def _own_sketch(root: Fields, nodes: Nodes) -> Sketch:
    if "nodes" in root.data:
        nodes.check(root, "nodes", root.integer("nodes", 1, _MAX_COUNT), len(nodes.gpus), "nodes")
    if "gpus_per_node" in root.data:
        count = root.integer("gpus_per_node", 1, _MAX_COUNT)
        nodes.check(root, "gpus_per_node", count, nodes.places, "GPUs a node")
    place = by_name(root, nodes)
    within = None
    if root.data.get("within", "all") != "all":
        within = nodes.within(
            [read_pair(root, f"within[{i}]", pair, place) for i, pair in enumerate(root.items("within"))]
        )
    switches = [
        policy
        for position, item in enumerate(root.items("switches", []))
        for policy in _own_switch(Fields.of(item, root.source, f"switches[{position}]", ("gpus", "connections")), nodes)
    ]
    return Sketch(
        source=root.source,
        within=within,
        across=_own_across(root, nodes, place),
        leaves_by=_leaves_by(root, "leaves_by", nodes, place),
        switches=tuple(switches),
        symmetry_offsets=_symmetry(root, "symmetry", nodes),
        chunks_per_rank=root.integer("chunks", 1, _MAX_COUNT) if "chunks" in root.data else None,
        num_ranks=len(nodes.gpus) * nodes.places,
        num_nodes=len(nodes.gpus),
    )


def _taccl_switches(inside: Fields, nodes: Nodes) -> list[SwitchPolicy]:
    """`switches` (places around each) with the strategy that `switch_hyperedge_strategy` has at the same position."""
    groups, strategies = inside.items("switches"), inside.items("switch_hyperedge_strategy")
    if len(groups) != len(strategies):
        inside.fail("switch_hyperedge_strategy", f"{len(strategies)} strategies", f"{len(groups)}, one for each switch")
    policies = []
    for position, (group, strategy) in enumerate(zip(groups, strategies, strict=True)):
        key = f"switches[{position}]"
        places = [by_place(inside, nodes)(key, place) for place in read_list(inside, key, group)]
        require_distinct(inside, key, places)
        word = Fields(inside.source, inside.where, {f"switch_hyperedge_strategy[{position}]": strategy}).choice(
            f"switch_hyperedge_strategy[{position}]", tuple(_HYPEREDGE)
        )
        policies += nodes.policies(places, _HYPEREDGE[word])
    return policies


def _taccl_relays(between: Fields, nodes: Nodes) -> tuple[tuple[Pair, ...] | None, tuple[Pair, ...]]:
    """(`internode_conn`, `gpus_to_sender_rev_map`) for all nodes."""
    place = by_place(between, nodes)
    conn = between.data.get("internode_conn", "fully-connected")
    if conn == "fully-connected":
        across = None
    elif conn == "direct-map":
        across = nodes.across([(own, own) for own in range(nodes.places)])
    elif isinstance(conn, dict):
        across = nodes.across(read_mapping(between, "internode_conn", conn, place))
    else:
        between.fail("internode_conn", conn, 'fully-connected, direct-map, or senders with their receivers: {"0": [1]}')
    return across, _leaves_by(between, "gpus_to_sender_rev_map", nodes, place)


def _own_across(root: Fields, nodes: Nodes, place: Place) -> tuple[Pair, ...] | None:
    across = root.data.get("across", "all")
    if across == "all":
        return None
    if across == "same":
        return nodes.across([(own, own) for own in range(nodes.places)])
    if isinstance(across, dict):
        return nodes.across(read_mapping(root, "across", across, place))
    root.fail("across", across, 'all, same, or senders with their receivers: {"gpu0": ["gpu1"]}')


def _own_switch(fields: Fields, nodes: Nodes) -> list[SwitchPolicy]:
    few = _CONNECTIONS[fields.choice("connections", tuple(_CONNECTIONS))]
    if fields.data.get("gpus", "all") == "all":
        return nodes.policies(list(range(nodes.places)), few)
    place = by_name(fields, nodes)
    places = [place(f"gpus[{position}]", name) for position, name in enumerate(fields.items("gpus"))]
    require_distinct(fields, "gpus", places)
    return nodes.policies(places, few)


def _leaves_by(root: Fields, key: str, nodes: Nodes, place: Place) -> tuple[Pair, ...]:
    """(GPU, sender) of every node; in the file, senders with the GPUs whose data they take out. Each GPU once."""
    served = read_mapping(root, key, read_object(root, key, {}).data, place)
    require_distinct(root, key, [gpu for _, gpu in served])
    return nodes.within([(gpu, sender) for sender, gpu in served])


def _symmetry(root: Fields, key: str, nodes: Nodes) -> tuple[tuple[int, int], ...]:
    """Pairs [offset, group]; a group divides the machine's ranks and an offset stays inside it."""
    ranks = len(nodes.gpus) * nodes.places
    offsets = []
    for position, item in enumerate(root.items(key, [])):
        where = f"{key}[{position}]"
        pair = read_list(root, where, item)
        if len(pair) != 2 or any(isinstance(n, bool) or not isinstance(n, int) for n in pair):
            root.fail(where, item, "[offset, group], two whole numbers")
        offset, group = pair
        if not (group > 0 and ranks % group == 0 and 0 < offset <= group):
            root.fail(
                where, item, f"a group that divides the {ranks} ranks of {nodes.machine}, an offset from 1 up to it"
            )
        offsets.append((offset, group))
    return tuple(offsets)
