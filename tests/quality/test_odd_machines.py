"""Machines that nobody would draw: one-way links, a switch with a single port, rates and latencies that differ by thousands, shares
that no number of chunks divides, ties wherever one looks, boxes of unequal size; and machines on which there is no answer.

What is promised of every answer: a file that is right as written, no time below the bound, and at the largest sizes one
close to it. Where it is not as close as elsewhere, `EXCEPTIONS` says how far and why. Times are cost level 2.
"""

from __future__ import annotations

import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest

from msccl_xml.read import read_algo
from msccl_xml.write import write_algo
from synth.bounds import bound_of
from synth.cli.main import main
from synth.collective import COMBINING, ROOTED, SHARED, Collective, CollectiveName
from synth.errors import InputError, NoAnswerError
from synth.inputs.topology_json import write_topology
from synth.paths import find_paths
from synth.pipeline import synthesize
from synth.request import Result
from synth.topology import Device, DeviceKind, Link, Topology, restrict
from synth.verify import verify_algo
from tests.graphs import both_ways, from_pairs, full, gpus, line, ring, star
from tests.jobs import request

ROOT = Path(__file__).resolve().parents[2]
KB, MB, GB = 1 << 10, 1 << 20, 1 << 30
NAMES = tuple(CollectiveName)


def wired(name: str, *pairs: tuple[int, int, float, float], more: tuple[Link, ...] = ()) -> Topology:
    """GPUs joined full duplex as (one, other, GB/s, alpha in us) says, and by the links in `more`."""
    count = 1 + max(max(a, b) for a, b, _, _ in pairs)
    links = [link for a, b, GBps, alpha_us in pairs for link in both_ways(f"gpu{a}", f"gpu{b}", GBps, alpha_us)]
    return Topology(name, tuple(gpus(count)), (*links, *more))


def one_way(src: int, dst: int, GBps: float = 10.0) -> Link:
    return Link(f"gpu{src}", f"gpu{dst}", "nvlink", GBps, 1.0)


def with_switches(name: str, base: Topology, *ports: tuple[str, int]) -> Topology:
    """`base` with the NVSwitches that `ports` names, each port one GPU's."""
    switches = [Device(switch, DeviceKind.NVSWITCH) for switch in dict.fromkeys(switch for switch, _ in ports)]
    links = [link for switch, rank in ports for link in both_ways(f"gpu{rank}", switch, 10.0, 0.5)]
    return Topology(name, (*base.devices, *switches), (*base.links, *links))


def unequal_boxes() -> Topology:
    """Three GPUs and one GPU, each box behind a NIC that hangs on its first GPU."""
    nics = [Device(f"nic{node}", DeviceKind.NIC, node) for node in range(2)]
    network = Device("network", DeviceKind.NETWORK, -1)
    links = list(full(3).links)
    for node, rank in enumerate((0, 3)):
        links += [*both_ways(f"gpu{rank}", f"nic{node}", 5.0, 2.0), *both_ways(f"nic{node}", "network", 5.0, 2.0)]
    return Topology("unequal-boxes", (*gpus(3), *gpus(1, 3, 1), *nics, network), tuple(links))


def petersen() -> Topology:
    """Ten GPUs of three links each, none of which is in a triangle or a square: all shares are thirds and ninths."""
    rim = [(k, (k + 1) % 5) for k in range(5)]
    star_of_five = [(5 + k, 5 + (k + 2) % 5) for k in range(5)]
    return from_pairs("petersen", 10, [*rim, *star_of_five, *((k, k + 5) for k in range(5))])


NO_LINKS = Topology("islands-of-one", tuple(gpus(4)), ())
MACHINES = {
    machine.name: machine
    for machine in (
        Topology("one-way-ring", tuple(gpus(4)), tuple(one_way(k, (k + 1) % 4) for k in range(4))),
        wired("slow-way-back", *(), more=()) if False else Topology(
            "slow-way-back",
            tuple(gpus(3)),
            tuple(link for k in range(3) for link in (one_way(k, (k + 1) % 3), one_way((k + 1) % 3, k, 0.01))),
        ),
    )
}
