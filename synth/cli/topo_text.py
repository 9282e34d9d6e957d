"""What `synth topo list` and `synth topo show` print, as text."""

from __future__ import annotations

import heapq
import textwrap
from collections import defaultdict
from collections.abc import Sequence

from synth.cli.topo_picture import picture
from synth.inputs.catalogue import catalogue_names
from synth.inputs.load import load_topology
from synth.nearness import nearest_nics
from synth.paths import Path, find_all_paths, find_paths
from synth.topology import DeviceKind, Topology

#: Lines of prose are no longer than this, whatever the terminal.
_WIDTH = 100
_MAX_SHARED = 8
#: What labels mean, in the words of `nvidia-smi topo -m` where it has the label.
_MEANING = {
    "NVS": "over NVSwitch",
    "PIX": "over one PCIe switch",
    "PXB": "over several PCIe switches",
    "PHB": "over one CPU",
    "SYS": "over several CPUs (sockets or NUMA domains)",
    "NET": "over the network",
}
_DIRECT = {"nvlink": ("NV", "NVLink"), "xgmi": ("XG", "xGMI link")}


def list_text() -> str:
    """A line for each machine of the catalogue: name, ranks, the first sentence of what it is."""
    names = catalogue_names()
    width = max(map(len, names))
    lines = []
    for name in names:
        topology = load_topology(name)
        about = topology.about.split("\n")[0].split(". ")[0].rstrip(".")
        lines.append(f"{name:<{width}}  {topology.num_ranks:>2} GPUs  {about}")
    return "\n".join(lines) + "\n"


def show_text(topology: Topology, width: int = _WIDTH) -> str:
    """The machine as a picture and in tables: connections between GPUs, NICs and the GPUs near them, shared links, distances.

    Prose is wrapped to `width` characters; tables are as wide as they are.

    Raises NoAnswerError (of `find_paths`) where some GPUs are not connected.
    """
    used = find_paths(topology)
    everywhere = find_all_paths(topology)
    blocks = [
        _head(topology, min(width, _WIDTH)),
        picture(topology, min(width, _WIDTH)),
        _gpu_table(topology, everywhere, used),
        _nic_text(topology),
        _shared_text(topology, used),
        _distance_text(topology, used),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _head(topology: Topology, width: int) -> str:
    kinds: dict[str, int] = defaultdict(int)
    for device in topology.devices:
        kinds[device.kind] += 1
    counted = ", ".join(f"{kinds[kind]} {kind}" for kind in DeviceKind if kinds[kind])
    nodes = "1 node" if topology.num_nodes == 1 else f"{topology.num_nodes} nodes"
    about = [textwrap.fill(line, width, subsequent_indent="  ") for line in topology.about.split("\n") if line]
    return "\n".join([f"{topology.name}: {topology.num_ranks} ranks on {nodes} ({counted})", *about])


def _label(topology: Topology, path: Path) -> str:
    """The kind of connection that a path is, as `nvidia-smi topo -m` would put it."""
    links = [topology.links[link] for link in path.links]
    crossed = [topology.by_id[link.dst].kind for link in links[:-1]]
    if DeviceKind.NETWORK in crossed:
        return "NET"
    if DeviceKind.CPU in crossed:
        return "SYS" if crossed.count(DeviceKind.CPU) > 1 else "PHB"
    if DeviceKind.PCIE_SWITCH in crossed:
        return "PXB" if crossed.count(DeviceKind.PCIE_SWITCH) > 1 else "PIX"
    if DeviceKind.NVSWITCH in crossed:
        return "NVS"
    short, _ = _DIRECT.get(links[0].kind, (links[0].kind[:3].upper(), ""))
    return f"{short}{links[0].count}" if links[0].kind in _DIRECT else short


def _meaning(label: str) -> str:
    for short, words in _DIRECT.values():
        if label.startswith(short) and label[2:].isdigit():
            return f"{label[2:]} {words}{'' if label[2:] == '1' else 's'}"
    return _MEANING.get(label, "a direct link")


def _gpu_table(topology: Topology, everywhere: Sequence[Path], used: Sequence[Path]) -> str:
    """GPU by GPU: the label of the connection, in brackets where it exists but data takes other GPUs instead."""
    kept = {(path.src, path.dst) for path in used}
    cells: dict[tuple[int, int], str] = {}
    rates: dict[str, set[float]] = defaultdict(set)
    alphas: dict[str, set[float]] = defaultdict(set)
    for path in everywhere:
        label = _label(topology, path)
        cells[path.src, path.dst] = label if (path.src, path.dst) in kept else f"({label})"
        rates[label].add(path.GBps)
        alphas[label].add(path.alpha_us)
    ranks = range(topology.num_ranks)
    width = max([*map(len, cells.values()), len(str(topology.num_ranks)), 1])
    lines = ["GPU  " + " ".join(f"{rank:>{width}}" for rank in ranks)]
    for src in ranks:
        row = (cells.get((src, dst), "X" if src == dst else "-") for dst in ranks)
        lines.append(f"{src:>3}  " + " ".join(f"{cell:>{width}}" for cell in row))
    for label in sorted(rates):
        figures = f"{_span(rates[label])} GB/s, {_span(alphas[label])} us"
        lines.append(f"  {label:<5}{_meaning(label)}: {figures}")
    if any(cell.startswith("(") for cell in cells.values()):
        lines.append("  (...)  there, but not used: data between these two goes over other GPUs")
    return "\n".join(lines)


def _span(values: set[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:.4g}" if f"{low:.4g}" == f"{high:.4g}" else f"{low:.4g} to {high:.4g}"


def _nic_text(topology: Topology) -> str:
    """A line for each NIC: its line rate, and the GPUs of its node that no other NIC is nearer to."""
    nics = [device.id for device in topology.devices if device.kind is DeviceKind.NIC]
    if not nics:
        return ""
    near: dict[str, dict[str, list[int]]] = {nic: defaultdict(list) for nic in nics}
    for gpu in topology.gpus:
        found = nearest_nics(topology, gpu.id)
        for nic in found[1] if found else ():
            if found is not None and gpu.rank is not None:
                near[nic][found[0].label].append(gpu.rank)
    lines = ["NICs, and the GPUs that have no nearer one"]
    for nic in nics:
        rate = max((link.GBps for link in topology.links if link.src == nic and link.kind == "network"), default=0.0)
        line_rate = f", {rate:g} GB/s to the network" if rate else ""
        gpus = "; ".join(f"{label} {' '.join(map(str, ranks))}" for label, ranks in near[nic].items()) or "none"
        lines.append(f"  {nic}{line_rate}: {gpus}")
    return "\n".join(lines)


def _shared_text(topology: Topology, paths: Sequence[Path]) -> str:
    """The links that the most pairs of GPUs share for their bandwidth."""
    pairs: dict[int, set[tuple[int, int]]] = defaultdict(set)
    for path in paths:
        for position in path.links:
            pairs[position].add((path.src, path.dst))
    shared = [index for index in sorted(pairs) if len(pairs[index]) > 1]
    if not shared:
        return "No link is shared by several pairs of GPUs."
    shared.sort(key=lambda index: topology.links[index].GBps / len(pairs[index]))
    rows: dict[tuple[str, ...], str] = {}
    for index in shared:
        link = topology.links[index]
        figures = f"({link.kind}, {link.GBps:.4g} GB/s): {len(pairs[index])} pairs"
        if (link.dst, link.src, figures) in rows:
            rows[link.dst, link.src, figures] = f"  {link.dst} <-> {link.src} {figures} each way"
        else:
            rows[link.src, link.dst, figures] = f"  {link.src} -> {link.dst} {figures}"
    more = [f"  and {len(rows) - _MAX_SHARED} more"] if len(rows) > _MAX_SHARED else []
    return "\n".join(["Links shared by most pairs of GPUs for their rate", *list(rows.values())[:_MAX_SHARED], *more])


def _distance_text(topology: Topology, paths: Sequence[Path]) -> str:
    """Diameter in transfers and in latency."""
    hops = _farthest(topology.num_ranks, [(path.src, path.dst, 1.0) for path in paths])
    alphas = _farthest(topology.num_ranks, [(path.src, path.dst, path.alpha_us) for path in paths])
    if hops is None or alphas is None:
        return ""
    return (
        f"Diameter: {hops[0]:.0f} transfer{'' if hops[0] == 1 else 's'} (GPU {hops[1]} to {hops[2]}); "
        f"latency {alphas[0]:.4g} us (GPU {alphas[1]} to {alphas[2]})"
    )


def _farthest(num_ranks: int, edges: Sequence[tuple[int, int, float]]) -> tuple[float, int, int] | None:
    """(distance, a, b) of two ranks as far apart as any, over (src, dst, length); None for fewer than two ranks."""
    outgoing: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for src, dst, length in edges:
        outgoing[src].append((dst, length))
    worst: tuple[float, int, int] | None = None
    for start in range(num_ranks):
        distance: dict[int, float] = {}
        heap = [(0.0, start)]
        while heap:
            far, rank = heapq.heappop(heap)
            if rank in distance:
                continue
            distance[rank] = far
            for dst, length in outgoing[rank]:
                heapq.heappush(heap, (far + length, dst))
        for end, far in sorted(distance.items()):
            if end != start and (worst is None or far > worst[0] + 1e-9):
                worst = (far, start, end)
    return worst
