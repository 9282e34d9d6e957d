"""docs/formulation.md and the code agree on the numbers of equations and sections."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "formulation.md").read_text()
SOURCES = sorted((ROOT / "synth").rglob("*.py"))


def numbers(pattern: str, text: str) -> list[int]:
    return [int(number) for number in re.findall(pattern, text, re.MULTILINE)]


def test_equations_and_sections_are_numbered_once_and_without_holes() -> None:
    equations = numbers(r" {2,}\((\d+)\)$", TEXT)
    assert sorted(equations) == list(range(1, len(equations) + 1))
    sections = numbers(r"^## (\d+)\.", TEXT)
    assert sections == list(range(1, len(sections) + 1))


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_the_code_cites_exists(source: Path) -> None:
    code = source.read_text()
    equations = numbers(r" {2,}\((\d+)\)$", TEXT)
    for first, last in re.findall(r"\b[Ee]q\. (\d+)(?: (?:to|and) (\d+))?", code):
        assert {int(first), int(last or first)} <= set(equations)
    for section in numbers(r"formulation\.md,? section (\d+)", code):
        assert f"\n## {section}. " in TEXT
