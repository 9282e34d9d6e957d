"""Command lines and environments that run an nccl-tests program, with a file and without, for each runtime."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msccl_xml.model import Algo
from synth.collective import CollectiveName
from synth.errors import NoAnswerError

LAUNCHERS = ("auto", "mpirun", "torchrun", "none")
#: The program of nccl-tests for each collective.
PROGRAMS: Mapping[CollectiveName, str] = {
    CollectiveName.ALLREDUCE: "all_reduce_perf",
    CollectiveName.ALLGATHER: "all_gather_perf",
    CollectiveName.REDUCE_SCATTER: "reduce_scatter_perf",
    CollectiveName.ALLTOALL: "alltoall_perf",
    CollectiveName.BROADCAST: "broadcast_perf",
    CollectiveName.REDUCE: "reduce_perf",
    CollectiveName.GATHER: "gather_perf",
    CollectiveName.SCATTER: "scatter_perf",
}
#: Variables of ours beside those below that programs need where they run.
_PASSED_ON = ("LD_LIBRARY_PATH", "PATH", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")


@dataclass(frozen=True, slots=True)
class Launch:
    """How programs are started: `binaries` is their folder ("" for PATH), `extra` further words for the launcher."""

    launcher: str
    runtime: str
    ranks: int
    binaries: str = ""
    extra: tuple[str, ...] = ()
    iterations: int = 20
    warmup: int = 5

    def command(self, collective: CollectiveName, sizes: Sequence[int], variables: Mapping[str, str]) -> list[str]:
        """The command line for doublings from the smallest to the largest of `sizes` (bytes), each checked (`-c 1`).

        Raises NoAnswerError where the launcher or the program is missing, or the two do not go together.
        """
        program = _found(os.path.join(self.binaries, PROGRAMS[collective]), "nccl-tests")
        launcher = self._launcher()
        gpus = 1 if launcher == "mpirun" else self.ranks
        words = ["-b", str(sizes[0]), "-e", str(sizes[-1]), "-f", "2", "-g", str(gpus), "-d", "float", "-c", "1"]
        words += ["-n", str(self.iterations), "-w", str(self.warmup)]
        return [*self._before(launcher, variables), program, *words]

    def _launcher(self) -> str:
        chosen = self.launcher
        if chosen == "auto":
            chosen = "mpirun" if shutil.which("mpirun") else "none"
        if chosen != "mpirun" and self.runtime == "executor":
            raise NoAnswerError("msccl-executor uses files with one process for each GPU only: mpirun is needed")
        return chosen

    def _before(self, launcher: str, variables: Mapping[str, str]) -> list[str]:
        """What stands before the program. nccl-tests joins processes by MPI alone, so torchrun starts a single one with all GPUs."""
        if launcher == "none":
            return []
        program = _found(launcher, "the launcher")
        if launcher == "torchrun":
            return [program, "--standalone", "--nproc-per-node", "1", "--no-python", *self.extra]
        passed = [name for name in _PASSED_ON if name in os.environ]
        words = [program, "-np", str(self.ranks)]
        words += ["--allow-run-as-root"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
        for name in (*variables, *passed):
            words += ["-x", name]
        return [*words, *self.extra]


def with_file(algo: Algo, runtime: str, path: str) -> dict[str, str]:
    """The variables with which a runtime uses the file; for the executor and RCCL it stands alone in its folder.

    Source: docs/xml.md, what each runtime reads.
    """
    if runtime == "msccl":
        variables = {"MSCCL_XML_FILES": path, "NCCL_ALGO": "MSCCL,RING,TREE"}
        return variables | ({"NCCL_PROTO": "LL,LL128,Simple"} if algo.proto == "LL128" else {})
    folder = os.path.dirname(path)
    if runtime == "executor":
        return {"MSCCL_ALGO_DIR": folder, "NCCL_MSCCL_ENABLE": "1"}
    return {"MSCCL_ALGO_DIR": folder, "RCCL_MSCCL_ENABLE": "1", "RCCL_MSCCL_FORCE_ENABLE": "1"}


def without_file(runtime: str) -> dict[str, str]:
    """The variables with which a runtime uses its own algorithms. Those of `with_file` must not be set besides."""
    if runtime == "msccl":
        return {"NCCL_ALGO": "RING,TREE"}
    return {"NCCL_MSCCL_ENABLE": "0"} if runtime == "executor" else {"RCCL_MSCCL_ENABLE": "0"}


#: Variables that choose algorithms: those of our own environment must not leak into a measurement. NCCL_DEBUG is one of them, since
#: what it has printed cuts the lines of the table in two.
CHOOSING = frozenset(
    {"MSCCL_XML_FILES", "MSCCL_CONFIG", "MSCCL_ALGO_DIR", "MSCCL_SCHEDULER", "NCCL_ALGO", "NCCL_PROTO"}
    | {"NCCL_DEBUG", "NCCL_DEBUG_SUBSYS"}
    | {"NCCL_MSCCL_ENABLE", "RCCL_MSCCL_ENABLE", "RCCL_MSCCL_FORCE_ENABLE"}
)


def _found(program: str, what: str) -> str:
    path = shutil.which(program)
    if path is None:
        raise NoAnswerError(f"{what}: {program} is not there")
    return path
