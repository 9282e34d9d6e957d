"""How a run can end early, each in one line."""

from __future__ import annotations

from collections.abc import Sequence

from synth.errors import SynthError


class HangError(SynthError):
    """No rank has got any further for a while: the algorithm waits for itself. `waits` says who waits for what, a line each."""

    def __init__(self, seconds: float, waits: Sequence[str]) -> None:
        self.waits = tuple(waits)
        shown = "; ".join(self.waits[:4])
        more = f"; and {len(self.waits) - 4} more" if len(self.waits) > 4 else ""
        super().__init__(f"the algorithm hangs: nothing has moved for {seconds:g} s: {shown}{more}")

    @classmethod
    def told(cls, message: str, waits: Sequence[str]) -> HangError:
        """A hang that another process found, in its words."""
        hang = cls(0.0, waits)
        hang.args = (message,)
        return hang


class LostError(SynthError):
    """A rank is gone, or no longer answers; what it was doing is lost, and the others have stopped."""


class FollowError(SynthError):
    """This rank stopped because another one told it to; the other says why."""
