"""Slips in an algorithm, by kind: every algorithm that differs from a given one by one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import combinations, permutations

from msccl_xml.model import Algo, Buffer, Gpu, Step, StepType, Threadblock
from tests.algos import step, with_steps, with_tb

Mutants = Iterator[tuple[str, Algo]]
REAL_TYPES = tuple(kind for kind in StepType if kind is not StepType.NOP)


def mutants(algo: Algo) -> Mutants:
    """Those of every kind."""
    for name, operator in OPERATORS.items():
        for what, mutant in operator(algo):
            yield f"{name}: {what}", mutant


def _places(algo: Algo) -> Iterator[tuple[int, int, Threadblock, str]]:
    for g, gpu in enumerate(algo.gpus):
        for t, tb in enumerate(gpu.threadblocks):
            yield g, t, tb, f"gpu {g} tb {t}"


def _each_step(algo: Algo, changes: Callable[[int, int, int, Step], Iterator[Mapping[str, object]]]) -> Mutants:
    """One step changed in its fields; `changes` has gpu, threadblock, number and step."""
    for g, t, tb, where in _places(algo):
        for number, one in enumerate(tb.steps):
            for change in changes(g, t, number, one):
                changed = one._replace(**change)  # type: ignore[arg-type]
                if changed != one:
                    steps = (*tb.steps[:number], changed, *tb.steps[number + 1 :])
                    yield f"{where} step {number}: {change}", with_steps(algo, g, t, steps)


def drop_dependence(algo: Algo) -> Mutants:
    yield from _each_step(algo, lambda *_: iter([{"depid": -1, "deps": -1}]))


def add_or_retarget_dependence(algo: Algo) -> Mutants:
    """Every step waits for every step of its gpu in turn, and for a threadblock and a step beyond the last."""

    def changes(g: int, t: int, number: int, one: Step) -> Iterator[Mapping[str, object]]:
        tbs = algo.gpus[g].threadblocks
        for depid in range(-1, len(tbs) + 1):
            steps = len(tbs[depid].steps) if 0 <= depid < len(tbs) else 1
            for deps in range(-1, steps + 1):
                yield {"depid": depid, "deps": deps}

    yield from _each_step(algo, changes)


def set_or_clear_hasdep(algo: Algo) -> Mutants:
    yield from _each_step(algo, lambda *_: iter([{"hasdep": False}, {"hasdep": True}]))


def swap_steps(algo: Algo) -> Mutants:
    """Any two of a threadblock."""
    for g, t, tb, where in _places(algo):
        for i, j in combinations(range(len(tb.steps)), 2):
            steps = list(tb.steps)
            steps[i], steps[j] = steps[j], steps[i]
            if tuple(steps) != tb.steps:
                yield f"{where} steps {i} and {j}", with_steps(algo, g, t, tuple(steps))


def drop_step(algo: Algo) -> Mutants:
    for g, t, tb, where in _places(algo):
        for number in range(len(tb.steps)):
            yield f"{where} step {number}", with_steps(algo, g, t, (*tb.steps[:number], *tb.steps[number + 1 :]))


def repeat_step(algo: Algo) -> Mutants:
    for g, t, tb, where in _places(algo):
        for number, one in enumerate(tb.steps):
            steps = (*tb.steps[:number], one, *tb.steps[number:])
            yield f"{where} step {number}", with_steps(algo, g, t, steps)


def drop_message(algo: Algo) -> Mutants:
    """A send and the receive at its other end, where neither does more than that."""
    for g, t, tb, where in _places(algo):
        sends = [number for number, one in enumerate(tb.steps) if one.type.sends]
        found = [
            (h, u, peer)
            for h, u, peer, _ in _places(algo)
            if h == tb.send and peer.recv == g and peer.channel == tb.channel
        ]
        for k, number in enumerate(sends):
            if tb.steps[number].type is not StepType.SEND or not found:
                continue
            h, u, peer = found[0]
            receives = [at for at, one in enumerate(peer.steps) if one.type.receives]
            if k < len(receives) and peer.steps[receives[k]].type is StepType.RECV and (h, u) != (g, t):
                without = with_steps(algo, g, t, (*tb.steps[:number], *tb.steps[number + 1 :]))
                left = (*peer.steps[: receives[k]], *peer.steps[receives[k] + 1 :])
                yield f"{where} step {number}", with_steps(without, h, u, left)


def shift_offset(algo: Algo) -> Mutants:
    yield from _each_step(
        algo,
        lambda _g, _t, _n, one: (
            {key: getattr(one, key) + delta} for key in ("src_offset", "dst_offset") for delta in (-2, -1, 1, 2)
        ),
    )


def change_count(algo: Algo) -> Mutants:
    yield from _each_step(algo, lambda _g, _t, _n, one: iter([{"count": one.count - 1}, {"count": one.count + 1}]))


def change_type(algo: Algo) -> Mutants:
    yield from _each_step(algo, lambda *_: ({"type": kind} for kind in REAL_TYPES))


def change_buffer(algo: Algo) -> Mutants:
    yield from _each_step(algo, lambda *_: ({key: buffer} for key in ("src_buffer", "dst_buffer") for buffer in Buffer))


def exchange_ends(algo: Algo) -> Mutants:
    """A step's source and destination."""

    def changes(_g: int, _t: int, _n: int, one: Step) -> Iterator[Mapping[str, object]]:
        yield {
            "src_buffer": one.dst_buffer,
            "src_offset": one.dst_offset,
            "dst_buffer": one.src_buffer,
            "dst_offset": one.src_offset,
        }

    yield from _each_step(algo, changes)


def change_peer(algo: Algo) -> Mutants:
    for g, t, tb, where in _places(algo):
        for key, value in (("send", tb.send), ("recv", tb.recv)):
            for other in sorted(set(range(-1, algo.ngpus + 1)) - {value}):
                yield f"{where}: {key}={other}", with_tb(algo, g, t, **{key: other})


def exchange_peers(algo: Algo) -> Mutants:
    for g, t, tb, where in _places(algo):
        if tb.send != tb.recv:
            yield where, with_tb(algo, g, t, send=tb.recv, recv=tb.send)


def change_channel(algo: Algo) -> Mutants:
    for g, t, tb, where in _places(algo):
        for other in sorted({tb.channel - 1, tb.channel + 1, 0} - {tb.channel}):
            yield f"{where}: channel={other}", with_tb(algo, g, t, channel=other)


def insert_nop(algo: Algo) -> Mutants:
    """A nop that waits for a step, or for nothing, which shifts all numbers after it."""
    for g, t, tb, where in _places(algo):
        for number in range(len(tb.steps) + 1):
            for wait in [(-1, -1), *((u, 0) for u in range(len(algo.gpus[g].threadblocks)))]:
                steps = (*tb.steps[:number], step("nop", wait=wait), *tb.steps[number:])
                yield f"{where} step {number}: waits for {wait}", with_steps(algo, g, t, steps)


def change_header(algo: Algo) -> Mutants:
    """The protocol, which decides how much a connection holds, and what calls the file claims."""
    for proto in ("Simple", "LL"):
        if proto != algo.proto:
            yield proto, replace(algo, proto=proto)
    for places in ((True, False), (False, True), (True, True)):
        if places != (algo.inplace, algo.outofplace):
            yield f"inplace, outofplace: {places}", replace(algo, inplace=places[0], outofplace=places[1])


def change_scratch(algo: Algo) -> Mutants:
    for g, gpu in enumerate(algo.gpus):
        for chunks in {max(0, gpu.scratch_chunks - 1), gpu.scratch_chunks + 1} - {gpu.scratch_chunks}:
            yield f"gpu {g}: {chunks}", _with_gpu(algo, g, replace(gpu, scratch_chunks=chunks))


def split_threadblock(algo: Algo) -> Mutants:
    """The steps from one on go to a threadblock of their own; who waits for them waits there."""
    for g, t, tb, where in _places(algo):
        gpu = algo.gpus[g]
        for number in range(1, len(tb.steps)):
            parts = tb.steps[:number], tb.steps[number:]
            moved = {(t, at): (len(gpu.threadblocks), at - number) for at in range(number, len(tb.steps))}
            first, second = (_with_needed_peers(replace(tb, steps=part)) for part in parts)
            tbs = [*gpu.threadblocks, replace(second, id=len(gpu.threadblocks))]
            tbs[t] = first
            yield f"{where} at step {number}", _with_gpu(algo, g, _moved(replace(gpu, threadblocks=tuple(tbs)), moved))


def merge_threadblocks(algo: Algo) -> Mutants:
    """One threadblock does what two did, one after the other, where it needs no more peers than it can have."""
    for g, gpu in enumerate(algo.gpus):
        for t, u in permutations(range(len(gpu.threadblocks)), 2):
            one, other = gpu.threadblocks[t], gpu.threadblocks[u]
            sends, recvs = ({one.send, other.send} - {-1}), ({one.recv, other.recv} - {-1})
            if len(sends) > 1 or len(recvs) > 1:
                continue
            kept = [index for index in range(len(gpu.threadblocks)) if index != u]
            moved = {
                (old, at): (new, at) for new, old in enumerate(kept) for at in range(len(gpu.threadblocks[old].steps))
            }
            moved |= {(u, at): (kept.index(t), at + len(one.steps)) for at in range(len(other.steps))}
            merged = replace(
                one, steps=one.steps + other.steps, send=max(sends, default=-1), recv=max(recvs, default=-1)
            )
            tbs = tuple(replace(merged if old == t else gpu.threadblocks[old], id=new) for new, old in enumerate(kept))
            yield f"gpu {g} tb {t} and {u}", _with_gpu(algo, g, _moved(replace(gpu, threadblocks=tbs), moved))


def _with_gpu(algo: Algo, g: int, gpu: Gpu) -> Algo:
    return replace(algo, gpus=(*algo.gpus[:g], gpu, *algo.gpus[g + 1 :]))


def _with_needed_peers(tb: Threadblock) -> Threadblock:
    send = tb.send if any(one.type.sends for one in tb.steps) else -1
    recv = tb.recv if any(one.type.receives for one in tb.steps) else -1
    return replace(tb, send=send, recv=recv)


def _moved(gpu: Gpu, moved: Mapping[tuple[int, int], tuple[int, int]]) -> Gpu:
    """The gpu whose dependences follow steps that went elsewhere."""

    def mended(one: Step) -> Step:
        depid, deps = moved.get((one.depid, one.deps), (one.depid, one.deps))
        return one._replace(depid=depid, deps=deps)

    tbs = tuple(replace(tb, steps=tuple(map(mended, tb.steps))) for tb in gpu.threadblocks)
    return replace(gpu, threadblocks=tbs)


OPERATORS: dict[str, Callable[[Algo], Mutants]] = {
    operator.__name__.replace("_", "-"): operator
    for operator in (
        drop_dependence,
        add_or_retarget_dependence,
        set_or_clear_hasdep,
        swap_steps,
        drop_step,
        repeat_step,
        drop_message,
        shift_offset,
        change_count,
        change_type,
        change_buffer,
        exchange_ends,
        change_peer,
        exchange_peers,
        change_channel,
        insert_nop,
        change_header,
        change_scratch,
        split_threadblock,
        merge_threadblocks,
    )
}
