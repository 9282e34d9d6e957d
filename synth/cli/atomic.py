"""All files of an answer, or none: written beside their targets first, then put in place together.

Interrupted or failing half-way, the targets are what they were before and nothing else is left behind.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass

from synth.errors import SynthError


def check_writable(path: str, new_directory: str | None = None) -> None:
    """Raise SynthError, saying why in one line, where `write_all` could not write `path`.

    `new_directory` is one that `write_all` will make: it is enough then that it can be made.
    """
    directory = os.path.dirname(path) or os.curdir
    try:
        mode = _mode(path)
        if mode is not None and stat.S_ISDIR(mode):
            raise SynthError(f"{path}: cannot be written: it is a directory")
        if mode is not None and not os.access(path, os.W_OK):
            raise SynthError(f"{path}: cannot be written: permission denied")
        if mode is None or stat.S_ISREG(mode):
            if new_directory is not None and os.path.realpath(directory) == os.path.realpath(new_directory):
                directory = os.path.dirname(os.path.realpath(new_directory))
            with tempfile.TemporaryFile(dir=directory):
                pass
    except OSError as error:
        raise SynthError(f"{path}: cannot be written: {error.strerror or error}") from error


def write_all(texts: Mapping[str, str], new_directory: str | None = None) -> None:
    """Write every path's text (UTF-8), making `new_directory` first where one is named; SynthError where that fails."""
    made = False
    staged: list[_Staged] = []
    path = new_directory or ""
    try:
        if new_directory is not None and not os.path.isdir(new_directory):
            made = True
            os.mkdir(new_directory)
        for number, (path, text) in enumerate(texts.items()):
            staged.append(_Staged.beside(path, number))
            staged[-1].fill(text)
        for item in staged:
            path = item.path
            item.place()
    except BaseException as error:
        for item in reversed(staged):
            item.undo()
        if made and new_directory is not None and os.path.isdir(new_directory):
            os.rmdir(new_directory)
        if isinstance(error, OSError):
            raise SynthError(f"{path}: cannot be written: {error.strerror or error}") from error
        raise
    for item in staged:
        item.forget()


def _mode(path: str) -> int | None:
    """The target's mode, links followed; None where nothing is there."""
    try:
        return os.stat(path).st_mode
    except FileNotFoundError:
        return None


@dataclass
class _Staged:
    """One file on its way: `temporary` holds the new text, `backup` is a second name of what stood at `target`."""

    path: str
    target: str
    temporary: str
    backup: str
    special: bool
    placing: bool = False

    @classmethod
    def beside(cls, path: str, number: int) -> _Staged:
        """Names only; nothing is touched. A device or pipe cannot be replaced: its text is kept until it is placed."""
        mode = _mode(path)
        target = os.path.realpath(path)
        stem = os.path.join(os.path.dirname(target), f".synth-{os.getpid()}-{number}")
        special = mode is not None and not stat.S_ISREG(mode)
        return cls(path, target, f"{stem}.new", f"{stem}.old", special)

    def fill(self, text: str) -> None:
        if self.special:
            with open(self.path, "w", encoding="utf-8", newline="\n") as device:
                device.write(text)
            return
        with open(self.temporary, "x", encoding="utf-8", newline="\n") as file:
            file.write(text)
        if os.path.exists(self.target):
            shutil.copymode(self.target, self.temporary)

    def place(self) -> None:
        if self.special:
            return
        if os.path.exists(self.target):
            try:
                os.link(self.target, self.backup)
            except OSError:  # a file system without hard links
                shutil.copy2(self.target, self.backup)
        self.placing = True
        os.replace(self.temporary, self.target)

    def undo(self) -> None:
        replaced = self.placing and not os.path.exists(self.temporary)
        _remove(self.temporary)
        if replaced and os.path.exists(self.backup):
            os.replace(self.backup, self.target)
        elif replaced:
            _remove(self.target)
        self.forget()

    def forget(self) -> None:
        _remove(self.backup)


def _remove(path: str) -> None:
    if os.path.lexists(path):
        os.unlink(path)
