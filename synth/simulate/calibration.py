"""Calibration files: figures of a user's own in place of those of the table (synth/constants.py)."""

from __future__ import annotations

import json
from dataclasses import fields, replace

from synth.constants import Constants, ProtocolConstants
from synth.errors import InputError

_ATTRIBUTES = {"Simple": "simple", "LL": "ll", "LL128": "ll128"}
_WHOLE = frozenset({"tile_bytes", "in_flight", "slots", "slices", "smallest_slice_bytes"})
#: Of a field that is divided by or allocated for, more than this is a slip of the keyboard.
_MOST_SLICES = 1024


def read_calibration(text: str, source: str, base: Constants | None = None) -> Constants:
    """`base` (Volta's table where left out) with what a calibration file says instead: `{"Simple": {"rate_GBps": 24.1}, ...}`.

    Raises InputError naming the field for anything unknown, of the wrong kind or out of range (only latencies may be 0).
    """
    try:
        given = json.loads(text, parse_constant=lambda word: word)
    except json.JSONDecodeError as problem:
        raise InputError(source, f"line {problem.lineno}", problem.msg, "JSON") from None
    except RecursionError:
        raise InputError(source, "", "brackets in brackets", "an object of protocols") from None
    if not isinstance(given, dict):
        raise InputError(source, "", given, "an object of protocols")
    constants = base or Constants()
    for protocol, values in given.items():
        if protocol not in _ATTRIBUTES or not isinstance(values, dict):
            raise InputError(source, protocol, values, f"an object under one of {', '.join(_ATTRIBUTES)}")
        changed = replace(constants.of(protocol), **_checked(values, protocol, source))  # type: ignore[arg-type]
        if changed.slices % changed.slots:
            raise InputError(source, f"{protocol}.slices", changed.slices, f"a multiple of slots, {changed.slots}")
        constants = replace(constants, **{_ATTRIBUTES[protocol]: changed})
    return constants


def _checked(values: dict[str, object], protocol: str, source: str) -> dict[str, float]:
    known = [field.name for field in fields(ProtocolConstants)]
    checked: dict[str, float] = {}
    for key, value in values.items():
        field = f"{protocol}.{key}"
        if key not in known:
            raise InputError(source, field, value, f"one of {', '.join(known)}")
        kind = int if key in _WHOLE else int | float
        if not isinstance(value, kind) or isinstance(value, bool) or not 0 <= value < 1e15:
            raise InputError(source, field, value, f"a {'whole' if key in _WHOLE else 'positive'} number")
        if value == 0 and not key.endswith("_us"):
            raise InputError(source, field, value, "a number above 0")
        if (key == "wire" and value > 1) or (key in ("slices", "slots", "in_flight") and value > _MOST_SLICES):
            raise InputError(source, field, value, f"at most {1 if key == 'wire' else _MOST_SLICES}")
        checked[key] = value
    return checked
