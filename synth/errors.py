"""What can go wrong, said in one line, with the exit code it ends in.

Exit codes (docs/design.md): 0 done, 1 the input is at fault or no answer exists, 2 usage, 3 a bug of ours, 130 interrupted.
"""

from __future__ import annotations


class SynthError(Exception):
    """Any error that synth raises on purpose; `exit_code` is what the command line ends with."""

    exit_code = 1

    def __reduce__(self) -> tuple[object, ...]:
        # An exception that comes from another process is made anew by its constructor from its message alone, unless told otherwise.
        return _made_anew, (type(self), self.args, vars(self))


def _made_anew(kind: type[SynthError], args: tuple[object, ...], state: dict[str, object]) -> SynthError:
    error = kind.__new__(kind, *args)
    vars(error).update(state)
    return error


class InputError(SynthError):
    """Something that was given is wrong: mend the named field of the named file (or option) and run again.

    `source` is a file or an option as the user wrote it, `field` where in it, `value` what stands there, `expected` what may.
    """

    def __init__(self, source: str, field: str, value: object, expected: str) -> None:
        self.source = source
        self.field = field
        self.value = value
        self.expected = expected
        super().__init__(": ".join(part for part in (source, field, f"{_shown(value)}, expected {expected}") if part))


class NoAnswerError(SynthError):
    """No algorithm exists for this input (a rank that nothing reaches, limits too tight): relax what the message names."""


class EffortError(SynthError):
    """Something turned out to be more work than the caller allows: allow more, or do without."""


class UsageError(SynthError):
    """The command line itself is off; see `--help`."""

    exit_code = 2


class SolverError(SynthError):
    """A solver that was asked for is not installed or has no licence; install it or leave the choice to synth."""


class CheckError(SynthError):
    """A stage broke the contract of its output; a bug of ours. `witness` holds the offending items."""

    exit_code = 3

    def __init__(self, stage: str, problem: str, witness: tuple[object, ...] = ()) -> None:
        self.stage = stage
        self.problem = problem
        self.witness = witness
        shown = "".join(f"\n  {item}" for item in witness[:10])
        super().__init__(f"{stage}: {problem}{shown}")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
