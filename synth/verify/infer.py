"""Which collective a file claims to be: told from its `coll`, its name and, for a root, from who hears from whom."""

from __future__ import annotations

import re

from msccl_xml.limits import RUNTIMES
from msccl_xml.model import Algo
from synth.collective import FROM_ROOT, ROOTED, SHARED, Collective, CollectiveName
from synth.errors import InputError
from synth.group import group_of
from synth.verify.errors import VerifyError
from synth.verify.extent import check_extent
from synth.verify.verify import verify_algo

#: Spellings of all runtimes, without what separates the words.
_SPELLINGS = {name.replace("-", ""): name for name in CollectiveName}
#: `synth-gather-...` is what synth writes, `Gather(n=4,root=0)-...` what msccl-tools does.
_NAMED = re.compile(r"(?:synth-)?([A-Za-z]+(?:[-_ ]scatter)?)(?![A-Za-z])", re.IGNORECASE)


def infer_collective(algo: Algo, root: int | None = None) -> Collective:
    """The collective that `algo` claims to be: from `coll`, for `custom` from its name; its group from its attribute; and its root
    if it has one.

    The root is `root` if given, else the only rank from which all others (to which all others) are connected, else
    the first of those for which the algorithm verifies. InputError says what to pass where none of this decides.
    """
    check_extent(algo)
    name = _infer_name(algo)
    if name in SHARED and algo.nchunksperloop % algo.ngpus:
        raise VerifyError(
            f"nchunksperloop is {algo.nchunksperloop}, {name} over {algo.ngpus} gpus needs a multiple of {algo.ngpus}"
        )
    group = group_of(algo)
    if name not in ROOTED or root is not None:
        return Collective(name, algo.ngpus, algo.nchunksperloop, root, group)
    candidates = _possible_roots(algo, name, group or tuple(range(algo.ngpus)))
    if len(candidates) == 1:
        return Collective(name, algo.ngpus, algo.nchunksperloop, candidates[0], group)
    for candidate in candidates:
        collective = Collective(name, algo.ngpus, algo.nchunksperloop, candidate, group)
        if _verifies(algo, collective):
            return collective
    raise InputError("--root", "", None, f"the root of this {name}: the file does not tell it")


def _infer_name(algo: Algo) -> CollectiveName:
    spelled = algo.coll if algo.coll != "custom" else ""
    if not spelled and (match := _NAMED.match(algo.name)):
        spelled = match[1]
    name = _SPELLINGS.get(re.sub("[-_ ]", "", spelled).lower())
    if name is None:
        shown = f"coll={algo.coll} name={algo.name}"
        raise InputError(shown, "", spelled or algo.coll, "a collective: " + " ".join(CollectiveName))
    return name


def _possible_roots(algo: Algo, name: CollectiveName, group: tuple[int, ...]) -> list[int]:
    """The ranks of the group that are connected with all others of it in the direction that the collective needs."""
    onward: dict[int, set[int]] = {gpu.id: set() for gpu in algo.gpus}
    for gpu, tb, _, step in algo.steps():
        if step.type.sends and tb.send in onward:
            if name in FROM_ROOT:
                onward[gpu.id].add(tb.send)
            else:
                onward[tb.send].add(gpu.id)
    return [rank for rank in group if rank in onward and _reached(onward, rank).issuperset(group)]


def _reached(onward: dict[int, set[int]], start: int) -> set[int]:
    reached, frontier = {start}, [start]
    while frontier:
        new = onward[frontier.pop()] - reached
        reached |= new
        frontier += new
    return reached


def _verifies(algo: Algo, collective: Collective) -> bool:
    """Whether `algo` does `collective` on any runtime: spellings and limits are not what tells the root."""
    for runtime in RUNTIMES:
        try:
            verify_algo(algo, collective, runtime=runtime, strict=False)
        except VerifyError:
            continue
        return True
    return False
