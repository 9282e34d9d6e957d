"""Strategy `trees`: spread every source's chunks over trees that load the machine's links as evenly as can be.

Throughput first: a fractional packing by column generation (packing.py), rounded to whole chunks (rounding.py). The packing's
bound holds for any algorithm that stores and forwards whole pieces over the instance's paths, so its gap is a proof.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from synth.instance import Instance
from synth.ir import Routing, Transfer
from synth.routing.packing import Network, Packing, TreePacking
from synth.routing.rounding import Rounding


@dataclass(frozen=True)
class TreesRouting:
    """Options: how long the packing may go on and how hard the rounding tries."""

    packing: TreePacking = field(default_factory=TreePacking)
    rounding: Rounding = field(default_factory=Rounding)

    def __call__(
        self,
        instance: Instance,
        known: Sequence[tuple[int, ...]] = (),
        paths: Collection[int] | None = None,
        sources: Collection[int] | None = None,
    ) -> tuple[Routing, Packing]:
        """A routing of the instance's demands (broadcast form), or of those of the `sources` alone, over `paths` (None: all) and the
        packing that proves how good it is among those; `known` are trees for it.

        Chunks of one source that share a tree have neighbouring numbers, so that they can travel together.
        """
        packing = self.packing(instance, known, paths, sources)
        counts = self.rounding(Network.of(instance), packing, instance.num_ranks)
        transfers: list[Transfer] = []
        for commodity, trees in zip(packing.commodities, counts, strict=True):
            chunks = iter(commodity.chunks)
            for tree, count in sorted(trees.items(), key=lambda item: (-item[1], item[0])):
                for _ in range(count):
                    chunk = next(chunks)
                    transfers += [Transfer(chunk, path) for path in tree]
        return Routing(tuple(sorted(transfers))), packing
