"""The interpreter that runs on GPUs, run on the host: every collective is right, hangs are told, and no thread races another."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from msccl_xml.model import Algo
from synth.baselines import BASELINES, BaselineOptions, build
from synth.collective import ROOTED, Collective, CollectiveName
from synth.errors import InputError, NoAnswerError
from synth.execute.cuda import Call, Geometry, HostMachine, HungError, Runner, compile_plan
from synth.execute.cuda.abi import PROTOCOLS, DataType, ReduceOp
from synth.execute.cuda.build import build_host, find_host_compiler
from synth.execute.cuda.calibrate import Effort, calibration_text, measure_protocol, shared_memory
from synth.execute.cuda.expected import decode, encode, example_inputs, expected_outputs, wrong_elements
from synth.execute.cuda.figures import run as run_job
from synth.execute.cuda.peers import join
from synth.execute.cuda.runner import run
from synth.execute.layout import layouts_of
from synth.execute.measure import Job
from synth.inputs.catalogue import catalogue_file, catalogue_names
from synth.inputs.topology_json import parse_topology
from synth.lowering import Protocol
from synth.pipeline import synthesize
from synth.simulate.calibration import read_calibration
from synth.topology import Topology
from synth.verify import VerifyError, verify_algo
from tests.algos import (
    RIGHT,
    all_pairs_allreduce,
    collective_of,
    exchange_allgather,
    ring_allreduce,
    with_step,
    with_steps,
)
from tests.host_runs import Meeting, small, wrong
from tests.jobs import request
from tests.mutants import mutants

pytestmark = pytest.mark.skipif(find_host_compiler() is None, reason="no C++ compiler for the host build")
ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="module")
def library(pytestconfig: pytest.Config) -> Path:
    """The host build, compiled once for all runs of the suite: it is kept where pytest keeps what outlasts a run."""
    return build_host(folder=kept(pytestconfig))


@pytest.fixture(scope="module")
def machine(library: Path) -> HostMachine:
    return HostMachine(library)


def kept(config: pytest.Config) -> Path:
    """Where builds outlast a run."""
    assert config.cache is not None
    return config.cache.mkdir("interpreter")


def machines(most_ranks: int = 16) -> Iterator[Topology]:
    """The catalogue's machines of two to so many GPUs."""
    for name in catalogue_names():
        path = catalogue_file(name)
        assert path is not None
        topology = parse_topology(path.read_text(encoding="utf-8"), name)
        if 2 <= topology.num_ranks <= most_ranks:
            yield topology


@pytest.mark.parametrize("dtype", list(DataType))
@pytest.mark.parametrize("op", list(ReduceOp))
def test_every_type_and_operation(machine: HostMachine, dtype: DataType, op: ReduceOp) -> None:
    for algo, root in (RIGHT["ring-allreduce-3"], RIGHT["all-pairs-allreduce-3"], RIGHT["reduce-scatter-3"]):
        for in_place in layouts_of(algo, collective_of(algo, root)):
            call = Call(collective_of(algo, root), 37, dtype, op, in_place)
            assert wrong(machine, algo, call, geometry=small(algo.proto)) == 0, (algo.name, in_place)


@settings(max_examples=150)
@given(
    name=st.sampled_from(sorted(RIGHT)),
    share=st.integers(1, 300),
    dtype=st.sampled_from([DataType.FLOAT32, DataType.INT8, DataType.FLOAT64, DataType.BFLOAT16]),
    lanes=st.integers(1, 3),
    tile=st.sampled_from([16, 48, 240, 4096]),
    slices=st.integers(1, 3),
)
def test_every_size_cut_every_way(
    machine: HostMachine, name: str, share: int, dtype: DataType, lanes: int, tile: int, slices: int
) -> None:
    """Shares that are no multiples of anything, several threads to a threadblock, transfers of one chunk and of many."""
    algo, root = RIGHT[name]
    slices = slices if algo.proto == "Simple" else 1
    geometry = replace(small(algo.proto), tile_bytes=tile, slices=slices)
    for in_place in layouts_of(algo, collective_of(algo, root)):
        call = Call(collective_of(algo, root), share, dtype, in_place=in_place)
        assert wrong(machine, algo, call, lanes, geometry) == 0


@pytest.mark.parametrize("topology", list(machines()), ids=lambda topology: topology.name)
def test_a_baseline_on_every_machine(machine: HostMachine, topology: Topology) -> None:
    """Two collectives for each machine, in turn; all of them in the slow test below."""
    names = sorted(CollectiveName)
    first = len(topology.name) % len(names)
    ran = sum(_baselines(machine, topology, (names[first], names[(first + 3) % len(names)]), most=1))
    assert ran >= 2


@pytest.mark.slow
@pytest.mark.parametrize("topology", list(machines()), ids=lambda topology: topology.name)
def test_all_baselines_on_every_machine(machine: HostMachine, topology: Topology) -> None:
    assert sum(_baselines(machine, topology, tuple(CollectiveName), most=len(BASELINES))) >= len(CollectiveName)


def _baselines(machine: HostMachine, topology: Topology, names: tuple[CollectiveName, ...], most: int) -> Iterator[int]:
    for name in names:
        for algo, collective in islice(_built(topology, name), most):
            for in_place in layouts_of(algo, collective):
                call = Call(collective, 101, in_place=in_place)
                assert wrong(machine, algo, call, geometry=small(algo.proto)) == 0, (algo.name, in_place)
                yield 1


def _built(topology: Topology, name: CollectiveName) -> Iterator[tuple[Algo, Collective]]:
    """Protocols and layouts take turns."""
    order = sorted(BASELINES)
    turn = topology.num_ranks + len(topology.name)
    inplace = turn % 2 == 0 and name is not CollectiveName.ALLTOALL
    for number in range(turn, turn + len(order)):
        options = BaselineOptions(protocol=get_args(Protocol)[number % 3], inplace=inplace)
        try:
            built = build(order[number % len(order)], topology, name, 1 << 16, options)
        except (NoAnswerError, InputError):
            continue
        yield built.algo, built.collective


@pytest.mark.parametrize("name", list(CollectiveName))
def test_files_of_our_own(machine: HostMachine, name: CollectiveName) -> None:
    topology = next(each for each in machines() if each.name == "dgx1")
    result = synthesize(request(topology, name, 1 << 16, strategy="greedy", chunks=1, inplace=None))
    (file,) = result.files
    root = 0 if name in ROOTED else None
    collective = Collective(name, topology.num_ranks, file.algo.nchunksperloop, root)
    for in_place in layouts_of(file.algo, collective):
        call = Call(collective, 203, in_place=in_place)
        assert wrong(machine, file.algo, call, geometry=small(file.algo.proto)) == 0


def test_what_verify_passes_is_right_here_and_what_it_calls_a_deadlock_hangs(machine: HostMachine) -> None:
    """Slips of every kind: two judges that share no code agree. What verify refuses for other reasons may end as it likes."""
    told = {"right": 0, "hung": 0, "other": 0}
    for name in ("ring-allgather-3x2", "all-pairs-allreduce-3", "relay-broadcast", "exchange-allgather"):
        algo, root = RIGHT[name]
        for what, mutant in islice(mutants(algo), 0, None, 19):
            told[_judged(machine, what, mutant, collective_of(algo, root))] += 1
    assert told["right"] > 5
    assert told["hung"] > 5


def _judged(machine: HostMachine, what: str, algo: Algo, collective: Collective) -> str:
    if algo.proto not in PROTOCOLS or algo.nchunksperloop != collective.chunks or algo.ngpus != collective.num_ranks:
        return "other"
    try:
        verify_algo(algo, collective, strict=False)
        verdict = "right"
    except VerifyError as error:
        verdict = "hung" if "deadlock" in str(error) else "other"
    # One chunk a transfer: that is what verify's deadlocks are about, and what it passes runs at any size.
    geometry = replace(small(algo.proto), tile_bytes=16)
    for in_place in layouts_of(algo, collective):
        seen = _seen(machine, algo, Call(collective, 8 * collective.chunks, in_place=in_place), geometry)
        assert verdict in ("other", seen), what
    return verdict


def _seen(machine: HostMachine, algo: Algo, call: Call, geometry: Geometry) -> str:
    try:
        return "wrong" if wrong(machine, algo, call, geometry=geometry) else "right"
    except HungError:
        return "hung"
    except InputError:
        return "refused"


@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize(
    ("algo", "said"),
    [
        (exchange_allgather("Simple", 3), "gpu 0 tb 0 step 3 (s) waits for room towards gpu 1 on channel 0"),
        (exchange_allgather("LL", 9), "gpu 1 tb 0 step 9 (s) waits for room towards gpu 0 on channel 0"),
        (exchange_allgather("LL128", 9), "gpu 1 tb 0 step 9 (s) waits for room towards gpu 0 on channel 0"),
        *(
            (
                with_steps(ring_allreduce(3, proto), 0, 0, ring_allreduce(3).gpus[0].threadblocks[0].steps[1:]),
                "gpu 1 tb 0 step 4 (r) waits for data of gpu 0 on channel 0",
            )
            for proto in PROTOCOLS
        ),
        (
            with_step(all_pairs_allreduce(2), 0, 1, 0, depid=1, deps=0),
            "gpu 0 tb 1 step 0 (re) waits for a flag of tb 1",
        ),
        (
            with_steps(ring_allreduce(3), 0, 0, ring_allreduce(3).gpus[0].threadblocks[0].steps[:-1]),
            "it sends from gpu 2 to gpu 0 on channel 0 what is never received",
        ),
    ],
)
def test_a_hang_names_who_waits_for_what(machine: HostMachine, algo: Algo, said: str, lanes: int) -> None:
    call = Call(collective_of(algo), 54)
    with pytest.raises(HungError) as caught:
        run(algo, call, example_inputs(call), machine, threads=lanes)
    assert said in str(caught.value) or said in caught.value.waits
    assert all(one.waits_for for one in caught.value.stuck)


def test_after_a_hang_the_same_runner_runs_on(machine: HostMachine) -> None:
    """A hang ends with flags and counts as they were at the beginning."""
    algo = exchange_allgather("Simple", 4)
    collective = collective_of(algo)
    geometry = replace(Geometry.of("Simple"), tile_bytes=64, smallest_slice_bytes=16)
    with Runner(algo, compile_plan(algo, collective), machine, geometry=geometry) as runner:
        large, tiny = runner.job(Call(collective, 64)), runner.job(Call(collective, 4))
        for _ in range(2):
            with pytest.raises(HungError):
                large.run()
        # Only the exchange of four chunks does not fit the connection; a right algorithm of the same plan is one of fewer steps.
        with pytest.raises(HungError):
            tiny.run()
    right = exchange_allgather("Simple", 2)
    assert wrong(machine, right, Call(collective_of(right), 64), geometry=geometry) == 0


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_counts_go_on_from_launch_to_launch(machine: HostMachine, protocol: str) -> None:
    """Calls of other sizes and types in between, over the same connections."""
    algo = ring_allreduce(3, protocol)
    collective = collective_of(algo)
    with Runner(algo, compile_plan(algo, collective), machine, geometry=small(protocol)) as runner:
        calls = [Call(collective, 50), Call(collective, 7, DataType.INT8), Call(collective, 333, DataType.FLOAT16)]
        jobs = [runner.job(call) for call in calls]
        for number in range(30):
            job, call = jobs[number % 3], calls[number % 3]
            inputs = example_inputs(call, seed=number)
            job.poison()
            job.write(inputs)
            job.run(times=1 + number % 4)
            assert wrong_elements(call, job.read(), expected_outputs(call, inputs)) == 0


def test_wrong_inputs_are_named(machine: HostMachine) -> None:
    algo = ring_allreduce(2)
    call = Call(collective_of(algo), 8)
    good = np.zeros(8, dtype=np.float32)
    for bad in (None, np.zeros(9, dtype=np.float32), np.zeros(8, dtype=np.float64)):
        with pytest.raises(InputError, match="rank 1"):
            run(algo, call, [good, bad], machine)


def test_halves_are_rounded_as_their_own_arithmetic_would(machine: HostMachine) -> None:
    """Sums and products of random halves against numpy's, tiny and huge ones too; of bfloat16 against float32 rounded once."""
    algo = ring_allreduce(2)
    draw = np.random.default_rng(7)
    for op, combine in ((ReduceOp.SUM, np.add), (ReduceOp.PROD, np.multiply)):
        call = Call(collective_of(algo), 4096, DataType.FLOAT16, op)
        ours = draw.integers(0, 0x7C00, (2, 4096)).astype(np.uint16).view(np.float16)
        ours *= draw.choice([-1, 1], ours.shape).astype(np.float16)
        (out, _) = run(algo, call, list(ours), machine)
        with np.errstate(over="ignore", under="ignore"):
            assert np.array_equal(np.asarray(out), combine(ours[0], ours[1]))
        call = replace(call, dtype=DataType.BFLOAT16)
        wide = draw.normal(size=(2, 4096)).astype(np.float32)
        given_bits = [encode(row, DataType.BFLOAT16) for row in wide]
        (bits, _) = run(algo, call, given_bits, machine)
        exact = combine(*(decode(row, DataType.BFLOAT16) for row in given_bits))
        assert np.array_equal(np.asarray(bits), encode(exact, DataType.BFLOAT16))


def test_several_sources_are_added_in_the_order_of_the_runtimes(machine: HostMachine) -> None:
    """One large number among small ones: Simple adds the others first and its own last, LL its own first."""
    values = [np.float32(2.0**24), np.float32(1), np.float32(1), np.float32(1)]
    for protocol, order in (("Simple", (1, 2, 3, 0)), ("LL", (0, 1, 2, 3))):
        algo = all_pairs_allreduce(4, protocol)
        call = Call(collective_of(algo), 4, in_place=True)
        (out, *_) = run(algo, call, [np.full(4, value, dtype=np.float32) for value in values], machine)
        total = values[order[0]]
        for rank in order[1:]:
            total = np.float32(total + values[rank])
        assert np.asarray(out)[0] == total, "the first share is reduced by rank 0"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_one_rank_a_process_runs_the_same_plan(library: Path, protocol: str) -> None:
    """Each rank with a machine, tables and launches of its own; only the pieces of memory are shared. Five calls in a row."""
    algo = all_pairs_allreduce(3, protocol)
    collective = collective_of(algo)
    plan, call = compile_plan(algo, collective), Call(collective, 200, in_place=True)
    inputs = example_inputs(call)
    wanted = expected_outputs(call, inputs)
    meeting = Meeting(3)

    def rank_of(rank: int) -> tuple[int, str]:
        meet, machine = meeting.of(rank), HostMachine(library)
        runner, how = join(algo, plan, machine, rank, meet, geometry=small(protocol))
        job = runner.job(call)
        total = 0
        for _ in range(5):
            job.write(inputs)
            job.run()
            (mine,) = (vector for vector in job.read() if vector is not None)
            total += int(np.count_nonzero(mine != wanted[rank]))
        meet(None)
        assert runner.unreceived() == ""
        meet(None)
        job.close()
        runner.close()
        assert not machine._held, "all memory was given back"
        return total, how

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(rank_of, range(3))) == [(0, "shared memory")] * 3


def test_figures_of_a_job(machine: HostMachine) -> None:
    algo = ring_allreduce(3, "LL")
    job = Job(algo, collective_of(algo), (1 << 10, 5000), iterations=2, warmup=1, rival=True, tile_bytes=1024)
    rows = run_job(job, "host", machine)
    assert [(row.bytes, row.count) for row in rows] == [(1024, 256), (5000, 1250)]
    for row in rows:
        for half in (row.out_of_place, row.in_place):
            assert half is not None
            assert half.wrong == 0
            assert half.time_us > 0
        assert not row.differing
        assert "of a copy's rate" in row.remarks[0]


def test_figures_tell_wrong_elements(machine: HostMachine) -> None:
    """A share that nobody sends on stays what it was: wrong on every rank but one."""
    algo = with_step(ring_allreduce(3), 0, 0, 4, dst_offset=0)
    (row,) = run_job(Job(algo, collective_of(algo), (1200,), iterations=1, warmup=1), "host", machine)
    assert row.out_of_place is not None
    assert row.out_of_place.wrong is not None
    assert row.out_of_place.wrong >= 100


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_calibration_is_one_that_the_simulator_takes(machine: HostMachine, protocol: str) -> None:
    figures = measure_protocol(machine, protocol, pairs=2, effort=Effort(2, 1 << 18, 1 << 18))
    constants = read_calibration(calibration_text([figures]), "measured").of(protocol)
    assert constants.tile_bytes == figures.geometry.tile_bytes
    assert constants.rate_GBps == pytest.approx(figures.rates_GBps["r"], rel=1e-3)
    assert shared_memory(4, figures.many_GBps).num_ranks == 4


_UNDER_THE_SANITIZER = """
import sys
from dataclasses import replace
from pathlib import Path
from synth.execute.cuda import Call, HostMachine
from synth.execute.cuda.build import build_host
from tests.host_runs import Meeting, small, wrong
from tests.algos import RIGHT, collective_of
from synth.execute.layout import layouts_of
machine = HostMachine(build_host(sanitizer="thread", folder=Path(sys.argv[1])))
runs = 0
for algo, root in RIGHT.values():
    for protocol in dict.fromkeys((algo.proto, "LL", "LL128")):
        algo = replace(algo, proto=protocol)
        for in_place in layouts_of(algo, collective_of(algo, root)):
            for lanes in (1, 2):
                call = Call(collective_of(algo, root), 70, in_place=in_place)
                assert wrong(machine, algo, call, lanes, small(protocol)) == 0
                runs += 1
print(runs)
"""


def _under_thread_sanitizer(code: str, builds: Path, paths: str = str(ROOT)) -> subprocess.CompletedProcess[str]:
    """Run Python with the sanitizer's library loaded first, as a library that is built with it needs."""
    compiler = find_host_compiler() or ""
    asked = [compiler, "-print-file-name=libtsan.so"]
    library = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    if not os.path.isabs(library):
        pytest.skip(f"{compiler} has no ThreadSanitizer")
    with_it = {**os.environ, "LD_PRELOAD": library, "TSAN_OPTIONS": "exitcode=66:halt_on_error=1", "PYTHONPATH": paths}
    trial = subprocess.run([sys.executable, "-c", "pass"], env=with_it, capture_output=True, text=True, check=False)
    if trial.returncode:
        pytest.skip(f"ThreadSanitizer does not run here: {trial.stderr.strip().splitlines()[:1]}")
    command = [sys.executable, "-P", "-c", code, str(builds)]
    return subprocess.run(command, env=with_it, cwd=builds, capture_output=True, text=True, check=False)


def test_no_thread_races_another(pytestconfig: pytest.Config) -> None:
    """ThreadSanitizer sees every access of every algorithm under every protocol, threads of one threadblock included."""
    done = _under_thread_sanitizer(_UNDER_THE_SANITIZER, kept(pytestconfig))
    assert "WARNING: ThreadSanitizer" not in done.stderr, done.stderr[:3000]
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout) > 100


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "strong", "weak"),
    [
        (
            "platform_host.h",
            "__atomic_store_n(at, value, __ATOMIC_RELEASE)",
            "__atomic_store_n(at, value, __ATOMIC_RELAXED)",
        ),
        ("platform_host.h", "__atomic_load_n(at, __ATOMIC_ACQUIRE)", "__atomic_load_n(at, __ATOMIC_RELAXED)"),
        ("interpreter.h", "if (lane.barrier_or(!well)) return false;\n    if (step.receives", "if (step.receives"),
        (
            "interpreter.h",
            "lane.barrier();\n      if (lane.id == 0) {\n        if (step.sends",
            "if (lane.id == 0) {\n        if (step.sends",
        ),
    ],
)
def test_a_missing_order_is_seen(tmp_path: Path, file: str, strong: str, weak: str) -> None:
    """The test above can fail: with one ordering or one barrier less, the sanitizer reports a race."""
    import synth

    package = tmp_path / "synth"
    shutil.copytree(Path(synth.__file__).parent, package)
    source = package / "execute/cuda/source" / file
    text = source.read_text(encoding="utf-8")
    assert text.count(strong) == 1
    source.write_text(text.replace(strong, weak), encoding="utf-8")
    builds = tmp_path / "builds"
    builds.mkdir()
    done = _under_thread_sanitizer(_UNDER_THE_SANITIZER, builds, os.pathsep.join([str(tmp_path), str(ROOT)]))
    assert "WARNING: ThreadSanitizer: data race" in done.stderr


def test_more_threads_than_the_system_has_are_told(machine: HostMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the runner is of use after it."""
    algo = ring_allreduce(3)
    call = Call(collective_of(algo), 9)
    inputs = example_inputs(call)
    with Runner(algo, compile_plan(algo, call.collective), machine) as runner:
        job = runner.job(call)
        job.write(inputs)
        with monkeypatch.context() as changed:
            changed.setattr(machine, "_run", lambda *_: 2)
            with pytest.raises(InputError, match="3 threads"):
                job.run()
        job.run()
        assert wrong_elements(call, job.read(), expected_outputs(call, inputs)) == 0
