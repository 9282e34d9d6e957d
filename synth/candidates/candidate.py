"""One combination to try, the strategies by name, and which collectives have them."""

from __future__ import annotations

from dataclasses import dataclass

from synth.collective import CollectiveName
from synth.exchange import EXCHANGE

#: The strategies that pack trees or paths, by a linear program over links alone.
PACKINGS = ("trees", "flow")
#: The strategy that routes both halves of an allreduce as one.
JOINT = "joint"
#: The strategies that reduce at so many ranks in the middle of the machine (synth.routing.central): "central-4".
CENTRAL = "central-"
#: The strategy that follows the machine's rings, in turns what one rank sends or gets, in loops what all do: what others' rings do,
#: cut as finely as it takes.
RINGS = "rings"
#: The strategies over equal boxes in which each passes on to the next what it gets, in which few do so on any way, and in which
#: every one sends to every other itself.
RING = "hierarchy-ring"
FEW_HOPS = "hierarchy-doubling"
STAR = "hierarchy-star"
#: The strategies over equal boxes, by the tree of boxes that each follows (synth.routing.hierarchy), and which collectives
#: have them.
HIERARCHIES = {
    RING: "ring",
    FEW_HOPS: "doubling",
    STAR: "star",
    "hierarchy-direct": "direct",
}
HIERARCHICAL = frozenset({CollectiveName.ALLGATHER, CollectiveName.REDUCE_SCATTER, CollectiveName.ALLREDUCE})
#: The same for what one rank sends or gets: boxes do not all do the same.
CHAINS = {"hierarchy-chain": "ring", "hierarchy-two-trees": "two-trees", "hierarchy-fan": "direct"}
CHAINED = frozenset({CollectiveName.BROADCAST, CollectiveName.REDUCE})
FANNED = frozenset({CollectiveName.GATHER, CollectiveName.SCATTER})
#: The protocol whose connections stand for all where candidates are made for an interpreter: LL has less latency, Simple more.
VIEW = "LL128"
#: The same for buffers that are larger than `CONNECTION_BOUND_BYTES`.
LARGE_VIEW = "Simple"


@dataclass(frozen=True, slots=True)
class Candidate:
    """One combination to try: a strategy, a chunk count (as in synth.chunks), the buffer size it is solved at, and whether
    for links alone or for the connections of an interpreter (synth.interpreted), by protocol; in a list, for connections in rounds
    (synth.ordering.rounds), or in turns.
    """

    strategy: str
    count: int
    anchor_bytes: int
    view: str | None = None
    in_rounds: bool = False
    in_turns: bool = False
    """whether they follow each other along few ways (synth.ordering.turns)"""
    pieces: int | None = None
    """in rounds, how many pieces a rank's chunks make (synth.ordering.pieces); None: every chunk is one"""
    apart: bool = False
    """whether trees go over paths that keep apart (synth.routing.apart)"""

    @property
    def ordered(self) -> str:
        """How its messages are ordered, in a word."""
        if self.in_turns:
            return "turns"
        return "pieces" if self.pieces else "rounds" if self.in_rounds else "list"

    @property
    def packed(self) -> bool:
        """Whether trees or paths are packed, by a program that knows links alone."""
        return self.strategy in PACKINGS

    @property
    def boxed(self) -> bool:
        """Whether one of several equal boxes is solved, for all of them."""
        return self.strategy in HIERARCHIES

    @property
    def exchanged(self) -> bool:
        """Whether it is an allreduce in which every rank adds up for itself (synth.exchange)."""
        return self.strategy.startswith(EXCHANGE)

    @property
    def central(self) -> bool:
        """Whether an allreduce is reduced at ranks in the middle of the machine."""
        return self.strategy.startswith(CENTRAL)

    @property
    def looped(self) -> bool:
        """Whether all ranks' chunks go around the machine's rings in step (synth.ordering.loops)."""
        return self.strategy == RINGS and self.in_rounds

    @property
    def has_cut_of_its_own(self) -> bool:
        """Whether what it is says into how many chunks it is cut: exchanges keep their parts, and what goes in loops its chunks."""
        return self.exchanged or self.looped

    @property
    def chained(self) -> bool:
        """Whether equal boxes pass on what one rank sends, or what it gets: tiles need not wait for whole chunks on the way."""
        return self.strategy in CHAINS
