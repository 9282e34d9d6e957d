"""What an interpreter costs on a machine, measured with small algorithms of our own, as a calibration file for the simulator.

Every figure is a difference or a slope, so that what all launches have in common drops out: a step is the slope over a chain of
copies, a hop that over messages which go back and forth, a rate that over the size of one connection's data.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from msccl_xml.model import Algo, Buffer, Gpu, Step, StepType, Threadblock
from synth.collective import Collective, CollectiveName
from synth.execute.cuda.abi import DataType
from synth.execute.cuda.call import Call
from synth.execute.cuda.geometry import Geometry
from synth.execute.cuda.machine import Machine
from synth.execute.cuda.plan import compile_plan
from synth.execute.cuda.runner import Runner
from synth.topology import Device, DeviceKind, Link, Topology
from synth.units import bandwidth_GBps

#: Types of step whose rate is measured at the receiver, by what they do with what arrives.
RATED = (StepType.RECV, StepType.RECV_REDUCE_COPY)
_ITEM = DataType.FLOAT32
_FEW, _MANY = 2, 34


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to measure: launches a figure, and the bytes of a rate's larger size, for one connection and for each of many."""

    launches: int = 50
    rate_bytes: int = 64 << 20
    many_bytes: int = 16 << 20


@dataclass(frozen=True)
class Figures:
    """One protocol on one machine. Times in us, rates in GB/s of data."""

    geometry: Geometry
    launch_us: float
    step_us: float
    hop_us: float
    """From the start of a step that sends to the end of the one that receives, less what a step takes."""
    rates_GBps: Mapping[str, float]
    """Of one connection, by the type of step that receives."""
    many_GBps: float
    """Of `pairs` connections together."""
    pairs: int


def measure_protocol(
    machine: Machine,
    protocol: str,
    *,
    pairs: int = 0,
    geometry: Geometry | None = None,
    effort: Effort = Effort(),
) -> Figures:
    """The figures of a protocol, all ranks being virtual: of one connection, and of `pairs` together (as many as the machine runs
    side by side, where none are given). Raises what `Runner` raises.
    """
    pairs = pairs or max(1, machine.multiprocessors // 2)
    bench = _Bench(machine, geometry or Geometry.of(protocol), effort)
    few, many = (bench.time_us(_chain(protocol, count)) for count in (_FEW, _MANY))
    step_us = max(0.0, (many - few) / (_MANY - _FEW))
    near, far = (bench.time_us(_ping_pong(protocol, count)) for count in (_FEW, _MANY))
    hop_us = max(0.0, (far - near) / (2 * (_MANY - _FEW)) - step_us)
    rates = {kind.value: bench.rate_GBps(_streams(protocol, 1, kind), effort.rate_bytes) for kind in RATED}
    together = bench.rate_GBps(_streams(protocol, pairs, StepType.RECV), effort.many_bytes)
    return Figures(
        geometry=bench.geometry,
        launch_us=max(0.0, few - _FEW * step_us),
        step_us=step_us,
        hop_us=hop_us,
        rates_GBps=MappingProxyType(rates),
        many_GBps=pairs * together,
        pairs=pairs,
    )


def calibration_text(figures: Sequence[Figures]) -> str:
    """A calibration file (synth/simulate/calibration.py reads it) of one or more protocols, for ranks that share one GPU."""
    document = {
        each.geometry.protocol: {
            "tile_bytes": each.geometry.tile_bytes,
            "in_flight": each.geometry.in_flight,
            "rate_GBps": _significant(each.rates_GBps[StepType.RECV.value]),
            "launch_us": _significant(each.launch_us),
            "nvlink_us": _significant(each.hop_us),
            "step_us": _significant(each.step_us),
        }
        for each in figures
    }
    return json.dumps(document, indent=2) + "\n"


def figures_text(figures: Sequence[Figures]) -> str:
    """All that was measured, as JSON by protocol: latencies in us, and rates in GB/s of one connection and of `pairs` together."""
    document = {
        each.geometry.protocol: {
            "launch_us": _significant(each.launch_us),
            "step_us": _significant(each.step_us),
            "hop_us": _significant(each.hop_us),
            "rates_GBps": {kind: _significant(rate) for kind, rate in each.rates_GBps.items()},
            "many_GBps": _significant(each.many_GBps),
            "pairs": each.pairs,
        }
        for each in figures
    }
    return json.dumps(document, indent=2) + "\n"


def shared_memory(num_ranks: int, many_GBps: float) -> Topology:
    """One GPU that holds `num_ranks` virtual ranks, as a machine for the simulator: everything crosses one link, its memory."""
    ranks = range(num_ranks)
    gpus = tuple(Device(f"gpu{rank}", DeviceKind.GPU, 0, rank) for rank in ranks)
    ends = (Device("in", DeviceKind.NVSWITCH), Device("out", DeviceKind.NVSWITCH))
    links = [Link(f"gpu{rank}", "in", "nvlink", many_GBps, 0.0) for rank in ranks]
    links += [Link("out", f"gpu{rank}", "nvlink", many_GBps, 0.0) for rank in ranks]
    return Topology("virtual", (*gpus, *ends), (*links, Link("in", "out", "nvlink", many_GBps, 0.0)))


class _Bench:
    """Times algorithms on one machine."""

    def __init__(self, machine: Machine, geometry: Geometry, effort: Effort) -> None:
        self.machine, self.geometry, self.effort = machine, geometry, effort

    def time_us(self, algo: Algo, chunk_bytes: int = 8) -> float:
        """Microseconds of a launch, warmed up."""
        collective = Collective(CollectiveName.ALLREDUCE, algo.ngpus, algo.nchunksperloop)
        plan = compile_plan(algo, collective)
        elements = max(1, chunk_bytes // _ITEM.item_bytes) * algo.nchunksperloop
        with Runner(algo, plan, self.machine, geometry=self.geometry) as runner:
            job = runner.job(Call(collective, elements, _ITEM), graph=True)
            job.run(max(1, self.effort.launches // 5))
            return job.run(self.effort.launches)

    def rate_GBps(self, algo: Algo, large: int) -> float:
        """GB/s of each connection: the slope between a buffer of `large` bytes and one of a quarter."""
        small = large // 4
        gained_us = self.time_us(algo, large) - self.time_us(algo, small)
        return (
            bandwidth_GBps(large - small, gained_us)
            if gained_us > 0
            else bandwidth_GBps(large, self.time_us(algo, large))
        )


def _algo(protocol: str, gpus: Sequence[Gpu]) -> Algo:
    return Algo("synth-calibration", "custom", protocol, len(gpus), 1, 1, tuple(gpus), inplace=False, outofplace=True)


def _gpu(rank: int, send: int, recv: int, steps: Sequence[Step]) -> Gpu:
    return Gpu(rank, 1, 1, 1, (Threadblock(0, send, recv, 0, tuple(steps)),))


def _chain(protocol: str, count: int) -> Algo:
    """One rank copies one chunk again and again."""
    copy = Step(StepType.COPY, Buffer.INPUT, 0, Buffer.OUTPUT, 0)
    return _algo(protocol, [_gpu(0, -1, -1, [copy] * count)])


def _ping_pong(protocol: str, count: int) -> Algo:
    """Two ranks send one chunk back and forth."""
    send = Step(StepType.SEND, Buffer.INPUT, 0)
    receive = Step(StepType.RECV, dst_buffer=Buffer.OUTPUT, dst_offset=0)
    return _algo(protocol, [_gpu(0, 1, 1, [send, receive] * count), _gpu(1, 0, 0, [receive, send] * count)])


def _streams(protocol: str, pairs: int, kind: StepType) -> Algo:
    """Each even rank sends one chunk to the odd one after it."""
    send = Step(StepType.SEND, Buffer.INPUT, 0)
    receive = send._replace(type=kind, dst_buffer=Buffer.OUTPUT, dst_offset=0)
    gpus = []
    for rank in range(0, 2 * pairs, 2):
        gpus += [_gpu(rank, rank + 1, -1, [send]), _gpu(rank + 1, -1, rank, [receive])]
    return _algo(protocol, gpus)


def _significant(value: float) -> float:
    """Four digits: a measurement has no more."""
    return float(f"{value:.4g}")
