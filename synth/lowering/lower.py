"""Lowering: from a schedule to the program of every threadblock, an `Algo`.

The order of things: channels for every path and message (channels.py; streams.py for rings), the first of boxes that do the
same (turns.py), one global order of pushes and pops (order.py), a place for every chunk (storage.py; sums.py for runtimes without
fused steps), operations (operations.py), threadblocks with fused steps (threadblocks.py, fusion.py), waits (dependences.py), a
check against deadlock that splits threadblocks where needed (deadlock.py), the draft of one instance (draft.py), the document, with
all instances and turned for the other boxes (emit.py). What does not fit the limits is tried again with other numbers of channels.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil
from typing import NamedTuple

from msccl_xml.limits import check_limits, coll_spelling, too_many_elements
from msccl_xml.model import Algo
from synth.collective import Collective
from synth.collector import collector_paused
from synth.constants import chunks_per_transfer
from synth.errors import CheckError, InputError, NoAnswerError
from synth.instance import Instance
from synth.ir import Schedule
from synth.lowering.buffers import Layout
from synth.lowering.channels import ChannelMap, channels_per_path, deal_messages, number_channels
from synth.lowering.deadlock import Waits, find_splits
from synth.lowering.dependences import find_waits
from synth.lowering.draft import Draft, Drafts, Key, Made, draft_gpu
from synth.lowering.emit import Target, emit, make_target
from synth.lowering.fusion import Forwards, find_forwards
from synth.lowering.messages import Message
from synth.lowering.operations import Operation, list_operations, part_sums
from synth.lowering.options import LoweringOptions
from synth.lowering.order import Order, global_order, order_as_sent
from synth.lowering.storage import place_chunks
from synth.lowering.sums import plan_sums
from synth.lowering.threadblocks import Owner, Pairing, Program, build_programs
from synth.lowering.turns import Turns, boxes_first

#: Times that more channels are tried for threadblocks with too many steps: the needed number is estimated from the last
#: try, and nops and cuts make the estimate a little short.
_STEP_ATTEMPTS = 4
#: What has fewer steps has no more room for them, all threadblocks together, than so many times what it had.
_MORE_SLOTS = 1.25
#: Of so many sends a draft takes a second.
_MANY_SENDS = 10_000
#: Of a threadblock's steps, the share that messages are given where there are threadblocks enough: the rest is for nops, which wait
#: for second flags.
_ROOM_FOR_MESSAGES = 0.7
#: A threadblock is no more than so many pushes or pops behind the others of its rank, mostly.
_EVENTS_OF_A_CONNECTION = 2
#: Buffers of connections may be so many times smaller than they usually are: microsoft/msccl's on ARM, others' by NCCL_BUFFSIZE.
_SMALLER_BUFFERS = 4


@dataclass(frozen=True, slots=True)
class _Problem:
    instance: Instance
    schedule: Schedule
    options: LoweringOptions
    target: Target
    layout: Layout
    """the names of memory that the program uses"""
    layouts: tuple[Layout, ...]
    """all ways in which it may be called"""
    drafts: Drafts
    """of the schedule, made before"""


@collector_paused()
def lower(instance: Instance, schedule: Schedule, options: LoweringOptions, drafts: Drafts | None = None) -> Algo:
    """The program that carries out `schedule`, a feasible schedule of `instance` (synth.timing.check_schedule). Of the same instance
    and schedule `drafts` are looked up and added to: they save most of the work for other instances, protocols and sizes.

    With `options.instances` N the program is one of `lowered_collective(instance.collective, options)`, which has N
    times the chunks. Raises InputError for an in-place call of a collective that has none, NoAnswerError where the
    program does not fit the runtime's or the caller's limits.
    """
    _require_readable(instance, schedule, options)
    problem = _pose(instance, schedule, options, Drafts() if drafts is None else drafts)
    foreseen = channels_foreseen(instance, schedule, options)
    draft = _within_steps(problem, _within_threadblocks(problem, foreseen), foreseen)
    if unreadable := draft.unreadable(options.limits, options.instances):
        raise _beyond(options, unreadable)
    algo = emit(problem.target, draft, options)
    problems = check_limits(algo, options.runtime, full_ops=False)
    if problems:
        raise _beyond(options, problems[0])
    return algo


def _beyond(options: LoweringOptions, problem: str) -> NoAnswerError:
    relax = "fewer --chunks or another --instances"
    return NoAnswerError(f"the program is beyond what {options.runtime} takes: {problem}; try {relax}")


def _require_readable(instance: Instance, schedule: Schedule, options: LoweringOptions) -> None:
    """Refuse at once what no joining of receives with sends makes small enough: a step does one of each at most."""
    ends: Counter[tuple[int, str]] = Counter()
    for path, messages in Counter(send.path for send in schedule.sends).items():
        ends[instance.paths[path].src, "sends"] += messages * options.instances
        ends[instance.paths[path].dst, "receives"] += messages * options.instances
    for (rank, word), messages in sorted(ends.items()):
        if messages > options.limits.nodes:
            raise _beyond(
                options, f"gpu {rank}: {messages} {word}, {options.runtime} reads {options.limits.nodes} elements"
            )


def lowered_collective(collective: Collective, options: LoweringOptions) -> Collective:
    """The collective that a lowered program carries out: every chunk cut into one part per instance."""
    return replace(collective, chunks=collective.chunks * options.instances)


def _pose(instance: Instance, schedule: Schedule, options: LoweringOptions, drafts: Drafts) -> _Problem:
    collective = instance.collective
    if options.inplace and collective.in_place_shift(0) is None:
        raise InputError("--in-place", "", collective.name.value, "a collective that has an in-place call")
    target = make_target(collective, instance.topology.name, options)
    custom = target.coll == "custom"
    # Several instances lie apart at the ends of shares alone: where no message goes beyond one, all are laid out like one.
    share = collective.per_rank
    beyond = any(min(send.chunks) // share != max(send.chunks) // share for send in schedule.sends)
    instances = options.instances if beyond else 1
    apart = Layout(collective, False, instances=instances)
    aliased = Layout(collective, True, custom, instances)
    layouts = (apart,) * target.outofplace + (aliased,) * target.inplace
    return _Problem(instance, schedule, options, target, layouts[0], layouts, drafts)


def _within_threadblocks(problem: _Problem, foreseen: dict[int, int]) -> Draft:
    """The first draft that has few enough threadblocks: with the channels that are foreseen, with fewer, then with receives and
    sends packed together. One that the runtime would not read ends the search, too.
    """
    options = problem.options
    for parallel in _narrower(problem, foreseen):
        if _is_long_in_vain(problem, parallel):
            continue
        try:
            draft = _draft(problem, parallel, pack=False)
        except NoAnswerError:
            continue
        fits = draft.threadblocks * options.instances <= options.threadblocks
        if fits or draft.unreadable(options.limits, options.instances):
            return draft
    draft = _draft(problem, parallel, pack=True)
    if draft.threadblocks * options.instances > options.threadblocks:
        relax = "raise --max-threadblocks" if options.threadblocks < options.limits.threadblocks else ""
        relax = " or ".join(filter(None, [relax, "lower --instances" if options.instances > 1 else ""]))
        needed = draft.threadblocks * options.instances
        raise NoAnswerError(
            f"--max-threadblocks: the schedule needs {needed} on a gpu, {options.threadblocks} are allowed"
            + (f"; {relax}" if relax else "")
        )
    return draft


def _narrower(problem: _Problem, foreseen: dict[int, int]) -> Iterator[dict[int, int]]:
    """Channels of every path, fewer each time: those foreseen, as many of them as there are threadblocks for without joining any,
    those that bandwidth needs, and on to one each.
    """
    yield foreseen
    needed = channels_per_path(problem.instance, problem.schedule, problem.options)
    for fewer in _between(foreseen, needed):
        if _threadblocks_apart(problem, fewer) <= problem.options.threadblocks:
            yield fewer
            break
    if needed != foreseen:
        yield needed
    most = max(needed.values(), default=1)
    while most > 1:
        most = (most + 1) // 2
        yield {path: min(count, most) for path, count in needed.items()}


def _between(wider: dict[int, int], needed: dict[int, int]) -> Iterator[dict[int, int]]:
    """Channels of every path between those that are `needed` and more, the most first."""
    for most in range(max(wider.values(), default=1) - 1, max(needed.values(), default=1), -1):
        yield {path: max(needed[path], min(count, most)) for path, count in wider.items()}


def _within_steps(problem: _Problem, draft: Draft, tried: dict[int, int]) -> Draft:
    """The draft, with more channels, but not those that were tried, where threadblocks have too many steps for some runtime and
    there is room. Not on more threadblocks for hardly fewer steps, which are still too many, unless this runtime would not load
    what there was.
    """
    options, first = problem.options, draft
    for _ in range(_STEP_ATTEMPTS):
        parallel = _more_channels(problem, draft)
        # Where fewer were too many threadblocks, more are.
        refused = tried != draft.parallel and all(parallel[path] >= count for path, count in tried.items())
        unreadable = draft.unreadable(options.limits, options.instances)
        if draft.packed or parallel == draft.parallel or refused or unreadable:
            break
        if _is_long_in_vain(problem, parallel):
            break
        try:
            wider = _draft(problem, parallel, pack=False)
        except NoAnswerError:
            break
        if wider.threadblocks * options.instances > options.threadblocks:
            break
        if wider.steps >= draft.steps:
            break
        draft = wider
    in_vain = first.steps <= options.limits.steps and draft.steps > options.steps
    return first if in_vain and draft.slots > _MORE_SLOTS * first.slots else draft


def channels_foreseen(instance: Instance, schedule: Schedule, options: LoweringOptions) -> dict[int, int]:
    """Channels of every path: as many as its bandwidth needs, and as its messages will need for threadblocks not to have too many
    steps, which saves a draft, as long as threadblocks allow that; if they do not, and with those that bandwidth needs the runtime
    would not load the program, as many as they allow. Programs with the same ones are the same, where they are allowed their
    threadblocks.
    """
    needed = channels_per_path(instance, schedule, options)
    messages = Counter(send.path for send in schedule.sends)
    for room, joined in ((_ROOM_FOR_MESSAGES, False), (1.0, True)):
        steps = options.steps * room
        wider = {path: max(count, ceil(messages[path] / steps)) for path, count in needed.items()}
        if threadblocks_needed(instance, wider, joined=joined) * options.instances <= options.threadblocks:
            return wider
    if all(messages[path] <= count * options.limits.steps for path, count in needed.items()):
        return needed
    apart = (
        fewer
        for fewer in _between(wider, needed)
        if threadblocks_needed(instance, fewer, joined=False) * options.instances <= options.threadblocks
    )
    return next(apart, needed)


def threadblocks_needed(instance: Instance, parallel: dict[int, int], *, joined: bool) -> int:
    """Threadblocks of the busiest rank with the channels of every path in `parallel`, if every receive shares its threadblock
    with a send (`joined`), or if none does.
    """
    sent: Counter[int] = Counter()
    received: Counter[int] = Counter()
    for path, count in parallel.items():
        sent[instance.paths[path].src] += count
        received[instance.paths[path].dst] += count
    return max((sent | received if joined else sent + received).values(), default=0)


def _is_long_in_vain(problem: _Problem, parallel: dict[int, int]) -> bool:
    """Whether a draft takes a second, and has too many threadblocks unless receives and sends share them: these hardly ever do where
    chunks do not all go from rank to rank as around a ring.
    """
    sends, paths = problem.schedule.sends, problem.instance.paths
    if len(sends) < _MANY_SENDS or _threadblocks_apart(problem, parallel) <= problem.options.threadblocks:
        return False
    ends: set[tuple[int, int, bool, bool]] = set()
    for send in sends:
        for chunk in send.chunks:
            both = (paths[send.path].src, chunk, send.reduce, True), (paths[send.path].dst, chunk, send.reduce, False)
            if not ends.isdisjoint(both):
                return True
            ends.update(both)
    return False


def _threadblocks_apart(problem: _Problem, parallel: dict[int, int]) -> int:
    """Threadblocks of the busiest rank, all instances together, where none receives and sends."""
    apart = threadblocks_needed(problem.instance, parallel, joined=False)
    return (apart + (max(parallel.values(), default=0) if _copies_own(problem) else 0)) * problem.options.instances


def _copies_own(problem: _Problem) -> bool:
    """Whether a rank has to copy what it has to where it wants it: each channel has a threadblock for that."""
    if problem.target.collective.combining:
        return False
    layout = problem.layout
    return any(
        layout.source(rank, chunk) not in (None, there)
        for rank in range(problem.target.collective.num_ranks)
        for chunk, there in layout.destinations(rank).items()
    )


def _more_channels(problem: _Problem, draft: Draft) -> dict[int, int]:
    """Channels of every path, more of them where a threadblock that serves it has too many steps."""
    factor: dict[tuple[int, int], int] = {}
    home = draft.turns.home
    for rank, gpu in enumerate(draft.gpus):
        for lane, steps in zip(gpu.lanes, gpu.steps, strict=True):
            need = ceil(len(steps) / problem.options.steps)
            for pair in ((rank, lane.send), home(lane.recv, rank, 0)[:2]):
                factor[pair] = max(factor.get(pair, 1), need)
    messages = Counter(send.path for send in problem.schedule.sends)
    paths = problem.instance.paths
    return {
        path: max(count, min(count * factor.get(home(paths[path].src, paths[path].dst, 0)[:2], 1), messages[path]))
        for path, count in draft.parallel.items()
    }


def _draft(problem: _Problem, parallel: dict[int, int], *, pack: bool) -> Draft:
    """The whole program with the given channels, whatever limits it breaks; free of deadlock."""
    options = problem.options
    numbering = number_channels(problem.instance, problem.schedule, options, parallel, pack=pack)
    key = Key(
        parallel=None if numbering.streams else tuple(parallel.items()),
        channels=tuple(numbering.channels.items()),
        packed=pack,
        capacity=options.capacity,
        shares_apart=problem.layout.instances > 1,
        options=(
            options.runtime,
            options.reuses_scratch,
            options.few_steps,
            problem.target.inplace,
            problem.target.outofplace,
        ),
    )
    longest = max((len(send.chunks) for send in problem.schedule.sends), default=1)
    fewest = _fewest_of_a_transfer(problem.target.collective, problem.target.coll, options)
    chunks = max(1, min(fewest, longest))  # a transfer that holds more than any message makes no difference
    known = problem.drafts.find(key, chunks)
    if known is not None:
        return replace(known, parallel=parallel)
    return _new_draft(problem, parallel, numbering, key, chunks)


def _new_draft(problem: _Problem, parallel: dict[int, int], numbering: ChannelMap, key: Key, chunks: int) -> Draft:
    options = problem.options
    messages, width, copying = deal_messages(problem.instance, problem.schedule, parallel, numbering)
    calm = True
    for turns, own in boxes_first(problem.instance.collective, messages):
        for order in _orders(own, turns, options.capacity):
            sums = {} if options.fuses else plan_sums(problem.layouts, own, order)
            cooling = _cooling(own, options) if options.reuses_scratch else len(order.events)
            storage = place_chunks(problem.layout, own, order, cooling, sums)
            operations = list_operations(problem.layout, own, order, storage, copying, turns.size)
            if not options.fuses:
                operations = [part_sums(each, storage.total) for each in operations]
            assigned = _assign_threadblocks(problem, operations, turns, key.packed, chunks)
            if assigned is not None:
                gpus = tuple(map(draft_gpu, assigned.programs, assigned.waits))
                draft = Draft(turns, gpus, width, parallel, key.packed)
                if assigned.whole:
                    problem.drafts.add([Made(key, draft, chunks, calm and assigned.calm)])
                return draft
            calm = False
    raise CheckError("lowering", "threadblocks wait for each other in every order")


def _cooling(messages: list[Message], options: LoweringOptions) -> int:
    """For how many pushes and pops at a rank a slot of its scratch is left alone once nobody needs it any more: two of each of the
    most connections that a rank has. Its threadblocks are further on then, so that nobody has to wait for the last who read it.
    """
    ends: dict[int, set[tuple[int, int, int]]] = defaultdict(set)
    for message in messages:
        for rank in (message.sent.rank, message.received.rank):
            ends[rank].add(message.connection)
    return max(options.capacity, _EVENTS_OF_A_CONNECTION * max(map(len, ends.values()), default=0))


def _orders(messages: list[Message], turns: Turns, capacity: int) -> Iterator[Order]:
    """The orders to try: of several boxes the timed one alone, since all ranks' messages come after them."""
    timed = global_order(messages, capacity)
    yield timed
    if turns.boxes == 1:
        yield order_as_sent(timed)


def may_part(collective: Collective, schedule: Schedule, options: LoweringOptions) -> bool:
    """Whether some message is sure to leave room in its connection only in buffers that are smaller than the largest that the file
    is for: around a ring everybody waits for room to pass on what fills it, so that threadblocks may have to part.
    """
    coll = coll_spelling(collective.name.value, options.runtime)
    held = (options.capacity - 1) * max(1, _fewest_of_a_transfer(collective, coll, options))
    return any(len(send.chunks) > held for send in schedule.sends)


def _fewest_of_a_transfer(collective: Collective, coll: str, options: LoweringOptions) -> int:
    """Chunks that a transfer holds at least: of the largest buffer that the file is for, however small the runtime's own are.
    Sizes of custom collectives are not compared: they come in any.
    """
    if coll == "custom":
        return 1
    chunk_bytes = -(-options.max_bytes // lowered_collective(collective, options).chunks)
    return chunks_per_transfer(coll, options.protocol, chunk_bytes, options.runtime) // _SMALLER_BUFFERS


class _Assigned(NamedTuple):
    """Programs and waits by rank; `whole`: it has all its waits; `calm`: no threadblock had to part."""

    programs: list[Program]
    waits: list[Waits]
    whole: bool
    calm: bool


def _assign_threadblocks(
    problem: _Problem, operations: list[list[Operation]], turns: Turns, pack: bool, chunks: int
) -> _Assigned | None:
    """Receives and sends joined as far as that keeps threadblocks from waiting in a circle, with so many `chunks` of a transfer.

    None where they do so even apart, and where several boxes would all have to part some: of all together, one may be enough. Once
    there are too many threadblocks, or steps for the runtime to read, nothing more is looked at.
    """
    options = problem.options
    most = options.threadblocks // options.instances
    capacity, fuses = options.capacity, options.fuses
    forwards = [find_forwards(problem.layout, own) if fuses else Forwards({}, frozenset()) for own in operations]
    apart: frozenset[Owner] = frozenset()
    stale = set(range(len(operations)))
    programs: list[Program] = [{} for _ in operations]
    waits: list[Waits] = [{} for _ in operations]
    while stale:
        for rank in sorted(stale):
            pairing = Pairing(forwards[rank], capacity, turns.ranks, pack, apart)
            programs[rank] = build_programs(operations[rank], pairing)
        if max(map(len, programs)) > most or _is_unreadable(options, turns, programs):
            return _Assigned(programs, [{} for _ in operations], whole=False, calm=False)
        for rank in stale:
            waits[rank] = find_waits(programs[rank], problem.layouts)
        splits = find_splits(programs, waits, capacity, chunks, turns)
        if splits is None or (splits and turns.boxes > 1):
            return None
        apart |= splits
        stale = {owner.rank for owner in splits}
    return _Assigned(programs, waits, whole=True, calm=not apart)


def _is_unreadable(options: LoweringOptions, turns: Turns, programs: list[Program]) -> bool:
    """Whether some rank reads more elements of the file than the runtime does, even without steps that only wait."""
    for rank, program in enumerate(programs):
        elements = options.instances * (len(program) + sum(map(len, program.values())))
        if too_many_elements(options.limits, rank, turns.ranks, elements) is not None:
            return True
    return False
