"""What the runtimes' protocols cost, by GPU generation: the one table of these figures, each with its source.

Estimates of the search (protocols.py), lowering, verification and simulation all read it; a calibration file overrides it for
`synth simulate`. docs/fidelity.md has the table in words. Sources:

- "device": buffer sizes and loops of init.cc, device.h, primitives.h, prims_simple.h, prims_ll.h and prims_ll128.h, of
  microsoft/msccl and Azure/msccl-executor-nccl (NCCL 2.12 and 2.23), and of ROCm/rccl for AMD.
- "tuning": src/graph/tuning.cc. NCCL 2.12.12 (the base of microsoft/msccl) for Volta and Ampere, 2.30.7 for what 2.12 does not know
  (Hopper, Blackwell, rates of LL128) and for Simple over a network; RCCL's tuning_model_0 and baseLat for AMD.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

from synth.errors import InputError
from synth.paths import PathKind
from synth.topology import Topology

PROTOCOLS = ("Simple", "LL", "LL128")

#: Transfers that a connection holds before its sender blocks: NCCL_STEPS = 8 slots, of which a transfer of Simple takes
#: MSCCL_CHUNKSTEPS = 4, one of LL or LL128 a single one (device: msccl_interpreter.h, msccl_kernel.cu).
IN_FLIGHT: Mapping[str, int] = MappingProxyType({"Simple": 2, "LL": 8, "LL128": 8})
#: maxBytes of a file without one, as microsoft/msccl has it.
DEFAULT_MAX_BYTES = 1 << 27


#: The host computes with one slot a transfer of these where the kernel uses four (BROADCAST_CHUNKSTEPS, REDUCE_CHUNKSTEPS).
_ONE_SLOT = frozenset({"broadcast", "reduce"})
_SLOTS = 4


def chunks_per_transfer(coll: str, protocol: str, chunk_bytes: int, runtime: str) -> int:
    """Chunks of so many bytes (1 or more) that fit a transfer of a collective as the runtime spells it: maxAllowedCount before it is
    kept within bounds, 0 where a chunk takes several transfers.

    Of the default buffer sizes; a smaller NCCL_BUFFSIZE makes transfers of Simple smaller.
    """
    generation = Generation.AMD if runtime == "rccl" else Generation.VOLTA
    tile_bytes = Constants.for_generation(generation).of(protocol).tile_bytes
    if protocol == "Simple" and coll in _ONE_SLOT:
        tile_bytes //= _SLOTS
    return tile_bytes // chunk_bytes


def last_byte(max_bytes: int | None, runtime: str) -> int | None:
    """The largest vector in bytes that a runtime takes a file of this maxBytes for; None without limit.

    microsoft/msccl leaves maxBytes itself out; to the executor and RCCL 0 is no limit.
    """
    if runtime == "msccl":
        return (DEFAULT_MAX_BYTES if max_bytes is None else max_bytes) - 1
    return max_bytes or None


class Generation(StrEnum):
    """GPUs that the runtimes tell apart, the slowest threadblocks first (for AMD's there is no figure: Volta's are taken)."""

    AMD = "AMD"
    VOLTA = "Volta"
    AMPERE = "Ampere"
    HOPPER = "Hopper"
    BLACKWELL = "Blackwell"


@dataclass(frozen=True, slots=True)
class ProtocolConstants:
    """One protocol. Times in us, rates in GB/s of data, sizes in bytes of data."""

    tile_bytes: int
    """Data of one transfer: the loop over a chunk advances by this much (device)."""
    in_flight: int
    """Transfers that a connection holds before its sender blocks (device: slots over slots a transfer)."""
    slots: int
    """Units in which the room of one transfer is taken and given back: Simple's two slices, one slot of LL and LL128 (device)."""
    slices: int
    """Parts in which a transfer becomes visible to its receiver, so that a fused step passes it on early (device: Simple has two
    slices; LL and LL128 mark every line, which this many parts stand for)."""
    smallest_slice_bytes: int
    """Less than this is not cut: Simple's stepSize*StepPerSlice/32 (device); for LL and LL128 what all threads move at once."""
    wire: float
    """Data bytes per byte on the wire; the rest are flags (device)."""
    rate_GBps: float
    """What one threadblock moves at most (tuning, `_RATES`)."""
    launch_us: float
    """From the call to the first byte: kernel launch and set-up (tuning: baseLat, rings)."""
    nvlink_us: float
    """Hop latency beside what the topology's alpha and `step_us` hold, by kind of path (tuning: hwLat, rings, less LL's, which a
    topology's alpha stands for)."""
    pcie_us: float
    network_us: float
    step_us: float
    """A threadblock's own time for a step: reading it, waiting for flags, two barriers. An estimate; no table has it."""

    def hop_us(self, kind: PathKind) -> float:
        """What a hop over a path of that kind takes beside the path's own latency."""
        match kind:
            case PathKind.NETWORK:
                return self.network_us
            case PathKind.PCIE:
                return self.pcie_us
            case PathKind.NVLINK:
                return self.nvlink_us


class _Buffer(NamedTuple):
    """What device code fixes: the first six fields of `ProtocolConstants` without `in_flight`."""

    tile_bytes: int
    slots: int
    slices: int
    smallest_slice_bytes: int
    wire: float


class _Latency(NamedTuple):
    """baseLat of rings, and hwLat of rings by kind of hop, in us."""

    base: float
    nvlink: float
    pcie: float
    network: float


#: Simple: 4 MiB over 8 slots, 4 slots a transfer. LL: 512 threads, 8 data bytes in a line of 16. LL128: 640 threads, 120 data
#: bytes in 128.
_NVIDIA_BUFFERS = {
    "Simple": _Buffer(2 << 20, 2, 2, 32 << 10, 1.0),
    "LL": _Buffer(32 << 10, 1, 8, 4 << 10, 0.5),
    "LL128": _Buffer(576_000, 1, 8, 38_400, 15 / 16),
}
#: RCCL runs 256 threads, and a line of its LL128 is 64 bytes, 56 of them data.
_AMD_BUFFERS = {
    "Simple": _NVIDIA_BUFFERS["Simple"],
    "LL": _Buffer(16 << 10, 1, 8, 2 << 10, 0.5),
    "LL128": _Buffer(50_176, 1, 8, 14_336, 7 / 8),
}
_NCCL_2_12 = {
    "Simple": _Latency(8.4, 3.4, 5.7, 14.0),  # network: 2.30.7; 2.12.12 has 28, with the plateau of its rings in it
    "LL": _Latency(3.6, 0.47, 1.0, 2.7),
    "LL128": _Latency(10.0, 1.9, 2.5, 4.0),
}
_NCCL_2_30 = {
    "Simple": _Latency(8.4, 3.4, 5.7, 14.0),
    "LL": _Latency(6.6, 0.6, 1.0, 2.7),
    "LL128": _Latency(14.0, 1.9, 2.5, 4.0),
}
_RCCL = {
    "Simple": _Latency(17.0, 3.6, 5.7, 15.1),
    "LL": _Latency(12.0, 0.8, 2.2, 9.5),
    "LL128": _Latency(12.0, 2.2, 2.2, 19.8),
}
#: GB/s of one threadblock. Simple: perChMaxTreeBws of one node. LL128: perChMaxRingLL128Bws. LL: llMaxBws of one node over the
#: channels that NCCL runs there, twice its rings: 12 on a DGX-1V, 24 on a DGX A100 and a DGX H100, 32 on an HGX B200.
_VOLTA_RATES = {"Simple": 26.5, "LL": 39.0 / 12, "LL128": 20.0}
_RATES: Mapping[Generation, dict[str, float]] = MappingProxyType(
    {
        Generation.AMD: _VOLTA_RATES,
        Generation.VOLTA: _VOLTA_RATES,
        Generation.AMPERE: {"Simple": 24.0, "LL": 87.7 / 24, "LL128": 20.0},
        Generation.HOPPER: {"Simple": 38.7, "LL": 141.0 / 24, "LL128": 36.7},
        Generation.BLACKWELL: {"Simple": 70.0, "LL": 282.0 / 32, "LL128": 40.0},
    }
)
_STEP_US = 0.2


def _protocol(generation: Generation, name: str) -> ProtocolConstants:
    buffers = _AMD_BUFFERS if generation is Generation.AMD else _NVIDIA_BUFFERS
    latencies = {Generation.AMD: _RCCL, Generation.VOLTA: _NCCL_2_12, Generation.AMPERE: _NCCL_2_12}
    table = latencies.get(generation, _NCCL_2_30)
    buffer, latency, least = buffers[name], table[name], table["LL"]
    return ProtocolConstants(
        tile_bytes=buffer.tile_bytes,
        in_flight=IN_FLIGHT[name],
        slots=buffer.slots,
        slices=buffer.slices,
        smallest_slice_bytes=buffer.smallest_slice_bytes,
        wire=buffer.wire,
        rate_GBps=_RATES[generation][name],
        launch_us=latency.base,
        nvlink_us=latency.nvlink - least.nvlink,
        pcie_us=latency.pcie - least.pcie,
        network_us=latency.network - least.network,
        step_us=_STEP_US,
    )


_VOLTA = {name: _protocol(Generation.VOLTA, name) for name in PROTOCOLS}


@dataclass(frozen=True, slots=True)
class Constants:
    """All protocols by name; by default those of the oldest GPUs that the runtimes know, NVIDIA's Volta."""

    simple: ProtocolConstants = _VOLTA["Simple"]
    ll: ProtocolConstants = _VOLTA["LL"]
    ll128: ProtocolConstants = _VOLTA["LL128"]

    @classmethod
    def for_generation(cls, generation: Generation) -> Constants:
        """The table of one generation of GPUs."""
        return _BY_GENERATION[generation]

    @classmethod
    def for_topology(cls, topology: Topology) -> Constants:
        """The table for a machine's GPUs, by their `arch`: of the slowest of them where they differ, Volta's where nobody said."""
        return _BY_GENERATION[generation_of(topology)]

    def of(self, protocol: str) -> ProtocolConstants:
        """The constants of `Simple`, `LL` or `LL128`; InputError for any other name."""
        known = {"Simple": self.simple, "LL": self.ll, "LL128": self.ll128}
        if protocol not in known:
            raise InputError("algo", "proto", protocol, " or ".join(known))
        return known[protocol]


_BY_GENERATION: Mapping[Generation, Constants] = MappingProxyType(
    {each: Constants(*(_protocol(each, name) for name in PROTOCOLS)) for each in Generation}
)
_SM = re.compile(r"sm_([0-9]+)")
#: The least compute capability of a generation, as NCCL's tuning tells them apart.
_LEAST_SM = ((100, Generation.BLACKWELL), (90, Generation.HOPPER), (80, Generation.AMPERE))


def generation_of(topology: Topology) -> Generation:
    """The generation of a machine's GPUs: of the slowest of them where they differ, Volta where nobody said."""
    order = list(Generation)
    return min(map(_generation, {gpu.arch for gpu in topology.gpus}), key=order.index, default=Generation.VOLTA)


def _generation(arch: str) -> Generation:
    if arch.startswith("gfx"):
        return Generation.AMD
    match = _SM.match(arch)
    capability = int(match[1]) if match else 0
    return next((generation for least, generation in _LEAST_SM if capability >= least), Generation.VOLTA)
