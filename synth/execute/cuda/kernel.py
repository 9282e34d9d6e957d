"""The kernel as machine code for one kind of GPU, protocol, type and operation: compiled when first wanted, then kept."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from synth.errors import InputError
from synth.execute.cuda.abi import PROTOCOLS, DataType, ReduceOp
from synth.execute.cuda.build import cache_folder, cached, key, sources
from synth.execute.cuda.driver import CudaError, called, load_compiler

#: LL128 relies on lines of 128 bytes being moved whole, which GPUs do since Volta.
LEAST_FOR_LL128 = 70


def kernel_flags(architecture: int, protocol: str, dtype: DataType, op: ReduceOp) -> list[str]:
    """What both compilers are told: `architecture` 90 is sm_90."""
    return [
        "-std=c++17",
        f"-arch=sm_{architecture}",
        f"-DSYNTH_PROTOCOL={PROTOCOLS.index(protocol)}",
        f"-DSYNTH_DTYPE={list(DataType).index(dtype)}",
        f"-DSYNTH_OP={list(ReduceOp).index(op)}",
    ]


def compile_kernel(architecture: int, protocol: str, dtype: DataType, op: ReduceOp) -> bytes:
    """The kernel's machine code (a cubin), from NVRTC, or from nvcc where NVRTC is not installed.

    Raises InputError for LL128 on a GPU that does not guarantee it and where there is no compiler; BuildError or CudaError, with the
    compiler's words, where it fails.
    """
    if protocol == "LL128" and architecture < LEAST_FOR_LL128:
        raise InputError("algo", "proto", protocol, f"Simple or LL on sm_{architecture}: LL128 needs sm_70 or newer")
    flags = kernel_flags(architecture, protocol, dtype, op)
    compiler = load_compiler()
    if compiler is not None:
        return with_nvrtc(compiler, flags)
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        expected = "a compiler for it: pip install 'synth[cuda]' brings NVRTC, the CUDA toolkit nvcc"
        raise InputError("--backend", "cuda", "no compiler", expected)
    return with_nvcc(nvcc, flags).read_bytes()


def with_nvcc(nvcc: str, flags: Sequence[str], folder: Path | None = None) -> Path:
    """The file that nvcc makes, kept in `folder` (`cache_folder`)."""
    return cached([nvcc, *flags, "-cubin", "kernel.cu"], "kernel.cubin", folder)


def with_nvrtc(compiler: Any, flags: Sequence[str]) -> bytes:
    """What NVRTC makes, kept under the hash of sources, flags and NVRTC's version."""
    texts = sources()
    version = [str(number) for number in compiler.nvrtcVersion()[1:]]
    target = cache_folder() / key(texts, ["nvrtc", *version, *flags]) / "kernel.cubin"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_suffix(f".{os.getpid()}")  # the processes of other ranks may be at it too
        part.write_bytes(_nvrtc(compiler, texts, flags))
        part.replace(target)
    return target.read_bytes()


def _nvrtc(compiler: Any, texts: dict[str, str], flags: Sequence[str]) -> bytes:
    headers = sorted(name for name in texts if name.endswith(".h"))
    program = called(
        "nvrtcCreateProgram",
        compiler.nvrtcCreateProgram(
            texts["kernel.cu"].encode(),
            b"kernel.cu",
            len(headers),
            [texts[name].encode() for name in headers],
            [name.encode() for name in headers],
        ),
    )
    code = compiler.nvrtcCompileProgram(program, len(flags), [flag.encode() for flag in flags])[0]
    if int(code):
        log = b" " * called("nvrtcGetProgramLogSize", compiler.nvrtcGetProgramLogSize(program))
        compiler.nvrtcGetProgramLog(program, log)
        shown = "\n".join(log.decode(errors="replace").strip("\0 ").splitlines()[:10])
        raise CudaError(f"NVRTC could not compile the interpreter:\n{shown}")
    made: bytes = b" " * called("nvrtcGetCUBINSize", compiler.nvrtcGetCUBINSize(program))
    called("nvrtcGetCUBIN", compiler.nvrtcGetCUBIN(program, made))
    compiler.nvrtcDestroyProgram(program)
    return made
