"""Paths that keep apart: which of those that meet to use, so that hardly any two share a link (docs/formulation.md, section 6).

A packing spreads chunks over whatever paths there are, and where many ranks' paths meet (in a PCIe switch, between two sockets) it
uses many of them a little. An interpreter begins whatever it can at once, and the machine gives all that is under way the same
share of a link, so that what others wait for comes late, whatever the order is. What goes over a link that is one
path's comes in the order in which it was sent. Few paths are few connections, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from synth.collective import CollectiveName
from synth.instance import Instance, Symmetry
from synth.paths import meeting, strongly_connected, ways_back
from synth.routing.joint import JointMaster
from synth.routing.packing import ColumnGeneration, Master, commodities_of
from synth.symmetry import members_of

#: How near to what is proved the least load over all paths is found.
_GAP = 1e-3
#: Chunks over a path that are none, but for rounding.
_NOTHING = 1e-6


@dataclass(frozen=True)
class PathsApart:
    """Options: how much more than over all paths the busiest link may carry, as a share; and the rounds of pricing for each set of
    paths that is looked at.
    """

    loss: float = 5e-3
    rounds: int = 40

    def __call__(self, instance: Instance, rotation: Symmetry | None = None) -> frozenset[int]:
        """The paths to use, by index, for the instance's demands: of a combining collective those on which it is solved backwards in
        time, of an allreduce the same for its sums and its copies.

        The path that is busiest goes first, in both directions if possible: it is kept, and what shares a link with it is not, if
        all can be carried without. In the end each that still meets another is left out if it can be. With a `rotation`, the same is
        kept in every box: a path's images go with it.
        """
        forwards = _turned(instance, rotation)
        twice = instance.collective.name is CollectiveName.ALLREDUCE
        solved = [forwards, forwards.reversed()] if twice else [forwards.as_copies]
        return _Search(forwards, [Master(each, commodities_of(each)) for each in solved], self).found()

    def with_free_roots(
        self, instance: Instance, alike: frozenset[int], rotation: Symmetry | None = None
    ) -> frozenset[int]:
        """The same for an allreduce whose roots are free: those that were found for ranks `alike` if as much can be carried over
        these as over any, since they are loaded the more evenly.
        """
        turned = _turned(instance, rotation)
        search = _Search(turned, [JointMaster(turned)], self)
        return alike if search.keep(alike) else search.found()


def _turned(instance: Instance, rotation: Symmetry | None) -> Instance:
    """The instance with no other symmetry than the rotation, if any."""
    return replace(instance, symmetries=() if rotation is None else (rotation,))


class _Search:
    """The paths that are `kept` so far; those `settled` among them, for which all that meets them was left out; and how long the
    packings at hand, one of each of the `masters`, occupy each.
    """

    def __init__(self, instance: Instance, masters: Sequence[ColumnGeneration], options: PathsApart) -> None:
        self.instance, self.options, self.masters = instance, options, masters
        self.links = [frozenset(path.links) for path in instance.paths]
        self.alone_us = [max(path.busy_us(instance.chunk_bytes)) for path in instance.paths]
        self.back = ways_back(instance.topology, instance.paths)
        members = members_of(instance, instance.symmetries)
        self.images = [frozenset(member.paths[path] for member in members) for path in range(len(self.links))]
        self.kept = frozenset(range(len(instance.paths)))
        self.settled: frozenset[int] = frozenset()
        self.tried: set[int] = set()
        self.most_us = [master.least_us(options.rounds, _GAP) * (1 + options.loss) for master in self.masters]
        self.busy_us = self._busy_us()

    def keep(self, paths: frozenset[int]) -> bool:
        """Keep these paths alone if all can be carried over them; whether it can."""
        ends = [(self.instance.paths[path].src, self.instance.paths[path].dst) for path in paths]
        if strongly_connected(self.instance.num_ranks, ends) is not None:
            return False
        for master, most_us in zip(self.masters, self.most_us, strict=True):
            if not master.reaches(paths, most_us, self.options.rounds):
                return False
        self.kept, self.busy_us = paths, self._busy_us()
        return True

    def found(self) -> frozenset[int]:
        """The paths that are left of those that are kept now."""
        while (path := self._busiest()) is not None:
            self._settle(path)
        self._leave_out()
        return self.kept

    def _busiest(self) -> int | None:
        """Of the paths that meet others and were not looked at yet the one that is busy for longest; None where there is none."""
        untried = [path for path in self._meeting(self._used()) if path not in self.tried]
        return max(untried, key=lambda path: (self.busy_us[path], -path), default=None)

    def _settle(self, path: int) -> None:
        """Keep a path and its way back, or it alone, and nothing that meets them, if all can be carried so."""
        self.tried |= self.images[path]
        for wanted in self._wanted(path):
            crossed = frozenset[int]().union(*(self.links[each] for each in wanted))
            own = self.settled | wanted
            if self.keep(frozenset(each for each in self.kept if each in own or not self.links[each] & crossed)):
                self.settled = own
                return

    def _leave_out(self) -> None:
        """Do without what meets others and is not needed, what carries least first."""
        self.keep(self.kept.difference(self._meeting(self.kept)).union(self._used()))
        for path in sorted(self._meeting(self._used()), key=lambda path: (self.busy_us[path], path)):
            if path in self.kept and path == min(self.images[path]):
                self.keep(self.kept - self.images[path])

    def _wanted(self, path: int) -> Iterator[frozenset[int]]:
        back = self.back[path]
        if back in self.kept and not self.links[path] & self.links[back]:
            yield self.images[path] | self.images[back]
        yield self.images[path]

    def _used(self) -> list[int]:
        """The kept paths that carry something."""
        return [path for path in self.kept if self.busy_us[path]]

    def _meeting(self, paths: Collection[int]) -> list[int]:
        """Those that share a link with another of these."""
        return meeting(self.instance.paths[path] for path in paths)

    def _busy_us(self) -> list[float]:
        """By path, how long what is sent over it occupies the busiest of its links."""
        sent = np.sum([master.used() for master in self.masters], axis=0)
        evenly = [float(sent[list(images)].mean()) for images in self.images]
        return [us * chunks if chunks > _NOTHING else 0.0 for us, chunks in zip(self.alone_us, evenly, strict=True)]
