"""What can be wrong with an MSCCL XML document: its text (`XmlError`) or its structure (`AlgoError`)."""

from __future__ import annotations

from msccl_xml.model import Step, StepType, Threadblock

#: Steps shown on either side of the failing one.
NEIGHBOURS = 3


class XmlError(ValueError):
    """The text is no MSCCL XML document: mend the named line. `line` is None where no line is to blame."""

    def __init__(self, message: str, line: int | None = None) -> None:
        self.message = message
        self.line = line
        super().__init__(message if line is None else f"line {line}: {message}")


class AlgoError(ValueError):
    """The document is readable, but no runtime would execute it as meant.

    `gpu`, `tb` and `step` are -1 where the problem is none of one gpu, threadblock or step. `neighbours` are the
    failing step and those around it, one line each, the failing one marked.
    """

    def __init__(
        self, problem: str, gpu: int = -1, tb: int = -1, step: int = -1, neighbours: tuple[str, ...] = ()
    ) -> None:
        self.problem = problem
        self.gpu = gpu
        self.tb = tb
        self.step = step
        self.neighbours = neighbours
        where = format_place(gpu, tb, step)
        super().__init__("\n".join([f"{where}: {problem}" if where else problem, *neighbours]))


def format_place(gpu: int, tb: int = -1, step: int = -1) -> str:
    """`gpu 3 threadblock 1 step 7`, as far as it is known (negative: not)."""
    parts = (("gpu", gpu), ("threadblock", tb), ("step", step))
    return " ".join(f"{word} {number}" for word, number in parts if number >= 0)


def format_step(number: int, step: Step) -> str:
    """One step in one line with its local addresses and dependence: `7: rrc i[4] -> o[4] x2, waits for 0:3`."""
    parts = [f"{number}: {step.type}"]
    if step.type.reads_src:
        parts.append(f"{step.src_buffer}[{step.src_offset}]")
    if step.type.writes_dst:
        parts.append(f"-> {step.dst_buffer}[{step.dst_offset}]")
    if step.type is not StepType.NOP:
        parts.append(f"x{step.count}")
    text = " ".join(parts)
    if step.depid >= 0:
        text += f", waits for {step.depid}:{step.deps}"
    return text + (", hasdep" if step.hasdep else "")


def neighbours_of(tb: Threadblock, number: int) -> tuple[str, ...]:
    """The lines of step `number` and of its neighbours, the step itself marked with `>`."""
    low, high = max(0, number - NEIGHBOURS), min(len(tb.steps), number + NEIGHBOURS + 1)
    return tuple(f"  {'>' if k == number else ' '} {format_step(k, tb.steps[k])}" for k in range(low, high))


def step_error(problem: str, gpu: int, tb: Threadblock, number: int) -> AlgoError:
    """An AlgoError at one step, with its neighbours."""
    return AlgoError(problem, gpu, tb.id, number, neighbours_of(tb, number))
