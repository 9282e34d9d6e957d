"""How long an algorithm takes on a machine, as the interpreter runs it (cost level 3, docs/formulation.md section 9)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from msccl_xml.model import Algo
from synth.constants import Constants, ProtocolConstants
from synth.errors import InputError
from synth.simulate.alike import Alike, one_box
from synth.simulate.engine import Activity, Engine
from synth.simulate.instances import one_instance
from synth.simulate.least import least_us
from synth.simulate.program import Code, Compiler, Program
from synth.simulate.routes import Paths, paths_by_pair, routes_of
from synth.topology import Topology

#: Operations that a trace holds at most: a viewer is slow beyond, and 64 ranks at 1 GB have several times as many.
MAX_ACTIVITIES = 200_000


class Trace(NamedTuple):
    """What a run did, in order of end; `cut` where there was more than a trace holds."""

    activities: tuple[Activity, ...]
    cut: bool


@dataclass(frozen=True)
class Simulator:
    """An algorithm on a topology; call it with a size. `full` simulates every tile, however many there are.

    `constants` are those of the topology's GPUs where left out. `paths` are those of the topology, for callers that simulate many
    algorithms on one machine (`paths_by_pair`); found where left out. Raises InputError (ngpus) where the topology has another
    number of GPUs.
    """

    algo: Algo
    topology: Topology
    constants: Constants | None = None
    full: bool = False
    paths: Paths | None = None

    def __post_init__(self) -> None:
        if self.algo.ngpus != self.topology.num_ranks:
            expected = f"{self.topology.num_ranks}, the GPUs of {self.topology.name}"
            raise InputError(self.algo.name, "ngpus", self.algo.ngpus, expected)

    def time_us(self, buffer_bytes: int, *, most_events: int | None = None) -> float:
        """Microseconds from the call to the last byte for a buffer of `buffer_bytes` as nccl-tests counts it.

        Raises NoAnswerError where the algorithm hangs, EffortError where `most_events` (`Engine`) do not do, InputError where the
        topology lacks a path that it uses or no run of it is possible (`Compiler`).
        """
        return self._protocol.launch_us + self._engine(buffer_bytes, most_events=most_events).run()

    def least_us(self, buffer_bytes: int) -> float:
        """Microseconds that no run takes less than, by what its busiest link or threadblock has to do. Raises InputError as
        `time_us` does.
        """
        program, run, capacity = self._parts(buffer_bytes)
        return self._protocol.launch_us + least_us(program, run.routes, capacity, self._protocol)

    def trace(self, buffer_bytes: int, most: int = MAX_ACTIVITIES) -> Trace:
        """Every operation of a full run with its times, up to `most` of them. Times count from the first byte (without launch)."""
        engine = self._engine(buffer_bytes, trace=most)
        engine.run()
        return Trace(tuple(engine.activities), engine.cut)

    @property
    def _protocol(self) -> ProtocolConstants:
        return (self.constants or Constants.for_topology(self.topology)).of(self.algo.proto)

    @cached_property
    def _paths(self) -> Paths:
        return paths_by_pair(self.topology) if self.paths is None else self.paths

    @cached_property
    def _compiler(self) -> Compiler:
        return Compiler(self.algo, self._protocol.tile_bytes)

    def _engine(self, buffer_bytes: int, *, trace: int = 0, most_events: int | None = None) -> Engine:
        program, run, capacity = self._parts(buffer_bytes, whole=trace > 0)
        return Engine(
            program, run.routes, capacity, self._protocol, trace=trace, full=self.full, most_events=most_events
        )

    def _parts(self, buffer_bytes: int, *, whole: bool = False) -> tuple[Program, Alike, list[float]]:
        """What is run of the program, its routes, and what of every link (bytes a us) it has for itself."""
        program = self._compiler.program(buffer_bytes)
        run = self._to_run(program, whole=whole)
        program = replace(program, blocks=run.code.blocks, connections=run.code.connections)
        return program, run, [link.GBps * 1e3 / run.sharing for link in self.topology.links]

    def _to_run(self, program: Program, *, whole: bool) -> Alike:
        """What is run of a program, found once for all sizes with the same threadblocks: all of it, or one instance, and of that one
        of boxes alike.
        """
        key = id(program.blocks), whole
        if key not in self._run:
            routes = routes_of(self.topology, self._paths, program, self._protocol)
            self._run[key] = Alike(Code(program.blocks, program.connections), routes)
            if not whole:
                self._run[key] = self._smallest(self._run[key])
        return self._run[key]

    def _smallest(self, run: Alike) -> Alike:
        one = one_instance(run.code, run.routes) or run
        capacity = [link.GBps * 1e3 for link in self.topology.links]
        box = one_box(one.code, one.routes, capacity, self.topology.num_ranks)
        return box._replace(sharing=one.sharing) if box else one

    @cached_property
    def _run(self) -> dict[tuple[int, bool], Alike]:
        return {}
