"""`synth run --calibrate FOLDER`: what virtual ranks cost on this machine, in files for `synth simulate`, and its predictions.

The folder gets `calibration.json` (of every protocol), `virtual.json`, the topology that virtual ranks are: the memory of one GPU,
which everything crosses; and `figures.json`, all that was measured. What the remarks beside the times tell is then what
`synth simulate FILE --topo FOLDER/virtual.json --calibration FOLDER/calibration.json` says.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from synth.cli.atomic import check_writable, write_all

if TYPE_CHECKING:
    from synth.execute import Job, Measured
    from synth.execute.cuda.machine import Machine

CALIBRATION, TOPOLOGY, FIGURES = "calibration.json", "virtual.json", "figures.json"


def check_folder(folder: str) -> None:
    """Raise SynthError, before anything is measured, where the files could not be written."""
    for path in _paths(folder):
        check_writable(path, folder)


def calibrate(folder: str, job: Job, machine: Machine, rows: list[Measured]) -> list[Measured]:
    """Measure `machine` and write the files; `rows` with the simulator's prediction, in us, among the remarks of each size."""
    from synth.execute.cuda.abi import PROTOCOLS
    from synth.execute.cuda.calibrate import Effort, calibration_text, figures_text, measure_protocol, shared_memory
    from synth.inputs.topology_json import to_json
    from synth.simulate import Simulator, read_calibration

    # Threads of a CPU are so much slower than CTAs that less has to do.
    effort = Effort(launches=5, rate_bytes=1 << 20, many_bytes=1 << 20) if machine.name == "host" else Effort()
    figures = {name: measure_protocol(machine, name, effort=effort) for name in PROTOCOLS}
    text = calibration_text(list(figures.values()))
    topology = shared_memory(job.algo.ngpus, figures[job.algo.proto].many_GBps)
    measured = figures_text(list(figures.values()))
    calibration = _paths(folder)[0]
    write_all(dict(zip(_paths(folder), (text, to_json(topology), measured), strict=True)), folder)
    simulator = Simulator(job.algo, topology, read_calibration(text, calibration))
    return [_beside(row, simulator.time_us(row.bytes)) for row in rows]


def _beside(row: Measured, simulated_us: float) -> Measured:
    best_us = min(half.time_us for half in (row.out_of_place, row.in_place) if half is not None)
    remark = (
        f"the simulator expects {simulated_us:.4g} us, {100 * (simulated_us / best_us - 1):+.0f} % of what was measured"
    )
    return replace(row, remarks=(*row.remarks, remark))


def _paths(folder: str) -> tuple[str, ...]:
    return tuple(os.path.join(folder, name) for name in (CALIBRATION, TOPOLOGY, FIGURES))
