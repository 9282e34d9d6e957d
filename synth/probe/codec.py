"""A recording as JSON and back: every field by its name, left out where it is what was not told."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from decimal import Decimal
from typing import Any

from synth.inputs.fields import Fields, decode_json
from synth.probe.recording import Recording

FORMAT = 1
#: No count, address or rate of a machine is larger.
_MOST = 1 << 31


def to_json(recording: Recording) -> str:
    """The text that `parse_recording` reads back as an equal recording; the same bytes for the same recording."""
    return _text({"format": FORMAT, **_plain(recording)}, "") + "\n"


def parse_recording(text: str, source: str) -> Recording:
    """The recording that JSON `text` holds; `source` is its file as the user named it.

    Raises InputError naming the field that is missing, unknown or of the wrong kind.
    """
    root = Fields.of(decode_json(text, source), source, "", ("format", *_names(Recording)))
    root.integer("format", FORMAT, FORMAT)
    value: Recording = _object(Recording, Fields(source, "", {k: v for k, v in root.data.items() if k != "format"}))
    return value


def _names(kind: type[Any]) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [(field, getattr(value, field.name)) for field in dataclasses.fields(value)]
        return {field.name: _plain(item) for field, item in fields if item != field.default}
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def _text(value: Any, indent: str) -> str:
    """JSON with a line for each innermost object."""
    items: list[str]
    deeper = indent + "  "
    if isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        items, ends = [_text(item, deeper) for item in value], "[]"
    elif isinstance(value, dict) and any(isinstance(item, dict | list) for item in value.values()):
        items, ends = [f"{json.dumps(key)}: {_text(item, deeper)}" for key, item in value.items()], "{}"
    else:
        return json.dumps(value, ensure_ascii=False)
    return f"{ends[0]}\n{deeper}" + f",\n{deeper}".join(items) + f"\n{indent}{ends[1]}"


def _object(kind: type[Any], fields: Fields) -> Any:
    """The dataclass `kind` that an object of the file stands for."""
    hints = typing.get_type_hints(kind)
    values: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        if field.name in fields.data:
            # -1 stands for "not told" only where it is what a field is without being told.
            values[field.name] = _field(hints[field.name], fields, field.name, -1 if field.default == -1 else 0)
        elif field.default is dataclasses.MISSING:
            fields.integer(field.name, 0, 0) if hints[field.name] is int else fields.text(field.name)
    return kind(**values)


def _field(hint: Any, fields: Fields, name: str, least: int) -> Any:
    value = fields.data[name]
    if typing.get_origin(hint) is tuple:
        return _items(typing.get_args(hint)[0], fields, name)
    if isinstance(hint, types.UnionType):
        hint = next(part for part in typing.get_args(hint) if part is not types.NoneType)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _object(hint, Fields.of(value, fields.source, fields.field(name), _names(hint)))
    return _scalar(hint, fields, name, least)


def _items(hint: Any, fields: Fields, name: str) -> tuple[Any, ...]:
    found = []
    for position, item in enumerate(fields.items(name)):
        where = f"{name}[{position}]"
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            found.append(_object(hint, Fields.of(item, fields.source, fields.field(where), _names(hint))))
        else:
            found.append(_scalar(hint, Fields(fields.source, fields.where, {where: item}), where, 0))
    return tuple(found)


def _scalar(hint: Any, fields: Fields, name: str, least: int) -> Any:
    value = fields.data[name]
    if hint is bool:
        return value if isinstance(value, bool) else fields.fail(name, value, "true or false")
    if hint is int:
        return fields.integer(name, least, _MOST)
    if hint is float:
        return float(fields.number(name, _MOST, positive=False) or Decimal(0))
    return fields.text(name) if value != "" else ""
