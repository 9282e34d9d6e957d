"""Synthesis of collective algorithms for a given machine, written as MSCCL XML."""

__version__ = "0.1.0"
