"""Scheduling: contiguity and exact times."""
