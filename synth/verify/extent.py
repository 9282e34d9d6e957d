"""Is the document of a size that any runtime could hold? Asked first, so that a hostile one costs no time and no memory."""

from __future__ import annotations

from msccl_xml.limits import LIMITS
from msccl_xml.model import Algo
from synth.verify.errors import VerifyError

#: Children of one element: the readers of all runtimes overwrite other memory at the next one.
MAX_GPUS = 1024
#: Chunks of a buffer that steps can reach: from the largest offset on, as many as one step moves.
MAX_CHUNKS = max(limits.offset + limits.count for limits in LIMITS.values())


def check_extent(algo: Algo) -> None:
    """Raise VerifyError where `algo` says more than it has, or more than a runtime can hold."""
    if not 1 <= algo.ngpus <= MAX_GPUS:
        raise VerifyError(f"ngpus is {algo.ngpus}, expected 1 to {MAX_GPUS}: readers hold no more gpus")
    if len(algo.gpus) != algo.ngpus:
        raise VerifyError(f"ngpus is {algo.ngpus}, but the file has {len(algo.gpus)} gpus")
    if not 1 <= algo.nchunksperloop <= MAX_CHUNKS:
        raise VerifyError(
            f"nchunksperloop is {algo.nchunksperloop}, expected 1 to {MAX_CHUNKS}: steps reach no more chunks"
        )
