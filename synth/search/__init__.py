"""A plan carried out: candidates made (making.py), timed (clock.py) and scored (scoring.py), wave by wave (search.py)."""

from synth.search.clock import Clock
from synth.search.ledger import Ledger
from synth.search.scoring import Scored
from synth.search.search import Search

__all__ = ["Clock", "Ledger", "Scored", "Search"]
