"""What is suspicious about a machine's description, and what it costs if it is true.

Each check looks for one kind of fault that dumps of real machines show: a link that one side alone knows, a GPU with fewer links
than its twins, a NIC behind a connection too narrow for it. Where a fault can be mended on paper, the cost is what the mended
machine's limit (`synth.bounds.ingress_bound`) would be: for allreduce and alltoall on the machine, and on two of it where it has
NICs. A doubt is no error: odd machines exist, and synth plans for them as they are described.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from synth.bounds import ingress_bound
from synth.check_links import asymmetric_links, odd_rates, self_links, slow_lanes, twins
from synth.check_places import far_from_nics, idle_devices, linkless_gpus, nics_behind_narrow_links, unreachable
from synth.collective import Collective, CollectiveName
from synth.doubts import Doubt
from synth.errors import SynthError
from synth.paths import find_paths
from synth.suspicion import Suspicion
from synth.topology import DeviceKind, Topology, replicate

#: Larger machines are checked without costs: a limit takes a maximum flow for every GPU and group of GPUs.
_MOST_RANKS = 32
#: A limit that moves by less than this share is said not to move.
_NOTICED = 0.01
#: Sum of all costs that are worked out before the rest is left open, so that a wild file does not take minutes.
_MOST_COSTS = 12
_ON_TWO = " on two nodes"
_CHECKS: tuple[Callable[[Topology], Iterator[Suspicion]], ...] = (
    self_links,
    linkless_gpus,
    unreachable,
    asymmetric_links,
    slow_lanes,
    twins,
    odd_rates,
    nics_behind_narrow_links,
    far_from_nics,
    idle_devices,
)


def find_doubts(topology: Topology) -> tuple[Doubt, ...]:
    """All that is suspicious about `topology`, check by check, in the order of its devices and links.

    `cost` compares limits in GB/s of buffer (algbw); it is "" where the fault cannot be mended on paper, or the machine has more
    than 32 ranks. Nothing is raised, whatever the machine.
    """
    judge = _Judge(topology)
    return tuple(
        Doubt(found.where, found.what, found.cost or judge.cost(found))
        for check in _CHECKS
        for found in check(topology)
    )


@dataclass
class _Judge:
    """Compares the limits of mended machines with those of the machine as described."""

    topology: Topology
    asked: int = 0
    known: dict[str, float] | None = None

    def cost(self, found: Suspicion) -> str:
        """What the finding costs, if mending it changes a limit; "" where that is not known."""
        self.asked += found.mended is not None
        if found.mended is None or self.asked > _MOST_COSTS or self.topology.num_ranks > _MOST_RANKS:
            return ""
        if self.known is None:
            self.known = _limits_GBps(self.topology)
        could = _limits_GBps(found.mended)
        if could and not self.known:
            return "no collective over all ranks is possible"
        gains = {
            label: (self.known[label], rate)
            for label, rate in could.items()
            if label in self.known and (_ON_TWO in label or not found.between_nodes or self.topology.num_nodes > 1)
        }
        if not gains:
            return ""
        label = max(gains, key=lambda name: gains[name][1] / gains[name][0])
        have, rate = gains[label]
        if rate < have * (1 + _NOTICED):
            return "the limits of allreduce and alltoall stay as they are"
        return f"{label} at most {have:.4g} GB/s instead of {rate:.4g}"


def _limits_GBps(topology: Topology) -> dict[str, float]:
    """The most that the machine, and two of it, can do, by collective; {} where its ranks do not reach each other."""
    machines = {"": topology}
    nics = any(device.kind is DeviceKind.NIC for device in topology.devices)
    if nics and topology.num_nodes == 1 and 2 * topology.num_ranks <= _MOST_RANKS:
        machines[_ON_TWO] = replicate(topology, 2)
    limits: dict[str, float] = {}
    for suffix, machine in machines.items():
        try:
            paths = find_paths(machine)
        except SynthError:
            continue
        for name in (CollectiveName.ALLREDUCE, CollectiveName.ALLTOALL):
            bound = ingress_bound(machine, Collective(name, machine.num_ranks, machine.num_ranks), paths)
            if bound.us_per_byte > 0:
                limits[name + suffix] = 1e-3 / bound.us_per_byte
    return limits
