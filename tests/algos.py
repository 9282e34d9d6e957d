"""Hand-built algorithms that are right, for the tests of everything that takes an `Algo`.

Every builder takes the protocol and the chunks of a share, and claims each layout for which its program is right.
"""

from __future__ import annotations

from dataclasses import replace

from msccl_xml.model import Algo, Buffer, Gpu, Step, StepType, Threadblock
from synth.collective import Collective, CollectiveName
from synth.group import group_attribute, group_of

I, O, S = Buffer.INPUT, Buffer.OUTPUT, Buffer.SCRATCH


def step(
    kind: str,
    src: tuple[Buffer, int] = (I, 0),
    dst: tuple[Buffer, int] = (O, 0),
    count: int = 1,
    wait: tuple[int, int] = (-1, -1),
    hasdep: bool = False,
) -> Step:
    return Step(StepType(kind), *src, *dst, count, *wait, hasdep)


def algo_of(coll: str, chunks: int, gpus: list[Gpu], proto: str, *, inplace: bool, outofplace: bool | None) -> Algo:
    channels = 1 + max(tb.channel for gpu in gpus for tb in gpu.threadblocks)
    return Algo(
        f"synth-{coll}-test", coll, proto, len(gpus), channels, chunks, tuple(gpus), inplace, outofplace, 0, 1 << 30
    )


def ring_allgather(n: int = 3, proto: str = "Simple", c: int = 1) -> Algo:
    gpus = []
    for r in range(n):
        steps = [step("cpy", (I, 0), (O, r * c), c), step("s", (I, 0), count=c)]
        steps += [step("rcs", dst=(O, (r - k) % n * c), count=c) for k in range(1, n - 1)]
        steps.append(step("r", dst=(O, (r + 1) % n * c), count=c))
        gpus.append(Gpu(r, c, n * c, 0, (Threadblock(0, (r + 1) % n, (r - 1) % n, 0, tuple(steps)),)))
    return algo_of("allgather", n * c, gpus, proto, inplace=True, outofplace=True)


def ring_allreduce(n: int = 3, proto: str = "Simple", c: int = 1) -> Algo:
    gpus = []
    for r in range(n):
        steps = [step("s", (I, r * c), count=c)]
        steps += [step("rrs", (I, (r - k) % n * c), count=c) for k in range(1, n - 1)]
        home = (r + 1) % n * c
        steps.append(step("rrcs", (I, home), (O, home), c))
        steps += [step("rcs", dst=(O, (r - k + 1) % n * c), count=c) for k in range(1, n - 1)]
        steps.append(step("r", dst=(O, (r + 2) % n * c), count=c))
        gpus.append(Gpu(r, n * c, n * c, 0, (Threadblock(0, (r + 1) % n, (r - 1) % n, 0, tuple(steps)),)))
    return algo_of("allreduce", n * c, gpus, proto, inplace=True, outofplace=True)


def all_pairs_allreduce(n: int = 3, proto: str = "Simple", c: int = 1) -> Algo:
    """In place: every rank reduces one share in a threadblock of its own, which waits for all receives by nops."""
    gpus = []
    for r in range(n):
        peers = [p for p in range(n) if p != r]
        local = n - 1
        tbs = []
        for k, p in enumerate(peers):
            steps = (
                step("s", (I, p * c), count=c),
                step("r", dst=(S, k * c), count=c, hasdep=True),
                step("s", (I, r * c), count=c, wait=(local, 2 * n - 4)),
                step("r", dst=(I, p * c), count=c),
            )
            tbs.append(Threadblock(k, p, p, 0, steps))
        reduces = [step("nop", wait=(k, 1)) for k in range(n - 2)]
        reduces += [
            step("re", (S, k * c), (I, r * c), c, (n - 2, 1) if k == 0 else (-1, -1), hasdep=k == n - 2)
            for k in range(n - 1)
        ]
        tbs.append(Threadblock(local, -1, -1, 0, tuple(reduces)))
        gpus.append(Gpu(r, n * c, n * c, (n - 1) * c, tuple(tbs)))
    return algo_of("allreduce", n * c, gpus, proto, inplace=True, outofplace=False)


def relay_broadcast(proto: str = "Simple", c: int = 2) -> Algo:
    """0 -> 1 -> 2 where rank 1 keeps the chunks in scratch and has one threadblock for each job."""
    root = Threadblock(0, 1, -1, 0, (step("s", (I, 0), count=c), step("cpy", (I, 0), (O, 0), c)))
    relay = (
        Threadblock(0, -1, 0, 0, (step("r", dst=(S, 0), count=c, hasdep=True),)),
        Threadblock(1, 2, -1, 0, (step("s", (S, 0), count=c, wait=(0, 0)),)),
        Threadblock(2, -1, -1, 0, (step("cpy", (S, 0), (O, 0), c, wait=(0, 0)),)),
    )
    leaf = Threadblock(0, -1, 1, 0, (step("r", dst=(O, 0), count=c),))
    gpus = [Gpu(0, c, c, 0, (root,)), Gpu(1, c, c, c, relay), Gpu(2, c, c, 0, (leaf,))]
    return algo_of("broadcast", c, gpus, proto, inplace=True, outofplace=True)


def relayed_allreduce(proto: str = "Simple", c: int = 1) -> Algo:
    """Of ranks 0 and 2 over rank 1, which takes no part; rank 3 is not needed at all."""
    last = Threadblock(0, 1, 1, 0, (step("rrcs", (I, 0), (O, 0), c),))
    relay = (
        Threadblock(0, 2, 0, 0, (step("rcs", dst=(S, 0), count=c),)),
        Threadblock(1, 0, 2, 0, (step("rcs", dst=(S, c), count=c),)),
    )
    first = Threadblock(0, 1, 1, 0, (step("s", (I, 0), count=c), step("r", dst=(O, 0), count=c)))
    idle = Threadblock(0, -1, -1, 0, (step("cpy", (S, 0), (S, 0)),))
    gpus = [Gpu(0, c, c, 0, (first,)), Gpu(1, c, c, 2 * c, relay), Gpu(2, c, c, 0, (last,)), Gpu(3, c, c, 1, (idle,))]
    algo = algo_of("allreduce", c, gpus, proto, inplace=True, outofplace=True)
    return replace(algo, extra=group_attribute((0, 2)))


def alltoall(n: int = 3, proto: str = "Simple", c: int = 1) -> Algo:
    gpus = []
    for r in range(n):
        peers = [p for p in range(n) if p != r]
        tbs = [
            Threadblock(k, p, p, 0, (step("s", (I, p * c), count=c), step("r", dst=(O, p * c), count=c)))
            for k, p in enumerate(peers)
        ]
        tbs.append(Threadblock(n - 1, -1, -1, 0, (step("cpy", (I, r * c), (O, r * c), c),)))
        gpus.append(Gpu(r, n * c, n * c, 0, tuple(tbs)))
    return algo_of("alltoall", n * c, gpus, proto, inplace=False, outofplace=True)


def direct_reduce_scatter(n: int = 2, proto: str = "Simple", c: int = 1) -> Algo:
    """Every rank sends each share to its owner, which adds what arrives, in rank order, with rrc."""
    gpus = []
    for r in range(n):
        peers = [p for p in range(n) if p != r]
        tbs = []
        for k, p in enumerate(peers):
            src = (I, r * c) if k == 0 else (O, 0)
            wait = (k - 1, 1) if k else (-1, -1)
            receive = step("rrc", src, (O, 0), c, wait, hasdep=k < n - 2)
            tbs.append(Threadblock(k, p, p, 0, (step("s", (I, p * c), count=c), receive)))
        gpus.append(Gpu(r, n * c, c, 0, tuple(tbs)))
    return algo_of("reduce_scatter", n * c, gpus, proto, inplace=True, outofplace=True)


def direct_gather(n: int = 3, root: int = 1, proto: str = "LL") -> Algo:
    gpus = []
    for r in range(n):
        if r == root:
            tbs = [Threadblock(0, -1, -1, 0, (step("cpy", (I, 0), (O, r)),))]
            peers = [p for p in range(n) if p != r]
            tbs += [Threadblock(k + 1, -1, p, 0, (step("r", dst=(O, p)),)) for k, p in enumerate(peers)]
        else:
            tbs = [Threadblock(0, root, -1, 0, (step("s", (I, 0)),))]
        gpus.append(Gpu(r, 1, n, 0, tuple(tbs)))
    algo = algo_of("gather", n, gpus, proto, inplace=False, outofplace=True)
    return replace(algo, coll="gather")


def exchange_allgather(proto: str = "Simple", c: int = 2) -> Algo:
    """Two ranks send all their chunks before they receive any: right while the connection has slots for them."""
    gpus = []
    for r in range(2):
        steps = [step("cpy", (I, 0), (O, r * c), c), *(step("s", (I, k)) for k in range(c))]
        steps += [step("r", dst=(O, (1 - r) * c + k)) for k in range(c)]
        gpus.append(Gpu(r, c, 2 * c, 0, (Threadblock(0, 1 - r, 1 - r, 0, tuple(steps)),)))
    return algo_of("allgather", 2 * c, gpus, proto, inplace=True, outofplace=True)


def collective_of(algo: Algo, root: int | None = None) -> Collective:
    name = CollectiveName(algo.coll.replace("_", "-"))
    return Collective(name, algo.ngpus, algo.nchunksperloop, root, group_of(algo))


def with_step(algo: Algo, gpu: int, tb: int, number: int, **changes: object) -> Algo:
    """A copy of `algo` with one step changed."""
    old = algo.gpus[gpu].threadblocks[tb].steps
    return with_steps(algo, gpu, tb, (*old[:number], old[number]._replace(**changes), *old[number + 1 :]))  # type: ignore[arg-type]


def with_steps(algo: Algo, gpu: int, tb: int, steps: tuple[Step, ...]) -> Algo:
    return with_tb(algo, gpu, tb, steps=steps)


def with_tb(algo: Algo, gpu: int, tb: int, **changes: object) -> Algo:
    """A copy of `algo` with one threadblock changed."""
    there = algo.gpus[gpu]
    changed = replace(there.threadblocks[tb], **changes)  # type: ignore[arg-type]
    tbs = (*there.threadblocks[:tb], changed, *there.threadblocks[tb + 1 :])
    return replace(algo, gpus=(*algo.gpus[:gpu], replace(there, threadblocks=tbs), *algo.gpus[gpu + 1 :]))


#: name -> (algorithm, its root)
RIGHT: dict[str, tuple[Algo, int | None]] = {
    "ring-allgather-2": (ring_allgather(2), None),
    "ring-allgather-3": (ring_allgather(3, "LL"), None),
    "ring-allgather-3x2": (ring_allgather(3, "LL", 2), None),
    "ring-allreduce-2": (ring_allreduce(2), None),
    "ring-allreduce-3": (ring_allreduce(3, "LL128"), None),
    "ring-allreduce-2x2": (ring_allreduce(2, "LL", 2), None),
    "all-pairs-allreduce-2": (all_pairs_allreduce(2), None),
    "all-pairs-allreduce-2x2": (all_pairs_allreduce(2, "Simple", 2), None),
    "exchange-allgather": (exchange_allgather(), None),
    "relay-broadcast": (relay_broadcast(), 0),
    "relay-broadcast-1": (relay_broadcast("LL", 1), 0),
    "relayed-allreduce": (relayed_allreduce(), None),
    "alltoall-2x2": (alltoall(2, "Simple", 2), None),
    "alltoall-3": (alltoall(3, "LL"), None),
    "reduce-scatter-2": (direct_reduce_scatter(2), None),
    "reduce-scatter-3": (direct_reduce_scatter(3), None),
    "all-pairs-allreduce-3": (all_pairs_allreduce(3), None),
}
