"""The algorithms that libraries use, as candidates beside our own: an answer is never worse than what everybody has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from synth.baselines import BASELINES, Machine, schedule, transfers
from synth.candidates.candidate import RINGS
from synth.candidates.transfers import MAX_TRANSFERS, transfers_of, with_count
from synth.collective import ROOTED, Collective, CollectiveName
from synth.errors import NoAnswerError
from synth.instance import Instance
from synth.ir import Routing
from synth.lowering.operations import MAX_COUNT
from synth.solve import Routed, Solution
from synth.timing import busiest_link_us

#: How much more than its share a ring may carry where the chunks do not divide; and if that takes too many.
_UNEVEN = (1.01, 1.02, 1.035, 1.06)
#: Transfers up to which rings are made: their chunks travel in a few messages. (256 chunks of each of 16 ranks are in.)
_MOST_OF_RINGS = 62_000
#: Loops in which all ranks' chunks go around rings in step, by the collectives that do (synth.ordering.loops). One fills connections
#: of large buffers, so that threadblocks part; then the second goes on while the first waits. Sums that are passed on as copies
#: at once never wait.
LOOPS: Mapping[CollectiveName, int] = MappingProxyType(
    {CollectiveName.ALLGATHER: 2, CollectiveName.REDUCE_SCATTER: 2, CollectiveName.ALLREDUCE: 1}
)


def known_counts(name: str, machine: Machine, collective: Collective, counts: Sequence[int]) -> list[int]:
    """Of the admissible chunk counts those to try for baseline `name`: its own coarsest and finest that are admissible, ascending;
    where none is, for rings the coarsest that deals them about as much each, and where pieces follow each other from or to a root,
    so that it depends on the size how many are best, the next one above each of its own.

    Empty where the baseline does not exist for this collective or machine, and for the one-shot allreduce, which is among exchanges.
    """
    own = _own_counts(name, machine, collective)
    both = [count for count in own if count in counts]
    if own and not both and name == "ring":
        if collective.name in ROOTED:
            above = (min((count for count in counts if count >= pieces), default=None) for pieces in own)
            return sorted({count for count in above if count is not None})
        both = _dealt(own[0], collective, counts)
    return sorted({*both[:1], *both[-1:]})


def _own_counts(name: str, machine: Machine, collective: Collective) -> tuple[int, ...]:
    """The chunk counts that baseline `name` would have by itself; none where it does not exist, or is no set of trees."""
    baseline = BASELINES[name]
    if collective.name not in baseline.collectives or baseline.plan is None:
        return ()
    try:
        return baseline.counts(machine, collective.name)
    except NoAnswerError:
        return ()


def _dealt(rings: int, collective: Collective, counts: Sequence[int]) -> list[int]:
    """The coarsest count that so many rings share about evenly, or as good as that, whose messages are a step each; none where there
    is no such.
    """
    shares = {count: -(-count // rings) for count in counts}
    made = [
        count
        for count, share in shares.items()
        if share <= MAX_COUNT and transfers_of(with_count(collective, count)) <= _MOST_OF_RINGS
    ]
    for most in _UNEVEN:
        if even := [count for count in made if shares[count] * rings <= count * most]:
            return even[:1]
    return []


def looped_counts(machine: Machine, collective: Collective, counts: Sequence[int]) -> list[int]:
    """Of the admissible chunk counts the one to go around rings in loops: the coarsest that all loops share about evenly. None where
    there are no rings, or shares divide by these, so that others' messages are as short as any.
    """
    if collective.name not in LOOPS:
        return []
    own = _own_counts("ring", machine, collective)
    dealt = own and own[0] not in counts
    return _dealt(own[0] * LOOPS[collective.name], collective, counts) if dealt else []


def around_rings(machine: Machine, instance: Instance) -> Routed:
    """The chunks of an instance, in broadcast form, around the rings of its machine, which for sums is the reversed one;
    NoAnswerError where that has none.
    """
    around = transfers("ring", machine, instance.collective)
    return Routed(RINGS, Routing(around, busiest_link_us(instance, around)), None, "along rings")


def known_solution(name: str, machine: Machine, collective: Collective, size_bytes: int) -> Solution:
    """Baseline `name` as a checked solution; NoAnswerError with the reason where the machine has none, or it is too large."""
    most = _MOST_OF_RINGS if name == "ring" else MAX_TRANSFERS
    if transfers_of(collective) > most:
        raise NoAnswerError(f"{name}: {transfers_of(collective)} transfers, at most {most} are tried")
    instance, timed = schedule(name, machine, collective, size_bytes)
    transfers = timed.transfers()
    relaxed_us = busiest_link_us(instance, transfers)
    return Solution(instance, timed, name, "as others do", "known", timed.makespan_us, relaxed_us, None, "known")
