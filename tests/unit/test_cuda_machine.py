"""The kernel compiles for the GPUs of today, and the CUDA machine drives it: with a driver of our own where there is no GPU."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from msccl_xml.model import Algo
from synth.errors import InputError
from synth.execute.cuda import Call, CudaMachine, HungError, Runner, compile_plan, cuda_machine, driver
from synth.execute.cuda.abi import PROTOCOLS, DataType, ReduceOp
from synth.execute.cuda.build import BuildError, build_host, cached, find_host_compiler, key, sources
from synth.execute.cuda.driver import CudaError, called, load_compiler, load_driver
from synth.execute.cuda.expected import example_inputs, expected_outputs, wrong_elements
from synth.execute.cuda.kernel import compile_kernel, kernel_flags, with_nvcc
from tests.algos import all_pairs_allreduce, collective_of, exchange_allgather, ring_allreduce
from tests.fake_driver import FakeDriver

needs_host = pytest.mark.skipif(find_host_compiler() is None, reason="no C++ compiler for the host build")
KINDS = [("Simple", DataType.FLOAT32), ("LL", DataType.BFLOAT16), ("LL128", DataType.INT8)]


@pytest.fixture(scope="module")
def kept(pytestconfig: pytest.Config) -> Path:
    """Where builds outlast a run of the suite."""
    assert pytestconfig.cache is not None
    return pytestconfig.cache.mkdir("interpreter")


@pytest.fixture(scope="module")
def library(kept: Path) -> Path:
    return build_host(folder=kept)


@pytest.fixture
def fake(library: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    monkeypatch.setattr(cuda_machine, "compile_kernel", lambda *_: b"machine code")
    monkeypatch.setattr(cuda_machine, "_LOOK_S", 0.02)
    return FakeDriver(library)


@pytest.mark.parametrize("architecture", [80, 90, 100])
@pytest.mark.parametrize(("protocol", "dtype"), KINDS)
def test_the_kernel_compiles_with_nvcc(kept: Path, architecture: int, protocol: str, dtype: DataType) -> None:
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("no nvcc on the path")
    made = with_nvcc(nvcc, kernel_flags(architecture, protocol, dtype, ReduceOp.SUM), kept).read_bytes()
    assert made[:4] == b"\x7fELF"
    assert b"synth_run" in made
    assert b"synth_divide" in made


@pytest.mark.parametrize("architecture", [80, 90, 100])
def test_the_kernel_compiles_with_nvrtc(architecture: int) -> None:
    if load_compiler() is None:
        pytest.skip("no NVRTC: pip install 'synth[cuda]'")
    made = compile_kernel(architecture, "Simple", DataType.FLOAT16, ReduceOp.MAX)
    assert made[:4] == b"\x7fELF"
    assert compile_kernel(architecture, "Simple", DataType.FLOAT16, ReduceOp.MAX) == made, "kept"


def test_ll128_is_refused_where_lines_are_not_whole() -> None:
    with pytest.raises(InputError, match="sm_60: LL128 needs sm_70"):
        compile_kernel(60, "LL128", DataType.FLOAT32, ReduceOp.SUM)


def test_without_any_compiler_the_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("synth.execute.cuda.kernel.load_compiler", lambda: None)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(InputError, match=r"synth\[cuda\]"):
        compile_kernel(90, "LL", DataType.FLOAT32, ReduceOp.SUM)
    with pytest.raises(BuildError, match="install g"):
        build_host()


@needs_host
def test_a_failed_compilation_shows_the_compilers_words() -> None:
    with pytest.raises(BuildError, match="no-such-flag"):
        cached([find_host_compiler() or "", "--no-such-flag", "host.cpp"], "host.so")


def test_another_source_flag_or_protocol_is_another_build() -> None:
    texts = sources()
    flags = [tuple(kernel_flags(90, protocol, DataType.INT8, op)) for protocol in PROTOCOLS for op in ReduceOp]
    keys = {key(texts, command) for command in flags}
    keys.add(key({**texts, "abi.h": "changed"}, flags[0]))
    assert len(keys) == len(flags) + 1


def test_without_the_bindings_or_the_driver_there_is_one_line() -> None:
    if importlib.util.find_spec("cuda") is None:
        with pytest.raises(InputError, match="pip install"):
            load_driver()
        assert load_compiler() is None


class _Broken:
    """Bindings on a computer whose driver answers `code`."""

    def __init__(self, code: int, devices: int = 0) -> None:
        self.code, self.devices = code, devices

    def cuInit(self, flags: int) -> tuple[int]:
        if self.code < 0:
            raise RuntimeError("no libcuda.so\nmore")
        return (self.code,)

    def cuDeviceGetCount(self) -> tuple[int, int]:
        return 0, self.devices


@pytest.mark.parametrize(
    ("bindings", "said"), [(_Broken(-1), "no libcuda.so"), (_Broken(100), "100"), (_Broken(0), "no GPU")]
)
def test_a_driver_that_cannot_be_used_is_told(bindings: _Broken, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "import_module", lambda name: bindings)
    with pytest.raises(InputError, match=said):
        load_driver()


def test_a_failed_call_is_named() -> None:
    assert called("cuX", (0,)) == ()
    assert called("cuX", (0, 5)) == 5
    with pytest.raises(CudaError, match="cuX: 700"):
        called("cuX", (700, None))


@needs_host
@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.AVG])
def test_launches_one_by_one_and_through_a_graph(fake: FakeDriver, graph: bool, op: ReduceOp) -> None:
    algo = ring_allreduce(3, "LL")
    call = Call(collective_of(algo), 40, DataType.INT32, op)
    inputs = example_inputs(call)
    with Runner(algo, compile_plan(algo, call.collective), CudaMachine(driver=fake)) as runner:
        job = runner.job(call, graph=graph)
        job.poison()
        job.write(inputs)
        assert job.run(times=300) == pytest.approx(2 * 1000 / 300), "two batches of 1 ms each"
        assert wrong_elements(call, job.read(), expected_outputs(call, inputs)) == 0
    assert fake.calls["cuLaunchCooperativeKernel"] == (1 if graph else 300)
    assert fake.calls.get("cuGraphLaunch", 0) == (300 if graph else 0)
    assert fake.calls.get("cuLaunchKernel", 0) == (0 if op is ReduceOp.SUM else 1 if graph else 300)
    assert not fake.host._held, "all memory was given back"


@needs_host
def test_a_kernel_that_hangs_is_ended_and_says_what_it_waited_for(fake: FakeDriver) -> None:
    algo = exchange_allgather("Simple", 3)
    call = Call(collective_of(algo), 30)
    with Runner(algo, compile_plan(algo, call.collective), CudaMachine(driver=fake)) as runner:
        job = runner.job(call)
        for _ in range(2):
            job.write(example_inputs(call))
            with pytest.raises(HungError, match=r"gpu 0 tb 0 step 3 \(s\) waits for room towards gpu 1"):
                job.run(limit_s=0.1)


@needs_host
@pytest.mark.parametrize(
    ("algo", "room", "threads"),
    [(ring_allreduce(3), 512, 512), (all_pairs_allreduce(4), 512, 512), (all_pairs_allreduce(6), 512, 128)],
)
def test_as_many_threads_as_all_threadblocks_have_room_for(
    fake: FakeDriver, algo: Algo, room: int, threads: int
) -> None:
    """Sixteen multiprocessors: 3 and 16 threadblocks fit with 512 threads each, 36 fit with 128 (four on each)."""
    call = Call(collective_of(algo), 40, in_place=True)
    machine = CudaMachine(driver=fake)
    with Runner(algo, compile_plan(algo, call.collective), machine) as runner:
        assert machine.threads_for(runner.job(call)._launch) == threads


@needs_host
def test_threadblocks_that_cannot_all_run_are_refused_with_the_count(fake: FakeDriver) -> None:
    fake.attributes["multiprocessors"] = 2
    algo = all_pairs_allreduce(6)
    call = Call(collective_of(algo), 40, in_place=True)
    with (
        Runner(algo, compile_plan(algo, call.collective), CudaMachine(driver=fake)) as runner,
        pytest.raises(InputError, match="36 threadblocks.*at most 16.*2 multiprocessors"),
    ):
        runner.job(call).run()


@needs_host
def test_too_large_a_buffer_is_told_with_what_is_free(fake: FakeDriver) -> None:
    with pytest.raises(InputError, match="1073741824 of the GPU's 2147483648 are free"):
        CudaMachine(driver=fake).allocate(1 << 31)
    with pytest.raises(InputError, match="--device"):
        CudaMachine(device=1, driver=fake)


def test_the_package_does_not_load_the_bindings() -> None:
    code = "import sys, synth.execute.cuda; print(sorted(name for name in sys.modules if name.split('.')[0] == 'cuda'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
