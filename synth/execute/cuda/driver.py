"""NVIDIA's driver and run-time compiler through `cuda-bindings`, imported late, with their errors in one line."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from synth.errors import InputError, SynthError

_INSTALL = "NVIDIA's Python bindings: pip install 'synth[cuda]'"


class CudaError(SynthError):
    """A call of the driver or of the compiler failed; the message names both the call and the code."""


def load_driver() -> Any:
    """The module of the driver's functions. InputError where the bindings, the driver or a GPU are missing."""
    driver = _module("cuda.bindings.driver")
    try:
        code = driver.cuInit(0)[0]
    except RuntimeError as problem:  # the bindings are there, the driver's library is not
        raise InputError("--backend", "cuda", str(problem).splitlines()[0], "NVIDIA's driver") from None
    if int(code):
        raise InputError("--backend", "cuda", getattr(code, "name", code), "an NVIDIA GPU that can be used")
    if not called("cuDeviceGetCount", driver.cuDeviceGetCount()):
        raise InputError("--backend", "cuda", "no GPU", "at least one")
    return driver


def load_compiler() -> Any | None:
    """The module of NVRTC's functions; None where it or its library is not installed."""
    try:
        compiler = import_module("cuda.bindings.nvrtc")
        compiler.nvrtcVersion()
    except (ImportError, RuntimeError):
        return None
    return compiler


def called(name: str, answer: tuple[Any, ...]) -> Any:
    """What a call gave besides its code: nothing, one value, or several. CudaError unless the code says success."""
    code, *values = answer
    if int(code):
        raise CudaError(f"{name}: {getattr(code, 'name', code)}")
    return values[0] if len(values) == 1 else tuple(values)


def _module(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise InputError("--backend", "cuda", "not installed", _INSTALL) from None
