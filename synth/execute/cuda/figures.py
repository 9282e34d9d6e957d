"""What `synth run --backend cuda|host` does: check a file's results and time it, size by size, with all ranks on one machine."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from synth.chunks import element_count
from synth.collective import CollectiveName
from synth.errors import InputError
from synth.execute.cuda.abi import STEP_COLUMNS, STEP_TYPES, ReduceOp, data_type
from synth.execute.cuda.call import Call
from synth.execute.cuda.expected import encode, example_inputs, expected_outputs, wrong_elements
from synth.execute.cuda.geometry import Geometry
from synth.execute.cuda.job import LIMIT_S
from synth.execute.cuda.job import Job as Prepared
from synth.execute.cuda.machine import Machine
from synth.execute.cuda.plan import Plan, compile_plan
from synth.execute.cuda.runner import Runner
from synth.execute.layout import layouts_of

if TYPE_CHECKING:
    from synth.execute.measure import Half, Job, Measured

BACKENDS = ("cuda", "host")
#: Copies that the limit is the mean of, and the most that one of them copies: beyond, its rate no longer changes.
_COPIES = 10
_LARGEST_COPY = 1 << 30


def machine_of(backend: str) -> Machine:
    """The machine by the name that `--backend` has for it. Raises InputError where it is not there."""
    from synth.execute.cuda.cuda_machine import CudaMachine
    from synth.execute.cuda.host_machine import HostMachine

    if backend not in BACKENDS:
        raise InputError("--backend", "", backend, " or ".join(BACKENDS))
    return CudaMachine() if backend == "cuda" else HostMachine()


def run(job: Job, backend: str = "cuda", machine: Machine | None = None, limit_s: float = LIMIT_S) -> list[Measured]:
    """The figures of every size of `job`, in order. All ranks are virtual: groups of threadblocks on one GPU, or on the host.

    With `rival` a remark tells what a copy within the machine's memory takes that moves as many bytes: the limit. A run in which
    nothing moves for `limit_s` seconds is ended (on the host at once, as a deadlock shows).
    Raises InputError for what cannot be run, HungError (a HangError) for a run that does not end.
    """
    machine = machine or machine_of(backend)
    plan = compile_plan(job.algo, job.promise)
    geometry = Geometry.of(plan.protocol)
    if job.tile_bytes is not None:
        geometry = replace(geometry, tile_bytes=job.tile_bytes)
    with Runner(job.algo, plan, machine, geometry=geometry) as runner:
        return [_measured(runner, job, size, limit_s) for size in job.sizes]


def call_of(job: Job, size_bytes: int, *, in_place: bool) -> Call:
    """The call of `job` at one size."""
    dtype = data_type(job.dtype)
    share = element_count(job.promise.name, job.promise.num_ranks, size_bytes, dtype.item_bytes)
    return Call(job.promise, share, dtype, ReduceOp(job.op), in_place, one_pointer=job.algo.coll == "custom")


def moved_bytes(plan: Plan, call: Call) -> int:
    """Bytes that all steps of all ranks read and write in memory, connections included and their flags left out."""
    chunk = call.chunk * call.dtype.item_bytes
    total = 0
    for row in plan.steps.tolist():
        step = dict(zip(STEP_COLUMNS, row, strict=True))
        kind, sources = STEP_TYPES[step["type"]], step["num_sources"]
        reads = kind.receives + kind.reads_src * sources + (kind.value == "re")
        total += (reads + kind.sends + kind.writes_dst) * step["count"] * chunk
    return total


def _measured(runner: Runner, job: Job, size_bytes: int, limit_s: float) -> Measured:
    from synth.execute.measure import Measured

    halves: dict[bool, Half] = {}
    differing = False
    for in_place in layouts_of(job.algo, job.promise):
        halves[in_place], apart = _half(runner, job, call_of(job, size_bytes, in_place=in_place), limit_s)
        differing |= apart
    call = call_of(job, size_bytes, in_place=False)
    return Measured(
        bytes=size_bytes,
        count=call.share,
        out_of_place=halves.get(False),
        in_place=halves.get(True),
        differing=differing,
        remarks=_limit(runner, call, halves) if job.rival else (),
    )


def _half(runner: Runner, job: Job, call: Call, limit_s: float) -> tuple[Half, bool]:
    """The figures of one layout, and whether ranks that get one sum got different bits."""
    from synth.execute.measure import Half

    prepared = runner.job(call, graph=True)
    try:
        wrong = _wrong(prepared, limit_s) if job.check else None
        differing = job.check and _differs(prepared, limit_s)
        prepared.write(example_inputs(call))
        prepared.run(max(1, job.warmup), limit_s)
        time_us = prepared.run(max(1, job.iterations), limit_s)
    finally:
        prepared.close()
    return Half(time_us, wrong), differing


def _wrong(prepared: Prepared, limit_s: float) -> int:
    inputs = example_inputs(prepared.call)
    prepared.poison()
    prepared.write(inputs)
    prepared.run(limit_s=limit_s)
    return wrong_elements(prepared.call, prepared.read(), expected_outputs(prepared.call, inputs))


def _differs(prepared: Prepared, limit_s: float) -> bool:
    """Whether an allreduce of numbers that are rounded ends in different bits on two ranks."""
    call = prepared.call
    if call.collective.name is not CollectiveName.ALLREDUCE or not call.dtype.floating:
        return False
    draws = [np.random.default_rng((rank, call.share)) for rank in range(call.collective.num_ranks)]
    prepared.write([encode(draw.uniform(0.5, 1.5, call.share), call.dtype) for draw in draws])
    prepared.run(limit_s=limit_s)
    read = prepared.read()
    return len({vector.tobytes() for rank in call.collective.members if (vector := read[rank]) is not None}) > 1


def _limit(runner: Runner, call: Call, halves: dict[bool, Half]) -> tuple[str, ...]:
    """What a copy takes that reads and writes as many bytes, and how near the run came to it."""
    moved = moved_bytes(runner.plan, call)
    copied = max(1, min(moved // 2, _LARGEST_COPY))
    limit_us = runner.machine.copy_us(copied, _COPIES) * (moved / 2 / copied)
    best_us = min(half.time_us for half in halves.values())
    share = f"{100 * limit_us / best_us:.3g} % of a copy's rate"
    return (f"reads and writes {moved} bytes; a copy that does takes {limit_us:.2f} us: {share}",)
