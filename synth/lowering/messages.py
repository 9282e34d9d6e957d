"""The schedule's messages as lowering sees them: on a channel."""

from __future__ import annotations

from typing import NamedTuple

from synth.ir import Ends


class Connection(NamedTuple):
    """What a runtime connects: one direction between two ranks on one channel. Messages arrive in order, untagged."""

    src: int
    dst: int
    channel: int


class End(NamedTuple):
    """A message as the rank at one of its ends names it: itself, the rank at the other end, and the chunks in rising order."""

    rank: int
    peer: int
    chunks: tuple[int, ...]


class Message(NamedTuple):
    """One send; `index` is its place in order of start.

    Both ends name the same ranks and chunks, unless it stands for its images in all boxes (turns.py): then each end names what its
    own box has to do with. A tuple, as schedules have tens of thousands.
    """

    index: int  # type: ignore[assignment]  # a message is never asked where it holds a value
    sent: End
    received: End
    channel: int
    reduce: bool
    start_us: float
    arrive_us: float

    @property
    def connection(self) -> Connection:
        """As the sender names it."""
        return Connection(self.sent.rank, self.sent.peer, self.channel)

    @property
    def ends(self) -> Ends:
        """What decides which messages have to be there before it."""
        return self.sent.rank, self.sent.chunks, self.received.rank, self.received.chunks, self.reduce
