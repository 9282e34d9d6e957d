"""Doubts: what a description of a machine leaves unsaid, contradicts or makes hard to believe, told and never guessed away."""

from __future__ import annotations

from dataclasses import dataclass

from synth.topology import Topology


@dataclass(frozen=True, slots=True, order=True)
class Doubt:
    """One thing to look at: `where` names the element, line, device or link, `what` says it in one sentence, `cost` what it
    would cost if it is true ("" where that cannot be told).
    """

    where: str
    what: str
    cost: str = ""

    def __str__(self) -> str:
        return f"{self.where}: {self.what}" + (f" ({self.cost})" if self.cost else "")


@dataclass(frozen=True, slots=True)
class Imported:
    """A topology with the doubts that reading it raised, in the order of the file."""

    topology: Topology
    doubts: tuple[Doubt, ...] = ()


@dataclass(frozen=True, slots=True)
class Hints:
    """What a file cannot say and the user does: the values of `--nvlink`, `--nics` and `--arch`, None where not given."""

    nvlink: str | None = None
    nics: str | None = None
    arch: str | None = None
