"""NCCL topology XML: NCCL's rules for rates, what becomes a device, and a doubt for everything that is hard to believe."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synth.doubts import Hints, Imported
from synth.errors import InputError
from synth.inputs.load import import_topology, parse_imported
from synth.inputs.nccl_links import (
    PciKind,
    amd_arch,
    flattens,
    links_GBps,
    most_links,
    net_is_virtual,
    net_speed_doubt,
    nvlink_GBps,
    pci_kind,
    pcie_GBps,
    socket_GBps,
)
from synth.inputs.topology_json import parse_topology, to_json
from synth.paths import find_paths
from synth.topology import DeviceKind
from tests.intake import DATA, lanes, neighbours, out_GBps, outcome, rate

XML = sorted(DATA.glob("*.xml"))
PAIR = """<system version="1">
  <cpu numaid="0" affinity="ff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="85">
    <pci busid="0000:17:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16">
      <gpu dev="0" sm="80" rank="0" gdr="1"><nvlink target="0000:65:00.0" count="4" tclass="0x030200"/></gpu>
    </pci>
    <pci busid="0000:65:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16">
      <gpu dev="1" sm="80" rank="1" gdr="1"><nvlink target="0000:17:00.0" count="4" tclass="0x030200"/></gpu>
    </pci>
  </cpu>
</system>
"""


def read(name: str, hints: Hints | None = None) -> Imported:
    return import_topology(str(DATA / name), hints)


def changed(*changes: tuple[str, str]) -> Imported:
    """The pair of A100 with some text replaced, everywhere."""
    text = PAIR
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return parse_imported(text, "pair.xml")


def said(imported: Imported, *words: str) -> bool:
    """Whether some doubt has all the words."""
    return any(all(word in str(doubt) for word in words) for doubt in imported.doubts)


@pytest.mark.parametrize(
    ("width", "speed", "GBps"),
    [
        (16, "8.0 GT/s PCIe", 12.0),
        (16, "8 GT/s", 12.0),
        (16, "16 GT/s", 24.0),
        (16, "16.0 GT/s PCIe", 24.0),
        (16, "32.0 GT/s PCIe", 48.0),
        (16, "32.0 GT/s", 12.0),
        (16, "64.0 GT/s PCIe", 96.0),
        (16, "64 GT/s", 12.0),
        (0, "", 12.0),
        (8, "5.0 GT/s PCIe", 3.0),
        (4, "", 3.0),
        (1, "2.5 GT/s PCIe", 0.1875),
        (1, "16.0 GT/s PCIe", 1.5),
    ],
)
def test_a_pcie_connection_has_the_rate_that_nccl_reads(width: int, speed: str, GBps: float) -> None:
    assert pcie_GBps(width, speed) == GBps


@pytest.mark.parametrize(
    ("arch", "GBps"),
    [
        ("sm_60", 18.0),
        ("sm_70", 20.0),
        ("sm_80", 20.0),
        ("sm_86", 12.0),
        ("sm_89", 20.0),
        ("sm_90", 20.6),
        ("sm_100", 40.1),
        ("sm_103", 40.1),
        ("", 20.0),
        ("gfx906", 24.0),
        ("gfx908", 24.0),
        ("gfx90a", 36.0),
        ("gfx942", 48.0),
        ("gfx950", 48.0),
        ("gfx1100", 24.0),
    ],
)
def test_a_link_has_the_rate_of_its_gpu(arch: str, GBps: float) -> None:
    assert nvlink_GBps(arch) == GBps


@pytest.mark.parametrize(
    ("arch", "count", "GBps"),
    [("sm_70", 6, 120.0), ("sm_80", 12, 240.0), ("sm_90", 18, 370.8), ("sm_90", 8, 164.8), ("sm_100", 18, 721.8)],
)
def test_a_full_port_has_the_rate_of_nccl(arch: str, count: int, GBps: float) -> None:
    assert links_GBps(arch, count) == GBps
    assert count <= most_links(arch)


@pytest.mark.parametrize(
    ("cpu", "GBps"),
    [
        (("x86_64", "GenuineIntel", 6, 79), 6.0),
        (("x86_64", "GenuineIntel", 6, 0x55), 10.0),
        (("x86_64", "GenuineIntel", 6, 106), 10.0),
        (("x86_64", "GenuineIntel", 6, 0x8F), 22.0),
        (("x86_64", "GenuineIntel", 6, 0xCF), 40.0),
        (("x86_64", "AuthenticAMD", 23, 49), 16.0),
        (("arm64", "", 0, 0), 6.0),
        (("ppc64", "IBM", 0, 0), 32.0),
        (("x86_64", "CentaurHauls", 7, 0x5B), 9.0),
        (("x86_64", "HygonGenuine", 24, 1), None),
        (("", "", 0, 0), None),
    ],
)
def test_sockets_are_joined_at_the_rate_of_their_cpus(cpu: tuple[str, str, int, int], GBps: float | None) -> None:
    assert socket_GBps(*cpu) == GBps


def test_classes_and_architectures() -> None:
    kinds = ["0x030200", "0x038000", "0x120000", "0x020700", "0x060400", "0x080100", "0x068000", "0x068001", "0x060000"]
    gpu, bridge = PciKind.GPU, PciKind.BRIDGE
    assert [pci_kind(kind) for kind in kinds] == [
        *(gpu, gpu, gpu, PciKind.NIC, bridge, bridge, PciKind.NVSWITCH, PciKind.CPU, bridge)
    ]
    words = ["906", "908", "910", "942", "gfx942", "gfx90a:sramecc+:xnack-", "950", "21943", "", "gfx"]
    archs = ["gfx906", "gfx908", "gfx90a", "gfx942", "gfx942", "gfx90a", "gfx950", "", "", ""]
    assert [amd_arch(word) for word in words] == archs
    assert flattens(0x1000C0101000A096, 0x1000C0101000A032)
    assert not flattens(0x1000C0101000A096, 0x1000C010_10DE13B8)
    assert flattens(0x1000C03010000104, 0x1000C03010001003)


def test_nets_by_name_and_speed() -> None:
    virtual = ["docker0", "veth12ab", "br-12", "virbr0", "cali1", "tunl0", "lo"]
    assert all(net_is_virtual(name) for name in virtual)
    assert not any(
        net_is_virtual(name) for name in ["eth0", "mlx5_0", "eno1", "enp34s0f0", "ib0", "bond0", "mlx5_0+mlx5_1"]
    )
    assert not any(net_speed_doubt("mlx5_0", mbps) for mbps in (100_000, 56_000, 400_000, 800_000, 20_000, 50_000))
    assert "more than any" in net_speed_doubt("cxi0", 200_000_000)
    assert "no port has" in net_speed_doubt("mlx5_0", 180_000)
    assert "less than RDMA" in net_speed_doubt("bnxt_re0", 2500)
    assert not net_speed_doubt("eno1", 1000)


def test_a_virtual_machine_hides_the_switch_and_emulates_bridges() -> None:
    imported = read("vm-hidden-switch.xml")
    topology = imported.topology
    assert topology.num_ranks == 4
    assert [gpu.arch for gpu in topology.gpus] == ["sm_90"] * 4
    assert [out_GBps(topology, rank) for rank in range(4)] == [370.8] * 4
    assert rate(topology, "gpu0", "plx0") == rate(topology, "plx0", "cpu0") == 48.0
    assert neighbours(topology, "plx1") == {"gpu1", "mlx5_1", "cpu0"}
    assert rate(topology, "cpu0", "cpu1") == 22.0
    assert rate(topology, "mlx5_3", "network") == 50.0
    assert said(imported, "and 3 more", "emulated", "0.1875")
    assert len(imported.doubts) == 1


def test_everything_doubtful_is_said_and_nothing_guessed() -> None:
    imported = read("doubtful-pair.xml")
    topology = imported.topology
    assert lanes(topology) == {(0, 1): 12, (1, 0): 1}
    assert rate(topology, "gpu0", "gpu1") == 240.0
    assert rate(topology, "gpu1", "gpu0") == 20.0
    assert rate(topology, "eth9", "cpu0") == 12.0
    nics = {device.id for device in topology.devices if device.kind is DeviceKind.NIC}
    assert nics == {"eth9", "mlx5_0+mlx5_1", "eno7"}
    for words in (
        ("gpu0-gpu1", "12 links one way and 1 the other"),
        ("gpu0", "2 links to itself"),
        ("gpu1", "4 links to '0000:99:00.0'"),
        ("a CPU that NCCL does not know", "10.0"),
        ("no affinity",),
        ("numaid -1",),
        ("'32.0 GT/s' is spelled", "12", "48 are meant"),
        ("no link_speed",),
        ("docker0 and 1 more", "virtual"),
        ("wlp3s0", "wireless"),
        ("200000000 Mbit/s", "more than any"),
        ("180000 Mbit/s",),
        ("eno7", "no speed", "10 Gbit/s"),
        ("no dev",),
        ("0000:66:00.0", "without <gpu>"),
        ("none can reach a GPU's memory",),
    ):
        assert said(imported, *words), words


def test_doubts_keep_the_order_of_the_file() -> None:
    lines = [
        int(found[1]) for doubt in read("doubtful-pair.xml").doubts if (found := re.match(r"line (\d+)", doubt.where))
    ]
    assert lines == sorted(lines)
    assert len(lines) >= 2


def test_hosts_of_a_fused_file_are_nodes_and_share_a_hidden_switch() -> None:
    imported = read("two-hosts-one-domain.xml")
    topology = imported.topology
    assert [gpu.node for gpu in topology.gpus] == [0, 0, 1, 1]
    assert len({device.id for device in topology.devices}) == len(topology.devices)
    assert [out_GBps(topology, rank) for rank in range(4)] == [721.8] * 4
    assert neighbours(topology, "nvswitch") == {"gpu0", "gpu1", "gpu2", "gpu3"}
    assert rate(topology, "gpu0", "cpu0") == pytest.approx(96.0 + 223.56)
    assert neighbours(topology, "network") == {"mlx5_bond_0", "mlx5_bond_0.1"}
    assert said(imported, "nvswitch", "2 hosts")
    assert said(imported, "no hexadecimal number")


def test_switches_that_hosts_see_are_each_hosts_own() -> None:
    text = (DATA / "two-hosts-one-domain.xml").read_text().replace("fffffff:ff:ff.0", "0000:c1:00.0")
    topology = parse_imported(text, "two.xml").topology
    assert neighbours(topology, "nvswitch") == {"gpu0", "gpu1"}
    assert neighbours(topology, "nvswitch.1") == {"gpu2", "gpu3"}


def test_amd_dies_and_a_switch_of_two_levels() -> None:
    imported = read("amd-dies.xml")
    topology = imported.topology
    assert {gpu.arch for gpu in topology.gpus} == {"gfx90a"}
    assert lanes(topology)[0, 1] == 4
    assert lanes(topology)[0, 2] == 1
    assert rate(topology, "gpu0", "gpu1") == 144.0
    assert neighbours(topology, "plx0") == {"gpu0", "gpu1", "card0", "cpu0"}
    assert neighbours(topology, "card0") == {"plx0", "mlx5_0", "mlx5_1"}
    assert rate(topology, "card0", "plx0") == 24.0
    assert rate(topology, "cpu0", "cpu1") == 16.0
    assert said(imported, "2 ports of 50 GB/s together")


def test_peers_listed_as_switches_are_the_same_links() -> None:
    imported = read("peers-as-switches.xml")
    assert [out_GBps(imported.topology, rank) for rank in range(3)] == [721.8] * 3
    assert said(imported, "36 links", "listed once for each peer")


def test_a_skeleton_asks_for_its_nvlinks_and_takes_them() -> None:
    with pytest.raises(InputError, match=r"skeleton-crlf\.xml: NVLinks: 'a skeleton .*--nvlink with a machine"):
        read("skeleton-crlf.xml")
    imported = read("skeleton-crlf.xml", Hints(nvlink="a100x4", nics="4x25"))
    topology = imported.topology
    assert [neighbours(topology, f"gpu{rank}") & {"plx0", "plx1"} for rank in range(4)] == [
        *({"plx1"}, {"plx1"}, {"plx0"}, {"plx0"})
    ]
    assert [out_GBps(topology, rank) for rank in range(4)] == [240.0] * 4
    assert {gpu.arch for gpu in topology.gpus} == {"sm_80"}
    assert rate(topology, "nic0", "network") == 25.0
    assert said(imported, "numbered by bus id")
    assert not said(imported, "pass --nics")
    assert said(read("skeleton-crlf.xml", Hints(nvlink="none")), "line rate of the NICs is not said")


def test_ranks_that_miss_or_repeat_are_said() -> None:
    assert said(changed(('rank="1"', 'rank="5"')), "ranks up to 5 for 2 GPUs")
    assert said(changed(('rank="1"', 'rank="0"')), "a rank taken twice")
    left = changed(('rank="1" ', ""))
    assert left.topology.num_ranks == 1
    assert said(left, "0000:65:00.0", "a GPU without rank: left out")
    assert said(left, "one only", "--nodes")


def test_more_links_than_a_gpu_has() -> None:
    imported = changed(('count="4"', 'count="40"'))
    assert said(imported, "gpu0 and 1 more", "40 links, where sm_80 has 12")
    assert rate(imported.topology, "gpu0", "gpu1") == 800.0


def test_a_target_that_lists_nothing_back() -> None:
    imported = changed(('<nvlink target="0000:17:00.0" count="4" tclass="0x030200"/>', ""))
    assert lanes(imported.topology) == {(0, 1): 4}
    assert said(imported, "gpu0-gpu1", "none back")


def test_unknown_gpus() -> None:
    imported = changed(('sm="80" ', ""))
    assert said(imported, "no sm")
    assert said(imported, "GPU is unknown: 20 GB/s a link")
    assert rate(parse_imported(PAIR.replace('sm="80" ', ""), "p", Hints(arch="sm_90")).topology, "gpu0", "gpu1") == 82.4
    with pytest.raises(InputError, match="--arch: 'sm_90', expected sm_80, which the file says of gpu0"):
        parse_imported(PAIR, "pair.xml", Hints(arch="sm_90"))


def test_an_element_without_a_meaning_is_said() -> None:
    assert said(changed(("<gpu ", "<pcilink/><gpu ")), "<pcilink>", "passed over")


@pytest.mark.parametrize("path", XML, ids=lambda path: path.name)
def test_what_is_read_survives_our_own_format(path: object) -> None:
    hints = Hints(nvlink="none") if "skeleton" in str(path) else None
    topology = import_topology(str(path), hints).topology
    assert parse_topology(to_json(topology), "again") == topology
    assert len(find_paths(topology)) >= topology.num_ranks
    assert import_topology(str(path), hints).topology == topology


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<system>", "line 1.*well-formed XML"),
        ("<system version='1'/>", r"line 1, <system>: 'no <cpu>', expected NCCL topology XML"),
        ("\n\n<system>\n<cpu numaid='0'>\n</system>", "line 5.*well-formed"),
        ("<system><cpu numaid='0'/></system>", "no GPU"),
        ("<system><cpu/></system>", "<cpu> numaid: 'missing', expected a whole number"),
        ("<system><cpu numaid='x'/></system>", r"numaid=\"x\"> numaid: 'x', expected a whole number"),
        ("<graphs version='1'/>", "an NCCL graph file"),
        ("<algo name='x'/>", "an MSCCL algorithm"),
        ("<topology/>", "hwloc"),
        ("<html/>", "XML of another kind"),
        ("<system><group name='x'/><cpu numaid='0'/></system>", "a mapping of GPUs to NICs"),
        ("<!DOCTYPE system [<!ENTITY a 'b'>]><system><cpu numaid='0'/></system>", "document type"),
        (PAIR.replace("0000:65:00.0", "0000:17:00.0"), "a bus id that no other GPU of the host has"),
        (PAIR.replace('link_width="16"', 'link_width="-1"'), "line 3, <pci busid=.* link_width: '-1'"),
        (PAIR.replace('count="4"', 'count="many"'), "line 4, <nvlink target=.* count: 'many'"),
        (PAIR.replace('busid="0000:17:00.0" ', ""), "busid: 'missing'"),
        ('<system><cpu numaid="0"><pci busid="0000:00:16.0"/></cpu></system>', "a class that tells GPUs"),
    ],
)
def test_what_is_refused_names_line_and_element(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        parse_imported(text, "m.xml")
    assert str(caught.value).startswith("m.xml: ")
    assert "\n" not in str(caught.value)


@given(st.sampled_from(XML), st.data())
def test_a_truncated_file_is_an_error_with_its_line(path: object, data: st.DataObject) -> None:
    text = DATA.joinpath(str(path)).read_text()
    cut = data.draw(st.integers(1, len(text.rstrip()) - 1))
    with pytest.raises(InputError, match="line|empty|expected"):
        parse_imported(text[:cut], "m.xml")


@given(st.sampled_from(XML), st.data())
def test_a_damaged_file_is_read_or_refused(path: object, data: st.DataObject) -> None:
    text = DATA.joinpath(str(path)).read_text()
    for _ in range(data.draw(st.integers(1, 4))):
        values = [match.span(1) for match in re.finditer(r'"([^"]*)"', text)]
        start, end = data.draw(st.sampled_from(values))
        word = data.draw(
            st.sampled_from(["", "0", "-1", "99999999999999999999", "x", "0x", "nan", "1e9", "\u00b2", "0000:17:00.0"])
        )
        text = text[:start] + word + text[end:]
    outcome(text, Hints(nvlink="none"))


@given(st.sampled_from(XML), st.data())
def test_a_file_without_some_of_its_lines_is_read_or_refused(path: object, data: st.DataObject) -> None:
    lines = DATA.joinpath(str(path)).read_text().split("\n")
    gone = data.draw(st.sets(st.integers(0, len(lines) - 1), min_size=1, max_size=4))
    text = "\n".join(line for number, line in enumerate(lines) if number not in gone)
    outcome(text, Hints(nvlink="none"))
