"""Derived problems: reversal, composition and symmetry."""
