"""The only module that prints: results go to standard output, everything said to a human to standard error."""

from __future__ import annotations

import io
import os
import shutil
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import click

from synth.errors import SynthError
from synth.group import group_text
from synth.units import format_size

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from synth.request import Progress, Result

#: Width of what is not a terminal: wide enough that no path is wrapped.
_PLAIN_WIDTH = 240


def print_result(text: str, end: str = "\n") -> None:
    """Put a result on standard output.

    Raises BrokenPipeError where its reader has gone, SynthError where it cannot be written.
    """
    if sys.stdout is None:
        raise SynthError("standard output: cannot be written: it is closed")
    try:
        try:
            click.echo(text + end, nl=False)
        except UnicodeEncodeError:  # a path that is no text, or a standard output of few characters
            click.echo(os.fsencode(text + end), nl=False)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise SynthError(f"standard output: cannot be written: {error.strerror or error}") from error


def columns() -> int:
    """How many characters fit on a line of the terminal, 40 at least; many where standard output is none."""
    return max(40, shutil.get_terminal_size((_PLAIN_WIDTH, 24)).columns)


def print_error(message: str) -> None:
    """Say what went wrong, in one line."""
    _say("synth: " + " ".join(message.split()))


def print_lines(lines: Sequence[str]) -> None:
    """Say more about a result than belongs to it."""
    for line in lines:
        _say(line)


def print_help(text: str) -> None:
    """Show a help text to someone who did not ask for it."""
    _say(text)


def print_traceback() -> None:
    """Show where the exception that is being handled came from."""
    _say(traceback.format_exc().rstrip())


def _say(line: str) -> None:
    with suppress(OSError):  # that nobody listens is no reason to lose the answer
        click.echo(line, err=True)


@contextmanager
def narrate(quiet: bool) -> Iterator[Callable[[Progress], None]]:
    """A function that tells how a synthesis goes: a live bar on a terminal, lines elsewhere, nothing if `quiet`."""
    if quiet:
        yield lambda _progress: None
        return
    console = _console()
    if console.is_interactive and not console.is_dumb_terminal:
        with _live_bar(console) as tell:
            yield tell
    else:
        yield _plain_lines()


def _plain_lines() -> Callable[[Progress], None]:
    last: list[tuple[str, str]] = []

    def tell(progress: Progress) -> None:
        here = (progress.stage, progress.detail)
        if last != [here]:
            last[:] = [here]
            _say(": ".join(part for part in here if part) + _best(progress, ", "))

    return tell


@contextmanager
def _live_bar(console: Console) -> Iterator[Callable[[Progress], None]]:
    from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (
        SpinnerColumn(),
        TextColumn("{task.fields[stage]}", markup=False, style="bold"),
        BarColumn(bar_width=24),
        TimeElapsedColumn(),
        TextColumn("{task.fields[detail]}", markup=False),
    )
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None, stage="starting", detail="")

        def tell(progress: Progress) -> None:
            total = None if progress.fraction is None else 1.0
            detail = progress.detail + _best(progress, "  ")
            bar.update(task, total=total, completed=progress.fraction or 0.0, stage=progress.stage, detail=detail)

        yield tell


def _best(progress: Progress, before: str) -> str:
    return "" if progress.best_us is None else f"{before}best {progress.best_us:.1f} us"


def print_summary(result: Result, paths: Sequence[str]) -> None:
    """Tell what the answer is worth: a row for each size, each file and each stage, and the notes."""
    with suppress(OSError):  # as in `_say`
        _print_summary(_console(), result, paths)


def _print_summary(console: Console, result: Result, paths: Sequence[str]) -> None:
    group = "" if result.group is None else f", group {group_text(result.group)}"
    head = f"{result.collective} on {result.topology}, {result.ranks} ranks{group}, strategy {result.strategy}"
    console.print(head, style="bold", soft_wrap=True)
    for table in (_size_table(result), _file_table(result, paths), _stage_table(result)):
        console.print(table)
        console.print()
    for note in result.notes:
        console.print(note, soft_wrap=True)


def _size_table(result: Result) -> Table:
    table = _table("size", "time us", "algbw GB/s", "busbw GB/s", "bound us", "efficiency", "file")
    for row in result.sizes:
        table.add_row(
            format_size(row.bytes),
            f"{row.time_us:.1f}",
            f"{row.algbw_GBps:.2f}",
            f"{row.busbw_GBps:.2f}",
            f"{row.bound_us:.1f}",
            f"{row.efficiency:.1%}",
            str(row.file + 1),
        )
    return table


def _file_table(result: Result, paths: Sequence[str]) -> Table:
    table = _table("file", "protocol", "chunks", "channels", "threadblocks", "strategy", "name")
    for number, (plan, path) in enumerate(zip(result.files, paths, strict=True), 1):
        counts = (str(plan.algo.nchunksperloop), str(plan.channels), str(plan.threadblocks))
        table.add_row(str(number), plan.protocol, *counts, plan.strategy, os.path.basename(path))
    return table


def _stage_table(result: Result) -> Table:
    table = _table("stage", "seconds", "gap", "status")
    for row in result.stages:
        table.add_row(row.name, f"{row.seconds:.2f}", "" if row.gap is None else f"{row.gap:.2%}", row.status)
    return table


def _table(*headings: str) -> Table:
    """A table whose last column gives way where the terminal is narrow; numbers stand right, words left."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for position, heading in enumerate(headings):
        first, last = position == 0, position == len(headings) - 1
        table.add_column(heading, justify="left" if first or last else "right", no_wrap=not last, overflow="fold")
    return table


def _console() -> Console:
    """A console on standard error that reads names as they are and outlives a reader that goes away."""
    from rich.console import Console

    class Quiet(Console):
        def on_broken_pipe(self) -> None:
            self.quiet = True

    if sys.stderr is None:  # closed by whoever started us
        return Quiet(file=io.StringIO(), width=_PLAIN_WIDTH)
    width = None if sys.stderr.isatty() else _PLAIN_WIDTH
    return Quiet(stderr=True, markup=False, emoji=False, highlight=False, width=width)
