"""Kept answers: the same as new ones, for the same question only, and never a reason to fail."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from synth.cache import cache_directory, key_of, synthesize_cached
from synth.pipeline import synthesize
from synth.topology import Topology
from tests.graphs import line, ring
from tests.jobs import request

KB = 1 << 10


def test_a_kept_answer_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = request(ring(3), "allreduce", KB, 4 * KB, instances=1)
    first = synthesize_cached(job, tmp_path)
    assert first == synthesize(job) or replace(first, stages=()) == replace(synthesize(job), stages=())
    monkeypatch.setattr("synth.pipeline.synthesize", lambda *_: pytest.fail("searched again"))
    again = synthesize_cached(job, tmp_path)
    assert again == replace(first, cached=True)


def test_another_question_has_another_key() -> None:
    job = request(ring(3), "allreduce", KB)
    slower: Topology = replace(ring(3), links=tuple(replace(link, GBps=link.GBps / 2) for link in ring(3).links))
    others = [
        request(ring(3), "allgather", KB),
        request(ring(3), "allreduce", 2 * KB),
        request(line(3), "allreduce", KB),
        request(slower, "allreduce", KB),
        replace(job, seed=1),
        replace(job, runtime="rccl"),
    ]
    assert len({key_of(other) for other in (job, *others)}) == len(others) + 1
    assert key_of(replace(job, jobs=7, time_limit_s=1.0)) == key_of(job)


@pytest.mark.parametrize("damage", ["", "{}", "[]", '{"files": [{"xml": "<algo/>"}]}', "cut"])
def test_a_damaged_entry_is_searched_again(tmp_path: Path, damage: str) -> None:
    job = request(line(2), "allgather", KB)
    first = synthesize_cached(job, tmp_path)
    (entry,) = tmp_path.glob("*.json")
    text = entry.read_text()
    entry.write_text(text[: len(text) // 2] if damage == "cut" else damage)
    again = synthesize_cached(job, tmp_path)
    assert not again.cached
    assert again.files == first.files
    assert synthesize_cached(job, tmp_path).cached


def test_a_changed_program_is_not_believed(tmp_path: Path) -> None:
    job = request(line(2), "allgather", KB)
    synthesize_cached(job, tmp_path)
    (entry,) = tmp_path.glob("*.json")
    text = entry.read_text()
    changed = text.replace('dstoff=\\"1\\"', 'dstoff=\\"0\\"')
    assert changed != text
    entry.write_text(changed)
    assert not synthesize_cached(job, tmp_path).cached


def test_an_answer_that_a_clock_cut_short_is_not_kept(tmp_path: Path) -> None:
    job = request(ring(4), "allreduce", KB, 64 * KB, time_limit_s=1e-9)
    assert synthesize_cached(job, tmp_path).cut_short
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_no_reason_to_fail(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert synthesize_cached(request(line(2), "allgather", KB), blocked / "cache").files


def test_where_entries_lie() -> None:
    assert cache_directory({"SYNTH_CACHE": "/x", "XDG_CACHE_HOME": "/y"}) == Path("/x")
    assert cache_directory({"XDG_CACHE_HOME": "/y"}) == Path("/y/synth")
    assert cache_directory({}) == Path.home() / ".cache" / "synth"
