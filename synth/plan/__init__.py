"""What to try for a request: which sizes to solve at, how finely to cut there, with which strategies, in which order.

Others hold a `Plan`. Its parts hold each other, from what is asked to the order: asked.py, traits.py (what the machine is like for
that), at_size.py with exchanges.py and central.py (what is planned at one size), planned.py with known.py (at all sizes), and
by_time.py and by_schedule.py (in which waves that is tried). in_time.py cuts it coarser where there is little time.
"""

from synth.plan.plan import Plan

__all__ = ["Plan"]
