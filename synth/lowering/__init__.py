"""Lowering: who sends what when becomes what each threadblock of each gpu does. Read lower.py first."""

from synth.lowering.draft import Drafts, Made
from synth.lowering.exchange import adding_threadblocks, write_exchange
from synth.lowering.lower import channels_foreseen, lower, lowered_collective, may_part, threadblocks_needed
from synth.lowering.options import MAX_CHANNELS, LoweringOptions, Protocol, Runtime
from synth.lowering.streams import stream_width

__all__ = [
    "MAX_CHANNELS",
    "Drafts",
    "LoweringOptions",
    "Made",
    "Protocol",
    "Runtime",
    "adding_threadblocks",
    "channels_foreseen",
    "lower",
    "lowered_collective",
    "may_part",
    "stream_width",
    "threadblocks_needed",
    "write_exchange",
]
