"""What a run was made from: equal code has equal hashes, in a checkout and without one, and any change of it another."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from synth.bench import fingerprint
from synth.bench.fingerprint import Origin, code_here, origin


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that stands for where synth is installed."""
    (tmp_path / "synth").mkdir()
    (tmp_path / "synth" / "a.py").write_text("one = 1\n", encoding="utf-8")
    monkeypatch.setattr(fingerprint, "_ROOT", tmp_path)
    return tmp_path


def git(tree: Path, *words: str) -> None:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false", *words]
    subprocess.run(command, cwd=tree, check=True, capture_output=True)


def test_without_a_checkout_the_files_themselves_tell_code_apart(tree: Path) -> None:
    first = origin()
    assert (first.commit, first.short) == ("", "no commit")
    assert origin().code == first.code
    (tree / "synth" / "a.pyc").write_bytes(b"what Python keeps for itself")
    assert origin().code == first.code
    (tree / "synth" / "a.py").write_text("one = 2\n", encoding="utf-8")
    assert origin().code != first.code


def test_in_a_checkout_the_commit_tells_and_what_no_commit_has(tree: Path) -> None:
    git(tree, "init", "-q")
    git(tree, "add", ".")
    git(tree, "commit", "-q", "-m", "one")
    clean = origin()
    assert (len(clean.commit), clean.dirty, clean.short) == (40, "", clean.commit[:8])
    (tree / "notes.txt").write_text("none of the packages'", encoding="utf-8")
    assert origin() == clean
    (tree / "synth" / "a.py").write_text("one = 2\n", encoding="utf-8")
    edited = origin()
    assert (edited.commit, edited.short) == (clean.commit, f"{clean.commit[:8]}+")
    assert edited.code != clean.code
    (tree / "synth" / "b.py").write_text("two = 2\n", encoding="utf-8")
    assert len({clean.code, edited.code, origin().code}) == 3
    git(tree, "add", ".")
    git(tree, "commit", "-q", "-m", "two")
    assert origin().dirty == ""


def test_other_packages_are_other_code() -> None:
    here = Origin("c" * 40, "", {"numpy": "2.0"}, "a test")
    assert here.code != Origin("c" * 40, "", {"numpy": "2.1"}, "a test").code
    assert here.code == Origin("c" * 40, "", {"numpy": "2.0"}, "another host").code


def test_hosts_are_told_apart_by_their_programs_alone(tree: Path) -> None:
    here = code_here()
    (tree / "synth" / "notes.txt").write_text("no program", encoding="utf-8")
    assert code_here() == here
    (tree / "synth" / "a.py").write_text("one = 2\n", encoding="utf-8")
    assert code_here() != here
