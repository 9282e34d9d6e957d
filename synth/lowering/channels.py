"""How many channels each path has, and which of them every message takes.

A channel costs a threadblock at both ends and brings what one threadblock drives. So a path gets as many as its share
of its narrowest link needs: a link that fifteen used paths share gives each a fifteenth.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from synth.errors import NoAnswerError
from synth.instance import Instance
from synth.interpreted import channels_needed
from synth.ir import Schedule, Send
from synth.lowering.messages import End, Message
from synth.lowering.options import MAX_CHANNELS, LoweringOptions
from synth.lowering.streams import Streams, find_streams, stream_channels


def channels_per_path(instance: Instance, schedule: Schedule, options: LoweringOptions) -> dict[int, int]:
    """Parallel channels of every path that the schedule uses: what was asked for, or what its bandwidth needs."""
    chunks: Counter[int] = Counter()
    for send in schedule.sends:
        chunks[send.path] += len(send.chunks)
    needed = channels_needed(instance, chunks, options.protocol)
    result = {}
    for path, count in sorted(chunks.items()):
        wanted = options.channels or math.ceil(needed[path] / options.instances)
        result[path] = max(1, min(count, wanted))
    return result


@dataclass(frozen=True, slots=True)
class ChannelMap:
    """The channels of every path, or of every stream where these have their own; instance j uses them shifted by j times `width`
    (emit.py).
    """

    channels: dict[int, tuple[int, ...]]
    width: int
    streams: Streams | None = None

    def of(self, send: Send) -> tuple[int, ...]:
        """The channels that a message may take."""
        return self.channels[send.path if self.streams is None else self.streams.of[send.chunks[0]]]


class Dealt(NamedTuple):
    """One instance's messages in order of start, the channels that it uses, and those over which a rank's own copies are spread."""

    messages: list[Message]
    width: int
    copying: int


def map_channels(instance: Instance, parallel: dict[int, int], peers_per_channel: int) -> ChannelMap:
    """Number the channels: a path gets those on which a runtime takes it (`Path.variants`), and no channel has too many
    peers at a rank.
    """
    pairs = {(instance.paths[path].src, instance.paths[path].dst) for path in parallel}
    turn = math.lcm(*(instance.paths[path].variants for path in parallel), 1)
    rows = {
        path: range(instance.paths[path].variant, instance.paths[path].variants * count, instance.paths[path].variants)
        for path, count in parallel.items()
    }
    span = _round_up(max((row[-1] for row in rows.values()), default=0) + 1, turn)
    degree = Counter(src for src, _ in pairs) | Counter(dst for _, dst in pairs)
    crowded = max(degree.values(), default=0) > peers_per_channel
    rotations = sorted({(dst - src) % instance.num_ranks for src, dst in pairs})
    place = {rotation: number for number, rotation in enumerate(rotations)}
    channels: dict[int, tuple[int, ...]] = {}
    for path, row in sorted(rows.items()):
        rotation = (instance.paths[path].dst - instance.paths[path].src) % instance.num_ranks
        group = place[rotation] // peers_per_channel if crowded else 0
        channels[path] = tuple(group * span + channel for channel in row)
    used = max((channel for some in channels.values() for channel in some), default=0) + 1
    return ChannelMap(channels, _round_up(used, turn))


def _round_up(number: int, step: int) -> int:
    return -(-number // step) * step


def number_channels(
    instance: Instance, schedule: Schedule, options: LoweringOptions, parallel: dict[int, int], *, pack: bool = False
) -> ChannelMap:
    """The numbers of every path's `parallel` channels, or, unless receives and sends are packed, of every stream's. Raises
    NoAnswerError where there are not enough channels.
    """
    numbering = None if pack else _map_streams(instance, schedule, options, parallel)
    if numbering is None:
        numbering = map_channels(instance, parallel, options.limits.peers_per_channel)
    if numbering.width * options.instances > MAX_CHANNELS:
        used = f"{options.instances} with {numbering.width} channels each"
        raise NoAnswerError(f"--instances: {used}, expected at most {MAX_CHANNELS} channels in all")
    return numbering


def deal_messages(instance: Instance, schedule: Schedule, parallel: dict[int, int], numbering: ChannelMap) -> Dealt:
    """One instance's messages dealt to channels.

    A path's channels get equal shares of the bytes; among those, a message stays on the channel that brought it, so
    that a relay can receive and send in one threadblock.
    """
    sends = _cut(schedule, parallel, numbering)
    chosen = _choose_channels(instance, sends, numbering)
    messages: list[Message] = []
    for send, channel in zip(sends, chosen, strict=True):
        path, chunks = instance.paths[send.path], tuple(sorted(send.chunks))
        ends = End(path.src, path.dst, chunks), End(path.dst, path.src, chunks)
        messages.append(Message(len(messages), *ends, channel, send.reduce, send.start_us, send.arrive_us))
    # What a rank copies is a small part of what a ring brings it, and threadblocks for that are better spent on more rings.
    return Dealt(messages, numbering.width, 1 if numbering.streams else numbering.width)


def _map_streams(
    instance: Instance, schedule: Schedule, options: LoweringOptions, parallel: dict[int, int]
) -> ChannelMap | None:
    """Channels for the schedule's streams; None where it has none, or more than fit so many times, or channels were asked for."""
    if options.channels is not None:
        return None
    streams = find_streams(instance.paths, schedule.sends)
    if streams is None:
        return None
    found = stream_channels(instance.paths, streams, parallel, options.limits.peers_per_channel)
    if found is None:
        return None
    turn = math.lcm(*(instance.paths[path].variants for path in parallel))
    width = _round_up(max(map(max, found)) + 1, turn)
    return ChannelMap(dict(enumerate(found)), width, streams) if width * options.instances <= MAX_CHANNELS else None


def _cut(schedule: Schedule, parallel: dict[int, int], numbering: ChannelMap) -> list[Send]:
    """The sends in order of start, those of one moment as the schedule has them, cut into parts where a path has more channels than
    messages; and every message of a stream for all its channels, which carry the same then, each a part of it.
    """
    messages = Counter(send.path for send in schedule.sends)
    parts = []
    for send in schedule.sends:
        chunks = sorted(send.chunks)
        wanted = len(numbering.of(send)) if numbering.streams else math.ceil(parallel[send.path] / messages[send.path])
        count = min(len(chunks), wanted)
        ends = [len(chunks) * part // count for part in range(count + 1)]
        parts += [send._replace(chunks=tuple(chunks[first:end])) for first, end in pairwise(ends)]
    return sorted(parts, key=lambda send: send.start_us)


def _choose_channels(instance: Instance, sends: list[Send], numbering: ChannelMap) -> list[int]:
    loads: Counter[tuple[int, int]] = Counter()
    came_on: dict[tuple[int, int], int] = {}
    chosen = []
    for send in sends:
        path = instance.paths[send.path]
        channels = numbering.of(send)
        lightest = min(channels, key=lambda channel: (loads[send.path, channel], channel))
        before = came_on.get((path.src, send.chunks[0]), -1)
        stay = before in channels and loads[send.path, before] < loads[send.path, lightest] + len(send.chunks)
        channel = before if stay else lightest
        loads[send.path, channel] += len(send.chunks)
        came_on.update({(path.dst, chunk): channel for chunk in send.chunks})
        chosen.append(channel)
    return chosen
