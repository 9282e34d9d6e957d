"""A group of ranks as text: ascending, runs as ranges. It is what `--group` reads, and the attribute `group` of an `<algo>` whose
collective not all ranks take part in; no runtime reads that attribute, `synth verify` and all that check results do.
"""

from __future__ import annotations

from itertools import groupby

from msccl_xml.model import Algo
from msccl_xml.write import MAX_VALUE
from synth.errors import InputError

ATTRIBUTE = "group"


def group_text(group: tuple[int, ...]) -> str:
    """`0-3,5` for 0, 1, 2, 3, 5."""
    runs = [[rank for _, rank in run] for _, run in groupby(enumerate(group), lambda each: each[1] - each[0])]
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def parse_group(text: str) -> tuple[int, ...] | None:
    """The ranks of `0-3,5`, ascending; None where that is no such text, or names a rank twice."""
    ranks: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not _is_rank(first) or (dash and not _is_rank(last)):
            return None
        ranks += range(int(first), int(last if dash else first) + 1)
        if dash and int(last) <= int(first):
            return None
    return tuple(sorted(ranks)) if len(set(ranks)) == len(ranks) else None


def group_attribute(group: tuple[int, ...] | None) -> tuple[tuple[str, str], ...]:
    """The attribute of a file; none where all ranks take part. InputError for a group of more words than a file may have."""
    if group is None:
        return ()
    text = group_text(group)
    if len(text) > MAX_VALUE:
        raise InputError("--group", "", text[:40] + "...", f"ranks that {MAX_VALUE} characters can name")
    return ((ATTRIBUTE, text),)


def group_of(algo: Algo) -> tuple[int, ...] | None:
    """The ranks that take part in the file's collective; None where all do. InputError for an attribute that names no such ranks."""
    text = dict(algo.extra).get(ATTRIBUTE)
    if text is None:
        return None
    group = parse_group(text)
    if group is None:
        raise InputError(algo.name or "algo", ATTRIBUTE, text, "ranks joined by commas, such as 0-3,5")
    return group


def _is_rank(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 6
