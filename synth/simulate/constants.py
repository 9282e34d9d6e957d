"""The figures that the simulator runs on, in one table, each with its source; a calibration file overrides them.

Sources: "tuning" is NCCL 2.12.12's src/graph/tuning.cc (microsoft/msccl's base; Simple over a network as in 2.30.7), "device" the
buffer sizes of init.cc, device.h and primitives.h, both as listed in docs/xml.md and docs/formulation.md.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace

from synth.errors import InputError


@dataclass(frozen=True, slots=True)
class ProtocolConstants:
    """One protocol. Times in us, rates in GB/s of data, sizes in bytes."""

    tile_bytes: int
    """Data of one transfer: the loop over a chunk advances by this much (device)."""
    in_flight: int
    """Transfers that a connection holds before its sender blocks (device: slots over slots a transfer)."""
    slices: int
    """Parts in which a transfer becomes visible to its receiver, so that a fused step passes it on early (device)."""
    wire: float
    """Data bytes per byte on the wire; the rest are flags (device)."""
    rate_GBps: float
    """What one threadblock moves at most (tuning: perChMaxTree 26.5 on Volta, perChMaxRingLL128 20, llMaxBw over 12 channels)."""
    launch_us: float
    """From the call to the first byte: kernel launch and set-up (tuning: baseLat, rings)."""
    nvlink_us: float
    """Hop latency beside what the topology's alpha holds, by kind of path (tuning: hwLat, rings, less LL's)."""
    pcie_us: float
    network_us: float
    step_us: float
    """A threadblock's own time for a step: reading it, waiting for flags, two barriers."""


@dataclass(frozen=True, slots=True)
class Constants:
    """All protocols by name."""

    simple: ProtocolConstants = ProtocolConstants(2 << 20, 2, 2, 1.0, 26.5, 8.4, 2.93, 4.7, 11.3, 0.2)
    ll: ProtocolConstants = ProtocolConstants(32 << 10, 8, 8, 0.5, 6.5, 3.6, 0.0, 0.0, 0.0, 0.2)
    ll128: ProtocolConstants = ProtocolConstants(576_000, 8, 8, 15 / 16, 20.0, 6.6, 1.43, 1.5, 1.3, 0.2)

    def of(self, protocol: str) -> ProtocolConstants:
        """The constants of `Simple`, `LL` or `LL128`."""
        return {"Simple": self.simple, "LL": self.ll, "LL128": self.ll128}[protocol]


def read_calibration(text: str, source: str) -> Constants:
    """Constants with what a calibration file says instead: `{"Simple": {"rate_GBps": 24.1}, ...}`.

    Raises InputError naming the field for anything unknown or not a positive number (0 is allowed for latencies).
    """
    try:
        given = json.loads(text)
    except json.JSONDecodeError as problem:
        raise InputError(source, f"line {problem.lineno}", problem.msg, "JSON") from None
    names = {"Simple": "simple", "LL": "ll", "LL128": "ll128"}
    if not isinstance(given, dict):
        raise InputError(source, "", given, "an object of protocols")
    constants = Constants()
    for protocol, values in given.items():
        if protocol not in names or not isinstance(values, dict):
            raise InputError(source, protocol, values, f"an object under one of {', '.join(names)}")
        current = constants.of(protocol)
        known = {field.name for field in fields(current)}
        for key, value in values.items():
            may_be_zero = key.endswith("_us")
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if key not in known or not number or not (value > 0 or (may_be_zero and value == 0)):
                raise InputError(
                    source, f"{protocol}.{key}", value, f"a positive number for one of {', '.join(sorted(known))}"
                )
        constants = replace(constants, **{names[protocol]: replace(current, **values)})
    return constants
