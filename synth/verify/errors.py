"""The one way in which an algorithm fails verification."""

from __future__ import annotations

from synth.errors import SynthError

#: Lines of the witness that the message shows; `VerifyError.witness` has them all.
SHOWN = 24


class VerifyError(SynthError):
    """The algorithm does not do what it claims: do not run the file; `witness` shows one way in which it goes wrong.

    `problem` is one line, `witness` the steps that prove it, one line each, with gpu, threadblock and number.
    """

    def __init__(self, problem: str, witness: tuple[str, ...] = ()) -> None:
        self.problem = problem
        self.witness = witness
        shown = witness if len(witness) <= SHOWN else (*witness[:SHOWN], f"  ... and {len(witness) - SHOWN} more lines")
        super().__init__("\n".join((problem, *shown)))
