"""One look at the machine: NVML where it names GPUs, KFD where it does not, and the kernel's files in either case."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from synth.probe.kfd import read_kfd
from synth.probe.nics import read_nics
from synth.probe.nvml import read_nvml
from synth.probe.recording import Recording
from synth.probe.redact import Redactor
from synth.probe.sysfs import read_cpus, read_pci


def read_machine(root: Path = Path("/"), nvml: Any = None) -> Recording:
    """Everything that this machine tells, redacted. `nvml` is the module pynvml, imported where none is given.

    Never fails: a recording whose `problem` is set names no GPU, and says why.
    """
    redactor = Redactor()
    recording = _with_nvml(nvml, redactor)
    if not recording.gpus:
        gpus, nodes = read_kfd(root, redactor)
        if gpus:
            recording = Recording(source="kfd", gpus=gpus, kfd=nodes)
    if not recording.gpus and not recording.problem:
        recording = replace(recording, problem="the NVIDIA driver knows of no GPU")
    if not recording.gpus and not (root / "sys/class/kfd").exists():
        recording = replace(recording, problem=f"{recording.problem}, and AMD's /sys/class/kfd is not here either")
    nics = read_nics(root, redactor)
    # A port whose other end NVML does not name is told by the class of the PCI device there.
    remote = [link.busid for gpu in recording.gpus for link in gpu.nvlinks if not link.remote]
    busids = [*(gpu.busid for gpu in recording.gpus), *(nic.busid for nic in nics), *remote]
    return replace(recording, nics=nics, cpus=read_cpus(root), pci=read_pci(root, dict.fromkeys(busids)))


def _with_nvml(nvml: Any, redactor: Redactor) -> Recording:
    if nvml is not None:
        return read_nvml(nvml, redactor)
    try:
        import pynvml
    except ImportError:
        return Recording(problem="the Python package nvidia-ml-py is not installed")
    return read_nvml(pynvml, redactor)
