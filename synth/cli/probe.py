"""`synth probe`: look at the machine that we run on, or at a recording of one, and write its topology."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from synth.cli import output
from synth.cli.atomic import check_writable, write_all
from synth.errors import InputError, UsageError

if TYPE_CHECKING:
    from synth.doubts import Doubt, Imported
    from synth.probe.recording import Recording

_FILE = "recording.json"
_STDOUT = "-"


@click.command(short_help="Look at this machine and write its topology.")
@click.option("-o", "--output", "target", metavar="FILE", default=_STDOUT, help="Where the topology goes. [default: -]")
@click.option("--name", metavar="NAME", help="The topology's name. [default: that of FILE, or probed]")
@click.option("--record", metavar="DIR", help="Keep all that was read in DIR, without names, serial numbers and UUIDs.")
@click.option("--replay", metavar="DIR", help="Build from a recording instead of this machine: no GPU is needed.")
@click.option("--measure", is_flag=True, help="Time copies between the GPUs (with torch), alone and together.")
@click.option("--calibration", metavar="FILE", help="With --measure: also write constants for synth simulate.")
@click.option("-q", "--quiet", is_flag=True, help="Say no doubts and no progress.")
@click.option("--debug", is_flag=True, help="Show the traceback of a failure.")
def probe(
    target: str,
    name: str | None,
    record: str | None,
    replay: str | None,
    measure: bool,
    calibration: str | None,
    quiet: bool,
    debug: bool,
) -> int:
    """Look at this machine's GPUs, NVLinks, PCIe tree, CPUs and NICs, and write them as a topology for --topo.

    What is unsaid, contradictory or degraded is told on standard error.
    """
    from synth.inputs.topology_json import to_json
    from synth.probe.build import build_topology

    if measure and replay is not None:
        raise UsageError("--measure: needs this machine's own GPUs, not a recording (--replay)")
    if calibration is not None and not measure:
        raise UsageError("--calibration: needs --measure")
    _check_targets([path for path in (target, calibration) if path not in (None, _STDOUT)], record)
    recording = _recording(replay)
    if record is not None:
        _keep(record, recording)
    imported = build_topology(recording, name or _name_for(target))
    texts: dict[str, str] = {}
    if measure:
        imported, constants = _measured(imported, quiet)
        if calibration is not None:
            texts[calibration] = constants
    if not quiet:
        output.print_lines([*map(_doubt_line, imported.doubts), *_unread_lines(recording)])
    text = to_json(imported.topology)
    if target == _STDOUT:
        write_all(texts)
        output.print_result(text, end="")
    else:
        write_all({**texts, target: text})
        output.print_result(target)
    return 0


def _check_targets(paths: list[str | None], record: str | None) -> None:
    """Find out before anything is looked at whether what is found could be written."""
    for path in paths:
        if path is not None:
            check_writable(path)
    if record is not None:
        check_writable(os.path.join(record, _FILE), None if os.path.isdir(record) else record)


def _recording(replay: str | None) -> Recording:
    from synth.probe.codec import parse_recording
    from synth.probe.read import read_machine

    if replay is None:
        return read_machine()
    path = Path(replay) / _FILE if Path(replay).is_dir() else Path(replay)
    try:
        text = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(str(path), f"byte {error.start}", "no UTF-8 text", "a recording of synth probe") from None
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise InputError("--replay", str(path), reason, f"a folder with {_FILE}, as --record makes it") from None
    return parse_recording(text, str(path))


def _keep(record: str, recording: Recording) -> None:
    from synth.probe.codec import to_json

    new = None if os.path.isdir(record) else record
    write_all({os.path.join(record, _FILE): to_json(recording)}, new)


def _measured(imported: Imported, quiet: bool) -> tuple[Imported, str]:
    """(the topology with measured figures and all doubts, the text of a calibration file)."""
    from synth.doubts import Imported
    from synth.probe.measure import lines_of, measure
    from synth.probe.measured import calibration_text, with_measured
    from synth.probe.torch_timer import TorchTimer

    topology = imported.topology
    timer = TorchTimer(topology.num_ranks)
    measurement = measure(timer, topology, lambda what: None if quiet else output.print_lines([f"timing {what}"]))
    if not quiet:
        output.print_lines(lines_of(measurement))
        if topology.num_ranks == 1:
            output.print_lines(["one GPU: nothing between GPUs was measured, the topology keeps its figures"])
    measured = with_measured(topology, measurement)
    return Imported(measured.topology, imported.doubts + measured.doubts), calibration_text(topology, measurement)


def _name_for(target: str) -> str:
    return "probed" if target == _STDOUT else Path(target).stem or "probed"


def _doubt_line(doubt: Doubt) -> str:
    return f"doubt: {doubt}"


def _unread_lines(recording: Recording) -> list[str]:
    return [f"not told: {line}" for line in recording.unread]
