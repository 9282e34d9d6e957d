"""A small JSON that puts boxes together: which descriptions, how many of each, and the network between them.

    {"format": 1,
     "cluster": [{"topo": "dgx1.json", "count": 2}, {"topo": "dgx-a100"}],
     "network": {"kind": "rails", "GBps": 12.5, "alpha_us": 0.3},
     "cables": [{"between": ["0:nic0", "2:nic1"], "GBps": 25}]}

- `topo` is what `--topo` takes: a file, looked for beside the cluster's file first, or a name of the catalogue. What that file does
  not say stands beside it as `nvlink`, `nics` and `arch`, in the words of the options of these names. Boxes are numbered in
  order, 0 first; device ids of box k > 0 end in `.k` (`synth.cluster`).
- `network.kind` is `switch` (one device that every NIC connects to, the default), `rails` (the k-th NICs of all boxes share the
  k-th switch) or `cables` (only what `cables` lists; the default where there are cables and no `network`). `GBps` and `alpha_us` of
  a NIC's connection are what the box says where they are left out.
- A cable joins two NICs, each written `box:nic` by its id in the box's own description.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path, PurePath

from synth.cluster import Cable, NetworkKind, NetworkPlan, merge
from synth.doubts import Doubt, Hints, Imported
from synth.errors import InputError
from synth.inputs.fields import Fields, decode_json
from synth.topology import Topology

FORMAT = 1
_KEYS = ("$schema", "format", "name", "about", "cluster", "network", "cables")
_BOX_KEYS = ("topo", "count", "nvlink", "nics", "arch")
_NETWORK_KEYS = ("kind", "GBps", "alpha_us")
_CABLE_KEYS = ("between", "GBps", "alpha_us")
#: As many GPUs as the command line takes: there are that many squared paths.
_MAX_GPUS = 1024
_MAX_GBPS = 1_000_000
_MAX_US = 1_000_000_000


def is_cluster(value: object) -> bool:
    """Whether a decoded JSON value is a cluster (for telling kinds of file apart)."""
    return isinstance(value, dict) and "cluster" in value


def import_cluster(text: str, source: str, load: Callable[[str, Hints], Imported]) -> Imported:
    """The cluster that JSON `text` describes, with the doubts of reading its boxes; `load` reads a box by name or path.

    Raises InputError naming the field, what stands there and what may, and for a box that is a cluster itself.
    """
    root = Fields.of(decode_json(text, source), source, "", _KEYS)
    root.integer("format", FORMAT, FORMAT)
    name = root.text("name", PurePath(source).stem or "cluster")
    about = root.text("about", "", lines=True)
    nodes, doubts = _boxes(root, load)
    try:
        merged = merge(nodes, NetworkPlan(*_network(root), cables=_cables(root)))
    except InputError as error:
        field = ": ".join(part for part in (error.source, error.field) if part)
        raise InputError(source, field, error.value, error.expected) from None
    return Imported(replace(merged, name=name, about=about or f"A cluster of {merged.name}."), tuple(doubts))


def _boxes(root: Fields, load: Callable[[str, Hints], Imported]) -> tuple[list[Topology], list[Doubt]]:
    """The description of every box, in order, and the doubts about it, told by its `topo`."""
    items = root.items("cluster")
    if not items:
        root.fail("cluster", items, "at least one box")
    nodes: list[Topology] = []
    doubts: list[Doubt] = []
    gpus = 0
    for position, item in enumerate(items):
        box = Fields.of(item, root.source, f"cluster[{position}]", _BOX_KEYS)
        count = box.integer("count", 1, _MAX_GPUS, 1)
        imported = _box(box, load)
        gpus += count * imported.topology.num_ranks
        if gpus > _MAX_GPUS:
            box.fail("count", count, f"at most {_MAX_GPUS} GPUs in all")
        nodes += [imported.topology] * count
        told = (replace(doubt, where=f"{box.data['topo']}: {doubt.where}") for doubt in imported.doubts)
        doubts += [doubt for doubt in told if doubt not in doubts]
    return nodes, doubts


def _box(box: Fields, load: Callable[[str, Hints], Imported]) -> Imported:
    given = box.text("topo")
    hints = {key: box.text(key) for key in ("nvlink", "nics", "arch") if key in box.data}
    try:
        return load(_beside(given, box), Hints(**hints))
    except InputError as error:
        if error.source == "--topo":
            box.fail("topo", given, error.expected)
        option = error.source.removeprefix("--")
        if option in hints:
            field = ": ".join(part for part in (box.field(option), error.field) if part)
            raise InputError(box.source, field, error.value, error.expected) from None
        raise


def _beside(given: str, box: Fields) -> str:
    """The path of a file beside the cluster's, or what was given where there is none; InputError for a cluster in a cluster."""
    path = Path(box.source).parent / given
    try:
        if not path.is_file():
            return given
        text = path.read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError):
        return given
    if text.lstrip("\ufeff \t\r\n").startswith("{") and is_cluster(decode_json(text, str(path))):
        box.fail("topo", given, "a box, not a cluster: list its boxes here")
    return str(path)


def _network(root: Fields) -> tuple[NetworkKind, float | None, float | None]:
    default = NetworkKind.CABLES if "cables" in root.data and "network" not in root.data else NetworkKind.SWITCH
    fields = Fields.of(root.data.get("network", {}), root.source, "network", _NETWORK_KEYS)
    kind = NetworkKind(fields.choice("kind", tuple(NetworkKind))) if "kind" in fields.data else default
    rate = fields.number("GBps", _MAX_GBPS, positive=True)
    alpha = fields.number("alpha_us", _MAX_US, positive=False)
    return kind, None if rate is None else float(rate), None if alpha is None else float(alpha)


def _cables(root: Fields) -> tuple[Cable, ...]:
    cables = []
    for position, item in enumerate(root.items("cables", [])):
        fields = Fields.of(item, root.source, f"cables[{position}]", _CABLE_KEYS)
        ends = fields.items("between")
        if len(ends) != 2:
            fields.fail("between", ends, "two ends, each a box and a NIC such as 0:nic0")
        rate = fields.number("GBps", _MAX_GBPS, positive=True)
        alpha = fields.number("alpha_us", _MAX_US, positive=False)
        cable = Cable((_end(fields, 0, ends[0]), _end(fields, 1, ends[1])), None if rate is None else float(rate))
        cables.append(cable if alpha is None else replace(cable, alpha_us=float(alpha)))
    return tuple(cables)


def _end(fields: Fields, position: int, value: object) -> tuple[int, str]:
    """(box, NIC) of `0:nic0`."""
    box, colon, nic = value.partition(":") if isinstance(value, str) else ("", "", "")
    if not colon or not nic or not (box.isascii() and box.isdecimal() and len(box) <= 9):
        fields.fail(f"between[{position}]", value, "a box and one of its NICs such as 0:nic0")
    return int(box), nic
