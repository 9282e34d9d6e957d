"""Small suites, records and histories for the tests of `synth.bench`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from synth.bench.executors import SerialExecutor, Slots
from synth.bench.fingerprint import Origin
from synth.bench.rows import Run
from synth.bench.run import run_suite
from synth.bench.store import Store
from synth.bench.suite import parse_suite
from synth.bench.values import JobRecord, Outcome, Record, Stage, Suite, Timeline

HERE = Origin("c0ffee00" * 5, "", {"synth": "0", "python": "3"}, "a test")
NEXT = replace(HERE, commit="deadbeef" * 5)

TINY = """
name = "tiny"
sizes = ["1KB", "4KB"]
collectives = ["allgather", "alltoall"]
topologies = ["ring4"]
baselines = ["ring"]
"""


def suite(text: str = TINY) -> Suite:
    """The suite of a text, or the tiny one: two syntheses, four cases."""
    return parse_suite(text, "tiny.toml")


@contextmanager
def in_process() -> Iterator[Slots]:
    """An executor that does everything here, so that a test can put something in its way."""
    yield Slots(SerialExecutor(), lambda: 1)


def run(path: Path | str, what: Suite | None = None, origin: Origin = HERE) -> Run:
    """Run a suite in this process into a store."""
    with Store(str(path), write=True) as store:
        return run_suite(what or suite(), store, origin, in_process)


def record(case: str = "ring4/allgather/1KB/auto/0", **changes: object) -> Record:
    """A record with an answer, some fields changed."""
    machine, collective, size, strategy, seed = case.split("/")
    plain = Record(
        case=case,
        job=f"{machine}/{collective}/1KB:4KB/{strategy}/{seed}",
        machine=machine,
        collective=collective,
        bytes={"1KB": 1 << 10, "4KB": 1 << 12}[size],
        strategy=strategy,
        seed=int(seed),
        instance_hash="0123456789abcdef",
        status="ok",
        proof="optimal packing",
        schedule_us=2.0,
        time_us=5.0,
        bound_us=1.0,
        efficiency=0.2,
        gap=0.01,
        busbw_factor=0.75,
        protocol="LL",
        chunks=1,
        instances=1,
        steps=3,
        threadblocks=2,
        channels=1,
        xml_hash="feed",
        baselines_us={"ring": 6.0, "tree": 7.0},
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def cost(job: str = "ring4/allgather/1KB:4KB/auto/0", **changes: object) -> JobRecord:
    """What a synthesis cost: a hundred reference workloads, most of them in routing."""
    plain = JobRecord(
        job=job,
        seconds=4.0,
        cpu_s=3.0,
        reference_s=0.03,
        peak_bytes=100 << 20,
        stages=(
            Stage("routing", 3.0, "optimal packing", 90 << 20, cpu_s=2.25),
            Stage("verify", 1.0, "done", None, cpu_s=0.75),
        ),
        command="synth allgather --topo ring4 --sizes 1KB:4KB",
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def outcome(*records: Record, **changes: object) -> Outcome:
    """An outcome of one synthesis with a file and its timeline."""
    kept = records or (record(), record("ring4/allgather/4KB/auto/0"))
    line = Timeline("feed", 1024, 4.0, ((0, 0), (1, 0)), ((0, 0.0, 2.0, "send"), (1, 1.0, 4.0, "receive")), False)
    return Outcome(cost(kept[0].job, **changes), kept, {"feed": "<algo/>"}, (line,))
