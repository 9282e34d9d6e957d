"""The history: it only grows, it migrates, it waits for others, and it says what is wrong with its file."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from synth.bench import schema
from synth.bench.schema import STEPS, VERSION
from synth.bench.store import Store
from synth.errors import InputError, SynthError
from tests.benches import HERE, NEXT, cost, outcome, record, suite

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "history.sqlite")


def filled(path: str) -> None:
    """A store with one finished run of two records."""
    with Store(path, write=True) as store:
        run = store.begin_run(suite(), HERE)
        store.add(run, outcome())
        store.finish(run, 12.5)


def test_what_goes_in_comes_out(path: str) -> None:
    filled(path)
    with Store(path) as store:
        (run,) = store.runs()
        assert (run.id, run.suite, run.cases, run.origin, run.seconds) == (1, "tiny", 4, HERE, 12.5)
        assert run.finished is not None
        assert list(store.records(run).values()) == list(outcome().records)
        assert store.jobs(run) == {cost().job: cost()}
        assert store.done(run) == {cost().job}
        assert store.file("feed") == "<algo/>"
        assert store.timelines("feed") == list(outcome().timelines)
        assert [found for _, found in store.history(record().case)] == [record()]
        assert store.file("nosuch") is None


def test_numbers_keep_all_their_digits(path: str) -> None:
    odd = record(time_us=1 / 3, schedule_us=0.1 + 0.2, baselines_us={"ring": 2 / 3})
    with Store(path, write=True) as store:
        store.add(store.begin_run(suite(), HERE), outcome(odd))
    with Store(path) as store:
        assert store.records(store.runs()[0])[odd.case] == odd


@pytest.mark.parametrize("table", ["run", "finish", "job", "record", "file", "timeline"])
@pytest.mark.parametrize("verb", ["DELETE FROM {0}", "UPDATE {0} SET {1} = {1}"])
def test_nothing_is_changed_or_deleted(path: str, table: str, verb: str) -> None:
    filled(path)
    database = sqlite3.connect(path)
    column = database.execute(f"SELECT name FROM pragma_table_info('{table}')").fetchone()[0]
    with pytest.raises(sqlite3.IntegrityError, match="a history only grows"):
        database.execute(verb.format(table, column))
    database.close()


def test_a_synthesis_is_stored_once_and_as_a_whole(path: str) -> None:
    with Store(path, write=True) as store:
        run = store.begin_run(suite(), HERE)
        store.add(run, outcome())
        with pytest.raises(SynthError, match="UNIQUE"):
            store.add(run, outcome())
        # The second record is there already: the first of the same outcome must not stay either.
        twice = (record("ring4/alltoall/1KB/auto/0"), record())
        with pytest.raises(SynthError, match="UNIQUE"):
            store.add(run, outcome(*twice))
        assert list(store.records(run)) == [item.case for item in outcome().records]
        assert list(store.jobs(run)) == [cost().job]


def old_store(path: str, version: int) -> None:
    """A file as synth wrote it when the schema was at `version`, with one run."""
    database = sqlite3.connect(path)
    for step in STEPS[:version]:
        database.executescript(step)
    told = "'2026-01-01T00:00:00+00:00', 'old', 'd', 1, 'c', '', '{}', '', 'p', '{}'"
    names = "started, suite, digest, cases, commit_id, dirty, versions, code, platform, tolerances"
    database.execute(f"INSERT INTO run ({names}) VALUES ({told})")
    database.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
    database.execute(f"PRAGMA user_version = {version}")
    database.commit()
    database.close()


@pytest.mark.parametrize("version", range(1, VERSION))
def test_older_stores_are_brought_up_to_date_with_what_they_hold(path: str, version: int) -> None:
    old_store(path, version)
    with pytest.raises(InputError, match=f"schema version: {version}, expected {VERSION}: `synth bench run` brings"):
        Store(path)
    with Store(path, write=True) as store:
        run = store.begin_run(suite(), HERE)
        store.add(run, outcome())
        assert [found.suite for found in store.runs()] == ["old", "tiny"]
        assert store.timelines("feed") == list(outcome().timelines)
    fresh = str(Path(path).with_name("fresh.sqlite"))
    with Store(fresh, write=True):
        pass
    tables = "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY sql"
    assert [sqlite3.connect(name).execute(tables).fetchall() for name in (path,)] == [
        sqlite3.connect(fresh).execute(tables).fetchall()
    ]


def test_a_migration_that_fails_leaves_the_store_as_it_was(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    old_store(path, 1)
    monkeypatch.setattr("synth.bench.store.STEPS", (*STEPS[:-1], "CREATE TABLE other (x);\nCREATE TABLE run (id);\n"))
    with pytest.raises(SynthError, match="already exists"):
        Store(path, write=True)
    database = sqlite3.connect(path)
    assert database.execute("PRAGMA user_version").fetchone()[0] == 1
    names = {row[0] for row in database.execute("SELECT name FROM sqlite_master")}
    assert not names & {"other", "timeline"}
    database.close()


def test_stores_that_are_none_of_ours_are_left_alone(path: str, tmp_path: Path) -> None:
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE theirs (x)")
    database.commit()
    database.close()
    with pytest.raises(InputError, match="expected a history of `synth bench`, not another database"):
        Store(path, write=True)
    Path(path).write_text("no database at all, but long enough to be taken for the header of one: " + "x" * 200)
    with pytest.raises(SynthError, match="nor any SQLite database"):
        Store(path, write=True)
    with pytest.raises(InputError, match="--store: .*expected a history that `synth bench run` has written"):
        Store(str(tmp_path / "nosuch.sqlite"))
    assert not (tmp_path / "nosuch.sqlite").exists()
    with pytest.raises(SynthError, match="cannot be opened: no such folder"):
        Store(str(tmp_path / "nosuch" / "h.sqlite"), write=True)


def test_a_newer_store_says_so(path: str) -> None:
    filled(path)
    database = sqlite3.connect(path)
    database.execute(f"PRAGMA user_version = {VERSION + 1}")
    database.close()
    with pytest.raises(InputError, match=f"schema version: {VERSION + 1}, expected {VERSION} or less"):
        Store(path)


def test_a_full_disk_is_told_and_leaves_what_was_there(path: str) -> None:
    filled(path)
    with Store(path, write=True) as store:
        run = store.begin_run(suite(), NEXT)
        # SQLite's own limit of a file's pages ends in the same error as a disk without room.
        pages = store._db.execute("PRAGMA page_count").fetchone()[0]
        store._db.execute(f"PRAGMA max_page_count = {pages}")
        noise = os.urandom(1 << 18).hex()
        with pytest.raises(SynthError, match="the disk is full; what was there is intact"):
            store.add(run, replace(outcome(), files={"big": noise}))
        assert store.done(run) == set()
        assert store._db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no limits of processes on this system")
def test_a_quota_that_is_reached_while_a_run_is_written_is_told_and_the_run_goes_on_with_more(path: str) -> None:
    """A limit on the file's size, which the kernel keeps, ends as a quota does: in an error that is not that of a full disk."""
    filled(path)
    script = """
        import os, resource, sys
        from dataclasses import replace
        from synth.bench.store import Store
        from synth.errors import SynthError
        from tests.benches import HERE, outcome, record, suite
        most = os.path.getsize(sys.argv[1]) + 40_000
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        try:
            with Store(sys.argv[1], write=True) as store:
                run = store.begin_run(suite(), HERE)
                for seed in range(1000):
                    one = outcome(record(f"ring4/allgather/1KB/auto/{seed}"), record(f"ring4/allgather/4KB/auto/{seed}"))
                    store.add(run, replace(one, files={str(seed): os.urandom(3000).hex()}))
                    print(seed)
        except SynthError as error:
            print(error)
    """
    told = printed(script, path)
    *added, last = told
    assert "the disk, or a quota on it); what was there is intact" in last
    assert len(added) > 2
    with Store(path, write=True) as store:
        assert store._db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        run = store.unfinished(suite(), HERE)
        assert run is not None
        assert len(store.done(run)) == len(added)
        assert len(store.records(run)) == 2 * len(added)
        store.add(run, outcome(record("ring4/allgather/1KB/auto/5000")))
        assert len(store.done(run)) == len(added) + 1


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="no users on this system")
@pytest.mark.parametrize("closed", ["file", "folder"])
def test_a_store_without_the_right_to_write_is_told_when_it_is_opened(closed: str) -> None:
    """Not when the first synthesis is done. Root may write everywhere: it becomes nobody first."""
    script = """
        import os, sys
        from synth.bench.store import Store
        from synth.errors import SynthError
        if os.geteuid() == 0:
            os.setuid(65534)
        with Store(sys.argv[1]) as store:
            print(len(store.runs()))
        try:
            Store(sys.argv[1], write=True)
        except SynthError as error:
            print(error)
    """
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "h.sqlite")
        filled(path)
        os.chmod(path, 0o444 if closed == "file" else 0o666)
        os.chmod(folder, 0o555 if closed == "folder" else 0o777)
        try:
            runs, told = printed(script, path)
        finally:
            os.chmod(folder, 0o755)
    assert runs == "1"
    assert told == f"{path}: cannot be written: it is read-only (the file, its folder or the file system)"


def printed(script: str, *args: str) -> list[str]:
    """The lines that a program prints in a process of its own."""
    command = [sys.executable, "-c", textwrap.dedent(script), *args]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_file_system_without_room_is_a_full_disk_too(tmp_path: Path) -> None:
    with pytest.raises(SynthError):
        Store("/dev/full", write=True)


def test_a_read_only_store_is_told(path: str) -> None:
    filled(path)
    database = sqlite3.connect(f"{Path(path).as_uri()}?mode=ro", uri=True)
    with Store(path, write=True) as store:
        store._db.close()
        store._db = database
        database.isolation_level = None
        database.row_factory = sqlite3.Row
        with pytest.raises(SynthError, match="it is read-only"):
            store.begin_run(suite(), HERE)


def test_a_writer_waits_for_another(path: str) -> None:
    filled(path)
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    timer = threading.Timer(0.3, lambda: other.execute("COMMIT"))
    timer.start()
    with Store(path, write=True) as store:
        store.begin_run(suite(), NEXT)
        assert len(store.runs()) == 2
    timer.join()
    other.close()


def test_a_writer_that_waited_too_long_says_so(path: str) -> None:
    filled(path)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(SynthError, match="another process has been writing"):
        Store(path, write=True, wait_s=0.05)
    other.close()


def test_killed_in_the_middle_of_writing_a_store_has_whole_syntheses_only(path: str) -> None:
    """A writer is killed again and again, wherever it is; every synthesis is there with both its records, or not at all."""
    script = textwrap.dedent(
        """
        import sys
        from synth.bench.store import Store
        from tests.benches import HERE, outcome, record, suite
        with Store(sys.argv[1], write=True) as store:
            run = store.begin_run(suite(), HERE)
            for seed in range(100_000):
                store.add(run, outcome(record(f"ring4/allgather/1KB/auto/{seed}"), record(f"ring4/allgather/4KB/auto/{seed}")))
                print(seed, flush=True)
        """
    )
    written = []
    for turn in range(4):
        process = subprocess.Popen(
            [sys.executable, "-c", script, path], cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert process.stdout is not None
        last = [process.stdout.readline() for _ in range(3 + 7 * turn)][-1]
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read().splitlines()
        process.wait()
        process.stdout.close()
        written.append(int([last, *rest][-1]))
    with Store(path, write=True) as store:
        assert store._db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        runs = store.runs()
        assert len(runs) == 4
        for run, last_seed in zip(runs, written, strict=True):
            jobs, records = store.done(run), store.records(run)
            assert len(records) == 2 * len(jobs)
            # All that was told to be written is there; one more may have been finished before it could be told.
            assert len(jobs) in (last_seed + 1, last_seed + 2)
