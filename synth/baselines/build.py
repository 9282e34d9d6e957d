"""The baselines by name, and how one is built: plan, messages, exact times, check, lowering."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from synth.baselines import all_pairs, halving_doubling, hierarchical, one_shot, ring, tree
from synth.baselines.machine import Machine
from synth.baselines.options import BaselineOptions, Built
from synth.baselines.plan import Planner, Problem, instance_of, plan_schedule, plan_transfers
from synth.collective import ROOTED, SHARED, Collective, CollectiveName
from synth.errors import InputError, NoAnswerError
from synth.instance import Instance
from synth.ir import Schedule, Transfer
from synth.lowering import lower, lowered_collective
from synth.paths import Path, find_paths
from synth.topology import Topology

#: A schedule this much longer than the best is as good: a message costs an interpreter time that cost level 2 does not know,
#: and so finer pieces always seem to be better.
_AS_GOOD = 1.05


@dataclass(frozen=True)
class Baseline:
    """An algorithm that others use: which collectives it has, how it plans them, and the chunk counts worth trying.

    Counts are of a rank's share where ranks have shares. `plan` is None for the one that is no set of trees (one_shot.py).
    """

    name: str
    about: str
    collectives: frozenset[CollectiveName]
    plan: Planner | None
    counts: Callable[[Machine, CollectiveName], tuple[int, ...]]


BASELINES: Mapping[str, Baseline] = MappingProxyType(
    {
        baseline.name: baseline
        for baseline in (
            Baseline("ring", "NCCL's rings, as many as fit", ring.COLLECTIVES, ring.plan, ring.counts),
            Baseline("tree", "NCCL's double binary tree", tree.COLLECTIVES, tree.plan, tree.counts),
            Baseline(
                "halving-doubling",
                "recursive halving and doubling",
                halving_doubling.COLLECTIVES,
                halving_doubling.plan,
                halving_doubling.counts,
            ),
            Baseline(
                "all-pairs",
                "everybody to everybody; allreduce in two shots",
                all_pairs.COLLECTIVES,
                all_pairs.plan,
                all_pairs.counts,
            ),
            Baseline(
                "one-shot",
                "every rank gets every vector and adds up",
                one_shot.COLLECTIVES,
                None,
                lambda machine, name: (1,),
            ),
            Baseline(
                "hierarchical",
                "within nodes, along rails, within nodes",
                hierarchical.COLLECTIVES,
                hierarchical.plan,
                hierarchical.counts,
            ),
        )
    }
)

#: What NCCL runs by itself: others' algorithms that everybody has.
RIVALS = frozenset({"ring", "tree"})


def build(
    name: str,
    topology: Topology,
    collective: CollectiveName,
    buffer_bytes: float,
    options: BaselineOptions = BaselineOptions(),  # noqa: B008 - a constant
    paths: Sequence[Path] | None = None,
) -> Built:
    """Baseline `name` of `collective` on `topology`, for a buffer of `buffer_bytes` as nccl-tests counts it.

    `paths` are those of `find_paths`, which is called where they are not given. Of several chunk counts the least is
    taken whose schedule is about as short as any at this size.

    Raises InputError for an unknown name or an in-place call that does not exist, NoAnswerError with the reason where the
    baseline does not exist for this collective or machine, or where the limits are too tight.
    """
    baseline = _baseline(name, collective)
    if topology.num_ranks < 2:
        raise NoAnswerError(f"{name}: {topology.name} has {topology.num_ranks} GPU, expected 2 or more")
    machine = Machine(topology, tuple(paths) if paths is not None else find_paths(topology))
    counts = (options.chunks,) if options.chunks is not None else baseline.counts(machine, collective)
    cut = [_cut(collective, topology.num_ranks, count, options) for count in counts]
    if baseline.plan is None:
        return one_shot.build(machine, cut[0], buffer_bytes, options)
    timed = [_schedule(machine, one, buffer_bytes, baseline.plan) for one in cut]
    return _lowered(baseline, _preferred(timed), options)


def schedule(name: str, machine: Machine, collective: Collective, buffer_bytes: float) -> tuple[Instance, Schedule]:
    """The schedule of baseline `name` (any but one-shot, which is no set of trees) for a collective cut as the caller likes.

    Raises InputError for an unknown name, NoAnswerError with the reason where it does not exist for this collective, cut or
    machine.
    """
    return _schedule(machine, collective, buffer_bytes, _planner(name, collective.name))


def transfers(name: str, machine: Machine, collective: Collective) -> tuple[Transfer, ...]:
    """Which chunk baseline `name` sends over which path, in broadcast form: for sums, on the reversed machine. Raises what
    `schedule` does.
    """
    return plan_transfers(Problem(machine, collective), _planner(name, collective.name))


def _baseline(name: str, collective: CollectiveName) -> Baseline:
    baseline = BASELINES.get(name)
    if baseline is None:
        raise InputError("baseline", "", name, f"one of {', '.join(BASELINES)}")
    if collective not in baseline.collectives:
        has = ", ".join(known for known in CollectiveName if known in baseline.collectives)
        raise NoAnswerError(f"{name}: no {collective}, expected one of {has}")
    return baseline


def _planner(name: str, collective: CollectiveName) -> Planner:
    """What makes the trees of baseline `name`."""
    planner = _baseline(name, collective).plan
    if planner is None:
        raise NoAnswerError(f"{name}: a program without a schedule of its own")
    return planner


def _cut(name: CollectiveName, ranks: int, count: int, options: BaselineOptions) -> Collective:
    return Collective(name, ranks, count * ranks if name in SHARED else count, options.root if name in ROOTED else None)


def _schedule(
    machine: Machine, collective: Collective, buffer_bytes: float, plan: Planner
) -> tuple[Instance, Schedule]:
    instance = instance_of(machine, collective, buffer_bytes)
    return instance, plan_schedule(Problem(machine, collective), plan, instance)


def _preferred(timed: Sequence[tuple[Instance, Schedule]]) -> list[tuple[Instance, Schedule]]:
    """The candidates, those with fewer chunks first among the ones that are as good as the best."""
    best_us = min(schedule.makespan_us for _, schedule in timed)

    def place(candidate: tuple[Instance, Schedule]) -> tuple[float, int]:
        instance, schedule = candidate
        as_good = schedule.makespan_us <= best_us * _AS_GOOD
        return (best_us if as_good else schedule.makespan_us, instance.collective.chunks)

    return sorted(timed, key=place)


def _lowered(baseline: Baseline, timed: Sequence[tuple[Instance, Schedule]], options: BaselineOptions) -> Built:
    """The program of the first schedule that fits the limits; the first refusal where none does."""
    refusal: NoAnswerError | None = None
    for instance, schedule in timed:
        lowering = options.lowering(baseline.name, instance.topology.name)
        try:
            algo = lower(instance, schedule, lowering)
        except NoAnswerError as problem:
            refusal = refusal or NoAnswerError(f"{baseline.name}: {problem}")
        else:
            return Built(algo, instance, schedule, lowered_collective(instance.collective, lowering))
    raise refusal or NoAnswerError(f"{baseline.name}: no chunk count to try")
