"""A command line becomes an exit code: 0 done, 1 the input is at fault, 2 usage, 3 a bug of ours, 130 interrupted (143
by SIGTERM).
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Sequence

import click

from synth import __version__
from synth.cli import output
from synth.cli.bench import bench
from synth.cli.bound import bound
from synth.cli.collectives import COMMANDS
from synth.cli.explain import explain
from synth.cli.probe import probe
from synth.cli.run import run as run_file
from synth.cli.simulate import simulate
from synth.cli.topo import topo
from synth.cli.verify import verify
from synth.errors import SynthError

BUG = 3
INTERRUPTED = 130
TERMINATED = 143
#: What a device answers that is full, broken or read-only: nothing that we could have done better.
_OUT_OF_OUR_HANDS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS})


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, message="synth %(version)s")
def cli() -> None:
    """Synthesize collective algorithms for a machine's own topology, as MSCCL XML.

    The main job: synth allreduce --topo dgx1.json
    """


for _command in (*COMMANDS, verify, bound, explain, simulate, run_file, topo, probe, bench):
    cli.add_command(_command)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line (without the program's name; the process's own by default) and return its exit code.

    Every failure ends in one line on standard error; a traceback is shown only with `--debug`.
    """
    args = list(sys.argv[1:] if argv is None else argv)
    try:
        with cli.make_context("synth", list(args)) as context:
            code = cli.invoke(context)
            return code if isinstance(code, int) else 0
    except click.exceptions.Exit as done:
        return done.exit_code
    except BrokenPipeError:
        return 0  # the reader has what it wanted
    except (Exception, KeyboardInterrupt) as error:
        if "--debug" in args:
            output.print_traceback()
        return _report_failure(error)


def run() -> None:
    """The console script: `main`, then an exit that no closed pipe can spoil."""
    signal.signal(signal.SIGTERM, _terminate)
    code = main()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            # What is still buffered has no reader; the interpreter would complain about it on its way out.
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    sys.exit(code)


class Terminated(KeyboardInterrupt):
    """The process was asked to end by SIGTERM: it does so as on Ctrl-C, and leaves nothing half done."""


def _terminate(_number: int, _frame: object) -> None:
    raise Terminated


def _report_failure(error: BaseException) -> int:
    """Say what went wrong in one line, and return the exit code that it stands for."""
    match error:
        case Terminated():
            output.print_error("terminated")
            return TERMINATED
        case KeyboardInterrupt() | click.Abort():
            output.print_error("interrupted")
            return INTERRUPTED
        case click.exceptions.NoArgsIsHelpError():
            output.print_help(error.format_message())
            return error.exit_code
        case click.UsageError():
            command = error.ctx.command_path if error.ctx else "synth"
            output.print_error(f"{error.format_message()} (see '{command} --help')")
            return error.exit_code
        case click.ClickException():
            output.print_error(error.format_message())
            return error.exit_code
        case SynthError() if error.exit_code != BUG:
            output.print_error(str(error))
            return error.exit_code
        case OSError() if error.errno in _OUT_OF_OUR_HANDS:
            output.print_error(f"{error.filename or 'output'}: cannot be written: {error.strerror}")
            return 1
        case _:
            told = str(error).partition("\n")[0] or type(error).__name__
            kind = "" if isinstance(error, SynthError) else f"{type(error).__name__}: "
            output.print_error(f"internal error: {kind}{told} (run with --debug for the traceback)")
            return BUG
