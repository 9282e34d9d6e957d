"""One-shot allreduce: every rank gets every vector and adds them up itself, in rank order, so that all get the same bits.

This is no set of reduction trees: a chunk is summed at every rank. It is the exchange (synth.exchange) of one group. It moves n - 1
vectors into every rank, and takes one latency: for small buffers only.
"""

from __future__ import annotations

from itertools import permutations

from synth.baselines.all_pairs import plan
from synth.baselines.machine import Machine
from synth.baselines.options import BaselineOptions, Built
from synth.baselines.plan import Problem, instance_of, plan_schedule
from synth.collective import Collective, CollectiveName
from synth.errors import NoAnswerError
from synth.exchange import Exchange, Level, Slices
from synth.lowering import lowered_collective, write_exchange

COLLECTIVES = frozenset({CollectiveName.ALLREDUCE})


def build(machine: Machine, collective: Collective, buffer_bytes: float, options: BaselineOptions) -> Built:
    """The program, and as its schedule that of the allgather of all vectors (sums are free at cost level 2).

    Raises NoAnswerError where two ranks are not joined directly, or the limits are too tight.
    """
    ranks = range(machine.num_ranks)
    missing = [pair for pair in permutations(ranks, 2) if pair not in machine.direct]
    if missing:
        raise NoAnswerError(
            f"one-shot: ranks {missing[0][0]} and {missing[0][1]} of {machine.topology.name} are not joined directly"
        )
    whole = Collective(CollectiveName.ALLGATHER, machine.num_ranks, collective.chunks * machine.num_ranks)
    instance = instance_of(machine, whole, buffer_bytes * machine.num_ranks)
    schedule = plan_schedule(Problem(machine, whole), plan, instance)
    exchange = Exchange(
        machine.num_ranks,
        (Level((tuple(ranks),)),),
        {pair: (machine.direct[pair],) for pair in permutations(ranks, 2)},
    )
    slices = Slices((exchange,))
    steps, _ = slices.listed(collective.chunks)
    lowering = options.lowering("one-shot", machine.topology.name)
    try:
        algo = write_exchange(slices, steps, machine.paths, machine.topology.name, collective, lowering)
    except NoAnswerError as refusal:
        raise NoAnswerError(f"one-shot: {refusal}") from None
    return Built(algo, instance, schedule, lowered_collective(collective, lowering))
