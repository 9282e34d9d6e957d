"""The whole stage: justification and contiguity for every instance, and the scheduling program where it is small enough to solve."""

from __future__ import annotations

from dataclasses import dataclass, field

from synth.instance import Instance
from synth.ir import Schedule
from synth.scheduling.contiguity import Contiguity
from synth.scheduling.justification import Justification
from synth.scheduling.milp import MilpScheduling
from synth.timing import TOLERANCE_US, busiest_link_us

#: Transfers above which the program is not even looked at: its size grows with the square.
_MAX_TRANSFERS = 128


@dataclass(frozen=True)
class Scheduling:
    """Options of the parts; without `justification` messages keep the order that they come in. The program's limits are counted in
    nodes, so that its answer does not depend on load.
    """

    justification: Justification | None = field(default_factory=Justification)
    contiguity: Contiguity = field(default_factory=Contiguity)
    exact: MilpScheduling = field(default_factory=MilpScheduling)

    def __call__(self, instance: Instance, schedule: Schedule) -> tuple[Schedule, str]:
        """A schedule of the same routing, never later than `schedule`, and what gave it or proved it."""
        justified = self.justification(instance, schedule) if self.justification else schedule
        best = self.contiguity(instance, justified)
        transfers = best.transfers()
        if best.makespan_us <= busiest_link_us(instance, transfers) + TOLERANCE_US:
            return best, "contiguity, at the busiest link's load"
        if len(transfers) > _MAX_TRANSFERS or not self.exact.fits(instance, best):
            return best, "contiguity"
        solved, report = self.exact(instance, best)
        if solved.makespan_us <= best.makespan_us + TOLERANCE_US:
            return solved, f"milp, {report.status.value}"
        return best, "contiguity"
