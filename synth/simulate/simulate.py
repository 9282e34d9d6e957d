"""How long an algorithm takes on a machine, as the interpreter runs it (cost level 3, docs/formulation.md section 9)."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from msccl_xml.model import Algo
from synth.errors import InputError
from synth.paths import Path, find_paths
from synth.simulate.constants import Constants, ProtocolConstants
from synth.simulate.engine import Activity, Engine, Route
from synth.simulate.program import Program, compile_algo
from synth.topology import DeviceKind, Topology

#: Tiles that are always simulated one by one; more are taken for a steady state if two in a row take equally long.
_WARM_TILES = 6
_STEADY = 1e-6
_PCIE = frozenset({DeviceKind.PCIE_SWITCH, DeviceKind.CPU})
_NETWORK = frozenset({DeviceKind.NIC, DeviceKind.NETWORK})


@dataclass(frozen=True)
class Simulator:
    """An algorithm on a topology; call it with a size. `full` simulates every tile, however many there are.

    Raises InputError (ranks) where the topology has another number of GPUs, or no path for a connection of the file.
    """

    algo: Algo
    topology: Topology
    constants: Constants = Constants()
    full: bool = False

    def __post_init__(self) -> None:
        if self.algo.ngpus != self.topology.num_ranks:
            expected = f"{self.topology.num_ranks}, the GPUs of {self.topology.name}"
            raise InputError(self.algo.name, "ngpus", self.algo.ngpus, expected)

    def time_us(self, buffer_bytes: int) -> float:
        """Microseconds from the call to the last byte for a buffer of `buffer_bytes` as nccl-tests counts it.

        Beyond a few tiles the run is periodic: where two tiles in a row add the same time, the others add it too.
        """
        protocol = self.constants.of(self.algo.proto)
        program = compile_algo(self.algo, buffer_bytes, protocol.tile_bytes)
        if self.full or program.tiles <= _WARM_TILES + 2:
            return protocol.launch_us + self._run(program, protocol)
        times = [self._run(program.shortened(_WARM_TILES + more), protocol) for more in range(2)]
        tiles = _WARM_TILES + 1
        while tiles < program.tiles:
            tiles += 1
            times.append(self._run(program.shortened(tiles), protocol))
            period = times[-1] - times[-2]
            if abs(period - (times[-2] - times[-3])) <= _STEADY * times[-1]:
                return protocol.launch_us + times[-1] + (program.tiles - tiles) * period
        return protocol.launch_us + times[-1]

    def activities(self, buffer_bytes: int) -> list[Activity]:
        """Every operation of a full run with its times, in order of end."""
        protocol = self.constants.of(self.algo.proto)
        program = compile_algo(self.algo, buffer_bytes, protocol.tile_bytes)
        engine = self._engine(program, protocol, trace=True)
        engine.run()
        return engine.activities

    def _run(self, program: Program, protocol: ProtocolConstants) -> float:
        return self._engine(program, protocol).run()

    def _engine(self, program: Program, protocol: ProtocolConstants, *, trace: bool = False) -> Engine:
        capacity = [link.GBps * 1e3 for link in self.topology.links]
        return Engine(program, routes_of(self.topology, program, protocol), capacity, protocol, trace=trace)


def routes_of(topology: Topology, program: Program, protocol: ProtocolConstants) -> list[Route]:
    """Which links each connection crosses; equal paths of a pair take turns by channel."""
    paths: dict[tuple[int, int], list[Path]] = defaultdict(list)
    for path in find_paths(topology):
        paths[path.src, path.dst].append(path)
    routes = []
    for connection in program.connections:
        variants = paths.get((connection.src, connection.dst))
        if not variants:
            pair = f"gpu {connection.src} to gpu {connection.dst}"
            raise InputError(topology.name, "links", pair, "a path between GPUs that the algorithm connects")
        path = variants[connection.channel % len(variants)]
        routes.append(Route(path.links, path.alpha_us + _extra_us(topology, path, protocol)))
    return routes


def _extra_us(topology: Topology, path: Path, protocol: ProtocolConstants) -> float:
    kinds = {topology.by_id[topology.links[link].dst].kind for link in path.links[:-1]}
    wires = {topology.links[link].kind for link in path.links}
    if kinds & _NETWORK or "network" in wires:
        return protocol.network_us
    return protocol.pcie_us if kinds & _PCIE or "pcie" in wires else protocol.nvlink_us
