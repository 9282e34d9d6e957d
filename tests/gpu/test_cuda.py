"""The interpreter on a GPU, all ranks virtual; skipped, saying why, where there is no GPU or no driver.

Figures that are told and not judged (latencies, rates, the simulator's prediction beside the measurement) are written to the folder
that SYNTH_KEEP_FIGURES names, for docs/cuda.md and docs/fidelity.md.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from msccl_xml.model import Algo
from synth.baselines import BASELINES, BaselineOptions, build
from synth.collective import Collective, CollectiveName
from synth.errors import InputError, NoAnswerError
from synth.execute.cuda import Call, CudaMachine, Geometry, HungError, Runner, compile_plan
from synth.execute.cuda.abi import PROTOCOLS, DataType, ReduceOp
from synth.execute.cuda.calibrate import Figures, calibration_text, figures_text, measure_protocol, shared_memory
from synth.execute.cuda.expected import example_inputs, expected_outputs, wrong_elements
from synth.execute.cuda.figures import moved_bytes
from synth.execute.cuda.runner import run
from synth.execute.layout import layouts_of
from synth.inputs.catalogue import catalogue_file, catalogue_names
from synth.inputs.topology_json import parse_topology
from synth.lowering import Protocol
from synth.simulate import Simulator, read_calibration
from synth.topology import Topology
from tests.algos import RIGHT, all_pairs_allreduce, collective_of, exchange_allgather, ring_allreduce
from tests.host_runs import small

pytestmark = pytest.mark.gpu
KB, MB = 1 << 10, 1 << 20
#: Buffers of an allreduce: a rank's whole vector.
SIZES = (KB, 32 * KB, MB, 32 * MB, 256 * MB)
#: The aim: an allreduce's bytes moved a microsecond, as a share of those of a copy.
SHARE_OF_COPY = 0.7
#: Instances of a ring: one GPU that is all ranks has work for more threadblocks than a ring of one instance has.
INSTANCES = (1, 4, 8, 16)
LAUNCHES = 10_000


@pytest.fixture(scope="module")
def machine() -> CudaMachine:
    try:
        return CudaMachine()
    except InputError as error:
        pytest.skip(str(error))


def keep(name: str, figures: object) -> None:
    """Write figures down where the environment asks for it."""
    if folder := os.environ.get("SYNTH_KEEP_FIGURES"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        text = figures if isinstance(figures, str) else json.dumps(figures, indent=2)
        (Path(folder) / name).write_text(text, encoding="utf-8")


def wrong(machine: CudaMachine, algo: Algo, call: Call, geometry: Geometry | None = None) -> int:
    """Wrong elements of one run."""
    inputs = example_inputs(call)
    outputs = run(algo, call, inputs, machine, geometry=geometry)
    return wrong_elements(call, outputs, expected_outputs(call, inputs))


def catalogue(name: str) -> Topology:
    path = catalogue_file(name)
    assert path is not None
    return parse_topology(path.read_text(encoding="utf-8"), name)


def allreduce(
    ranks: int, size: int, baseline: str = "ring", protocol: Protocol = "Simple", instances: int = 1
) -> tuple[Algo, Collective]:
    """An allreduce in place of eight ranks or of sixteen, as a baseline has it for that size."""
    topology = catalogue({8: "dgx-h100", 16: "dgx2"}[ranks])
    options = BaselineOptions(protocol=protocol, inplace=True, instances=instances)
    built = build(baseline, topology, CollectiveName.ALLREDUCE, size, options)
    return built.algo, built.collective


@pytest.mark.parametrize("dtype", list(DataType))
@pytest.mark.parametrize("op", list(ReduceOp))
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_type_operation_and_protocol(machine: CudaMachine, dtype: DataType, op: ReduceOp, protocol: str) -> None:
    for builder in (ring_allreduce, all_pairs_allreduce):
        algo = builder(3, protocol)
        for in_place in layouts_of(algo, collective_of(algo)):
            for share in (1, 37, 5000):
                call = Call(collective_of(algo), share, dtype, op, in_place)
                assert wrong(machine, algo, call) == 0
                assert wrong(machine, algo, call, small(protocol)) == 0


@pytest.mark.parametrize("name", sorted(RIGHT))
def test_every_collective_by_hand(machine: CudaMachine, name: str) -> None:
    algo, root = RIGHT[name]
    for in_place in layouts_of(algo, collective_of(algo, root)):
        for share in (1, 301, 100_003):
            assert wrong(machine, algo, Call(collective_of(algo, root), share, in_place=in_place)) == 0


@pytest.mark.parametrize("name", catalogue_names())
def test_every_collective_on_every_machine(machine: CudaMachine, name: str) -> None:
    topology = catalogue(name)
    if not 2 <= topology.num_ranks <= 16:
        pytest.skip(f"{topology.num_ranks} GPUs")
    for collective_name in CollectiveName:
        for algo, collective in _built(topology, collective_name):
            for in_place in layouts_of(algo, collective):
                assert wrong(machine, algo, Call(collective, 70_001, in_place=in_place)) == 0, algo.name


def _built(topology: Topology, name: CollectiveName) -> Iterator[tuple[Algo, Collective]]:
    for baseline in sorted(BASELINES):
        try:
            built = build(baseline, topology, name, MB, BaselineOptions())
        except (NoAnswerError, InputError):
            continue
        yield built.algo, built.collective


@pytest.mark.parametrize("ranks", [8, 16])
@pytest.mark.parametrize("size", SIZES)
def test_an_allreduce_of_every_size_is_right(machine: CudaMachine, ranks: int, size: int) -> None:
    algo, collective = allreduce(ranks, size)
    for in_place in layouts_of(algo, collective):
        assert wrong(machine, algo, Call(collective, size // 4, in_place=in_place)) == 0


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("protocol", get_args(Protocol))
def test_ten_thousand_launches_end_and_are_right(machine: CudaMachine, protocol: Protocol, graph: bool) -> None:
    algo, collective = allreduce(8, 64 * KB, protocol=protocol)
    call = Call(collective, 16 * KB, in_place=True)
    with Runner(algo, compile_plan(algo, collective), machine) as runner:
        job = runner.job(call, graph=graph)
        job.run(times=LAUNCHES)
        inputs = example_inputs(call)
        job.write(inputs)
        job.run()
        assert wrong_elements(call, job.read(), expected_outputs(call, inputs)) == 0


@pytest.mark.parametrize("algo", [exchange_allgather("Simple", 3), exchange_allgather("LL", 9)])
def test_a_hang_is_ended_and_named(machine: CudaMachine, algo: Algo) -> None:
    call = Call(collective_of(algo), 54)
    with Runner(algo, compile_plan(algo, call.collective), machine) as runner:
        job = runner.job(call)
        for _ in range(2):
            job.write(example_inputs(call))
            with pytest.raises(HungError, match="waits for room towards gpu"):
                job.run(limit_s=1.0)
    right = ring_allreduce(3)
    assert wrong(machine, right, Call(collective_of(right), 99)) == 0, "the GPU is of use after it"


def test_threadblocks_that_cannot_all_run_are_refused_with_the_count(machine: CudaMachine) -> None:
    algo = all_pairs_allreduce(80, "LL")
    call = Call(collective_of(algo), 80, in_place=True)
    with (
        Runner(algo, compile_plan(algo, call.collective), machine, geometry=small("LL")) as runner,
        pytest.raises(InputError, match="6400 threadblocks"),
    ):
        runner.job(call).run()


@pytest.mark.parametrize("ranks", [8, 16])
def test_large_allreduces_move_their_bytes_nearly_as_fast_as_a_copy(machine: CudaMachine, ranks: int) -> None:
    size = 256 * MB
    copied = 4 * size
    copy_rate = 2 * copied / machine.copy_us(copied, 20)
    shares = {}
    for instances in INSTANCES:
        algo, collective = allreduce(ranks, size, instances=instances)
        plan = compile_plan(algo, collective)
        call = Call(collective, size // 4, in_place=True)
        for tile in (256 * KB, 512 * KB, MB, 2 * MB):
            geometry = replace(Geometry.of(plan.protocol), tile_bytes=tile)
            with Runner(algo, plan, machine, geometry=geometry) as runner:
                job = runner.job(call, graph=True)
                job.run(times=3)
                shares[f"{instances} x {tile}"] = moved_bytes(plan, call) / job.run(times=20) / copy_rate
    keep(f"share-of-copy-{ranks}.json", {"copy_GBps": copy_rate / 1e3, "share_by_instances_and_tile": shares})
    assert max(shares.values()) >= SHARE_OF_COPY, shares


@pytest.mark.parametrize("ranks", [8, 16])
def test_the_latency_of_a_small_allreduce_is_told(machine: CudaMachine, ranks: int) -> None:
    told = {}
    for baseline in ("ring", "tree", "all-pairs", "one-shot"):
        for protocol in get_args(Protocol):
            algo, collective = allreduce(ranks, KB, baseline, protocol)
            call = Call(collective, 256, in_place=True)
            with Runner(algo, compile_plan(algo, collective), machine) as runner:
                job = runner.job(call, graph=True)
                job.run(times=100)
                told[f"{baseline} {protocol}"] = job.run(times=1000)
    keep(f"latency-us-{ranks}.json", told)
    assert len(told) == 12


def test_the_simulator_beside_the_measurement(machine: CudaMachine) -> None:
    """The calibration that is measured here, the prediction with it, and what is measured, at every size."""
    figures = {protocol: measure_protocol(machine, protocol) for protocol in PROTOCOLS}
    text = calibration_text(list(figures.values()))
    keep("calibration.json", text)
    keep("figures.json", figures_text(list(figures.values())))
    cases = itertools.product(SIZES, (1, 16), (8, 16))
    rows = [_predicted_and_measured(machine, figures, text, *case) for case in cases]
    keep("simulated-and-measured.json", rows)
    assert all(row["measured_us"] > 0 and row["simulated_us"] > 0 for row in rows)


def _predicted_and_measured(
    machine: CudaMachine, figures: dict[str, Figures], text: str, size: int, instances: int, ranks: int
) -> dict[str, float]:
    algo, collective = allreduce(ranks, size, instances=instances)
    topology = shared_memory(ranks, figures[algo.proto].many_GBps)
    simulated_us = Simulator(algo, topology, read_calibration(text, "measured")).time_us(size)
    call = Call(collective, size // 4, in_place=True)
    with Runner(algo, compile_plan(algo, collective), machine) as runner:
        job = runner.job(call, graph=True)
        job.run(times=5)
        measured_us = job.run(times=20)
    case = {"bytes": size, "ranks": ranks, "instances": instances}
    return {**case, "simulated_us": simulated_us, "measured_us": measured_us}


_SMALL_RUN = """
from synth.execute.cuda import Call, CudaMachine
from synth.execute.cuda.expected import example_inputs, expected_outputs, wrong_elements
from synth.execute.cuda.runner import run
from tests.algos import all_pairs_allreduce, collective_of, ring_allreduce
from tests.host_runs import small
machine = CudaMachine()
for protocol in ("Simple", "LL", "LL128"):
    for algo in (ring_allreduce(3, protocol), all_pairs_allreduce(3, protocol)):
        call = Call(collective_of(algo), 501, in_place=True)
        inputs = example_inputs(call)
        outputs = run(algo, call, inputs, machine, geometry=small(protocol), threads=64)
        assert wrong_elements(call, outputs, expected_outputs(call, inputs)) == 0
"""


@pytest.mark.parametrize("tool", ["memcheck", "synccheck", "racecheck", "initcheck"])
def test_compute_sanitizer_finds_nothing(machine: CudaMachine, tool: str) -> None:
    sanitizer = shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
    if sanitizer is None:
        pytest.skip("no compute-sanitizer on the path")
    root = Path(__file__).resolve().parent.parent.parent
    command = [sanitizer, "--tool", tool, "--error-exitcode", "9", sys.executable, "-c", _SMALL_RUN]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]


def test_the_command_line(machine: CudaMachine, tmp_path: Path) -> None:
    from msccl_xml.write import write_algo

    file = tmp_path / "ring.xml"
    file.write_text(write_algo(ring_allreduce(4, "LL")), encoding="utf-8")
    command = [sys.executable, "-m", "synth", "run", str(file), "--backend", "cuda", "--sizes", "1KB:1MB", "--compare"]
    command += ["--placement", "virtual", "--calibrate", str(tmp_path / "calibration")]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for row in json.loads(done.stdout)["sizes"]:
        assert any("of a copy's rate" in remark for remark in row["remarks"])
        assert any("the simulator expects" in remark for remark in row["remarks"])
