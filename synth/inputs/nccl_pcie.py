"""The PCI tree of a dump as the plan needs it: what carries nothing cut away, chains of bridges made one connection.

- A Broadcom switch that shows itself as two levels is one (NCCL flattens it too).
- A bridge with one thing below it is shared by nobody: it and what is above or below become one connection, at the narrower
  rate. Only where it stands alone between a CPU and a device is it kept, as a switch.
- An emulated bridge, of one lane above a device of four or more, is passed over for the rate. NCCL would take its rate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from synth.inputs.builder import Builder
from synth.inputs.nccl_links import PciKind, flattens
from synth.inputs.nccl_tree import Pci

_EMULATED_LANES = 1
_REAL_LANES = 4


def prune(pci: Pci, keeps: Callable[[Pci], bool], builder: Builder, *, under_cpu: bool = True) -> Pci | None:
    """The device with what the plan needs below it; None where that is nothing. `keeps` says which GPUs and NICs count."""
    if pci.kind is not PciKind.BRIDGE:
        return pci if keeps(pci) else None
    pruned = (prune(child, keeps, builder, under_cpu=False) for child in _flat(pci))
    below = tuple(child for child in pruned if child is not None)
    if not below:
        return None
    rate = _rate(pci, below, builder)
    if len(below) == 1 and (below[0].kind is PciKind.BRIDGE or not under_cpu):
        return replace(below[0], GBps=min(rate, below[0].GBps))
    return replace(pci, GBps=rate, children=below)


def _flat(bridge: Pci) -> Iterator[Pci]:
    for child in bridge.children:
        if child.kind is PciKind.BRIDGE and flattens(bridge.device, child.device):
            yield from child.children
        else:
            yield child


def _rate(bridge: Pci, below: tuple[Pci, ...], builder: Builder) -> float:
    """GB/s of a bridge's connection upwards: as NCCL reads it, but for emulated bridges, which limit nothing."""
    widest = max((pci for child in below for pci in child.below() if not pci.children), key=lambda pci: pci.GBps)
    where, speed = "<pci> " + bridge.bus, bridge.node.text("link_speed")
    if bridge.lanes <= _EMULATED_LANES and widest.lanes >= _REAL_LANES:
        builder.doubt(
            where,
            f"a bridge at {speed!r} and 1 lane above a device of {widest.lanes}: emulated, passed over for the rate",
            f"NCCL takes {bridge.GBps:g} GB/s for all that crosses it, the plan {widest.GBps:g}",
            line=bridge.node.line,
        )
        return widest.GBps
    if bridge.GBps < widest.GBps / 2:
        builder.doubt(
            where,
            f"a bridge at {speed!r} and {bridge.lanes} lanes, slower than the devices below it",
            f"{bridge.GBps:g} GB/s for all that crosses it, as NCCL reads it, where a device has {widest.GBps:g}",
            line=bridge.node.line,
        )
    return bridge.GBps
