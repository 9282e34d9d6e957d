"""TACCL's topology profiles (its INPUT_GUIDE.md and topologies/generic.py): JSON text to Topology.

A profile gives, for one node, what a chunk of one size costs on each link: `alpha` us a message, `beta` us for the
chunk's bytes. What it leaves to conventions is settled here:

- Which machine. TACCL takes it from its command line. A profile with matrices (`links`, `betas`, all `[dst][src]`) is
  "custom"; two entries in `node_betas_list` (double links first) are NDv2's NVLink mesh of 8 GPUs; one entry is DGX-2
  or hub-and-spoke.
- The switch. TACCL draws a full mesh for those and lets the sketch add the switch: each GPU's port then carries one
  link's rate, out and in. Here the switch is part of the machine, as it is in fact: without it a plan would promise n -
  1 ports where there is one.
- The chunk. Its size ends the name ("NDv2_32KB"; 1 MB where none does). A KB is 1/1024 MB (the shipped 32KB file has 23
  us/MB as 0.718 us), and a MB is 1e6 bytes, so that the shipped files of one machine give the same rates.
- The scale. TACCL rounds to whole numbers, so its guide has small chunks' times multiplied by some factor (the shipped
  32KB by 10, 1KB by 100), which no field states. For chunks below 1 MB it is taken to be the least power of ten that
  leaves `alpha` at most 2 us. `chunk_bytes` and `time_scale`, which TACCL does not know and passes over, say both
  outright.
- Alpha is a gap: in TACCL a message occupies its link for alpha + beta, so it becomes `gap_us`, and `alpha_us` is 0.
- Between nodes. `remote_alpha` and `remote_beta` are those of one NIC; GPUs share the node's `nics_per_node` NICs in
  blocks of neighbours. A GPU's own link to its NIC has the NIC's rate and costs no gap, so the NIC is what limits.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal

from synth.doubts import Doubt, Imported
from synth.errors import InputError
from synth.inputs.fields import Fields, decode_json
from synth.topology import Device, DeviceKind, Link, Topology
from synth.units import bandwidth_GBps

#: GPUs of an NDv2 joined by two NVLinks and by one.
_NDV2_DOUBLE = ((0, 1), (0, 4), (1, 3), (2, 3), (2, 6), (4, 5), (5, 7), (6, 7))
_NDV2_SINGLE = ((0, 2), (0, 3), (1, 2), (1, 5), (3, 7), (4, 6), (4, 7), (5, 6))
_NDV2_GPUS = 8
_MB = Decimal(1_000_000)
_UNIT_MB = {"KB": Decimal(1) / 1024, "MB": Decimal(1), "GB": Decimal(1024)}
_SIZE_IN_NAME = re.compile(r"(\d+)\s*(KB|MB|GB)(?![A-Za-z])", re.IGNORECASE)
#: NVLink's published latencies are 0.3 to 0.7 us, those of PCIe reach 2 us (machines' alpha tables): more means a
#: scaled file.
_MOST_ALPHA_US = 2
_MAX_US = 1_000_000_000
_MAX_COUNT = 4096


@dataclass(frozen=True, slots=True)
class _Unit:
    """What the file's numbers are per: the chunk's bytes, and the factor that its times carry."""

    chunk_bytes: float
    scale: float

    def GBps(self, beta: Decimal) -> float:
        return bandwidth_GBps(self.chunk_bytes, float(beta) / self.scale)

    def us(self, alpha: Decimal) -> float:
        return float(alpha) / self.scale


def is_taccl_topology(value: object) -> bool:
    """Whether a decoded JSON value is a TACCL profile (for telling kinds of file apart)."""
    return isinstance(value, dict) and "gpus_per_node" in value and ("node_betas_list" in value or "betas" in value)


def parse_taccl_topology(text: str, source: str) -> Topology:
    """The one node that a TACCL profile describes, with its NICs and a network to replicate it over (`replicate`).

    Links carry GB/s and `gap_us`, latencies are 0. Raises InputError naming the field, what stands there and what may.
    """
    data = decode_json(text, source)
    if not is_taccl_topology(data):
        raise InputError(
            source, "the file", "other JSON", "a TACCL profile (gpus_per_node, and node_betas_list or betas)"
        )
    root = Fields(source, "", data)
    name = root.text("name")
    count = root.integer("gpus_per_node", 1, _MAX_COUNT)
    unit = _unit(root, name)
    devices = [Device(f"gpu{rank}", DeviceKind.GPU, 0, rank) for rank in range(count)]
    links = _custom_links(root, count, unit) if "betas" in data else _known_links(root, count, unit)
    if any("switch" in (link.src, link.dst) for link in links):
        devices.append(Device("switch", DeviceKind.NVSWITCH))
    nics, nic_links = _network(root, count, unit)
    about = f"TACCL profile, times per {unit.chunk_bytes:g} bytes multiplied by {unit.scale:g}; its alpha is a gap here"
    return Topology(name, (*devices, *nics), (*links, *nic_links), about)


def import_taccl_topology(text: str, source: str) -> Imported:
    """`parse_taccl_topology`, with what the profile leaves to conventions said where it changes figures."""
    topology = parse_taccl_topology(text, source)
    data = decode_json(text, source)
    root = Fields(source, "", data)
    name, unit = root.text("name"), _unit(root, root.text("name"))
    doubts = []
    if "chunk_bytes" not in data and not _SIZE_IN_NAME.search(name):
        cost = "every rate is in proportion to it; chunk_bytes says it outright"
        doubts.append(Doubt("name", f"no chunk size in {name!r}: times are taken to be per MB", cost))
    if "time_scale" not in data and unit.scale != 1:
        cost = f"without it every rate would be {unit.scale:g} times less; time_scale says it outright"
        doubts.append(Doubt("alpha", f"too long for a link: times are taken to be multiplied by {unit.scale:g}", cost))
    doubts += _one_way(topology)
    nics = sum(device.kind is DeviceKind.NIC for device in topology.devices)
    if 1 < nics < topology.num_ranks or topology.num_ranks < nics:
        cost = "data may cross a switch or CPU that the profile does not show"
        doubts.append(
            Doubt("nics_per_node", f"which GPUs the {nics} NICs are near is not said: blocks of neighbours", cost)
        )
    return Imported(topology, tuple(doubts))


def _one_way(topology: Topology) -> list[Doubt]:
    """Pairs of GPUs whose links differ in the two directions; matrices are [dst][src], which is easily turned around."""
    rates = {(link.src, link.dst): link.GBps for link in topology.links if link.kind == "nvlink"}
    uneven = [pair for pair, rate in rates.items() if rates.get((pair[1], pair[0])) != rate and "switch" not in pair]
    if not uneven:
        return []
    src, dst = uneven[0]
    cost = "matrices are read [dst][src], as TACCL does"
    return [Doubt(f"{src}-{dst}", f"{len(uneven)} links are not the same in both directions", cost)]


def _unit(root: Fields, name: str) -> _Unit:
    """Chunk size and scale, stated or by the conventions above."""
    sizes = _SIZE_IN_NAME.findall(name)
    chunk_mb = int(sizes[-1][0]) * _UNIT_MB[sizes[-1][1].upper()] if sizes else Decimal(1)
    chunk_bytes = root.number("chunk_bytes", _MAX_US * 1000, positive=True) or chunk_mb * _MB
    if not chunk_bytes:
        root.fail("name", name, "a chunk size above 0 at its end, such as NDv2_32KB")
    scale = root.number("time_scale", _MAX_US, positive=True)
    if scale is None:
        scale = Decimal(1)
        alpha = _required(root, "alpha", positive=False)
        while chunk_bytes < _MB and alpha / scale > _MOST_ALPHA_US:
            scale *= 10
    return _Unit(float(chunk_bytes), float(scale))


def _required(root: Fields, key: str, *, positive: bool) -> Decimal:
    value = root.number(key, _MAX_US, positive=positive)
    if value is None:
        expected = "a cost in us" if key != "alpha" else "the us that every message on a link of the node costs"
        raise InputError(root.source, key, "missing", expected)
    return value


def _known_links(root: Fields, count: int, unit: _Unit) -> list[Link]:
    """Links of a node whose shape the number of betas tells."""
    gap_us = unit.us(_required(root, "alpha", positive=False))
    betas = root.items("node_betas_list")
    entries = Fields(root.source, "", {f"node_betas_list[{i}]": beta for i, beta in enumerate(betas)})
    rates = [unit.GBps(_required(entries, key, positive=True)) for key in entries.data]
    if len(rates) == 1:
        pairs = [(f"gpu{rank}", "switch", rates[0]) for rank in range(count)]
    elif len(rates) == 2:
        if count != _NDV2_GPUS:
            root.fail("gpus_per_node", count, f"{_NDV2_GPUS}, since two betas mean an NDv2 (or one beta, or matrices)")
        pairs = [(f"gpu{a}", f"gpu{b}", rates[0]) for a, b in _NDV2_DOUBLE]
        pairs += [(f"gpu{a}", f"gpu{b}", rates[1]) for a, b in _NDV2_SINGLE]
    else:
        root.fail("node_betas_list", [float(b) for b in betas], "1 beta (GPUs around a switch) or 2 (NDv2)")
    return [Link(src, dst, "nvlink", rate, 0.0, gap_us) for a, b, rate in pairs for src, dst in ((a, b), (b, a))]


def _custom_links(root: Fields, count: int, unit: _Unit) -> list[Link]:
    """Links of a node given by matrices: lanes `links[dst][src]`, each of which costs `betas[dst][src]`."""
    gap_us = unit.us(_required(root, "alpha", positive=False))
    lanes, betas = _matrix(root, "links", count), _matrix(root, "betas", count)
    result = []
    for src in range(count):
        for dst in range(count):
            place = f"[{dst}][{src}]"
            number = Fields(root.source, "", {f"links{place}": lanes[dst][src]}).integer(f"links{place}", 0, _MAX_COUNT)
            if not number:
                continue
            if src == dst:
                root.fail(f"links{place}", number, "0: no GPU has a link to itself")
            cell = Fields(root.source, "", {f"betas{place}": betas[dst][src]})
            rate = unit.GBps(_required(cell, f"betas{place}", positive=True))
            result.append(Link(f"gpu{src}", f"gpu{dst}", "nvlink", rate * number, 0.0, gap_us, number))
    return result


def _matrix(root: Fields, key: str, count: int) -> list[list[object]]:
    rows = root.items(key)
    if len(rows) != count:
        root.fail(key, f"{len(rows)} rows", f"{count} rows (gpus_per_node)")
    for position, row in enumerate(rows):
        if not isinstance(row, list) or len(row) != count:
            root.fail(
                f"{key}[{position}]", row if not isinstance(row, list) else f"{len(row)} entries", f"{count} entries"
            )
    return rows


def _network(root: Fields, count: int, unit: _Unit) -> tuple[list[Device], list[Link]]:
    """NICs, the network, and their links; nothing where the profile has no NICs (a missing count, 0, or TACCL's -1)."""
    nics = root.integer("nics_per_node", -1, _MAX_COUNT, 0)
    if nics <= 0:
        return [], []
    gap_us = unit.us(_required(root, "remote_alpha", positive=False))
    rate = unit.GBps(_required(root, "remote_beta", positive=True))
    devices = [Device(f"nic{nic}", DeviceKind.NIC) for nic in range(nics)]
    devices.append(Device("network", DeviceKind.NETWORK, node=-1))
    ends: list[tuple[str, str, str, float]] = []
    for place in range(max(count, nics)):
        # Blocks of neighbours share a NIC; where NICs outnumber GPUs, blocks of NICs share a GPU.
        gpu, nic = place * count // max(count, nics), place * nics // max(count, nics)
        ends.append((f"gpu{gpu}", f"nic{nic}", "pcie", 0.0))
    ends += [(f"nic{nic}", "network", "network", gap_us) for nic in range(nics)]
    links = [Link(src, dst, kind, rate, 0.0, gap) for a, b, kind, gap in ends for src, dst in ((a, b), (b, a))]
    return devices, links
