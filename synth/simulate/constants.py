"""The figures that the simulator runs on, in one table, each with its source; a calibration file overrides them.

Sources (docs/fidelity.md has the table in words): "tuning" is NCCL's src/graph/tuning.cc, 2.12.12 (the base of microsoft/msccl) for
hwLat and baseLat, 2.30.7 for rates and for Simple over a network; "device" are the buffer sizes and loops of init.cc, device.h,
primitives.h, prims_simple.h and prims_ll*.h.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace

from synth.errors import InputError


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
    """What one threadblock moves at most (tuning: perChMaxTree and perChMaxRingLL128 on Volta; llMaxBw over a DGX-1V's 6 rings)."""
    launch_us: float
    """From the call to the first byte: kernel launch and set-up (tuning: baseLat, rings)."""
    nvlink_us: float
    """Hop latency beside what the topology's alpha and `step_us` hold, by kind of path (tuning: hwLat, rings, less LL's)."""
    pcie_us: float
    network_us: float
    step_us: float
    """A threadblock's own time for a step: reading it, waiting for flags, two barriers. An estimate; no table has it."""


@dataclass(frozen=True, slots=True)
class Constants:
    """All protocols by name."""

    simple: ProtocolConstants = ProtocolConstants(
        tile_bytes=2 << 20,
        in_flight=2,
        slots=2,
        slices=2,
        smallest_slice_bytes=32 << 10,
        wire=1.0,
        rate_GBps=26.5,
        launch_us=8.4,
        nvlink_us=2.93,
        pcie_us=4.7,
        network_us=11.3,
        step_us=0.2,
    )
    ll: ProtocolConstants = ProtocolConstants(
        tile_bytes=32 << 10,
        in_flight=8,
        slots=1,
        slices=8,
        smallest_slice_bytes=4 << 10,
        wire=0.5,
        rate_GBps=6.5,
        launch_us=3.6,
        nvlink_us=0.0,
        pcie_us=0.0,
        network_us=0.0,
        step_us=0.2,
    )
    ll128: ProtocolConstants = ProtocolConstants(
        tile_bytes=576_000,
        in_flight=8,
        slots=1,
        slices=8,
        smallest_slice_bytes=38_400,
        wire=15 / 16,
        rate_GBps=20.0,
        launch_us=10.0,
        nvlink_us=1.43,
        pcie_us=1.5,
        network_us=1.3,
        step_us=0.2,
    )

    def of(self, protocol: str) -> ProtocolConstants:
        """The constants of `Simple`, `LL` or `LL128`; InputError for any other name."""
        known = {"Simple": self.simple, "LL": self.ll, "LL128": self.ll128}
        if protocol not in known:
            raise InputError("algo", "proto", protocol, " or ".join(known))
        return known[protocol]


_ATTRIBUTES = {"Simple": "simple", "LL": "ll", "LL128": "ll128"}
_WHOLE = frozenset({"tile_bytes", "in_flight", "slots", "slices", "smallest_slice_bytes"})
#: Of a field that is divided by or allocated for, more than this is a slip of the keyboard.
_MOST_SLICES = 1024


def read_calibration(text: str, source: str) -> Constants:
    """Constants with what a calibration file says instead: `{"Simple": {"rate_GBps": 24.1}, ...}`.

    Raises InputError naming the field for anything unknown, of the wrong kind or out of range (only latencies may be 0).
    """
    try:
        given = json.loads(text, parse_constant=lambda word: word)
    except json.JSONDecodeError as problem:
        raise InputError(source, f"line {problem.lineno}", problem.msg, "JSON") from None
    except RecursionError:
        raise InputError(source, "", "brackets in brackets", "an object of protocols") from None
    if not isinstance(given, dict):
        raise InputError(source, "", given, "an object of protocols")
    constants = Constants()
    for protocol, values in given.items():
        if protocol not in _ATTRIBUTES or not isinstance(values, dict):
            raise InputError(source, protocol, values, f"an object under one of {', '.join(_ATTRIBUTES)}")
        changed = replace(constants.of(protocol), **_checked(values, protocol, source))  # type: ignore[arg-type]
        if changed.slices % changed.slots:
            raise InputError(source, f"{protocol}.slices", changed.slices, f"a multiple of slots, {changed.slots}")
        constants = replace(constants, **{_ATTRIBUTES[protocol]: changed})
    return constants


def _checked(values: dict[str, object], protocol: str, source: str) -> dict[str, float]:
    known = [field.name for field in fields(ProtocolConstants)]
    checked: dict[str, float] = {}
    for key, value in values.items():
        field = f"{protocol}.{key}"
        if key not in known:
            raise InputError(source, field, value, f"one of {', '.join(known)}")
        kind = int if key in _WHOLE else int | float
        if not isinstance(value, kind) or isinstance(value, bool) or not 0 <= value < 1e15:
            raise InputError(source, field, value, f"a {'whole' if key in _WHOLE else 'positive'} number")
        if value == 0 and not key.endswith("_us"):
            raise InputError(source, field, value, "a number above 0")
        if (key == "wire" and value > 1) or (key in ("slices", "slots", "in_flight") and value > _MOST_SLICES):
            raise InputError(source, field, value, f"at most {1 if key == 'wire' else _MOST_SLICES}")
        checked[key] = value
    return checked
