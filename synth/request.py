"""What the command line asks the pipeline for, and what it gets back. Sizes are bytes, times µs."""

from __future__ import annotations

from dataclasses import dataclass, field

from msccl_xml.limits import MAX_FILES
from msccl_xml.model import Algo
from synth.collective import ROOTED, SHARED, Collective, CollectiveName, root_of
from synth.sketch import Sketch
from synth.topology import Topology

#: Threadblocks of a GPU unless asked otherwise: they all have to be resident beside the training job's own kernels, and one RCCL
#: build takes no more.
DEFAULT_THREADBLOCKS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One job: `collective` on `topology` for buffers of `min_bytes` to `max_bytes`, as nccl-tests counts them.

    What is left out is as the command line has it by default, but on one process. None means "choose" for `protocol`, `instances`
    and `chunks`, `DEFAULT_THREADBLOCKS` for `max_threadblocks`, and what the runtime can tell apart for `inplace`.
    `time_limit_s` is in seconds and counts from the start of the job.
    """

    topology: Topology
    collective: CollectiveName
    root: int | None = None
    group: tuple[int, ...] | None = None
    """The ranks that take part, ascending, where not all do; the others may relay."""
    min_bytes: int
    max_bytes: int
    runtime: str = "msccl"
    strategy: str = "auto"
    protocol: str | None = None
    instances: int | None = None
    chunks: int | None = None
    max_threadblocks: int | None = None
    max_files: int = MAX_FILES
    """Files of the answer at most."""
    sketch: Sketch | None = None
    time_limit_s: float = 30.0
    seed: int = 0
    inplace: bool | None = None
    solver: str = "auto"
    objective: str = "auto"
    """What candidates are compared by: "time", simulated; "schedule", the exact schedule (cost level 2), and the simulation only
    where schedules are equally good, of large buffers all but equally; "auto": time where the description is of a machine that
    somebody has, which a runtime is to run on, and schedule where it is only a graph of latencies and bandwidths."""
    jobs: int = 1
    """Processes to use; the answer does not depend on it."""
    thorough: bool = False
    """Whether to try what is seldom best, too, as long as `time_limit_s` allows."""

    @property
    def actual_root(self) -> int | None:
        """The root, the first rank that takes part where none is given; None where the collective has none."""
        return root_of(self.collective, self.root, self.group) if self.collective in ROOTED else None

    def cut(self, count: int) -> Collective:
        """The collective cut by `count` (per rank where ranks have shares)."""
        ranks = self.topology.num_ranks
        chunks = count * ranks if self.collective in SHARED else count
        return Collective(self.collective, ranks, chunks, self.actual_root, self.group)

    @property
    def single_size(self) -> bool:
        """Whether it is for one size, and one file is wanted."""
        return self.min_bytes == self.max_bytes

    @property
    def by_time(self) -> bool:
        """Whether candidates are compared by their simulated time: a range of files is for running, whoever made the GPUs, while
        one size on a graph that says neither which GPUs it joins nor what they hang off is a problem of schedules.
        """
        runs = self.topology.is_machine or not self.single_size
        return self.objective == "time" or (self.objective == "auto" and runs)

    @property
    def has_cut(self) -> bool:
        """Whether the request itself says into how many chunks to cut, so that instances may not cut these further."""
        return self.chunks is not None or self.sketch is not None

    @property
    def threadblocks(self) -> int:
        """How many threadblocks a GPU may have."""
        return self.max_threadblocks or DEFAULT_THREADBLOCKS


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a job stands: `fraction` of the whole in 0..1 where it is known, `best_us` the best time so far."""

    stage: str
    detail: str
    fraction: float | None = None
    best_us: float | None = None


@dataclass(frozen=True, slots=True)
class FilePlan:
    """One verified file of the answer, for buffers of `min_bytes` to `max_bytes` (both covered).

    `channels`, `threadblocks` and `steps` are the largest of any rank, and of any threadblock for `steps`.
    """

    algo: Algo
    min_bytes: int
    max_bytes: int
    protocol: str
    chunks_per_rank: int
    instances: int
    channels: int
    threadblocks: int
    steps: int
    strategy: str


@dataclass(frozen=True, slots=True)
class SizeRow:
    """What one buffer size gets: `schedule_us` is cost level 2, `file` the index of the file that serves it."""

    bytes: int
    time_us: float
    algbw_GBps: float
    busbw_GBps: float
    schedule_us: float
    bound_us: float
    efficiency: float
    file: int


@dataclass(frozen=True, slots=True)
class StageRow:
    """What one stage of the pipeline did; `objective`, `bound` and `gap` where a solver gave them."""

    name: str
    seconds: float
    status: str
    objective: float | None = None
    bound: float | None = None
    gap: float | None = None


@dataclass(frozen=True, slots=True)
class TriedRow:
    """One candidate of the search: how it was made, and what was found of it, in us by bytes.

    `solved_for_bytes` is the buffer size that it was solved at, `ordered` says how (list, rounds, pieces, turns), `paths` over which
    (all, or what keeps "apart"), `channels` is 0 where every path got what its bandwidth needs, `up_to_bytes` the largest buffer
    that its program is for where that is less than it could be; `simulated_us` holds the sizes that were simulated; `file` is the
    index of the file that it became, `outcome` says why it did or did not.
    """

    strategy: str
    chunks: int
    solved_for_bytes: int
    ordered: str
    paths: str
    protocol: str
    channels: int
    instances: int
    up_to_bytes: int | None
    schedules_us: dict[int, float]
    simulated_us: dict[int, float]
    file: int | None
    outcome: str


@dataclass(frozen=True, slots=True)
class Result:
    """A whole answer. Every file in it passed the verifier: an answer that did not is raised, never returned.

    `files` are in order of size; `notes` are sentences for the reader (which bound is quoted, what a limit cut short).
    """

    collective: CollectiveName
    topology: str
    ranks: int
    group: tuple[int, ...] | None = field(default=None, kw_only=True)
    strategy: str
    files: tuple[FilePlan, ...]
    sizes: tuple[SizeRow, ...]
    stages: tuple[StageRow, ...]
    notes: tuple[str, ...] = ()
    tried: tuple[TriedRow, ...] = ()
    cut_short: bool = False
    """Whether a clock ended the search: another run may find something else."""
    cached: bool = False
    """Whether the answer was made before and only read again; `stages` tell of then."""
