"""What to try for an allreduce with free roots, both halves of which are routed as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from synth.candidates.candidate import JOINT, LARGE_VIEW, Candidate
from synth.candidates.cuts import large_cuts, worthwhile_counts
from synth.candidates.sizes import PACED_BEYOND_BYTES
from synth.collective import CollectiveName
from synth.instance import Instance

#: Ranks up to which it ends in seconds.
_MOST_JOINT_RANKS = 64


def joint_candidates(instance: Instance, counts: Sequence[int], buffer_bytes: int) -> list[Candidate]:
    """allreduce with free roots: the finest cut, since its pipeline is as long as two trees. Large buffers also one half as fine, as
    their orders differ by chance and a rank at which many trees meet may have more steps than a runtime reads; and both in rounds,
    the finest of them cut as for large packings.
    """
    if instance.collective.name is not CollectiveName.ALLREDUCE or instance.num_ranks > _MOST_JOINT_RANKS:
        return []
    if buffer_bytes <= PACED_BEYOND_BYTES:
        (finest,) = worthwhile_counts(instance, counts, buffer_bytes, 1)
        return [Candidate(JOINT, finest, buffer_bytes)]
    cuts = worthwhile_counts(instance, counts, buffer_bytes, 2)
    listed = [Candidate(JOINT, count, buffer_bytes) for count in reversed(cuts)]
    top = max(large_cuts(instance, counts, buffer_bytes))
    paced = Candidate(JOINT, top, buffer_bytes, LARGE_VIEW, in_rounds=True)
    return list(dict.fromkeys((paced, *listed, replace(paced, count=cuts[0]))))
