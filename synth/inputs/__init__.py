"""Readers of machine descriptions: pure functions from text to values, and the one that picks a reader for a file."""
