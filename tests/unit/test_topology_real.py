"""Machines from the wild, as the importers read them: each can be checked, drawn and written for NCCL, and comes back the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from lxml import etree

from synth.check_topology import find_doubts
from synth.cli.topo_picture import picture
from synth.doubts import Hints, Imported
from synth.errors import InputError
from synth.inputs.load import import_topology, parse_any
from synth.inputs.nccl_xml_write import to_nccl_xml
from synth.topo_svg import topology_svg
from synth.topology_diff import differences

REAL = Path(__file__).resolve().parents[3] / "shared" / "real"
FILES = sorted([*REAL.glob("nccl-xml/**/*.xml"), *REAL.glob("smi/*.txt")])
#: What the writer says of every machine.
ALWAYS = 2


def imported(file: Path) -> Imported:
    """The machine, without NVLinks where the file leaves them open; skips a file that is refused all the same."""
    try:
        return import_topology(str(file), Hints())
    except InputError:
        try:
            return import_topology(str(file), Hints(nvlink="none"))
        except InputError as error:
            pytest.skip(str(error))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_machine_from_the_wild(file: Path) -> None:
    topology = imported(file).topology
    doubts = find_doubts(topology)
    assert all("\n" not in str(doubt) for doubt in doubts)
    text = picture(topology, 100)
    assert max(map(len, text.splitlines())) <= 100
    assert "not drawn" not in text
    etree.fromstring(topology_svg(topology).encode())
    written, lost = to_nccl_xml(topology)
    changed = differences(topology, parse_any(written, "written.xml"))
    assert bool(changed) <= (len(lost) > ALWAYS), changed[:5]


@pytest.mark.skipif(not FILES, reason="../shared/real is not there")
def test_broken_and_slow_links_of_dumps_are_pointed_at() -> None:
    def where(name: str) -> set[str]:
        return {doubt.where for doubt in find_doubts(imported(REAL / name).topology)}

    assert "gpu0-gpu1" in where("nccl-xml/a100pcie-2gpu-bridge-asymmetric-count.xml")
    assert {"cxi0", "cxi0-network"} <= where("nccl-xml/rccl-models/topo_4p_942.xml")
    assert "gpu2" in where("smi/3gpu-one-bridge-2nic.txt")
