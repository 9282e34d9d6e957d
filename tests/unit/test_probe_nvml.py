"""NVML as a stand-in tells it: what is read, what goes unanswered, and what is replaced."""

from __future__ import annotations

from typing import Any

import pynvml
import pytest

from synth.probe.nvml import bus_address, clean, read_nvml
from synth.probe.recording import Fabric, NvLink
from synth.probe.redact import Redactor
from tests.probe_machines import FakeNvml

GPU, NPU, SWITCH, UNKNOWN = 0, 1, 2, 255


def test_gpus_links_and_pairs() -> None:
    links = {
        0: (6, GPU, "00000000:82:00.0"),
        1: (6, SWITCH, "00000000:C4:00.0"),
        2: (6, UNKNOWN, "FFFFFFFF:FF:FF.0"),
        3: (2, NPU, "00000004:00:00.0"),
        5: None,
    }
    fake = FakeNvml(
        [
            {"busid": "00000000:81:00.0", "links": links, "pcie": (1, 5, 16, 16), "mig": False},
            {"busid": "00010000:82:00.0", "cc": (8, 6), "name": " RTX\tA6000 "},
        ],
        ancestor=20,
        peer=1,
    )
    recording = read_nvml(fake, Redactor())
    first, second = recording.gpus
    assert (recording.source, recording.driver, recording.problem) == ("nvml", "550.54.15", "")
    assert (first.busid, first.arch, first.pcie_gen, first.pcie_gen_max, first.mig) == (
        "0000:81:00.0",
        "sm_90",
        1,
        5,
        False,
    )
    assert first.nvlinks == (
        NvLink(0, "active", "4.0", "gpu", "0000:82:00.0"),
        NvLink(1, "active", "4.0", "switch", "0000:c4:00.0"),
        NvLink(2, "active", "4.0", "hidden", ""),
        NvLink(3, "active", "2.0", "cpu", "0004:00:00.0"),
        NvLink(5, "inactive"),
    )
    assert (second.busid, second.arch, second.name, second.nvlinks) == ("10000:82:00.0", "sm_86", "RTX A6000", ())
    (pair,) = recording.pairs
    assert (pair.a, pair.b, pair.ancestor) == (0, 1, "multiple")
    assert pair.read == pair.nvlink == "chipset not supported"
    assert fake.shut == 0


def test_mig_fabric_and_links_to_the_cpu() -> None:
    uuid = bytes(range(16))
    gpus = [
        {"busid": "0:1:0.0", "mig": True, "fabric": (3, uuid, 7, 1)},
        {"busid": "0:2:0.0", "fabric": (3, bytes(16), 0, 2), "c2c": (5, 44712)},
        {"busid": "0:3:0.0", "fabric": (2, uuid, 7, 0)},
        {"busid": "0:4:0.0", "fabric": (0, uuid, 0, 0)},
    ]
    read = read_nvml(FakeNvml(gpus), Redactor()).gpus
    assert [gpu.mig for gpu in read] == [True, False, False, False]
    assert read[0].fabric == Fabric("completed", "cluster0", 7, True)
    assert read[1].fabric == Fabric("completed", "", 0, False)
    assert read[2].fabric == Fabric("in progress", "cluster0", 7, False)
    assert read[3].fabric is None
    assert [(gpu.c2c_links, gpu.c2c_MBps) for gpu in read] == [(0, 0), (5, 44712), (0, 0), (0, 0)]


ASKED = (
    "nvmlDeviceGetPciInfo",
    "nvmlDeviceGetName",
    "nvmlDeviceGetCudaComputeCapability",
    "nvmlDeviceGetCurrPcieLinkGeneration",
    "nvmlDeviceGetMaxPcieLinkWidth",
    "nvmlDeviceGetNvLinkVersion",
    "nvmlDeviceGetNvLinkRemotePciInfo",
    "nvmlDeviceGetNvLinkRemoteDeviceType",
    "nvmlDeviceGetTopologyCommonAncestor",
    "nvmlDeviceGetP2PStatus",
    "nvmlSystemGetDriverVersion",
)
QUIET = ("nvmlDeviceGetMigMode", "nvmlDeviceGetFieldValues", "nvmlDeviceGetGpuFabricInfoV", "nvmlShutdown")


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, 4711])
@pytest.mark.parametrize("name", [*ASKED, *QUIET, "nvmlDeviceGetNvLinkState"])
def test_every_question_may_go_unanswered(name: str, code: int) -> None:
    gpus = [{"busid": f"0:{bus}:0.0", "links": {0: (6, GPU, "0:9:0.0")}} for bus in (1, 2)]
    recording = read_nvml(FakeNvml(gpus, deny={name: code}), Redactor())
    assert len(recording.gpus) == 2
    assert recording.problem == ""
    told = [line for line in recording.unread if line.startswith(f"{name}: ")]
    state = name == "nvmlDeviceGetNvLinkState"
    assert len(told) == (0 if name in QUIET or (state and code == pynvml.NVML_ERROR_NOT_SUPPORTED) else 1)
    if state and told:
        assert recording.gpus[0].nvlinks[0].state == "unknown"


def test_many_that_do_not_answer_are_counted() -> None:
    gpus = [{"busid": f"0:{bus}:0.0"} for bus in range(1, 7)]
    recording = read_nvml(FakeNvml(gpus, deny={"nvmlDeviceGetP2PStatus": pynvml.NVML_ERROR_UNKNOWN}), Redactor())
    (line,) = recording.unread
    assert line == "nvmlDeviceGetP2PStatus: unknown error (gpu0-gpu1, gpu0-gpu2, gpu0-gpu3, gpu0-gpu4 and 11 more)"


def test_an_old_pynvml_lacks_functions() -> None:
    class Old(FakeNvml):
        def __getattribute__(self, name: str) -> Any:
            return (
                None
                if name in ("nvmlDeviceGetP2PStatus", "c_nvmlGpuFabricInfo_v3_t")
                else super().__getattribute__(name)
            )

    recording = read_nvml(Old([{"busid": "0:1:0.0"}, {"busid": "0:2:0.0"}]), Redactor())
    assert recording.pairs[0].read == ""
    assert recording.unread == ("nvmlDeviceGetP2PStatus: pynvml is too old (gpu0-gpu1)",)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "no NVIDIA driver"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "not loaded"),
        (pynvml.NVML_ERROR_NO_PERMISSION, "no permission"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "differ in version"),
        (pynvml.NVML_ERROR_UNKNOWN, "does not answer: unknown error"),
    ],
)
@pytest.mark.parametrize("name", ["nvmlInit", "nvmlDeviceGetCount"])
def test_why_nvml_is_of_no_use(name: str, code: int, words: str) -> None:
    recording = read_nvml(FakeNvml([{"busid": "0:1:0.0"}], deny={name: code}), Redactor())
    assert words in recording.problem
    assert recording.gpus == ()


def test_a_lost_gpu_is_told_and_the_others_stay() -> None:
    fake = FakeNvml([{"busid": "0:1:0.0"}, pynvml.NVML_ERROR_GPU_IS_LOST, {"busid": "0:3:0.0"}])
    recording = read_nvml(fake, Redactor())
    assert [gpu.index for gpu in recording.gpus] == [0, 2]
    assert recording.lost == ("gpu1: gpu is lost",)
    assert [(pair.a, pair.b) for pair in recording.pairs] == [(0, 2)]


def test_no_gpu_may_be_opened() -> None:
    recording = read_nvml(FakeNvml([pynvml.NVML_ERROR_NO_PERMISSION] * 2), Redactor())
    assert recording.problem == "the NVIDIA driver opens none of 2 GPUs"
    assert recording.lost == ("gpu0: insufficient permissions", "gpu1: insufficient permissions")


@pytest.mark.parametrize(
    ("told", "address"),
    [
        ("00000000:0F:00.0", "0000:0f:00.0"),
        ("0000:3B:00.0", "0000:3b:00.0"),
        ("00000001:00:00.0", "0001:00:00.0"),
        ("0:1:0", "0000:01:00.0"),
        ("FFFFFFFF:FF:FF.0", ""),
        ("fffffff:ffff:ff", ""),
        ("", ""),
        ("GPU-5f3a", ""),
    ],
)
def test_bus_addresses(told: str, address: str) -> None:
    assert bus_address(told) == address


def test_text_of_devices_is_one_printable_line() -> None:
    assert clean("a\x00b\n  c ") == "a b c"
    assert len(clean("x" * 999)) == 200
