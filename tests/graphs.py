"""Small machines for tests: rings, lines, meshes, switches, boxes; and `instance_of` to put a collective on them.

Every builder takes the rate (GB/s a lane) and the latency of a link. A pair's link is two one-way
links, lower id first.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace

from hypothesis import assume
from hypothesis import strategies as st
from networkx import DiGraph, transitive_closure

from synth.collective import FROM_ROOT, ROOTED, SHARED, TO_ROOT, Collective, CollectiveName
from synth.instance import Instance, Symmetry
from synth.paths import find_paths
from synth.topology import Device, DeviceKind, Link, Topology

GBPS = 10.0
ALPHA_US = 1.0
#: (gpu, gpu, lanes) of a DGX-1V's NVLink mesh.
DGX1_NVLINK = (
    (0, 1, 1), (0, 2, 1), (0, 3, 2), (0, 4, 2), (1, 2, 2), (1, 3, 1), (1, 5, 2), (2, 3, 2),
    (2, 6, 1), (3, 7, 1), (4, 5, 1), (4, 6, 1), (4, 7, 2), (5, 6, 2), (5, 7, 1), (6, 7, 2),
)  # fmt: skip


def gpus(count: int, first: int = 0, node: int = 0) -> list[Device]:
    """GPUs gpu<first>.. of one box, with ranks from `first` on."""
    return [Device(f"gpu{rank}", DeviceKind.GPU, node, rank) for rank in range(first, first + count)]


def both_ways(a: str, b: str, GBps: float = GBPS, alpha_us: float = ALPHA_US, gap_us: float = 0.0) -> list[Link]:
    """A full duplex link: one Link each way."""
    return [Link(a, b, "nvlink", GBps, alpha_us, gap_us), Link(b, a, "nvlink", GBps, alpha_us, gap_us)]


def from_pairs(
    name: str, count: int, pairs: Iterable[tuple[int, int]], GBps: float = GBPS, alpha_us: float = ALPHA_US
) -> Topology:
    """`count` GPUs of one box, joined full duplex as `pairs` says."""
    links = [link for a, b in pairs for link in both_ways(f"gpu{a}", f"gpu{b}", GBps, alpha_us)]
    return Topology(name, tuple(gpus(count)), tuple(links))


def ring(count: int, GBps: float = GBPS, alpha_us: float = ALPHA_US) -> Topology:
    """GPU i is joined to GPU i+1, the last to the first (2 GPUs: one link)."""
    pairs = [(i, (i + 1) % count) for i in range(count if count > 2 else count - 1)]
    return from_pairs(f"ring{count}", count, pairs, GBps, alpha_us)


def unequal_ring() -> Topology:
    """16 GPUs, every second link between them twice as wide."""
    equal = ring(16)
    links = [replace(link, GBps=link.GBps * (1 + place // 2 % 2)) for place, link in enumerate(equal.links)]
    return replace(equal, links=tuple(links))


def quads_over_sockets() -> Topology:
    """Eight GPUs, four and four joined around XGMI, on PCIe switches of their own below six sockets, all joined: of each quad the
    second and the third below the same.
    """
    home = (0, 1, 1, 2, 3, 4, 4, 5)
    pairs = ((0, 1), (0, 3), (1, 2), (2, 3), (4, 5), (4, 6), (5, 7), (6, 7))
    links = [link for a, b in pairs for link in both_ways(f"gpu{a}", f"gpu{b}", 24.0)]
    for gpu, socket in enumerate(home):
        links += [*both_ways(f"gpu{gpu}", f"plx{gpu}", 24.0), *both_ways(f"plx{gpu}", f"cpu{socket}", 24.0)]
    for a, b in itertools.combinations(range(6), 2):
        links += both_ways(f"cpu{a}", f"cpu{b}", 16.0)
    switches = [Device(f"plx{gpu}", DeviceKind.PCIE_SWITCH) for gpu in range(8)]
    sockets = [Device(f"cpu{socket}", DeviceKind.CPU) for socket in range(6)]
    return Topology("quads", (*gpus(8), *switches, *sockets), tuple(links))


def line(count: int, GBps: float = GBPS, alpha_us: float = ALPHA_US) -> Topology:
    """A ring with the link between last and first cut."""
    return from_pairs(f"line{count}", count, [(i, i + 1) for i in range(count - 1)], GBps, alpha_us)


def full(count: int, GBps: float = GBPS, alpha_us: float = ALPHA_US) -> Topology:
    """Every two GPUs joined directly."""
    pairs = [(a, b) for a in range(count) for b in range(a + 1, count)]
    return from_pairs(f"full{count}", count, pairs, GBps, alpha_us)


def mesh(rows: int, columns: int, GBps: float = GBPS, alpha_us: float = ALPHA_US) -> Topology:
    """A grid; GPU r*columns+c stands in row r, column c."""
    pairs = [(r * columns + c, r * columns + c + 1) for r in range(rows) for c in range(columns - 1)]
    pairs += [(r * columns + c, (r + 1) * columns + c) for r in range(rows - 1) for c in range(columns)]
    return from_pairs(f"mesh{rows}x{columns}", rows * columns, pairs, GBps, alpha_us)


def star(count: int, GBps: float = GBPS, alpha_us: float = ALPHA_US) -> Topology:
    """GPUs around one NVSwitch; a path has two links, so its latency is twice `alpha_us`."""
    links = [link for rank in range(count) for link in both_ways(f"gpu{rank}", "switch", GBps, alpha_us)]
    return Topology(f"star{count}", (*gpus(count), Device("switch", DeviceKind.NVSWITCH)), tuple(links))


def two_switches(count: int, GBps: float = GBPS, alpha_us: float = ALPHA_US) -> Topology:
    """GPUs on two PCIe switches, half of them on either, which one link joins."""
    switches = [Device(f"switch{half}", DeviceKind.PCIE_SWITCH) for half in range(2)]
    links = both_ways("switch0", "switch1", GBps, alpha_us)
    for rank in range(count):
        links += both_ways(f"gpu{rank}", f"switch{2 * rank // count}", GBps, alpha_us)
    return Topology(f"switches{count}", (*gpus(count), *switches), tuple(links))


def dgx1(GBps: float = 22.0, alpha_us: float = 0.7) -> Topology:
    """The NVLink mesh of a DGX-1V: 8 GPUs, 6 lanes each; the lanes of a pair are one link of their sum."""
    links = [link for a, b, lanes in DGX1_NVLINK for link in both_ways(f"gpu{a}", f"gpu{b}", lanes * GBps, alpha_us)]
    return Topology("dgx1-mesh", tuple(gpus(8)), tuple(links))


def two_boxes(box: Topology, nic_gpus: Iterable[int] = (0,), GBps: float = GBPS, alpha_us: float = 2.0) -> Topology:
    """Two copies of a one-box topology; each GPU of `nic_gpus` has a NIC of its own, and one network joins the NICs.

    All of a box's GPUs reach the NIC's GPU only over their own links: a NIC hangs directly on its GPU.
    """
    devices: list[Device] = [Device("network", DeviceKind.NETWORK, -1)]
    links: list[Link] = []
    for node in range(2):
        name = {device.id: device.id for device in box.devices}
        if node:
            name = {
                d.id: f"gpu{(d.rank or 0) + box.num_ranks}" if d.rank is not None else f"{d.id}.1" for d in box.devices
            }
        for device in box.devices:
            rank = None if device.rank is None else device.rank + node * box.num_ranks
            devices.append(Device(name[device.id], device.kind, node, rank))
        for link in box.links:
            links.append(Link(name[link.src], name[link.dst], link.kind, link.GBps, link.alpha_us, link.gap_us))
        for rank in nic_gpus:
            nic = f"nic{rank + node * box.num_ranks}"
            devices.append(Device(nic, DeviceKind.NIC, node))
            links += both_ways(name[f"gpu{rank}"], nic, GBps, alpha_us) + both_ways(nic, "network", GBps, alpha_us)
    return Topology(f"2x{box.name}", tuple(devices), tuple(links))


def instance_of(
    topology: Topology,
    name: CollectiveName | str,
    per_rank: int = 1,
    chunk_bytes: float = 1e6,
    *,
    root: int | None = None,
    group: tuple[int, ...] | None = None,
    symmetries: tuple[Symmetry, ...] = (),
) -> Instance:
    """The collective on all of the topology's paths; `per_rank` chunks of a rank's share, or of the vector without shares."""
    kind = CollectiveName(name)
    chunks = per_rank * topology.num_ranks if kind in SHARED else per_rank
    collective = Collective(kind, topology.num_ranks, chunks, root, group)
    return Instance(topology, collective, find_paths(topology, collective), chunk_bytes, symmetries)


@st.composite
def loose(draw: st.DrawFn, name: CollectiveName) -> tuple[Topology, int | None, tuple[int, ...]]:
    """One-way links between three to five GPUs, few enough that some do not reach some others; a root if the collective has one, and
    two or more ranks that reach each other as far as they have to.
    """
    count = draw(st.integers(3, 5))
    pairs = [(a, b) for a in range(count) for b in range(count) if a != b]
    kept = draw(st.lists(st.sampled_from(pairs), min_size=2, max_size=2 * count, unique=True))
    links = tuple(Link(f"gpu{a}", f"gpu{b}", "nvlink", draw(st.sampled_from([1.0, 10.0])), ALPHA_US) for a, b in kept)
    topology = Topology(f"loose{count}", tuple(gpus(count)), links)
    reach = transitive_closure(DiGraph(kept), reflexive=True)
    first = draw(st.sampled_from(sorted(reach)))
    root = first if name in ROOTED else None
    there = name not in TO_ROOT
    back = name not in FROM_ROOT
    group = [first]
    for rank in sorted(set(reach) - {first}):
        with_whom = [first] if root is not None else group
        if all((not there or reach.has_edge(a, rank)) and (not back or reach.has_edge(rank, a)) for a in with_whom):
            group.append(rank)
    assume(len(group) > 1)
    return topology, root, tuple(sorted(group))


def groups(num_ranks: int) -> st.SearchStrategy[tuple[int, ...] | None]:
    """Who takes part: mostly all ranks, else two or more of them."""
    some = st.sets(st.integers(0, num_ranks - 1), min_size=2).map(lambda ranks: tuple(sorted(ranks)))
    return st.one_of(st.none(), some)
