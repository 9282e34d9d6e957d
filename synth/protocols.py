"""What a protocol costs beside the wire, for estimates made from exact schedules (cost level 2).

LL spends half of every 16-byte line on flags, LL128 8 bytes of 128 (the runtimes' calcBytePerStep). Latencies of one hop are NCCL
2.12.12's hardware latencies for rings (src/graph/tuning.cc, hwLat; 2.12.12 is microsoft/msccl's base; Simple over a network as in
2.30.7): a topology's alpha stands for the fastest protocol, LL, and slower ones add the difference.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from synth.instance import Instance
from synth.paths import Path, PathKind, kind_of
from synth.topology import Topology


@dataclass(frozen=True, slots=True)
class Protocol:
    """`wire` is the share of the wire that carries data; the rest are latencies of one hop in microseconds, by kind of hop."""

    name: str
    wire: float
    nvlink_us: float
    pcie_us: float
    network_us: float

    def hop_us(self, kind: PathKind) -> float:
        """The latency of one hop over a path of that kind."""
        return {
            PathKind.NVLINK: self.nvlink_us,
            PathKind.PCIE: self.pcie_us,
            PathKind.NETWORK: self.network_us,
        }[kind]


PROTOCOLS = {
    "LL": Protocol("LL", 0.5, 0.47, 1.0, 2.7),
    "LL128": Protocol("LL128", 120 / 128, 1.9, 2.5, 4.0),
    "Simple": Protocol("Simple", 1.0, 3.4, 5.7, 14.0),
}
_FASTEST = PROTOCOLS["LL"]


def under_protocol(instance: Instance, name: str) -> Instance:
    """The instance with every path as the protocol sees it: its wire share and its latency a hop."""
    protocol = PROTOCOLS[name]
    paths = tuple(_path(instance.topology, path, protocol) for path in instance.paths)
    return replace(instance, paths=paths)


def _path(topology: Topology, path: Path, protocol: Protocol) -> Path:
    extra = protocol.hop_us(kind_of(topology, path)) - _FASTEST.hop_us(kind_of(topology, path))
    occupancy = tuple((gap, per_byte / protocol.wire) for gap, per_byte in path.occupancy)
    return replace(path, alpha_us=path.alpha_us + extra, GBps=path.GBps * protocol.wire, occupancy=occupancy)
