"""Programs that do the same in every box are run for one box (docs/formulation.md, eq. 34b).

Let a program not change when every rank r becomes r + g (mod n): threadblocks map to threadblocks that do the same, connections to
connections, and the links that these cross to links of the same bandwidth. Then all boxes of g ranks are in the same state at every
moment, since nothing tells one from another. So one of them is run: what it sends to the next box it receives from the one before,
and a link stands for those that it maps to. That is exact, and g / n of the work.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from synth.simulate.engine import Route
from synth.simulate.program import Block, Code, Connection, Operation, Wait

#: A threadblock by what it is connected to, and its place among those of its rank that have the same connections (none).
_Role = tuple[Connection | None, Connection | None, int]


class Alike(NamedTuple):
    """The program of one box or instance: its threadblocks and connections, the routes of these, and how many share these links."""

    code: Code
    routes: list[Route]
    sharing: int = 1


def one_box(code: Code, routes: Sequence[Route], capacity: Sequence[float], ranks: int) -> Alike | None:
    """The program of the smallest box that does what all others do, None where there is none but the whole.

    `routes` are those of the connections, `capacity` the links' in bytes a us.
    """
    for size in range(1, ranks // 2 + 1):
        if ranks % size == 0 and (alike := _Turn(code, routes, capacity, ranks, size).box()) is not None:
            return alike
    return None


class _Turn:
    """A program turned by `size` ranks."""

    def __init__(self, code: Code, routes: Sequence[Route], capacity: Sequence[float], ranks: int, size: int) -> None:
        self.code, self.routes, self.capacity = code, routes, capacity
        self.ranks, self.size = ranks, size
        self.place = {connection: number for number, connection in enumerate(code.connections)}

    def box(self) -> Alike | None:
        """The first box, None where the turned program is another."""
        if not self._connections_map():
            return None
        links = self._links()
        return self._first_box(links) if links is not None and self._blocks_map() else None

    def _turned(self, connection: Connection, by: int) -> Connection:
        src, dst, channel = connection
        return Connection((src + by) % self.ranks, (dst + by) % self.ranks, channel)

    def _connections_map(self) -> bool:
        return all(self._turned(connection, self.size) in self.place for connection in self.code.connections)

    def _links(self) -> dict[int, int] | None:
        """By link that is used, the first of those that it maps to; None where routes do not map, or a link is in several boxes."""
        turned: dict[int, int] = {}
        for connection, number in self.place.items():
            here, there = self.routes[number], self.routes[self.place[self._turned(connection, self.size)]]
            if here[1:] != there[1:] or len(here.links) != len(there.links):
                return None
            for link, image in zip(here.links, there.links, strict=True):
                if turned.setdefault(link, image) != image or self.capacity[link] != self.capacity[image]:
                    return None
        first: dict[int, int] = {}
        for link in sorted(turned):
            if link not in first:
                orbit = [link]
                while (image := turned[orbit[-1]]) != link:
                    if len(orbit) > self.ranks:
                        return None
                    orbit.append(image)
                if len(orbit) != self.ranks // self.size:
                    return None
                first.update(dict.fromkeys(orbit, link))
        return first

    def _blocks_map(self) -> bool:
        """Whether every threadblock has an image that does the same."""
        roles = self._roles()
        places = {
            (block.rank, role): number for number, (block, role) in enumerate(zip(self.code.blocks, roles, strict=True))
        }
        image: list[int] = []
        for block, (send, recv, same) in zip(self.code.blocks, roles, strict=True):
            role = self._image(send), self._image(recv), same
            found = places.get(((block.rank + self.size) % self.ranks, role))
            if found is None:
                return False
            image.append(found)
        return all(
            do_the_same(block.operations, self.code.blocks[there].operations, image)
            for block, there in zip(self.code.blocks, image, strict=True)
        )

    def _image(self, connection: Connection | None) -> Connection | None:
        return None if connection is None else self._turned(connection, self.size)

    def _roles(self) -> list[_Role]:
        met: dict[tuple[int, Connection | None, Connection | None], int] = defaultdict(int)
        roles: list[_Role] = []
        for block in self.code.blocks:
            send = self.code.connections[block.send] if block.send >= 0 else None
            recv = self.code.connections[block.recv] if block.recv >= 0 else None
            roles.append((send, recv, met[block.rank, send, recv]))
            met[block.rank, send, recv] += 1
        return roles

    def _first_box(self, links: dict[int, int]) -> Alike | None:
        """The blocks of the first ranks; every connection is the one of its turns that a rank of theirs sends on."""
        own = [number for number, connection in enumerate(self.code.connections) if connection.src < self.size]
        place = {self.code.connections[number]: position for position, number in enumerate(own)}
        connection_at = {-1: -1}
        for number, whole in enumerate(self.code.connections):
            connection_at[number] = place[self._turned(whole, whole.src % self.size - whole.src)]
        kept = [number for number, block in enumerate(self.code.blocks) if block.rank < self.size]
        code = part_of(self.code, kept, own, connection_at)
        if code is None:
            return None
        routes = []
        for number in own:
            route = self.routes[number]
            crossed = tuple(links[link] for link in route.links)
            if len(set(crossed)) < len(crossed):
                return None
            routes.append(route._replace(links=crossed))
        return Alike(code, routes)


def part_of(code: Code, kept: Sequence[int], own: Sequence[int], connection_at: Mapping[int, int]) -> Code | None:
    """The program of the threadblocks `kept` and the connections `own`, `connection_at` by connection (-1: none) its position among
    these; None where it waits for another threadblock.
    """
    block_at = {number: position for position, number in enumerate(kept)}
    blocks = []
    for block in (code.blocks[number] for number in kept):
        if any(wait.tb not in block_at for operation in block.operations for wait in operation.waits):
            return None
        operations = tuple(
            one.waiting(tuple([Wait(block_at[wait.tb], wait.operations) for wait in one.waits])) if one.waits else one
            for one in block.operations
        )
        blocks.append(Block(block.rank, block.tb, connection_at[block.send], connection_at[block.recv], operations))
    return Code(tuple(blocks), tuple(code.connections[number] for number in own))


def do_the_same(here: Sequence[Operation], there: Sequence[Operation], image: Sequence[int]) -> bool:
    """Whether two threadblocks do the same, if what the one waits for maps to what the other waits for."""
    return len(here) == len(there) and all(
        one.type is other.type
        and one.chunks == other.chunks
        and one.sources == other.sources
        and [(image[wait.tb], wait.operations) for wait in one.waits] == [tuple(wait) for wait in other.waits]
        for one, other in zip(here, there, strict=True)
    )
