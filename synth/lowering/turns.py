"""What all boxes do alike is lowered for one box, and turned for the others (docs/formulation.md, section 11).

Let the messages not change when every rank r becomes r + g (mod n), and every chunk its image: the chunk that is to the turned ranks
what the chunk is to these. Then all boxes of g ranks have the same program but for the names of peers and of places in buffers that
hold the whole vector. So lowering looks at the first box alone: what it sends to another box arrives there as what yet another box
sends to the first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from synth.collective import Collective, CollectiveName
from synth.lowering.messages import Connection, End, Message


@dataclass(frozen=True, slots=True)
class Turns:
    """Boxes of `size` ranks each, one behind the other, that do the same; one box of all `ranks` where there are no such."""

    ranks: int
    size: int

    @property
    def boxes(self) -> int:
        """How many there are."""
        return self.ranks // self.size

    def home(self, src: int, dst: int, channel: int) -> Connection:
        """The image of a connection on which the first box sends."""
        box_start = src - src % self.size
        return Connection(src - box_start, (dst - box_start) % self.ranks, channel)

    def shift(self, chunks: int) -> int:
        """How far a chunk of a buffer that holds all `chunks` moves from a box to the next."""
        return chunks * self.size // self.ranks


def boxes_first(collective: Collective, messages: list[Message]) -> Iterator[tuple[Turns, list[Message]]]:
    """The smallest box of which all others are images, if there is one, and the messages that it sends, numbered anew; then all.

    `messages` are in order of index, with ends that name the same. None of several boxes' chunks is turned: where its
    chunks lie together for one box, they may not for another.
    """
    ranks = collective.num_ranks
    for size in range(1, ranks // 2 + 1) if collective.root is None and collective.group is None else ():
        if ranks % size == 0 and collective.chunks * size % ranks == 0:
            turns = Turns(ranks, size)
            boxes = _by_box(messages, turns)
            if boxes is not None and _are_images(collective, turns, boxes):
                yield turns, _first_box(turns, boxes)
                break
    yield Turns(ranks, ranks), messages


def _by_box(messages: list[Message], turns: Turns) -> list[list[Message]] | None:
    """The messages that every box sends; None where some box sends more than another."""
    if len(messages) % turns.boxes:
        return None
    boxes: list[list[Message]] = [[] for _ in range(turns.boxes)]
    for message in messages:
        boxes[message.sent.rank // turns.size].append(message)
    return boxes if len({len(own) for own in boxes}) == 1 else None


def _are_images(collective: Collective, turns: Turns, boxes: list[list[Message]]) -> bool:
    """Whether every box's messages are the images of those of the box before, in the same order, none of several boxes' chunks."""
    image, owner = _images(collective, turns)
    if any(len({owner[chunk] for chunk in message.sent.chunks}) > 1 for message in boxes[0]):
        return False
    for before, after in pairwise(boxes):
        for one, other in zip(before, after, strict=True):
            rank, peer, chunks = one.sent
            turned = End(
                rank + turns.size, (peer + turns.size) % turns.ranks, tuple([image[chunk] for chunk in chunks])
            )
            if turned != other.sent or (one.start_us, one.arrive_us) != (other.start_us, other.arrive_us):
                return False
            if (one.channel, one.reduce) != (other.channel, other.reduce):
                return False
    return True


def _images(collective: Collective, turns: Turns) -> tuple[list[int], list[tuple[int, int]]]:
    """By chunk what becomes of it from a box to the next, and the boxes that it is of: one, or those of its source and its end."""
    chunks, shift = collective.chunks, turns.shift(collective.chunks)
    if collective.name is not CollectiveName.ALLTOALL:
        return [(chunk + shift) % chunks for chunk in range(chunks)], [(0, chunk // shift) for chunk in range(chunks)]
    image, owner = [], []
    for chunk in range(collective.num_chunk_ids):
        source, place = divmod(chunk, chunks)
        image.append((source + turns.size) % turns.ranks * chunks + (place + shift) % chunks)
        owner.append((source // turns.size, place // shift))
    return image, owner


def _first_box(turns: Turns, boxes: list[list[Message]]) -> list[Message]:
    """What the first box sends; where that goes to another box, the first box has received the image that a third one sends."""
    own = []
    for index, message in enumerate(boxes[0]):
        box, rank = divmod(message.sent.peer, turns.size)
        sent = boxes[-box % turns.boxes][index].sent
        own.append(message._replace(index=index, received=End(rank, sent.rank, sent.chunks)))
    return own
