"""NVIDIA's management library, read through `pynvml`: GPUs, NVLinks, peer access, common ancestors, MIG and fabric.

Every question may go unanswered (an old driver, a virtual machine, a GPU without the feature): its field is then what
`synth.probe.recording` says for "not told", and the question is listed once in `unread`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from ctypes import byref
from typing import Any, TypeVar

from synth.probe.recording import Fabric, Gpu, NvLink, Pair, Recording
from synth.probe.redact import Redactor

_T = TypeVar("_T")
#: The highest number of NVLink ports that NVML counts (NVML_NVLINK_MAX_LINKS), where the module does not say.
_MAX_LINKS = 36
#: nvmlDeviceGetNvLinkVersion answers with an enumeration (NVML_NVLINK_VERSION_*), not with the version.
_VERSIONS = {1: "1.0", 2: "2.0", 3: "2.2", 4: "3.0", 5: "3.1", 6: "4.0", 7: "5.0", 8: "6.0"}
#: nvmlIntNvLinkDeviceType_t.
_REMOTES = {0: "gpu", 1: "cpu", 2: "switch"}
#: nvmlGpuTopologyLevel_t.
_ANCESTORS = {0: "internal", 10: "single", 20: "multiple", 30: "hostbridge", 40: "node", 50: "system"}
#: nvmlGpuP2PCapsIndex_t, and nvmlGpuP2PStatus_t in words.
_PEER_ACCESS = {"read": 0, "write": 1, "nvlink": 2, "atomics": 3, "pci": 4}
_PEER_STATUS = {
    0: "ok",
    1: "chipset not supported",
    2: "GPU not supported",
    3: "not supported through this I/O hub",
    4: "disabled by a registry key",
    5: "not supported",
}
_FABRIC_STATES = {0: "not supported", 1: "not started", 2: "in progress", 3: "completed"}
#: NVML_GPU_FABRIC_HEALTH_MASK_DEGRADED_BW: two bits from bit 0, 1 for "true".
_DEGRADED_MASK, _DEGRADED_TRUE = 3, 1
#: Places named for a question that was not answered; the rest is counted.
_SHOWN = 4
_BUSID = re.compile(r"([0-9a-f]{1,8}):([0-9a-f]{1,2}):([0-9a-f]{1,2})(?:\.([0-7]))?")
#: What stands for a device that a virtual machine cannot see.
_HIDDEN = re.compile(r"0*f{7,8}:ff(ff)?:ff(\.\d)?")


def read_nvml(nvml: Any, redactor: Redactor) -> Recording:
    """The GPUs that `nvml` (the module pynvml) tells of; a recording with a `problem` where it cannot be asked."""
    reader = _Reader(nvml, redactor)
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return Recording(problem=reader.problem(error))
    try:
        return reader.read()
    except nvml.NVMLError as error:
        return Recording(problem=reader.problem(error))
    finally:
        reader.ask("nvmlShutdown", "", None)


def bus_address(text: str) -> str:
    """A PCI address of NVML ("00000000:07:00.0") in the spelling of sysfs; "" for what is none or is hidden."""
    lower = text.strip().lower()
    match = _BUSID.fullmatch(lower)
    if match is None or _HIDDEN.fullmatch(lower):
        return ""
    domain, bus, device = (int(part, 16) for part in match.groups()[:3])
    return f"{domain:04x}:{bus:02x}:{device:02x}.{match[4] or 0}"


def clean(text: object) -> str:
    """One line of printable text, 200 characters at most."""
    words = "".join(char if char.isprintable() else " " for char in str(text)).split()
    return " ".join(words)[:200].strip()


class _Reader:
    """Asks NVML and remembers what it did not answer."""

    def __init__(self, nvml: Any, redactor: Redactor) -> None:
        self.nvml = nvml
        self.redactor = redactor
        self.unanswered: dict[tuple[str, str], list[str]] = {}

    def ask(self, name: str, who: str, default: _T, *args: object, read: Callable[[Any], _T] | None = None) -> _T:
        """The answer of the function `name`, through `read`; `default`, and a note about `who`, where there is none."""
        function = getattr(self.nvml, name, None)
        if function is None:
            self.note(name, "pynvml is too old", who)
            return default
        try:
            answer = function(*args)
        except self.nvml.NVMLError as error:
            self.note(name, self.words(error), who)
            return default
        return answer if read is None else read(answer)

    def note(self, name: str, reason: str, who: str) -> None:
        places = self.unanswered.setdefault((name, reason), []) if who else []
        if who not in places:
            places.append(who)

    def words(self, error: Any) -> str:
        table = getattr(self.nvml.NVMLError, "_errcode_to_string", {})
        return clean(table.get(getattr(error, "value", None), error)).lower()

    def problem(self, error: Any) -> str:
        """Why NVML as a whole is of no use, in words that say what is missing."""
        known = {
            "NVML_ERROR_LIBRARY_NOT_FOUND": "no NVIDIA driver: its library libnvidia-ml is not here",
            "NVML_ERROR_DRIVER_NOT_LOADED": "the NVIDIA driver is not loaded",
            "NVML_ERROR_NO_PERMISSION": "no permission to ask the NVIDIA driver (a container without the devices?)",
            "NVML_ERROR_LIB_RM_VERSION_MISMATCH": "the NVIDIA driver and its library differ in version: restart",
        }
        code = getattr(error, "value", None)
        for name, problem in known.items():
            if code == getattr(self.nvml, name, object()):
                return problem
        return f"the NVIDIA driver does not answer: {self.words(error)}"

    def read(self) -> Recording:
        count = self.nvml.nvmlDeviceGetCount()
        handles: dict[int, Any] = {}
        lost: list[str] = []
        for index in range(count):
            try:
                handles[index] = self.nvml.nvmlDeviceGetHandleByIndex(index)
            except self.nvml.NVMLError as error:
                lost.append(f"gpu{index}: {self.words(error)}")
        gpus = tuple(self.gpu(index, handle) for index, handle in handles.items())
        pairs = tuple(self.pair(a, b, handles) for a in handles for b in handles if a < b)
        driver = self.ask("nvmlSystemGetDriverVersion", "driver", "", read=clean)
        return Recording(
            source="nvml",
            driver=driver,
            gpus=gpus,
            lost=tuple(lost),
            pairs=pairs,
            unread=self.unread(),
            problem="" if gpus else f"the NVIDIA driver opens none of {count} GPUs" if count else "",
        )

    def unread(self) -> tuple[str, ...]:
        lines = []
        for (name, reason), who in self.unanswered.items():
            more = f" and {len(who) - _SHOWN} more" if len(who) > _SHOWN else ""
            lines.append(f"{name}: {reason} ({', '.join(who[:_SHOWN])}{more})")
        return tuple(lines)

    def gpu(self, index: int, handle: Any) -> Gpu:
        who = f"gpu{index}"
        major, minor = self.ask("nvmlDeviceGetCudaComputeCapability", who, (0, 0), handle, read=tuple)
        c2c_links, c2c_MBps = self.c2c(handle)
        return Gpu(
            index=index,
            busid=self.ask("nvmlDeviceGetPciInfo", who, "", handle, read=_busid_of) or f"unknown-{index}",
            name=self.ask("nvmlDeviceGetName", who, "", handle, read=clean),
            arch=f"sm_{major}{minor}" if major else "",
            # A GPU without MIG answers "not supported": nothing to note.
            mig=self.ask("nvmlDeviceGetMigMode", "", False, handle, read=lambda modes: modes[0] == 1),
            pcie_gen=self.ask("nvmlDeviceGetCurrPcieLinkGeneration", who, 0, handle),
            pcie_gen_max=self.ask("nvmlDeviceGetMaxPcieLinkGeneration", who, 0, handle),
            pcie_width=self.ask("nvmlDeviceGetCurrPcieLinkWidth", who, 0, handle),
            pcie_width_max=self.ask("nvmlDeviceGetMaxPcieLinkWidth", who, 0, handle),
            nvlinks=self.nvlinks(who, handle),
            c2c_links=c2c_links,
            c2c_MBps=c2c_MBps,
            fabric=self.fabric(handle),
        )

    def nvlinks(self, who: str, handle: Any) -> tuple[NvLink, ...]:
        found: list[NvLink] = []
        for number in range(getattr(self.nvml, "NVML_NVLINK_MAX_LINKS", _MAX_LINKS)):
            try:
                state = self.nvml.nvmlDeviceGetNvLinkState(handle, number)
            except self.nvml.NVMLError as error:
                ends = (self.nvml.NVML_ERROR_NOT_SUPPORTED, self.nvml.NVML_ERROR_INVALID_ARGUMENT)
                if getattr(error, "value", None) in ends:
                    continue  # a port that this GPU does not have
                self.note("nvmlDeviceGetNvLinkState", self.words(error), f"{who} link {number}")
                found.append(NvLink(number, "unknown"))
                continue
            found.append(self.active(who, handle, number) if state == 1 else NvLink(number, "inactive"))
        return tuple(found)

    def active(self, who: str, handle: Any, number: int) -> NvLink:
        """A port that is up, with what is at its other end."""
        link = f"{who} link {number}"
        version = self.ask("nvmlDeviceGetNvLinkVersion", link, 0, handle, number)
        busid = self.ask("nvmlDeviceGetNvLinkRemotePciInfo", link, "", handle, number, read=_busid_of)
        code = self.ask("nvmlDeviceGetNvLinkRemoteDeviceType", link, 255, handle, number)
        remote = _REMOTES.get(code, "") or ("" if busid else "hidden")
        return NvLink(number, "active", _VERSIONS.get(version, ""), remote, busid)

    def c2c(self, handle: Any) -> tuple[int, int]:
        """(links, MB/s of one) to the CPU of a superchip, as NCCL asks for them; (0, 0) where there are none."""
        count_id = getattr(self.nvml, "NVML_FI_DEV_C2C_LINK_COUNT", None)
        if count_id is None or not (links := self.field(handle, count_id, 0)):
            return 0, 0
        up, rate = 0, 0
        for scope in range(min(links, _MAX_LINKS)):
            if self.field(handle, self.nvml.NVML_FI_DEV_C2C_LINK_GET_STATUS, scope) == 1:
                up += 1
                rate = self.field(handle, self.nvml.NVML_FI_DEV_C2C_LINK_GET_MAX_BW, scope) or rate
        return (up, rate) if rate else (0, 0)

    def field(self, handle: Any, field_id: int, scope: int) -> int:
        values = self.ask("nvmlDeviceGetFieldValues", "", None, handle, [(field_id, scope)])
        if values is None or values[0].nvmlReturn != 0:
            return 0
        return int(values[0].value.uiVal)

    def fabric(self, handle: Any) -> Fabric | None:
        """The GPU's place in an NVLink fabric (NVSwitch systems from Hopper on); None where it knows of none."""
        make = getattr(self.nvml, "c_nvmlGpuFabricInfo_v3_t", None) or getattr(
            self.nvml, "c_nvmlGpuFabricInfoV_t", None
        )
        if make is None:
            return None
        info = make()
        # By reference: the module hands on what it is given, and the driver writes there.
        if self.ask("nvmlDeviceGetGpuFabricInfoV", "", None, handle, byref(info)) is None or info.state == 0:
            return None
        cluster = bytes(info.clusterUuid)
        return Fabric(
            state=_FABRIC_STATES.get(info.state, "unknown"),
            cluster=self.redactor.place("cluster", cluster.hex()) if any(cluster) else "",
            clique=info.cliqueId,
            degraded=info.healthMask & _DEGRADED_MASK == _DEGRADED_TRUE,
        )

    def pair(self, a: int, b: int, handles: dict[int, Any]) -> Pair:
        who = f"gpu{a}-gpu{b}"
        ends = (handles[a], handles[b])
        level = self.ask("nvmlDeviceGetTopologyCommonAncestor", who, -1, *ends)
        access = {
            kind: _PEER_STATUS.get(self.ask("nvmlDeviceGetP2PStatus", who, -1, *ends, number), "")
            for kind, number in _PEER_ACCESS.items()
        }
        return Pair(a, b, _ANCESTORS.get(level, ""), **access)


def _busid_of(info: Any) -> str:
    for text in (info.busId, getattr(info, "busIdLegacy", "")):
        address = bus_address(text.decode(errors="replace") if isinstance(text, bytes) else str(text))
        if address:
            return address
    return ""
