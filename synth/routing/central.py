"""allreduce added up in the middle: ranks near to all others reduce everything, where equal shares would leave some to the rim.

A chunk that is reduced at rank r takes the way from the farthest rank to r and the way from r to the farthest one at least
(docs/formulation.md, eq. 41b). On a mesh these are half as long for ranks in its middle as for its corners, and over boxes shorter
for GPUs beside the NICs. Where latency counts that is worth more than shares of all; how many ranks are enough is tried out.
"""

from __future__ import annotations

import numpy as np

from synth.instance import Instance, OwnedInstance, dealt
from synth.paths import distances

#: Ways that differ by less than this share are as long.
_ALIKE = 1e-6
#: Numbers of central ranks that are told apart: farther ones gain nothing that equal shares would not.
_MOST_LEVELS = 2


def central_ranks(instance: Instance) -> list[tuple[int, ...]]:
    """The ranks of an allreduce that have the shortest ways from the farthest rank and back, then those and the ones that come
    next; never all, so that there are none where all ranks are as far.
    """
    members = sorted(instance.collective.members)
    alpha_us = [path.alpha_us for path in instance.paths]
    ways_us = distances(instance.num_ranks, instance.paths, alpha_us)[np.ix_(members, members)]
    np.fill_diagonal(ways_us, 0.0)
    there_and_back_us = ways_us.max(axis=0) + ways_us.max(axis=1)
    found: list[tuple[int, ...]] = []
    while len(found) < _MOST_LEVELS:
        next_us = np.sort(there_and_back_us)[len(found[-1]) if found else 0]
        ranks = tuple(np.array(members)[there_and_back_us <= next_us * (1 + _ALIKE)].tolist())
        if len(ranks) == len(members):
            break
        found.append(ranks)
    return found


def added_up_at(instance: Instance, ranks: tuple[int, ...]) -> OwnedInstance:
    """The instance of an allreduce with its chunks dealt to `ranks`, in contiguous blocks as even as the counts allow."""
    chunks = instance.collective.chunks
    return instance.owned_by(tuple(dealt(chunk, chunks, ranks) for chunk in range(chunks)))
