"""What to try for a buffer size: how finely to cut, with which strategies. All limits are counted in transfers, not seconds.

A `Candidate` is one combination to try; synth.plan puts those of all sizes in order. Read candidate.py, transfers.py and cuts.py
first. What is usual at one size is in lean.py where times decide, with large.py above 64 MB, and in scheduled.py where schedules
do; equal boxes have hierarchy.py and chained.py; all else is tried beside these.
"""

from synth.candidates.candidate import Candidate

__all__ = ["Candidate"]
