"""Text files that a user names."""

from __future__ import annotations

from synth.errors import SynthError


def read_text(path: str) -> str:
    """What is in the file; SynthError in one line where it cannot be read or is no UTF-8 text."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError as error:
        raise SynthError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise SynthError(f"{path}: cannot be read: not UTF-8 text (byte {error.start})") from error
