"""What the machine is like for what is asked: its boxes and NICs, how many ranks it has, and where their ways meet."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

from synth.bounds import bound_of
from synth.boxes import Boxes
from synth.build import boxes_of
from synth.candidates.candidate import HIERARCHIES
from synth.candidates.links import are_all_joined, is_crowded, is_uneven
from synth.candidates.sizes import CONNECTION_BOUND_BYTES, PACED_BEYOND_BYTES
from synth.candidates.transfers import FEW_RANKS, is_large
from synth.chunks import even_counts
from synth.collective import SHARED, Collective, CollectiveName
from synth.errors import NoAnswerError
from synth.instance import Instance, Symmetry
from synth.paths import Path, meeting
from synth.plan.asked import Asked
from synth.protocols import ll128_is_safe
from synth.reductions.boxes import nodes_of
from synth.reductions.fold import fold
from synth.reductions.rotation import rotations
from synth.request import Request
from synth.routing.apart import PathsApart
from synth.routing.hierarchy import HierarchyRouting
from synth.topology import DeviceKind

#: Ranks up to which large buffers that equal boxes could pass on are tried without regard to boxes, too: packings take long beyond,
#: and get worse.
MOST_PACKED_RANKS = 32
#: Ranks whose candidates are all made in a second.
_QUICK_RANKS = 8
#: Where more GPUs share a NIC, all ways to other boxes meet there.
_FEW_ON_A_NIC = 2
#: Paths up to which those that keep apart are looked for, as it takes seconds beyond: over equal boxes, looked at together, so many
#: times more, of an alltoall, whose pairs each send something else, fewer; and the most of them that are few.
_MOST_KEPT_APART = 256
_MOST_KEPT_APART_OF_PAIRS = 64
_FEWER = 0.8
#: Weighted roots are tried where the limit without them is above the limit with them by this factor.
_ROOTS_MATTER = 1.003
#: By collective whether the halves that it is made of are summed.
_SUMMED = {
    CollectiveName.ALLGATHER: (False,),
    CollectiveName.REDUCE_SCATTER: (True,),
    CollectiveName.ALLREDUCE: (True, False),
}
#: What loads links by no more than this, times the limit, loads them as little as can be.
_AS_LITTLE = 1.003


@dataclass(frozen=True)
class Traits:
    """The machine as one request finds it."""

    asked: Asked

    @property
    def request(self) -> Request:
        """What was asked for."""
        return self.asked.request

    @cached_property
    def has_very_many_ranks(self) -> bool:
        """Whether even the coarsest cut is more than most candidates may have (`is_large`)."""
        return is_large(self.asked.collective(1))

    @property
    def is_soon_finest(self) -> bool:
        """Whether ranks are so few that their finest cuts are made in seconds."""
        return self.request.topology.num_ranks <= FEW_RANKS

    @property
    def is_quick(self) -> bool:
        """Whether ranks are so few that all candidates are soon made."""
        return self.request.topology.num_ranks <= _QUICK_RANKS

    @cached_property
    def has_nics(self) -> bool:
        """Whether hardly any GPUs share a NIC."""
        topology = self.request.topology
        nics = sum(device.kind is DeviceKind.NIC for device in topology.devices)
        return topology.num_ranks <= nics * _FEW_ON_A_NIC

    @cached_property
    def takes_ll128(self) -> bool:
        """Whether files may be in LL128: as asked for, or where that is chosen unasked and every way keeps what it builds on."""
        if self.request.protocol is not None:
            return self.request.protocol == "LL128"
        return ll128_is_safe(self.request.topology, self.asked.paths)

    @property
    def is_whole(self) -> bool:
        """Whether all ranks take part, and no sketch says what to use."""
        return self.request.sketch is None and self.request.group is None

    @cached_property
    def has_rings(self) -> bool:
        """Whether rings pass all ranks, and may. Over boxes of unequal links so many of them meet in the narrow ones that none keeps
        step.
        """
        return self.is_whole and not is_uneven(self.within) and bool(self.asked.machine.rings)

    @cached_property
    def is_crowded(self) -> bool:
        """Whether ways meet in links, as in PCIe, and over boxes at shared NICs."""
        return is_crowded(self.asked.paths)

    @property
    def is_crowded_box(self) -> bool:
        """Whether ways meet inside the machine, which is one box."""
        return len(nodes_of(self.request.topology)) < 2 and self.is_crowded

    @cached_property
    def boxes(self) -> Boxes | None:
        """The machine's boxes where it is a cluster of equal ones."""
        patterns = dict.fromkeys(HIERARCHIES.values())
        asked = self.asked
        found = (asked.builder.boxed(asked.collective(1), asked.sizes[-1], pattern) for pattern in patterns)
        return next((boxes for _, boxes in filter(None, found)), None)

    @cached_property
    def within(self) -> list[Path]:
        """The paths inside equal boxes that large buffers have; none where there are no such boxes."""
        if self.boxes is None:
            return []
        box_of = self.boxes.box_of
        paths = self.asked.instance(self.request.topology.num_ranks, self.request.max_bytes).paths
        return [path for path in paths if box_of[path.src] == box_of[path.dst]]

    def rotates(self, count: int) -> bool:
        """Whether the ranks are in runs that do alike (synth.reductions.rotation), with their largest buffers in so many chunks."""
        return next(rotations(self.asked.instance(count, self.request.max_bytes)), None) is not None

    @property
    def is_direct_within(self) -> bool:
        """Whether every path inside equal boxes is one link."""
        return all(len(path.links) == 1 for path in self.within)

    @cached_property
    def is_alike(self) -> bool:
        """Whether ranks are as good as each other: all joined by ways of one width that keep apart, in one box or in equal ones."""
        if self.boxes is None:
            return are_all_joined(self.request.topology.num_ranks, self.asked.paths)
        first = [path for path in self.within if self.boxes.box_of[path.src] == 0]
        return bool(first) and are_all_joined(self.boxes.size, first)

    def counts(self, low_bytes: int, finer: int = 1) -> tuple[int, ...]:
        """The admissible chunk counts (`Asked.counts`), and where ranks are alike of buffers that come in rounds only those that are
        `even_counts`, too: elsewhere the finest balance links best.
        """
        counts = self.asked.counts(low_bytes, finer)
        even = even_counts(self.request.collective, self.request.topology.num_ranks, counts)
        # Whether ranks are alike is looked at last: it takes a walk over all paths, and most sizes have nothing but even counts.
        return even if even != counts and low_bytes > PACED_BEYOND_BYTES and self.is_alike else counts

    @cached_property
    def is_packed_over_boxes(self) -> bool:
        """Whether what is made for one of equal boxes, of GPUs that have NICs of their own and equal ways to each other, loads links
        as little as anything can: packings of all ranks gain nothing then, and take long.
        """
        halves = _SUMMED.get(self.request.collective)
        if not halves:
            return False
        ranks, size = self.request.topology.num_ranks, self.request.max_bytes
        found = self.asked.builder.boxed(Collective(CollectiveName.ALLGATHER, ranks, ranks), size, "ring")
        folded = found and fold(*found)
        if not found or not folded or not self.has_nics or is_uneven(self.within):
            return False
        routing, one = HierarchyRouting(), folded.instance
        try:
            loads = [routing.load_us(one.reversed() if summed else one, found[1]) for summed in halves]
        except NoAnswerError:
            return False
        return sum(loads) <= self.asked.bound.us_per_byte * size * _AS_LITTLE

    def is_held_up_inside(self, size: int) -> bool:
        """Whether what limits one large buffer are direct links of unequal width inside the machine's equal boxes: then packings of
        all ranks are better than one box's, as far as they are made in seconds.
        """
        boxes, topology = self.boxes, self.request.topology
        one_large = self.asked.ends and size > CONNECTION_BOUND_BYTES
        if boxes is None or not one_large or topology.num_ranks > MOST_PACKED_RANKS:
            return False
        if not (is_uneven(self.within) and self.is_direct_within):
            return False
        copied = Collective(CollectiveName.ALLGATHER, topology.num_ranks, topology.num_ranks)
        cut = bound_of(topology, copied, self.asked.paths, small=False).cut
        here = Counter(boxes.box_of[rank] for rank, gpu in enumerate(topology.gpus) if cut and gpu.id in cut.gpus)
        return any(ranks < boxes.size for ranks in here.values())

    @property
    def roots_matter(self) -> bool:
        """Whether an allreduce could be faster than one half and then the other, which reduce an equal share at every rank that
        takes part: so it is where others may reduce, too.
        """
        if self.request.group is not None:
            return True
        names = CollectiveName.REDUCE_SCATTER, CollectiveName.ALLGATHER
        topology, paths, ranks = self.request.topology, self.asked.paths, self.request.topology.num_ranks
        halves = [bound_of(topology, Collective(name, ranks, ranks), paths, small=False) for name in names]
        return sum(half.us_per_byte for half in halves) > self.asked.bound.us_per_byte * _ROOTS_MATTER

    @cached_property
    def apart(self) -> frozenset[int]:
        """The paths that keep apart, by index: where those of several ranks meet, few in all, all ranks take part, and a good deal
        fewer are enough; none elsewhere, nor over boxes with NICs enough, whose ways are their GPUs' own.
        """
        paths = self._whole.paths
        alone = self.request.group is not None or (self.boxes is not None and self.has_nics)
        pairs = self.request.collective is CollectiveName.ALLTOALL
        count = self.boxes.count if self.boxes is not None else 1
        most = _MOST_KEPT_APART_OF_PAIRS if pairs else _MOST_KEPT_APART * count
        if alone or len(paths) > most or not is_crowded(paths):
            return frozenset()
        few = _FEWER * len(paths)
        if len(paths) - len(meeting(paths)) > few:
            return frozenset()  # what meets no other is kept
        found = PathsApart()(self._whole, self._rotation)
        return found if len(found) <= few else frozenset()

    @cached_property
    def apart_free(self) -> frozenset[int]:
        """The same for an allreduce whose roots are free."""
        return PathsApart().with_free_roots(self._whole, self.apart, self._rotation) if self.apart else frozenset()

    @cached_property
    def _whole(self) -> Instance:
        """The coarsest instance, of the largest buffers."""
        ranks = self.request.topology.num_ranks
        return self.asked.instance(1 if self.request.collective in SHARED else ranks, self.request.max_bytes)

    @cached_property
    def _rotation(self) -> Symmetry | None:
        """The rotation of equal boxes, over which paths are too many to be looked at one by one."""
        many = len(self._whole.paths) > _MOST_KEPT_APART
        boxes = boxes_of(self.request.topology, self._whole.paths) if many else None
        return boxes.rotation if boxes is not None else None

    @property
    def keeps_apart(self) -> bool:
        """Whether no two of the paths that keep apart share a link after all."""
        links = [link for path in self.apart for link in self._whole.paths[path].links]
        return len(set(links)) == len(links)
