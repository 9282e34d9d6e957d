"""Files are written all or not at all, and what stood there before is never lost."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from synth.cli.atomic import check_writable, write_all
from synth.errors import SynthError


def names(directory: Path) -> list[str]:
    return sorted(os.listdir(directory))


def test_writes_and_overwrites(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("before", encoding="utf-8")
    write_all({str(tmp_path / "old"): "after\n", str(tmp_path / "new"): "µ\n"})
    assert (tmp_path / "old").read_text(encoding="utf-8") == "after\n"
    assert (tmp_path / "new").read_bytes() == "µ\n".encode()
    assert names(tmp_path) == ["new", "old"]


def test_new_files_get_the_mode_that_any_file_gets_and_old_ones_keep_theirs(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    (tmp_path / "private").touch(0o600)
    write_all({str(tmp_path / "new"): "", str(tmp_path / "private"): ""})
    modes = {name: stat.S_IMODE((tmp_path / name).stat().st_mode) for name in names(tmp_path)}
    assert modes["new"] == modes["plain"]
    assert modes["private"] == 0o600


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("before", encoding="utf-8")
    (tmp_path / "link").symlink_to("real")
    write_all({str(tmp_path / "link"): "after"})
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text(encoding="utf-8") == "after"


def test_a_device_is_written_to_not_replaced() -> None:
    check_writable(os.devnull)
    write_all({os.devnull: "text"})
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


@pytest.mark.parametrize("hard_links", [True, False])
@pytest.mark.parametrize("stop", [KeyboardInterrupt(), OSError(28, "No space left on device")])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_all_or_nothing(
    at: int, stop: BaseException, hard_links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    (tmp_path / "a").write_text("before", encoding="utf-8")
    real_replace = os.replace
    calls = []

    def replace(source: str, target: str) -> None:
        calls.append(target)
        if len(calls) == at + 1:
            raise stop
        real_replace(source, target)

    def no_link(source: str, target: str) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(os, "replace", replace)
    if not hard_links:
        monkeypatch.setattr(os, "link", no_link)
    expected = KeyboardInterrupt if isinstance(stop, KeyboardInterrupt) else SynthError
    with pytest.raises(expected):
        write_all({str(tmp_path / "a"): "1", str(tmp_path / "b"): "2", str(out / "c"): "3"}, str(out))
    assert names(tmp_path) == ["a"]
    assert (tmp_path / "a").read_text(encoding="utf-8") == "before"


def test_a_failure_while_writing_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(SynthError, match="nowhere"):
        write_all({str(tmp_path / "a"): "1", str(tmp_path / "nowhere" / "b"): "2"})
    assert names(tmp_path) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_without_permission_is_found_before_the_work(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(SynthError, match="cannot be written"):
        check_writable(str(tmp_path / "x"))
    tmp_path.chmod(0o700)


def test_looking_leaves_no_trace(tmp_path: Path) -> None:
    check_writable(str(tmp_path / "x.xml"))
    check_writable(str(tmp_path / "new" / "x.xml"), str(tmp_path / "new"))
    assert names(tmp_path) == []
