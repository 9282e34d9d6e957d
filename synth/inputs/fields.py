"""Reading JSON objects field by field, with errors that name file, field, value and what was expected.

Numbers with a fraction are kept as decimals until their last use, so that what is written is what is computed with.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NoReturn

from synth.errors import InputError

_MAX_TEXT = 10_000


class _Missing:
    """Stands in error messages for a field that is not there."""

    def __repr__(self) -> str:
        return "missing"


MISSING = _Missing()


def decode_json(text: str, source: str) -> Any:
    """The value that JSON `text` stands for; InputError with line and column where it is none, or for a key twice."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(pairs)
        if len(table) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for position, key in enumerate(keys) if key in keys[:position])
            raise InputError(source, "key", twice, "each key once in an object")
        return table

    try:
        return json.loads(
            text.removeprefix("\ufeff"), object_pairs_hook=unique, parse_float=_decimal, parse_constant=Decimal
        )
    except json.JSONDecodeError as error:
        start = error.doc.split("\n")[error.lineno - 1]
        where = f"line {error.lineno}, column {error.colno}"
        raise InputError(source, where, start.strip()[:40], f"JSON ({error.msg})") from None
    except (ValueError, RecursionError) as error:
        expected = "JSON with numbers and nesting of a sensible length"
        raise InputError(source, "", type(error).__name__, expected) from None


def _decimal(text: str) -> Decimal:
    try:
        return Decimal(text)
    except ArithmeticError:
        return Decimal("Infinity")


@dataclass(frozen=True)
class Fields:
    """One JSON object: `where` is its place in the file (`links[3]`, "" for the whole file)."""

    source: str
    where: str
    data: dict[str, Any]

    @classmethod
    def of(cls, value: object, source: str, where: str, keys: Collection[str]) -> Fields:
        """The object `value`, whose keys must be among `keys`; InputError otherwise."""
        if not isinstance(value, dict):
            raise InputError(source, where or "the file", _plain(value), "an object {...}")
        unknown = sorted(set(value) - set(keys))
        if unknown:
            raise InputError(source, where or "key", unknown[0], f"one of the keys {', '.join(keys)}")
        return cls(source, where, value)

    def field(self, key: str) -> str:
        return f"{self.where}.{key}" if self.where else key

    def fail(self, key: str, value: object, expected: str) -> NoReturn:
        """Raise the InputError that says so of field `key`."""
        raise InputError(self.source, self.field(key), _plain(value), expected)

    def text(self, key: str, default: str | None = None, *, lines: bool = False) -> str:
        """A string that can be printed on one line (on several where `lines`); required where there is no default."""
        value = self.data.get(key, MISSING if default is None else default)
        if not isinstance(value, str):
            self.fail(key, value, "a string")
        if lines:
            shown = "".join(value.split())
            if len(value) > _MAX_TEXT or not (shown.isprintable() or not shown):
                self.fail(key, value, f"printable text of at most {_MAX_TEXT} characters")
        elif not value or len(value) > 200 or not value.isprintable() or value != value.strip():
            self.fail(key, value, "1 to 200 printable characters without blanks at the ends")
        return value

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        """A whole number from low to high; required where there is no default."""
        value = self.data.get(key, MISSING if default is None else default)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            self.fail(key, value, str(low) if low == high else f"a whole number from {low} to {high}")
        return value

    def number(self, key: str, high: int, *, positive: bool) -> Decimal | None:
        """A number above 0 (from 0 where not `positive`) up to `high`; None where the field is left out."""
        value = self.data.get(key, MISSING)
        if isinstance(value, _Missing):
            return None
        low = Decimal("1e-9") if positive else Decimal(0)
        number = Decimal(value) if isinstance(value, int) and not isinstance(value, bool) else value
        if not isinstance(number, Decimal) or not number.is_finite() or not low <= number <= high:
            self.fail(key, value, f"a number {'above' if positive else 'from'} 0, at most {high}")
        return number

    def items(self, key: str, default: list[Any] | None = None) -> list[Any]:
        """A list; required where there is no default."""
        value = self.data.get(key, MISSING if default is None else default)
        if not isinstance(value, list):
            self.fail(key, value, "a list [...]")
        return value

    def choice(self, key: str, choices: Collection[str]) -> str:
        """One of some words."""
        value = self.data.get(key, MISSING)
        if not isinstance(value, str) or value not in choices:
            self.fail(key, value, f"one of {', '.join(choices)}")
        return value


def _plain(value: object) -> object:
    return float(value) if isinstance(value, Decimal) else value
