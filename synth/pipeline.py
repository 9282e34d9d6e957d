"""From a request to verified files: search, choice of what serves which sizes, lowering, verification."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from msccl_xml.model import Algo
from synth.bounds import Bound
from synth.choice import Segment
from synth.chunks import first_indivisible, moved_bytes
from synth.collective import ROOTED, Collective, CollectiveName
from synth.collector import collector_paused
from synth.errors import InputError, NoAnswerError
from synth.group import group_text
from synth.paths import find_paths
from synth.plan import Plan
from synth.request import FilePlan, Progress, Request, Result, SizeRow, StageRow, TriedRow
from synth.search import Clock, Ledger, Scored, Search
from synth.solve import Solution
from synth.trial import Contender, Trial
from synth.units import bandwidth_GBps, format_size
from synth.verify import VerifyError, verify_algo
from synth.workers import available_cores, in_parallel

__all__ = ["available_cores", "synthesize"]

#: Where what was made serves not all sizes, or no runtime holds it, so many more candidates are made for certain.
_LAST_RESORTS = 4


@collector_paused()
def synthesize(request: Request, progress: Callable[[Progress], None] = lambda _: None) -> Result:
    """The answer to a request: at most `max_files` verified files that cover its sizes, and the table of what they take.

    Raises InputError and NoAnswerError where the request cannot be met, VerifyError or CheckError for a bug of ours.
    """
    if request.topology.num_ranks < 2:
        raise InputError(request.topology.name, "ranks", request.topology.num_ranks, "2 or more GPUs")
    ledger = Ledger()
    ledger.enter("topology")
    plan = Plan(request, find_paths(request.topology, request.cut(1)))
    search = Search(plan, ledger, progress)
    trial = Trial(plan, ledger, progress)
    foreseen = _Foreseen(trial)
    trial.foreseen = foreseen.verify
    with closing(search.waves()) as waves, closing(trial):
        for number, scored in enumerate(waves, 1):
            trial.look_at(scored, more=number < len(plan.waves) and not search.is_over)
            if trial.closed or (search.is_over and trial.has_answers):
                break
        if (rivals := trial.rivals_left) and not search.is_over:
            trial.look_at(search.also(rivals))
        segments = trial.segments(request.max_files)
        for _ in range(_LAST_RESORTS):
            if segments or (coarsest := search.coarsest_left) is None:
                break
            trial.look_at(search.also([coarsest]))
            segments = trial.segments(request.max_files)
    files = _files(request, trial, segments, foreseen.files)
    ledger.enter("bound")
    bound = _bound(plan, trial.scored)
    rows = _rows(plan, trial, segments, bound)
    chosen = [trial.contenders[segment.candidate] for segment in segments]
    ledger.enter("done")
    cut_short = bool(search.notes or trial.notes)
    return Result(
        collective=request.collective,
        topology=request.topology.name,
        ranks=request.topology.num_ranks,
        group=request.group,
        strategy=request.strategy,
        files=tuple(files),
        sizes=rows,
        stages=_stage_rows(ledger, trial.entry(chosen[-1]).solution),
        notes=(*search.notes, *trial.notes, *_time_notes(trial, chosen), *_notes(plan, bound)),
        tried=_tried_rows(trial, segments, cut_short),
        cut_short=cut_short,
    )


def _files(
    request: Request, trial: Trial, segments: Sequence[Segment], known: Mapping[Contender, FilePlan]
) -> list[FilePlan]:
    """The files of a split of the sizes, each verified, as those `known` are already."""
    if not segments:
        raise next(iter(trial.refusals.values()), _refusal(request))
    chosen = [trial.contenders[segment.candidate] for segment in segments]
    ranges = _covered(request, trial.sizes, [(segment.first, segment.last) for segment in segments])
    files = [
        known.get(contender) or _file(request, trial, contender, covered)
        for contender, covered in zip(chosen, ranges, strict=True)
    ]
    trial.ledger.enter("verify")
    alone = request.jobs if len(files) == 1 else 1
    claims = [
        _claim(file, trial, contender, alone)
        for file, contender in zip(files, chosen, strict=True)
        if contender not in known
    ]
    for number, _ in enumerate(in_parallel(request.jobs, _verify, claims, range(len(claims))), 1):
        trial.progress(Progress("verify", f"file {number} of {len(files)}", None, None))
    return files


@dataclass
class _Foreseen:
    """Files of one size alone that were verified before it was known that they are the answer, by contender."""

    trial: Trial
    files: dict[Contender, FilePlan] = field(default_factory=dict)

    def verify(self, contender: Contender) -> None:
        """Have the contender's file, verified by this process alone. One that is wrong says so once it is the answer."""
        request, sizes = self.trial.request, self.trial.sizes
        if len(sizes) > 1:
            return
        (covered,) = _covered(request, sizes, [(0, 0)])
        file = _file(request, self.trial, contender, covered)
        self.trial.ledger.enter("verify")
        with suppress(VerifyError):
            _verify([_claim(file, self.trial, contender, 1)], 0)
            self.files[contender] = file


class _Claim(NamedTuple):
    """A file, what it says that it computes, the runtime that is to load it, and how many processes may look at it."""

    algo: Algo
    collective: Collective
    runtime: str
    jobs: int


def _claim(file: FilePlan, trial: Trial, contender: Contender, jobs: int) -> _Claim:
    return _Claim(file.algo, trial.computed(contender), trial.request.runtime, jobs)


def _verify(claims: Sequence[_Claim], number: int) -> None:
    """VerifyError unless the file does what is claimed: in whichever process."""
    claim = claims[number]
    verify_algo(claim.algo, claim.collective, runtime=claim.runtime, jobs=claim.jobs)


def _refusal(request: Request) -> NoAnswerError:
    """Why no candidate serves all sizes, where none was refused later on."""
    if request.instances is None:
        return NoAnswerError(f"--sizes: {request.max_files} files do not serve them all, expected a narrower range")
    return NoAnswerError(
        f"--instances: {request.instances} copies of the algorithm do not divide every buffer of {request.collective}, "
        "expected a number that does; or name a count with --chunks, and runtimes pass over the file where it does not divide"
    )


def _covered(request: Request, sizes: Sequence[int], parts: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """(first, last) byte count of each part of the sizes, without gap or overlap, from what the first size really moves; a part is
    the positions of its first and last size.

    Two sizes may move the same: then the part before serves both.
    """
    ranks = request.topology.num_ranks
    moved = [moved_bytes(request.collective, ranks, size) for size in sizes]
    starts = [moved[0]]
    for (_, last), (first, _) in itertools.pairwise(parts):
        starts.append(max(moved[first], moved[last] + 1))
    return list(zip(starts, [*(start - 1 for start in starts[1:]), request.max_bytes], strict=True))


def _file(request: Request, trial: Trial, contender: Contender, covered: tuple[int, int]) -> FilePlan:
    entry, instances = trial.entry(contender), contender.instances
    # microsoft/msccl reads maxBytes as the first size that is not covered, the others as the last that is.
    last = covered[1] + (1 if request.runtime == "msccl" else 0)
    algo = replace(trial.algo(contender), min_bytes=covered[0], max_bytes=last)
    return FilePlan(
        algo=algo,
        min_bytes=covered[0],
        max_bytes=covered[1],
        protocol=entry.protocol,
        chunks_per_rank=entry.solution.collective.per_rank,
        instances=instances,
        channels=algo.nchannels,
        threadblocks=algo.threadblocks,
        steps=max(len(tb.steps) for gpu in algo.gpus for tb in gpu.threadblocks),
        strategy=entry.candidate.strategy,
    )


def _bound(plan: Plan, scored: Sequence[Scored]) -> Bound:
    """The best bound of the machine, or what a tree packing proved over all its paths where that says more."""
    best = plan.bound
    if _halves(plan.request) != 1 or any(gap for path in plan.paths for gap, _ in path.occupancy):
        return best
    for entry in scored:
        solution = entry.solution
        whole = len(solution.instance.paths) == len(plan.paths)
        if entry.candidate.packed and solution.bound_us and whole:
            per_byte = solution.bound_us / entry.candidate.anchor_bytes
            if per_byte > best.us_per_byte * (1 + 1e-3):
                best = replace(best, us_per_byte=per_byte, what="packing bound: linear program over all trees")
    return best


def _halves(request: Request) -> int:
    return 2 if request.collective is CollectiveName.ALLREDUCE else 1


def _rows(plan: Plan, trial: Trial, segments: Sequence[Segment], bound: Bound) -> tuple[SizeRow, ...]:
    factor = plan.collective(1).busbw_factor()
    rows = []
    for file, segment in enumerate(segments):
        contender = trial.contenders[segment.candidate]
        clock = Clock(trial.entry(contender).solution)
        for size in trial.sizes[segment.first : segment.last + 1]:
            taken = trial.taken_us(contender, size)
            algbw = bandwidth_GBps(size, taken)
            limit = bound.time_us(size)
            rows.append(
                SizeRow(
                    bytes=size,
                    time_us=taken,
                    algbw_GBps=algbw,
                    busbw_GBps=algbw * factor,
                    schedule_us=clock.time_us(size),
                    bound_us=limit,
                    efficiency=limit / taken if taken > 0 else 1.0,
                    file=file,
                )
            )
    return tuple(rows)


def _tried_rows(trial: Trial, segments: Sequence[Segment], cut_short: bool) -> tuple[TriedRow, ...]:
    """Every contender: what it was, what was found, and which file it became; `cut_short` if a clock ended the search."""
    files = {segment.candidate: file for file, segment in enumerate(segments)}
    best: dict[int, float] = {}
    for contender in trial.contenders:
        for size, taken in trial.known_us(contender).items():
            best[size] = min(best.get(size, taken), taken)
    rows = []
    for index, contender in enumerate(trial.contenders):
        entry = trial.entry(contender)
        rows.append(
            TriedRow(
                strategy=entry.candidate.strategy,
                chunks=entry.candidate.count,
                solved_for_bytes=entry.candidate.anchor_bytes,
                ordered=entry.candidate.ordered,
                paths="apart" if entry.candidate.apart else "all",
                protocol=entry.protocol,
                channels=contender.channels,
                instances=contender.instances,
                up_to_bytes=contender.up_to_bytes,
                schedules_us=entry.schedules_us,
                simulated_us=trial.simulated_us(contender),
                file=files.get(index),
                outcome=_outcome(trial, contender, files.get(index), best, cut_short),
            )
        )
    return tuple(rows)


def _outcome(trial: Trial, contender: Contender, file: int | None, best: Mapping[int, float], cut_short: bool) -> str:
    if file is not None:
        return "the best of its sizes"
    if contender in trial.refusals:
        return f"no program: {trial.refusals[contender]}"
    times = trial.known_us(contender)
    if not times:
        late = ", or there was no time for it" if cut_short else ""
        return f"not simulated: its schedule or estimate is behind others at every size looked at{late}"
    behind, size = min((taken / best[size], size) for size, taken in times.items())
    estimated = "" if size in trial.simulated_us(contender) else " by its estimate"
    return f"nearest at {format_size(size)}{estimated}: {behind:.3f} of the best time there"


def _stage_rows(ledger: Ledger, solution: Solution) -> tuple[StageRow, ...]:
    """Seconds of every stage over all candidates; status and figures of the one that serves the largest size."""
    rows = []
    for name, seconds in ledger.seconds.items():
        row = StageRow(name, seconds, "done")
        if name == "routing":
            gap = solution.relaxed_us / solution.bound_us - 1 if solution.bound_us else None
            row = StageRow(name, seconds, solution.status, solution.relaxed_us, solution.bound_us, gap)
        elif name == "ordering":
            row = StageRow(name, seconds, solution.rule, solution.ordered_us)
        elif name == "scheduling":
            row = StageRow(name, seconds, solution.scheduled_by, solution.schedule.makespan_us)
        rows.append(row)
    return tuple(rows)


def _time_notes(trial: Trial, chosen: Sequence[Contender]) -> list[str]:
    if not all(map(trial.is_simulated, chosen)):
        return [
            "time is the exact schedule with the protocol's hop latency and wire share: "
            "some program is too large to simulate here, or there was no time for it"
        ]
    notes = ["time is what the simulated interpreter takes, launch included"]
    if len(trial.sizes) > len(trial.plan.looked_at) and any(map(trial.is_thinned, chosen)):
        notes.append(
            "some program is large: it was simulated at some sizes, and times between are on the line between those"
        )
    return notes


def _notes(plan: Plan, bound: Bound) -> list[str]:
    request = plan.request
    notes = [
        f"bound is the {bound.what}, and the longest shortest path in alpha",
    ]
    if request.objective == "auto" and not request.by_time:
        notes.append(
            "compared by exact schedule, since the description says neither which GPUs these are nor what they hang off: "
            "--arch says the first, and --objective time compares what an interpreter makes of it"
        )
    if request.topology.is_machine and not request.topology.names_gpus:
        notes.append(
            "the description does not say which GPUs these are: times are as if they were Volta's, and --arch says otherwise"
        )
    asked = plan.asked_count
    if asked is not None:
        sizes = plan.sizes
        size = first_indivisible(
            request.collective, request.topology.num_ranks, asked * (request.instances or 1), sizes
        )
        if size is not None:
            notes.append(
                f"warning: {asked} chunks do not divide a buffer of {format_size(size)}: "
                "runtimes silently use their own algorithm there"
            )
    if request.group is not None:
        notes.append(
            f"runtimes know no groups: these files are for a communicator of all {request.topology.num_ranks} ranks whose "
            f"{request.collective} is always of ranks {group_text(request.group)}; every rank calls it, and the buffers of the "
            "others are neither read nor written"
        )
    if request.collective in ROOTED:
        notes.append(
            f"the format holds no root: these files are right for root {request.actual_root} only, and a runtime would "
            "choose them for any root; load them in jobs whose root never changes"
        )
    if request.collective in (CollectiveName.GATHER, CollectiveName.SCATTER) and request.runtime == "msccl":
        notes.append(
            f"microsoft/msccl has no {request.collective}: the files are collective `custom`, called by its index "
            "through ncclCustomCollective"
        )
    return notes
