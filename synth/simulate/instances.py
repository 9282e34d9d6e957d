"""Programs of equal instances are run for one instance (docs/formulation.md, eq. 34c).

Let a program not change when every channel c becomes c + w (mod C), with every connection on the same links as before: C / w
instances do the same, each on w channels of its own. Then all are in the same state at every moment, since nothing tells one from
another, and share every link evenly. So one of them is run, on links of w / C of the bandwidth: exact, and w / C of the work.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from synth.simulate.alike import Alike, do_the_same, part_of
from synth.simulate.engine import Route
from synth.simulate.program import Code, Connection


def one_instance(code: Code, routes: Sequence[Route]) -> Alike | None:
    """The program of the smallest instance that does what all others do, None where there is but one; `routes` are those of the
    connections.
    """
    channels = 1 + max((connection.channel for connection in code.connections), default=0)
    used = len({connection.channel for connection in code.connections})
    # Each instance uses as many of the channels: a file may name the billionth, and use few.
    for instances in range(used, 1, -1):
        if (
            channels % instances == used % instances == 0
            and (alike := _Shift(code, routes, instances).instance()) is not None
        ):
            return alike
    return None


class _Shift:
    """A program whose channels move on by those of one of so many instances."""

    def __init__(self, code: Code, routes: Sequence[Route], instances: int) -> None:
        self.code, self.routes, self.instances = code, routes, instances
        self.channels = 1 + max(connection.channel for connection in code.connections)
        self.width = self.channels // instances
        self.local: dict[int, list[int]] = defaultdict(list)
        """by rank, the threadblocks without a connection, which stand in the order of their instances"""
        for number, block in enumerate(code.blocks):
            if block.send < 0 and block.recv < 0:
                self.local[block.rank].append(number)

    def instance(self) -> Alike | None:
        """The first instance, None where another is not like it."""
        image = self._block_images()
        if image is None:
            return None
        blocks = self.code.blocks
        alike = all(
            do_the_same(block.operations, blocks[there].operations, image)
            for block, there in zip(blocks, image, strict=True)
        )
        return self._first() if alike else None

    def _connection_images(self) -> dict[int, int] | None:
        """By connection the one of the next instance; None where there is none, or where it is over other links."""
        place = {connection: number for number, connection in enumerate(self.code.connections)}
        images = {-1: -1}
        for (src, dst, channel), number in place.items():
            there = place.get(Connection(src, dst, (channel + self.width) % self.channels))
            if there is None or self.routes[there] != self.routes[number]:
                return None
            images[number] = there
        return images

    def _block_images(self) -> list[int] | None:
        """By threadblock the one of the next instance, by its connections or its place; None where there is none."""
        connections = self._connection_images()
        if connections is None or any(len(own) % self.instances for own in self.local.values()):
            return None
        place = {(block.send, block.recv): number for number, block in enumerate(self.code.blocks)}
        moved: dict[int, int] = {}
        for own in self.local.values():
            each = len(own) // self.instances
            moved.update(zip(own, own[each:] + own[:each], strict=True))
        images = []
        for number, block in enumerate(self.code.blocks):
            there = moved.get(number, place.get((connections[block.send], connections[block.recv])))
            if there is None:
                return None
            images.append(there)
        return images

    def _first(self) -> Alike | None:
        """The instance on the first channels, None where it waits for another."""
        own = [number for number, connection in enumerate(self.code.connections) if connection.channel < self.width]
        connection_at = {-1: -1, **{number: position for position, number in enumerate(own)}}
        local = {number for some in self.local.values() for number in some[: len(some) // self.instances]}
        kept = [
            number
            for number, block in enumerate(self.code.blocks)
            if number in local
            or (max(block.send, block.recv) >= 0 and {block.send, block.recv} <= connection_at.keys())
        ]
        code = part_of(self.code, kept, own, connection_at)
        return None if code is None else Alike(code, [self.routes[number] for number in own], self.instances)
