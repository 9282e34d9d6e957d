"""What a benchmark is made of, as values: machines and syntheses that go in, records that come out.

A *synthesis* is one call of the pipeline; a *case* is one buffer size of it, and has one record a run. Times of algorithms are
us, of the work itself seconds, memory is bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from synth.collective import CollectiveName
from synth.topology import Topology
from synth.units import format_size

#: Statuses of a record, the best first. "left out": the suite's time was up. "crashed": the process died.
OK, NO_ANSWER, FAILED, VERIFY, CRASHED, LEFT_OUT = "ok", "no answer", "failed", "verify failed", "crashed", "left out"


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine of a suite: `source` is what `--topo` takes, `nodes` copies of it."""

    source: str
    nodes: int
    topology: Topology

    @property
    def label(self) -> str:
        """How cases name the machine: `dgx1`, `ndv2x2`."""
        return self.topology.name


@dataclass(frozen=True, slots=True)
class Job:
    """One synthesis: a request of the pipeline for a range of sizes (or for a single one), of which `sizes` become cases."""

    machine: Machine
    collective: CollectiveName
    sizes: tuple[int, ...]
    strategy: str
    seed: int
    runtime: str
    budget_s: float
    baselines: tuple[str, ...]

    @property
    def key(self) -> str:
        """Names the synthesis within its suite."""
        low, high = format_size(self.sizes[0]), format_size(self.sizes[-1])
        sizes = low if low == high else f"{low}:{high}"
        return f"{self.machine.label}/{self.collective}/{sizes}/{self.strategy}/{self.seed}"

    def case(self, size_bytes: int) -> str:
        """Names one case, the same in every run and suite: `dgx1/allreduce/1MB/auto/0`."""
        return f"{self.machine.label}/{self.collective}/{format_size(size_bytes)}/{self.strategy}/{self.seed}"

    @property
    def command(self) -> str:
        """The command line that makes the same files."""
        low, high = format_size(self.sizes[0]), format_size(self.sizes[-1])
        size = f"--size {low}" if low == high else f"--sizes {low}:{high}"
        nodes = f" --nodes {self.machine.nodes}" if self.machine.nodes > 1 else ""
        parts = f"synth {self.collective} --topo {self.machine.source}{nodes} {size} --runtime {self.runtime}"
        return f"{parts} --strategy {self.strategy} --seed {self.seed} --time-limit {self.budget_s:g} --no-cache"


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of one synthesis: `seconds` by the clock, `cpu_s` as far as it was seen (None in records older than the look at it),
    `peak_bytes` the largest resident memory seen during it (None where it was too short).
    """

    name: str
    seconds: float
    status: str
    peak_bytes: int | None = None
    objective: float | None = None
    bound: float | None = None
    gap: float | None = None
    cpu_s: float | None = None


@dataclass(frozen=True, slots=True)
class JobRecord:
    """What one synthesis cost. `reference_s` is the CPU time of the reference workload beside it (reference.py)."""

    job: str
    seconds: float
    cpu_s: float
    reference_s: float
    peak_bytes: int | None
    stages: tuple[Stage, ...]
    command: str
    notes: tuple[str, ...] = ()

    def stage_cpu_s(self) -> dict[str, float]:
        """CPU seconds by stage, and under "other" those of no stage; empty where they were not looked at."""
        seen = {stage.name: stage.cpu_s for stage in self.stages if stage.cpu_s is not None}
        return seen | {"other": max(0.0, self.cpu_s - sum(seen.values()))} if seen else {}


@dataclass(frozen=True, slots=True)
class Record:
    """One case of one run; figures are None where there is no answer.

    All fields are deterministic: two runs of one commit give equal records, unless a synthesis ran out of time (`cut`).
    """

    case: str
    job: str
    machine: str
    collective: str
    bytes: int
    strategy: str
    seed: int
    instance_hash: str
    status: str
    problem: str = ""
    cut: bool = False
    proof: str = ""
    schedule_us: float | None = None
    time_us: float | None = None
    bound_us: float | None = None
    efficiency: float | None = None
    gap: float | None = None
    busbw_factor: float | None = None
    protocol: str | None = None
    chunks: int | None = None
    instances: int | None = None
    steps: int | None = None
    threadblocks: int | None = None
    channels: int | None = None
    xml_hash: str | None = None
    baselines_us: dict[str, float] = field(default_factory=dict)

    @property
    def is_optimal(self) -> bool:
        """Whether the routing was proved optimal."""
        return self.proof.startswith("optimal")

    def busbw_GBps(self, time_us: float | None) -> float | None:
        """The bus bandwidth, as nccl-tests defines it, of a time in us for this case."""
        if time_us is None or time_us <= 0 or self.busbw_factor is None:
            return None
        return self.bytes / time_us / 1e3 * self.busbw_factor


@dataclass(frozen=True, slots=True)
class Timeline:
    """Who is busy when in a file, at one size: bars are (row, start us, end us, kind), rows (rank, threadblock)."""

    xml_hash: str
    bytes: int
    span_us: float
    rows: tuple[tuple[int, int], ...]
    bars: tuple[tuple[int, float, float, str], ...]
    cut: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """All that one synthesis leaves: its cost, a record for each case, and the files and timelines by hash."""

    cost: JobRecord
    records: tuple[Record, ...]
    files: dict[str, str] = field(default_factory=dict)
    timelines: tuple[Timeline, ...] = ()


@dataclass(frozen=True, slots=True)
class Tolerances:
    """What still counts as equal.

    `schedule`, `time` and `gap` (of 1 + gap) are shares of the figure before. `seconds` is a factor on a stage's CPU time, measured
    in reference workloads and added up over the suite, `job_seconds` on that of one synthesis.
    """

    schedule: float = 1e-6
    time: float = 0.01
    gap: float = 0.001
    seconds: float = 1.5
    job_seconds: float = 2.0


@dataclass(frozen=True, slots=True)
class Suite:
    """Syntheses in the order in which they are run. `total_s`: none is begun later than this many seconds after the start."""

    name: str
    jobs: tuple[Job, ...]
    total_s: float | None
    tolerances: Tolerances
    digest: str
