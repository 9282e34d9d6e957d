"""One synthesis and its records: what a worker does, in whichever process or on whichever host.

Everything that it needs is in the job, everything that it found in the outcome: both are plain values that can be sent.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence

from msccl_xml.errors import XmlError
from msccl_xml.read import read_algo
from msccl_xml.write import write_algo
from synth import pipeline
from synth.bench.fingerprint import instance_hash, text_hash
from synth.bench.memory import Use, watch_use
from synth.bench.reference import reference_s
from synth.bench.timeline import timeline_of
from synth.bench.values import CRASHED, FAILED, NO_ANSWER, OK, VERIFY, Job, JobRecord, Outcome, Record, Stage, Timeline
from synth.collective import ROOTED, Collective
from synth.errors import CheckError, InputError, NoAnswerError
from synth.request import FilePlan, Request, Result, SizeRow
from synth.rivals import Rivals
from synth.simulate import Simulator, paths_by_pair
from synth.verify import VerifyError, infer_collective, verify_algo


def measure(job: Job) -> Outcome:
    """Synthesize, check the text of every file, time the baselines, and note what it all took.

    A synthesis that fails is no error here: its records have the status and the reason.
    """
    before_s = reference_s()
    # What earlier work left behind is not collected at the cost of this.
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    result: Result | None = None
    status, problem = OK, ""
    with watch_use() as use:
        try:
            result = pipeline.synthesize(request_of(job))
        except Exception as error:
            status, problem = _status(error), _told(error)
    seconds, cpu_s = time.perf_counter() - wall, time.process_time() - cpu
    cost = JobRecord(
        job=job.key,
        seconds=seconds,
        cpu_s=cpu_s,
        reference_s=(before_s + reference_s()) / 2,
        peak_bytes=use.peak_bytes.get(""),
        stages=() if result is None else _stages(result, use),
        command=job.command,
        notes=() if result is None else result.notes,
    )
    if result is None:
        return Outcome(cost, tuple(without_answer(job, status, problem)))
    return _answered(job, cost, result)


def without_answer(job: Job, status: str, problem: str) -> list[Record]:
    """A record for each case of a synthesis that gave nothing."""
    digest = instance_hash(job)
    return [
        Record(
            case=job.case(size),
            job=job.key,
            machine=job.machine.label,
            collective=job.collective.value,
            bytes=size,
            strategy=job.strategy,
            seed=job.seed,
            instance_hash=digest,
            status=status,
            problem=problem,
        )
        for size in job.sizes
    ]


def nothing_done(job: Job, status: str, problem: str) -> Outcome:
    """The outcome of a synthesis that was not run, or that took its process with it."""
    cost = JobRecord(job.key, 0.0, 0.0, 0.0, None, (), job.command)
    return Outcome(cost, tuple(without_answer(job, status, problem)))


def crashed(job: Job, error: BaseException) -> Outcome:
    """The outcome where the process that worked on it is gone."""
    return nothing_done(job, CRASHED, _told(error))


def request_of(job: Job) -> Request:
    """What the command line would ask of the pipeline, on one process."""
    return Request(
        topology=job.machine.topology,
        collective=job.collective,
        root=_root(job),
        min_bytes=job.sizes[0],
        max_bytes=job.sizes[-1],
        runtime=job.runtime,
        strategy=job.strategy,
        time_limit_s=job.budget_s,
        seed=job.seed,
    )


def _root(job: Job) -> int | None:
    return 0 if job.collective in ROOTED else None


def _status(error: Exception) -> str:
    match error:
        case VerifyError() | CheckError():
            return VERIFY
        case InputError() | NoAnswerError():
            return NO_ANSWER
        case _:
            return FAILED


def _told(error: BaseException) -> str:
    first = str(error).partition("\n")[0]
    return first if isinstance(error, InputError | NoAnswerError | VerifyError) else f"{type(error).__name__}: {first}"


def _stages(result: Result, use: Use) -> tuple[Stage, ...]:
    return tuple(
        Stage(
            name=row.name,
            seconds=row.seconds,
            status=row.status,
            peak_bytes=use.peak_bytes.get(row.name),
            objective=row.objective,
            bound=row.bound,
            gap=row.gap,
            cpu_s=use.cpu_s.get(row.name, 0.0),
        )
        for row in result.stages
    )


def _answered(job: Job, cost: JobRecord, result: Result) -> Outcome:
    """Records of an answer; a file whose text does not pass the verifier makes those of its sizes failures."""
    texts = [write_algo(plan.algo) for plan in result.files]
    problems = [_problem(text, plan, job) for text, plan in zip(texts, result.files, strict=True)]
    rivals = Rivals(job.machine.topology, job.collective, _root(job) or 0)
    baselines = {name: times_if_any(rivals, name, job.sizes) for name in job.baselines}
    rows = [row for row in result.sizes if row.bytes in job.sizes]
    records = []
    for row in rows:
        others = {name: times[row.bytes] for name, times in baselines.items() if row.bytes in times}
        records.append(_record(job, result, row, others, texts[row.file], problems[row.file]))
    files = {text_hash(text): text for text in texts}
    return Outcome(cost, tuple(records), files, tuple(_timelines(job, result.files, texts, rows)))


def times_if_any(rivals: Rivals, name: str, sizes: Sequence[int]) -> dict[int, float]:
    """What a baseline takes at the sizes; empty where it does not exist for the collective or the machine."""
    try:
        return rivals.times_us(name, sizes)
    except (NoAnswerError, InputError):
        return {}


def _problem(text: str, plan: FilePlan, job: Job) -> str:
    """What is wrong with a file as it was written; "" for nothing.

    The pipeline verified the program: a text that reads back as the same program needs no second run of the verifier.
    """
    try:
        algo = read_algo(text.encode())
        if algo != plan.algo:
            verify_algo(algo, infer_collective(algo, root=_root(job)), runtime=job.runtime)
    except (XmlError, VerifyError, InputError) as error:
        return _told(error)
    return ""


def _record(job: Job, result: Result, row: SizeRow, baselines_us: dict[str, float], text: str, problem: str) -> Record:
    plan = result.files[row.file]
    routing = next((stage for stage in result.stages if stage.name == "routing"), None)
    ranks = result.ranks
    factor = Collective(job.collective, ranks, ranks, _root(job)).busbw_factor()
    return Record(
        case=job.case(row.bytes),
        job=job.key,
        machine=job.machine.label,
        collective=job.collective.value,
        bytes=row.bytes,
        strategy=job.strategy,
        seed=job.seed,
        instance_hash=instance_hash(job),
        status=VERIFY if problem else OK,
        problem=problem,
        cut=result.cut_short,
        proof="" if routing is None else routing.status,
        schedule_us=row.schedule_us,
        time_us=row.time_us,
        bound_us=row.bound_us,
        efficiency=row.efficiency,
        gap=None if routing is None else routing.gap,
        busbw_factor=factor,
        protocol=plan.protocol,
        chunks=plan.chunks_per_rank,
        instances=plan.instances,
        steps=plan.steps,
        threadblocks=plan.threadblocks,
        channels=plan.channels,
        xml_hash=text_hash(text),
        baselines_us=baselines_us,
    )


def _timelines(job: Job, plans: Sequence[FilePlan], texts: Sequence[str], rows: Sequence[SizeRow]) -> list[Timeline]:
    """One for each file that serves a case, at the smallest size that it serves."""
    by_pair = paths_by_pair(job.machine.topology)
    made: list[Timeline] = []
    for number, (plan, text) in enumerate(zip(plans, texts, strict=True)):
        served = [row.bytes for row in rows if row.file == number]
        if served:
            simulator = Simulator(plan.algo, job.machine.topology, paths=by_pair)
            made.append(timeline_of(plan.algo, text_hash(text), simulator, served[0]))
    return made
