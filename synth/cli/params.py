"""The forms of option values, checked where the command line is read: a value of the wrong form is a usage error.

Each function is, or makes, the callback of an option: text (None where the option is not given) in, value out.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import click

from synth.errors import InputError
from synth.group import parse_group
from synth.units import parse_size, parse_size_range


def size(_context: click.Context, _option: click.Parameter, text: str | None) -> int | None:
    """Bytes, of `64MB` or `1000`."""
    if text is None:
        return None
    try:
        return parse_size(text)
    except InputError as error:
        raise _bad(text, error.expected) from error


def size_range(_context: click.Context, _option: click.Parameter, text: str | None) -> tuple[int, int] | None:
    """(smallest, largest) bytes, of `1KB:1GB`."""
    if text is None:
        return None
    try:
        return parse_size_range(text)
    except InputError as error:
        raise _bad(text, error.expected) from error


def ranks(_context: click.Context, _option: click.Parameter, text: str | None) -> tuple[int, ...] | None:
    """Rank numbers, of `0,2,5`."""
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(_is_number(part) for part in parts):
        raise _bad(text, "rank numbers joined by commas, such as 0,2,5")
    return tuple(int(part) for part in parts)


def group(_context: click.Context, _option: click.Parameter, text: str | None) -> tuple[int, ...] | None:
    """Rank numbers, of `0-3,5`, ascending."""
    if text is None:
        return None
    ranks = parse_group(text)
    if ranks is None:
        raise _bad(text, "different rank numbers joined by commas, such as 0-3,5")
    return ranks


def whole_from(smallest: int) -> Callable[[click.Context, click.Parameter, str | None], int | None]:
    """The callback for a whole number from `smallest`; None where the option is not given."""

    def number(_context: click.Context, _option: click.Parameter, text: str | None) -> int | None:
        if text is None:
            return None
        if not _is_number(text.strip()) or int(text) < smallest:
            raise _bad(text, f"a whole number from {smallest}")
        return int(text)

    return number


def auto_or_count(largest: int) -> Callable[[click.Context, click.Parameter, str | None], int | None]:
    """The callback for a whole number from 1 to `largest`; None for `auto`."""

    def count(_context: click.Context, _option: click.Parameter, text: str | None) -> int | None:
        if text is None or text.strip().lower() == "auto":
            return None
        if not _is_number(text.strip()) or not 1 <= int(text) <= largest:
            raise _bad(text, f"auto or a whole number from 1 to {largest}")
        return int(text)

    return count


def seconds(_context: click.Context, _option: click.Parameter, text: str) -> float:
    """A positive, finite number of seconds."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise _bad(text, "a positive number of seconds")
    return value


def _is_number(text: str) -> bool:
    """ASCII digits, few enough that no machine has as many of anything."""
    return text.isascii() and text.isdecimal() and len(text) <= 9


def _bad(text: str, expected: str) -> click.BadParameter:
    return click.BadParameter(f"{text!r}, expected {expected}")
