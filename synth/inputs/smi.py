"""`nvidia-smi topo -m` to a topology.

The table says which kind of connection two devices have. From the kinds the tree is put together: devices joined by PIX share a
PCIe switch, those joined by PXB a switch above, those joined by PHB or NODE a CPU; what is SYS apart is on different CPUs.
NVLink hides what two GPUs are over PCIe; they are on one CPU where the table puts them on one NUMA node (or on the same
CPUs) and none of it speaks against that. PCIe generation, CPU, and the speed of NICs are not in such a table.
"""

from __future__ import annotations

from collections.abc import Callable

from synth.inputs.builder import Builder, default_alpha_us
from synth.inputs.defaults import link_default
from synth.inputs.fabric import fabric_links, fabric_of
from synth.inputs.hints import Draft
from synth.inputs.smi_table import SmiTable, read_table
from synth.topology import Device, DeviceKind

_NEAR = ("PIX",)
_SWITCHED = ("PIX", "PXB")
_LOCAL = ("PIX", "PXB", "PHB", "NODE")
_ABOUT = (
    "nvidia-smi topo -m. NVLinks x the rate of one in NCCL 2.30.7 (src/graph/topo.h). PCIe as NCCL takes it where the speed is "
    "unknown, generation 3 x16; between CPUs 10.0 GB/s. Latencies: synth's defaults (synth/inputs/defaults.py)."
)


def draft_of_smi(text: str, source: str, arch: str = "") -> Draft:
    """What the table says, before what only the user knows; `arch` is `--arch`. InputError with the line for a broken table."""
    builder = Builder(source)
    table = read_table(text, source, builder)
    names = {gpu: builder.add(DeviceKind.GPU, f"gpu{rank}", 0, rank, arch) for rank, gpu in enumerate(table.gpus)}
    for nic in table.nics:
        names[nic] = builder.add(DeviceKind.NIC, table.nic_names.get(nic, nic))
    _add_nvlinks(builder, table, names, arch)
    _add_tree(builder, table, names)
    _say_what_is_missing(builder, table)
    return Draft(builder.imported(_ABOUT))


def _add_nvlinks(builder: Builder, table: SmiTable, names: dict[str, str], arch: str) -> None:
    counts = [[table.links(a, b) if a != b else 0 for b in table.gpus] for a in table.gpus]
    fabric = fabric_of(counts, [arch] * len(counts))
    if fabric.switched:
        builder.add(DeviceKind.NVSWITCH, "nvswitch")
    gpus = [Device(names[gpu], DeviceKind.GPU, 0, rank, arch) for rank, gpu in enumerate(table.gpus)]
    alphas = (default_alpha_us("nvlink"), default_alpha_us("nvlink", True))
    for link in fabric_links(fabric, gpus, "nvlink", "nvswitch", alphas):
        builder.link(link.src, link.dst, link.kind, link.GBps, count=link.count)


def _add_tree(builder: Builder, table: SmiTable, names: dict[str, str]) -> None:
    """CPUs, switches, and the connections of GPUs and NICs to them."""
    default = link_default("pcie", None, False)
    socket = link_default("socket", None, False)
    assert default is not None
    assert socket is not None
    near = _groups(table.names, lambda a, b: table.label.get((a, b)) in _NEAR)
    switched = _groups(table.names, lambda a, b: table.label.get((a, b)) in _SWITCHED)
    cpus: list[str] = []
    for members in _cpu_groups(builder, table):
        cpus.append(builder.add(DeviceKind.CPU, f"cpu{len(cpus)}"))
        for below_cpu in _inside(switched, members):
            inner = _inside(near, below_cpu)
            parent = cpus[-1] if len(below_cpu) == 1 else _switch(builder, cpus[-1], default.GBps)
            for group in inner:
                one = len(group) == 1 or len(inner) == 1
                switch = parent if one else _switch(builder, parent, default.GBps)
                for name in group:
                    builder.between(names[name], switch, "pcie", default.GBps)
    for position, cpu in enumerate(cpus):
        for other in cpus[position + 1 :]:
            builder.between(cpu, other, "socket", socket.GBps)


def _switch(builder: Builder, parent: str, GBps: float) -> str:
    switch = builder.add_numbered(DeviceKind.PCIE_SWITCH, "plx")
    builder.between(switch, parent, "pcie", GBps)
    return switch


def _groups(names: tuple[str, ...], joined: Callable[[str, str], bool]) -> list[list[str]]:
    """The names in groups: two that are joined, directly or over others, are in one; groups by their first name."""
    group = {name: name for name in names}
    for a in names:
        for b in names:
            if a != b and joined(a, b) and group[a] != group[b]:
                old, new = group[b], group[a]
                group = {name: new if its == old else its for name, its in group.items()}
    return [[name for name in names if group[name] == first] for first in dict.fromkeys(group.values())]


def _inside(groups: list[list[str]], members: list[str]) -> list[list[str]]:
    """The groups that are within `members`."""
    return [group for group in groups if group[0] in members]


def _cpu_groups(builder: Builder, table: SmiTable) -> list[list[str]]:
    """The devices of each CPU."""
    groups = _groups(table.names, lambda a, b: table.label.get((a, b)) in _LOCAL)
    _say_contradictions(builder, table, groups)
    informative = not _same_place_apart(table)
    merged: list[list[str]] = []
    for group in groups:
        home = next((other for other in merged if _one_cpu(table, other, group, informative)), None)
        if home is None:
            merged.append(list(group))
        else:
            home += group
    order = {name: position for position, name in enumerate(table.names)}
    return [sorted(group, key=order.__getitem__) for group in merged]


def _same_place_apart(table: SmiTable) -> bool:
    """Whether two GPUs that are SYS apart have the same place: the affinity is then that of a container, and tells nothing."""
    return any(
        table.label.get((a, b)) == "SYS" and table.places.get(a, "") == table.places.get(b, "")
        for a in table.gpus
        for b in table.gpus
        if a < b
    )


def _one_cpu(table: SmiTable, group: list[str], other: list[str], informative: bool) -> bool:
    """Whether two groups whose GPUs are joined by NVLink alone are on one CPU."""
    mine = [name for name in group if name in table.gpus]
    theirs = [name for name in other if name in table.gpus]
    pairs = [(a, b) for a in mine for b in theirs]
    if not pairs or any(table.label.get(pair) == "SYS" for pair in pairs):
        return False
    if not informative:
        return True
    places = {table.places.get(name, "") for name in (*mine, *theirs)} - {""}
    return len(places) <= 1


def _say_contradictions(builder: Builder, table: SmiTable, groups: list[list[str]]) -> None:
    for group in groups:
        far = [(a, b) for a in group for b in group if a < b and table.label.get((a, b)) == "SYS"]
        if far:
            cost = "taken to be on one CPU, as the nearer labels say"
            builder.doubt(f"{far[0][0]}-{far[0][1]}", "SYS apart, but each is nearer to a third device", cost)
        nodes = sorted({table.places[name] for name in group if table.places.get(name, "").startswith("NUMA")})
        if len(nodes) > 1:
            what = f"no pair is SYS apart, but their rows say {', '.join(nodes[:4])}"
            builder.doubt(
                f"{group[0]}, {group[-1]}", what, "taken to be on one CPU; a link between sockets may be missing"
            )


def _say_what_is_missing(builder: Builder, table: SmiTable) -> None:
    what = (
        "PCIe generation and CPU are not in such a table: 12.0 GB/s a PCIe connection (generation 3), 10.0 between CPUs"
    )
    builder.doubt(
        "PCIe", what, "a generation 4 or 5 has two or four times that; NCCL_TOPO_DUMP_FILE writes a file that knows"
    )
    gpu_pairs = [(a, b) for a in table.gpus for b in table.gpus if a < b]
    labels = {table.label.get(pair, "") for pair in gpu_pairs}
    if gpu_pairs and not any(label.startswith("NV") for label in labels):
        what = "the table has none: topo -mp hides them, and so do some containers"
        builder.doubt("NVLinks", what, "PCIe only; pass --nvlink if the GPUs are joined")
    if len(gpu_pairs) > 1 and labels - {label for label in labels if label.startswith("NV")} == {"PHB"}:
        what = "PHB wherever there is no NVLink: a virtual machine shows one root complex"
        builder.doubt("PCIe", what, "switches and sockets of the real machine are hidden, and what they limit")
    if table.nics:
        builder.doubt("NICs", "their speed is not in such a table", "pass --nics NxGBps to plan for several boxes")
    else:
        builder.doubt("NICs", "there is none", "good for one box; pass --nics NxGBps to plan for several")
    lonely = [nic for nic in table.nics if all(table.label.get((nic, gpu)) == "SYS" for gpu in table.gpus)]
    if lonely:
        builder.doubt(
            lonely[0] + (f" and {len(lonely) - 1} more" if len(lonely) > 1 else ""),
            "SYS from every GPU",
            "on a CPU of its own",
        )
