"""The simulator against arithmetic that can be worked out by hand: one link, chains, rings, a shared NIC, LL against Simple.

Letters: B bytes a us of the link, R of a threadblock, C bytes of a tile, s of a slice, L latency of a hop with what the protocol
adds, d time of a step. Links are slower than threadblocks, so that a slice takes s/B to send and s/R to receive.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from msccl_xml.model import Algo, Gpu, Step, StepType, Threadblock
from synth.simulate import Constants, Simulator
from synth.topology import Device, DeviceKind, Link, Topology
from tests import graphs
from tests.algos import I, O, algo_of, ring_allreduce, step

PROTOCOLS = ("Simple", "LL", "LL128")
CONSTANTS = Constants()


@dataclass(frozen=True)
class Letters:
    """The letters above for a protocol on links of `GBps` and `alpha_us`, all us or bytes."""

    protocol: str
    GBps: float
    alpha_us: float = graphs.ALPHA_US

    @property
    def one(self):
        return CONSTANTS.of(self.protocol)

    @property
    def C(self) -> float:
        return float(self.one.tile_bytes)

    @property
    def s(self) -> float:
        return self.C / self.one.slices

    @property
    def B(self) -> float:
        return self.GBps * 1e3 * self.one.wire

    @property
    def R(self) -> float:
        return self.one.rate_GBps * 1e3

    @property
    def L(self) -> float:
        return self.alpha_us + self.one.nvlink_us

    @property
    def d(self) -> float:
        return self.one.step_us


def chain(relays: int, proto: str, chunks: int = 1) -> Algo:
    """Rank 0 sends its chunks to the last rank over `relays` others."""
    last = relays + 1
    gpus = []
    for rank in range(last + 1):
        kind = "s" if rank == 0 else "r" if rank == last else "rcs"
        steps: tuple[Step, ...] = tuple(step(kind, dst=(O, chunk)) for chunk in range(chunks))
        tb = Threadblock(0, -1 if rank == last else rank + 1, rank - 1, 0, steps)
        gpus.append(Gpu(rank, chunks, chunks, 0, (tb,)))
    return algo_of("broadcast", chunks, gpus, proto, inplace=True, outofplace=False)


@pytest.mark.parametrize("proto", PROTOCOLS)
@pytest.mark.parametrize("tiles", [1, 2, 5, 30])
def test_one_link(proto: str, tiles: int) -> None:
    x = Letters(proto, 5.0)
    time_us = Simulator(chain(0, proto), graphs.line(2, x.GBps)).time_us(round(tiles * x.C))
    assert time_us == pytest.approx(x.one.launch_us + tiles * (x.d + x.C / x.B) + x.L + x.s / x.R, rel=1e-9)


@pytest.mark.parametrize("proto", PROTOCOLS)
@pytest.mark.parametrize(("relays", "tiles"), [(1, 1), (1, 7), (3, 4), (6, 20)])
def test_a_chain_of_relays_pipelined_over_tiles(proto: str, relays: int, tiles: int) -> None:
    """A relay passes a slice on as it comes: the chain costs a slice and a latency for each relay, once."""
    x = Letters(proto, 5.0)
    time_us = Simulator(chain(relays, proto), graphs.line(relays + 2, x.GBps)).time_us(round(tiles * x.C))
    sent = tiles * (x.d + x.C / x.B)
    expected = x.one.launch_us + sent + relays * (x.L + x.s / x.B) + x.L + x.s / x.R
    assert time_us == pytest.approx(expected, rel=1e-9)


def test_a_partial_last_tile_costs_what_it_holds() -> None:
    """1.25 tiles: the last quarter, 512 KiB, goes in two slices of 256 KiB."""
    x = Letters("Simple", 5.0)
    time_us = Simulator(chain(0, "Simple"), graphs.line(2, x.GBps)).time_us(round(1.25 * x.C))
    assert time_us == pytest.approx(x.one.launch_us + 2 * x.d + 1.25 * x.C / x.B + x.L + x.C / 8 / x.R, rel=1e-9)


def test_a_small_transfer_is_not_cut_into_slices() -> None:
    x = Letters("Simple", 5.0)
    time_us = Simulator(chain(1, "Simple"), graphs.line(3, x.GBps)).time_us(32 << 10)
    n = 32 << 10
    assert time_us == pytest.approx(x.one.launch_us + x.d + 2 * (n / x.B + x.L) + n / x.R, rel=1e-9)


def test_a_slow_receiver_holds_the_sender_back_through_the_room_of_the_connection() -> None:
    """Where the link is quicker than a threadblock, a long run goes at the pace of one threadblock's copying."""
    proto, tiles = "Simple", 40
    one = CONSTANTS.of(proto)
    time_us = Simulator(chain(0, proto), graphs.line(2, 1000.0)).time_us(tiles * one.tile_bytes)
    pace = tiles * (one.step_us + one.tile_bytes / (one.rate_GBps * 1e3))
    assert pace < time_us - one.launch_us < 1.03 * pace


def test_small_transfers_go_two_at_a_time_and_wait_for_their_room_to_come_back() -> None:
    """Transfer i + 2 starts once the room of i is back: sent, there after L, received, and back after alpha."""
    x, transfers, n = Letters("Simple", 5.0), 12, 1024
    send = [Step(StepType.SEND, I, k) for k in range(transfers)]
    receive = [Step(StepType.RECV, dst_buffer=O, dst_offset=k) for k in range(transfers)]
    tbs = (Threadblock(0, 1, -1, 0, tuple(send)), Threadblock(0, -1, 0, 0, tuple(receive)))
    gpus = [Gpu(rank, transfers, transfers, 0, (tbs[rank],)) for rank in range(2)]
    algo = algo_of("broadcast", transfers, gpus, "Simple", inplace=True, outofplace=False)
    time_us = Simulator(algo, graphs.line(2, x.GBps)).time_us(transfers * n)
    second = 2 * x.d + n / x.B  # when the second transfer starts
    turn = n / x.B + x.L + n / x.R + x.alpha_us
    last = second + (transfers / 2 - 1) * turn
    assert time_us == pytest.approx(x.one.launch_us + last + n / x.B + x.L + n / x.R, rel=1e-9)


@pytest.mark.parametrize("proto", PROTOCOLS)
@pytest.mark.parametrize(("ranks", "tiles"), [(3, 1), (4, 3), (8, 20)])
def test_ring_allreduce_on_a_uniform_ring(proto: str, ranks: int, tiles: int) -> None:
    """All ranks run in step: a tile takes 2(n-1) sends, each a step and a tile's time, then what the last receive is behind them.

    That holds while a slice takes longer than a hop's latency, so that nobody waits for data within the 2(n-1) sends.
    """
    x = Letters(proto, 2.0)
    assert x.s / x.B > x.L
    size = round(ranks * tiles * x.C)
    time_us = Simulator(ring_allreduce(ranks, proto), graphs.ring(ranks, x.GBps)).time_us(size)
    slices = x.one.slices
    last = x.d
    for number in range(1, slices + 1):  # the slices of the last receive: each when it is there, one after the other
        last = max(last, x.L - (slices - number) * x.s / x.B) + x.s / x.R
    tile = 2 * (ranks - 1) * (x.d + x.C / x.B) + last
    assert time_us == pytest.approx(x.one.launch_us + tiles * tile, rel=1e-9)


def test_ring_allreduce_comes_near_its_bound_at_large_sizes() -> None:
    """2(n-1)/n S/B; above it only the receive at the end of each tile, the steps and the launch, as worked out above."""
    ranks, size, GBps = 8, 1 << 30, 2.0
    time_us = Simulator(ring_allreduce(ranks, "Simple"), graphs.ring(ranks, GBps)).time_us(size)
    bound_us = 2 * (ranks - 1) / ranks * size / (GBps * 1e3)
    assert bound_us < time_us < 1.01 * bound_us


def nic_pair(senders: int) -> tuple[Topology, Algo]:
    """Two boxes of two GPUs and one NIC each; GPU i of the first box sends to GPU i of the second for i < `senders`."""
    devices = [Device("net", DeviceKind.NETWORK, -1)]
    links: list[Link] = []
    for node in range(2):
        devices += graphs.gpus(2, 2 * node, node)
        devices += [Device(f"plx{node}", DeviceKind.PCIE_SWITCH, node), Device(f"nic{node}", DeviceKind.NIC, node)]
        for rank in (2 * node, 2 * node + 1):
            links += graphs.both_ways(f"gpu{rank}", f"plx{node}", 12.0, 0.5)
        links += graphs.both_ways(f"plx{node}", f"nic{node}", 12.0, 0.5)
        links += graphs.both_ways(f"nic{node}", "net", 5.0, 0.5)
    gpus = []
    for rank in range(4):
        tbs: tuple[Threadblock, ...] = ()
        if rank < senders:
            tbs = (Threadblock(0, rank + 2, -1, 0, (step("s"),)),)
        elif 2 <= rank < 2 + senders:
            tbs = (Threadblock(0, -1, rank - 2, 0, (step("r"),)),)
        gpus.append(Gpu(rank, 1, 1, 0, tbs))
    algo = Algo("pairs", "custom", "Simple", 4, 1, 1, tuple(gpus), True, True)
    return Topology("two-boxes", tuple(devices), tuple(links)), algo


@pytest.mark.parametrize(("senders", "rate"), [(1, 5e3), (2, 2.5e3)])
def test_a_shared_nic_halves_the_rate_of_two_transfers(senders: int, rate: float) -> None:
    topology, algo = nic_pair(senders)
    one, tiles = CONSTANTS.simple, 10
    time_us = Simulator(algo, topology).time_us(tiles * one.tile_bytes)
    latency = 6 * 0.5 + one.network_us
    slice_us = one.tile_bytes / 2 / (one.rate_GBps * 1e3)
    assert time_us == pytest.approx(
        one.launch_us + tiles * (one.step_us + one.tile_bytes / rate) + latency + slice_us, rel=1e-9
    )


def test_ll_is_quicker_for_little_and_has_half_the_wire_for_much() -> None:
    topology = graphs.ring(4, 5.0)

    def time_us(proto: str, size: int) -> float:
        return Simulator(ring_allreduce(4, proto), topology).time_us(size)

    assert time_us("LL", 4096) < time_us("LL128", 4096) < time_us("Simple", 4096)
    assert time_us("Simple", 64 << 20) < time_us("LL128", 64 << 20) < time_us("LL", 64 << 20)
    bound_us = 1.5 * (64 << 20) / 5e3
    assert time_us("LL", 64 << 20) > 2 * bound_us
    assert time_us("LL", 64 << 20) < 2 * 1.25 * bound_us
    below = [size for size in (1 << k for k in range(10, 28)) if time_us("LL", size) < time_us("Simple", size)]
    assert below == [1 << k for k in range(10, 10 + len(below))]  # one crossover


def test_more_channels_than_one_help_where_a_threadblock_is_the_limit() -> None:
    """Two channels over one fat link: each threadblock moves half, at its own rate."""
    size = 64 << 20
    one = Simulator(chain(0, "Simple", 2), graphs.line(2, 500.0)).time_us(size)
    send = tuple(Threadblock(c, 1, -1, c, (step("s", dst=(O, c)),)) for c in range(2))
    receive = tuple(Threadblock(c, -1, 0, c, (step("r", dst=(O, c)),)) for c in range(2))
    gpus = [Gpu(0, 2, 2, 0, send), Gpu(1, 2, 2, 0, receive)]
    two = Simulator(algo_of("broadcast", 2, gpus, "Simple", inplace=True, outofplace=False), graphs.line(2, 500.0))
    assert two.time_us(size) == pytest.approx(one / 2, rel=0.03)
