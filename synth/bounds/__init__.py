"""What no algorithm can beat on a machine, proved (docs/bounds.md): `bound_of` is the best known, `ingress_bound` comes at once."""

from synth.bounds.bound_of import bound_of
from synth.bounds.ingress import ingress_bound
from synth.bounds.value import Bound, Cut, Limit

__all__ = ["Bound", "Cut", "Limit", "bound_of", "ingress_bound"]
