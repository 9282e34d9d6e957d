"""The options of the verbs that synthesize, in the groups that `--help` shows."""

from __future__ import annotations

from typing import Any

import click

from msccl_xml.limits import RUNTIMES
from synth.choices import OBJECTIVES, STRATEGIES
from synth.cli import params

PROTOCOLS = ("auto", "Simple", "LL", "LL128")
SOLVERS = ("auto", "highs", "cbc", "gurobi")
#: More chunks than a threadblock can move: 256 steps (microsoft/msccl) of 71 chunks.
MAX_CHUNKS = 256 * 71
#: Copies stand on channels of their own, of which a runtime has so many.
MAX_INSTANCES = 32
OUTPUT = "The answer"


class VerbCommand(click.Command):
    """A command whose help shows its options in their groups."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a section for each group; what is in none, such as `--help`, goes with the last."""
        groups = option_groups(rooted=True)
        place = {option.name: title for title, group in groups.items() for option in group}
        rows: dict[str, list[tuple[str, str]]] = {title: [] for title in groups}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                rows[place.get(param.name, OUTPUT)].append(record)
        for title, records in rows.items():
            with formatter.section(title):
                formatter.write_dl(records)


def option_groups(rooted: bool) -> dict[str, list[click.Option]]:
    """All options by the title of their group; `rooted` where the collective has a root."""
    return {
        "The job": _input_options(rooted),
        "The machine": machine_options(),
        "The search": _search_options(),
        OUTPUT: _output_options(),
    }


def _option(*names: str, **settings: Any) -> click.Option:
    return click.Option(names, **settings)


def _input_options(rooted: bool) -> list[click.Option]:
    """What is to be solved. `--root` is not shown where there is none; given all the same, it gets an error that says so."""
    return [
        _option(
            "--topo", required=True, metavar="FILE|NAME", help="The machine: a file, or a name of `synth topo list`."
        ),
        _option(
            "--nodes",
            callback=params.whole_from(1),
            metavar="N",
            help="Copies of a one-node machine, over its NICs. [1, or what the sketch says]",
        ),
        _option(
            "--ranks", callback=params.ranks, metavar="R,R,...", help="Only these GPUs, renumbered in this order. [all]"
        ),
        _option(
            "--group",
            callback=params.group,
            metavar="R,R-R,...",
            help="Only these ranks take part; the others are there to relay. [all]",
        ),
        _option(
            "--size", callback=params.size, metavar="SIZE", help="One file, for buffers of this size, such as 64MB."
        ),
        _option(
            "--sizes",
            callback=params.size_range,
            metavar="LOW:HIGH",
            help="As few files as are worth it (--files) that cover this range. [1KB:1GB]",
        ),
        _option("--root", type=int, metavar="RANK", hidden=not rooted, help="The rank that is the root. [0]"),
        _option("--sketch", metavar="FILE", help="Hints that narrow the search."),
        _option(
            "--in-place/--out-of-place",
            "inplace",
            default=None,
            help="The calls that the files are for. [as the runtime allows]",
        ),
    ]


def machine_options() -> list[click.Option]:
    """What is said of a machine beside its description: `synth.cli.machine.MachineOptions` takes their values."""
    return [
        _option(
            "--without",
            multiple=True,
            metavar="DEVICE|A-B",
            help="Take out a device, or the links between two: gpu3, nic1, gpu3-gpu5. May be repeated.",
        ),
        _option(
            "--link",
            multiple=True,
            metavar="A-B=GBPS",
            help="Links between two devices at another rate in all, each way: gpu0-gpu1=10. May be repeated.",
        ),
        _option(
            "--nvlink",
            metavar="NAME|FILE|none",
            help="NVLinks that the file does not say: those of a machine of the catalogue, or of a matrix.",
        ),
        _option("--nics", metavar="N|NxGBPS|FILE", help="NICs that the file does not say: 8x25 is eight of 25 GB/s."),
        _option("--arch", metavar="ARCH", help="The GPUs' architecture where the file does not say it: sm_90, gfx942."),
    ]


def takes_machine(command: click.Command) -> click.Command:
    """The command with `machine_options`, before its other options of the same kind."""
    command.params += machine_options()
    return command


def _search_options() -> list[click.Option]:
    """How it is to be solved."""
    return [
        _option("--runtime", type=click.Choice(RUNTIMES), default="msccl", help="Who will run the files. [msccl]"),
        _option(
            "--strategy",
            type=click.Choice(STRATEGIES),
            default="auto",
            help="How to route. [auto: what is best of all]",
        ),
        _option(
            "--objective",
            type=click.Choice(OBJECTIVES),
            default="auto",
            help="What decides between candidates: simulated time, or the exact schedule. [auto: time where the GPUs are known or "
            "several sizes are asked for]",
        ),
        _option(
            "--protocol",
            type=click.Choice(PROTOCOLS, case_sensitive=False),
            default="auto",
            metavar="[" + "|".join(PROTOCOLS) + "]",
            help="How connections carry data. [auto]",
        ),
        _option(
            "--instances",
            callback=params.auto_or_count(MAX_INSTANCES),
            metavar="auto|N",
            help="Parallel copies of the algorithm. [auto]",
        ),
        _option(
            "--chunks",
            callback=params.auto_or_count(MAX_CHUNKS),
            metavar="auto|N",
            help="Chunks of the vector, or of each rank's share where ranks have shares. [auto]",
        ),
        _option(
            "--max-threadblocks", callback=params.whole_from(1), metavar="N", help="Threadblocks of a GPU at most. [64]"
        ),
        _option(
            "--files",
            callback=params.whole_from(1),
            default="4",
            metavar="N",
            help="Files of a range at most; microsoft/msccl loads no more than 4. [4]",
        ),
        _option(
            "--time-limit",
            callback=params.seconds,
            default="30",
            metavar="SECONDS",
            help="When to end the search. [30]",
        ),
        _option(
            "--jobs", callback=params.whole_from(1), metavar="N", help="Processes to search with. [one for every core]"
        ),
        _option("--thorough", is_flag=True, help="Try also what is seldom best: several times the work."),
        _option("--no-cache", is_flag=True, help="Search again, and keep nothing, where the answer was found before."),
        _option("--seed", callback=params.whole_from(0), default="0", metavar="N", help="Seed of random choices. [0]"),
        _option(
            "--solver", type=click.Choice(SOLVERS), default="auto", help="Who solves MILPs. [auto: HiGHS, else CBC]"
        ),
    ]


def _output_options() -> list[click.Option]:
    """What becomes of the answer."""
    return [
        _option("-o", "--output", metavar="FILE|DIR/", help="Where to write; - is standard output. [here]"),
        _option("--report", metavar="FILE", help="Also write all figures as JSON."),
        _option("-q", "--quiet", is_flag=True, help="No progress, no summary."),
        _option("--debug", is_flag=True, help="Show the traceback of a failure."),
    ]
